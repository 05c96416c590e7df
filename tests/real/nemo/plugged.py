"""NeMo-RL's own trainer with a method plugged in, and what our engine makes of its batches."""

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from asked_conflicts import conflicts
from cpu_run import Run
from nemo_rl.algorithms import grpo
from rounding import rounding
from torch import Tensor

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.metrics import Stats
from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.extensions.loss_config import LossConfig
from nemo_algos.algorithms.loss import policy_loss
from nemo_algos.algorithms.rollouts import Rollouts
from nemo_algos.engines.nemo import derived_config
from nemo_algos.engines.nemo.entropy_worker import for_the_loss
from nemo_algos.engines.nemo.estimator import Estimator, tensor_of
from nemo_algos.engines.nemo.loss import AlgorithmLoss
from nemo_algos.engines.nemo.megatron_worker import EntropyPostProcessor, GradientWorkerImpl
from nemo_algos.engines.nemo.patches import in_place
from nemo_algos.engines.nemo.policy import PolicyProxy
from nemo_algos.engines.nemo.trace import Traced

STEPS, UPDATES = 3, 4  # of the optimizer in a step
LR = {"quatro": 0.01}  # its gradient is of whole sequences
OTHERS = 0.1
METHODS: dict[str, dict[str, Any]] = {
    "etr": {"name": "etr"},
    "quatro": {"name": "quatro"},
    "erpo": {"name": "erpo"},
    "apmpo": {"name": "apmpo"},
    "grpo": {"name": "grpo"},
}
COMMON = ["loss_fn.reference_policy_kl_penalty=0", "policy.train_global_batch_size=4"]


# 0 and 1 become -1 and 3, less what a response is too long by
SHAPED = [
    *("grpo.reward_scaling.enabled=true", "grpo.reward_scaling.target_min=-1"),
    *("grpo.reward_scaling.target_max=3", "grpo.reward_shaping.enabled=true"),
    *("grpo.reward_shaping.overlong_buffer_length=8", "grpo.reward_shaping.max_response_length=12"),
    "grpo.reward_shaping.overlong_buffer_penalty=1",
]
# of the worker extension, whose loop of training is cpu_policy's here
PREPARED = GradientWorkerImpl.prepared(
    SimpleNamespace(megatron_cfg=SimpleNamespace(model=SimpleNamespace(vocab_size=64)))  # pyright: ignore
)


class ReturnedEntropy(EntropyPostProcessor):
    """Ours; what the worker extension gathers from its sink goes with the log-probs here."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, sink=[], vocabulary=64, fused=[], **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Callable[[Tensor], Any]:
        process = super().__call__(*args, **kwargs)

        def with_entropies(logits: Tensor) -> Any:
            loss, values = process(logits)
            return loss, values | {"entropies": self.sink.pop()}

        return with_entropies


class RecordingEstimator(Estimator):
    """Ours; keeps each call's inputs, advantages and metrics."""

    def __init__(self, algorithm: Any) -> None:
        super().__init__(algorithm)
        self.calls: list[dict[str, Any]] = []

    def compute_advantage(self, **inputs: Any) -> Any:  # pyright: ignore
        entropy = self.forward.entropy
        result = super().compute_advantage(**inputs)
        advantages = tensor_of(result)
        assert self.step is not None
        results = {"advantages": advantages.clone(), "metrics": self.step.metrics}
        results["signals"] = self.step.signals
        self.calls.append({**inputs, "entropy": entropy, **results})
        return result


class RecordingProxy(PolicyProxy):
    """Ours; keeps what training is given, and the model before it."""

    def __init__(
        self, policy: Any, estimator: Estimator, epochs: int, folder: Path, traced: Traced
    ) -> None:
        super().__init__(policy, estimator, folder=folder, epochs=epochs, traced=traced)
        self.batches = []
        self.models = []

    def train(self, data: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        self.batches.append(dict(data))
        self.models.append(copy.deepcopy(self._policy.workers.model.model))
        return super().train(data, *args, **kwargs)


class Plugged:
    """A run with a method plugged in as launch.py does it."""

    def __init__(
        self,
        path: Path,
        method: dict[str, Any],
        overrides: list[str],
        correction: dict[str, Any] | None = None,
        epochs: int = 1,
        traced: Traced = Traced(),
        **kwargs: Any,
    ):
        self.lr = LR.get(method["name"], OTHERS)
        self.run = Run(path, [*COMMON, *overrides], lr=self.lr, **kwargs)
        self.algorithm = build(method, correction)
        derived(self.run, self.algorithm)
        self.loss = AlgorithmLoss(self.run.config.loss_fn, self.algorithm)
        self.estimator = RecordingEstimator(self.algorithm)
        if "entropy" in self.algorithm.needs:
            self.run.policy.workers.logprobs_post_processor = ReturnedEntropy
        self.proxy: Any = RecordingProxy(
            self.run.policy, self.estimator, epochs, path / "traces", traced
        )
        self.series = self.run.logger.series
        self.weights = self.run.weights

    def train(self, **kwargs: Any) -> "Plugged":
        with in_place(self.estimator), for_the_loss(*PREPARED):
            self.run.train(loss_fn=self.loss, policy=self.proxy, **kwargs)
        return self


def derived(run: Run, algorithm: Any) -> None:
    """The run's config with what the method decides."""
    plain = run.config.model_dump()
    assert conflicts(plain, {}, algorithm) == []
    derived_config.derive(plain, algorithm)
    made = grpo.MasterConfig(**plain)
    run.config.loss_fn, run.config.grpo = made.loss_fn, made.grpo


def scored(model: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probs, and entropies of what the tokens were drawn from; [B,S] each, 0 at the first."""
    scores = model(ids).logits[:, :-1].float().log_softmax(-1)
    chosen = scores.gather(-1, ids[:, 1:, None])[..., 0]
    entropy = -(scores.exp() * scores).sum(-1)
    return torch.nn.functional.pad(chosen, (1, 0)), torch.nn.functional.pad(entropy, (1, 0))


def rollouts_of(batch: Any, call: dict[str, Any], **extra: Tensor) -> Rollouts:
    """Of NeMo-RL's training batch, and of the rewards and prompts that the estimator was given."""
    mask = (batch["token_mask"] * batch["sample_mask"][:, None]).bool()
    mask[:, 0] = False
    prompts = [tuple(row) for row in call["prompt_ids"].tolist()]
    return Rollouts(
        group=torch.tensor([prompts.index(p) for p in prompts]),
        rewards=call["rewards"],
        mask=mask,
        old_logprobs=batch["prev_logprobs"],
        ref_logprobs=batch.get("reference_policy_logprobs"),
        entropy=call["entropy"],
        **extra,
    )


def embedded(
    plugged: Plugged, step: int, epochs: int = 1
) -> tuple[list[Stats], list[float], Tensor]:
    """The step again with our own engine's loss: each update's statistics and norm, the weights.

    epochs: passes over the batch. Of NeMo-RL's batch it takes tokens, masks, log-probs and rewards;
    signals are computed anew.
    """
    batch, call = plugged.proxy.batches[step], plugged.estimator.calls[step]
    model = copy.deepcopy(plugged.proxy.models[step])
    rollouts = rollouts_of(batch, call, gen_logprobs=batch["generation_logprobs"])
    rollouts, _ = plugged.algorithm.correct(rollouts)
    signals = plugged.algorithm.signals(rollouts, {})
    optimizer = torch.optim.SGD(model.parameters(), lr=plugged.lr, momentum=0.9)
    stats, norms = [], []
    for start in [*range(0, 16, 4)] * epochs:
        rows = slice(start, start + 4)
        optimizer.zero_grad()
        part = rollouts[rows]
        logprobs, entropy = scored(model, batch["input_ids"][rows])
        given = part, signals[rows], Counts.of(part.mask), LossConfig(), entropy
        loss = policy_loss(plugged.algorithm, logprobs, *given)
        loss.value.backward()
        limit = plugged.run.config.policy["max_grad_norm"]
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), limit)))
        optimizer.step()
        stats.append(loss.stats)
    weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    return stats, norms, weights


def assert_embedded(plugged: Plugged, *metrics: str) -> list[dict[str, float]]:
    """The first step's weights, gradient norm and these metrics are `embedded`'s, and returned."""
    stats, norms, weights = embedded(plugged, 0)
    summaries = [each.summary() for each in stats]
    near = rounding(UPDATES)
    after = torch.nn.utils.parameters_to_vector(plugged.proxy.models[1].parameters()).detach()
    torch.testing.assert_close(after, weights, rtol=0, atol=near)
    assert plugged.series("train", "grad_norm")[0] == pytest.approx(norms[-1], rel=10 * near)
    for metric in metrics:
        want = sum(summary[metric] for summary in summaries) / len(summaries)
        assert plugged.series("train", metric)[0] == pytest.approx(want, rel=near, abs=near), metric
    return summaries


# ---- a sampler that is off

OFFSETS = (0.0, 0.25, 0.75, 1.0)
# the ratios are 1, 1.28, 2.1 and 2.7 by the row: of four the last is rejected, the third cut
CORRECTIONS = {
    "decoupled": {"rollout_is": "token", "rollout_is_threshold": 1.5}
    | {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.4_2.5"},
    "two policies": {"bypass_mode": True, "rollout_rs": "seq_mean_k3"}
    | {"rollout_rs_threshold": 0.55},
}


def off(generate: Callable[..., Any]) -> Callable[..., Any]:
    """Row i of a generation is OFFSETS[i % 4] nats away at each of its tokens."""

    def generated(*args: Any, **kwargs: Any) -> Any:
        out = generate(*args, **kwargs)
        rows = len(out["logprobs"])
        offsets = torch.tensor(OFFSETS).repeat(rows)[:rows, None]
        drawn = out["logprobs"] != 0
        out["logprobs"] = (out["logprobs"] - offsets).where(drawn, out["logprobs"])
        return out

    return generated
