"""NeMo-RL's real Policy beside one plain process: the same rows, the same method, the same updates.

`Driver` lives in a forked child (or in a process with a real Ray); what it returns is numbers.
"""

from pathlib import Path
from typing import Any

import configs
import models
import ray
import torch
from torch import Tensor

from nemo_algos import Counts, Rollouts, build, policy_loss

ROWS, GROUP = 16, 4
TERMS = ROWS * configs.WIDTH  # of the sum that a gradient is


def batch(vocabulary: int, seed: int = 1) -> Any:
    """16 rows of 6 to 30 tokens in 4 groups, prompts of 4; one row is masked out."""
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict

    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(6, configs.WIDTH - 1, (ROWS,), generator=random)
    ids = torch.randint(8, vocabulary, (ROWS, configs.WIDTH), generator=random)
    columns = torch.arange(configs.WIDTH)
    within = columns < lengths[:, None]
    sample_mask = torch.ones(ROWS)
    sample_mask[3] = 0.0
    return BatchedDataDict(
        {
            "input_ids": ids.where(within, 0),
            "input_lengths": lengths,
            "token_mask": ((columns >= 4) & within).float(),
            "sample_mask": sample_mask,
        }
    )


def plain(model: Any, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies [B,S] of the tokens, 0 at the first."""
    scores = (model(ids).logits.float() / temperature).log_softmax(-1)
    entropy = -(scores.exp() * scores).sum(-1)
    chosen = scores[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    pad = torch.nn.functional.pad
    return pad(chosen, (1, 0)), pad(entropy[:, :-1], (1, 0))


def restore(worker: Any) -> None:
    """In a worker: the weights that it began with."""
    from torch.distributed.tensor import DTensor

    start = getattr(worker, "reference_model_state_dict", None) or worker.reference_state_dict
    with torch.no_grad():
        for name, value in worker.model.state_dict().items():
            if isinstance(value, Tensor):
                own = value.to_local() if isinstance(value, DTensor) else value
                own.copy_(start[name])


def weights(worker: Any) -> dict[str, Tensor]:
    """In a worker, all of which take part: what a refit sends, whole, by Hugging Face's names."""
    if hasattr(worker, "megatron_bridge"):
        worker.prepare_refit_info()
        named = worker._iter_params_with_optional_kv_scales()
    else:
        from nemo_rl.models.policy.workers import dtensor_policy_worker_v2 as v2

        named = v2.dtensor_params_generator(worker.model, torch.float32)
    return {name: value.detach().clone() for name, value in named}


class Driver:
    def __init__(
        self, backend: str, model: Path, cluster: Any, extension: str, overrides: tuple[str, ...]
    ) -> None:
        from nemo_rl.algorithms.utils import get_tokenizer
        from nemo_rl.models.generation import configure_generation_config
        from nemo_rl.models.policy.lm_policy import Policy

        self.master = configs.composed(backend, model, overrides)
        config = self.config = self.master.policy
        tokenizer = get_tokenizer(config["tokenizer"])
        config["generation"] = configure_generation_config(config["generation"], tokenizer)
        self.policy = Policy(cluster, config, tokenizer, worker_extension_cls_fqn=extension)
        self.backend, self.start = backend, model
        self.model = models.loaded(model)
        self.data = batch(self.model.config.vocab_size)
        self.temperature = config["generation"]["temperature"]
        columns = torch.arange(configs.WIDTH)
        self.valid = (columns < self.data["input_lengths"][:, None]) & (columns > 0)

    def forward(self) -> dict[str, float]:
        """How far log-probs and entropies are apart; the largest entropy beyond a row's end."""
        self.policy.prepare_for_lp_inference()
        got = self.policy.get_logprobs(self.data)
        with torch.no_grad():
            logprobs, entropies = plain(self.model, self.data["input_ids"], self.temperature)
        beyond = got["entropies"][~self.valid].abs().max()
        return {
            "logprobs": self.apart(got["logprobs"], logprobs),
            "entropies": self.apart(got["entropies"], entropies),
            "beyond": float(beyond),
        }

    def apart(self, got: Tensor, wanted: Tensor) -> float:
        return float((got - wanted)[self.valid].abs().max())

    def reset(self) -> None:
        """Both start again from the saved weights."""
        self._in_workers(restore)
        self.model = models.loaded(self.start)

    def updates(self, method: str) -> dict[str, Any]:
        """Two updates by NeMo-RL's Policy and by the plain process, and the forward after them.

        losses of both updates and norms, the last one's gradient: a pair, NeMo-RL's and the plain;
        moved: how far the plain log-probs went; reference: how far the reference's did; weights:
        the largest error of a weight, in units of what float32 allows.
        """
        before = plain_logprobs(self.model, self.data["input_ids"], self.temperature)
        algorithm = build(method)
        results, rollouts = self._steps(algorithm)
        losses, norms = self._train(algorithm, rollouts)
        if self.backend == "megatron":  # its workers report the mean over the global batches
            losses = [loss / len(losses) for loss in losses]
        now = plain_logprobs(self.model, self.data["input_ids"], self.temperature)
        again = self.policy.get_reference_policy_logprobs(self.data)["reference_logprobs"]
        return self.forward() | {
            "losses": (results["loss"].tolist(), losses),
            "norms": (results["grad_norm"].flatten().tolist(), norms[-1:]),
            "moved": self.apart(now, before),
            "reference": self.apart(again, rollouts.ref_logprobs),
            "weights": max(self._weights_apart().values()),
        }

    def _weights_apart(self) -> dict[str, float]:
        """By name; 1 is an ulp of the weight, and of each term of the sum that moved it."""
        got, *_ = self._in_workers(weights)
        wanted, start = self.model.state_dict(), models.loaded(self.start).state_dict()
        assert {name for name, _ in self.model.named_parameters()} <= set(got) <= set(wanted)
        eps = torch.finfo(torch.float32).eps
        found = {}
        for name, value in got.items():
            moved = (wanted[name] - start[name]).abs().max()
            allowed = eps * (wanted[name].abs().max() + TERMS * moved)
            found[name] = float((value - wanted[name]).abs().max() / allowed)
        return found

    def _in_workers(self, function: Any) -> list[Any]:
        workers = self.policy.worker_group.workers
        return ray.get([worker.__ray_call__.remote(function) for worker in workers])

    def _steps(self, algorithm: Any) -> tuple[dict[str, Any], Rollouts]:
        """What NeMo-RL's trainers do between rollouts and weights, by its Policy and our half."""
        from nemo_algos.nemo.estimator import Estimator
        from nemo_algos.nemo.loss import AlgorithmLoss
        from nemo_algos.nemo.policy import PolicyProxy

        estimator = Estimator(algorithm, GROUP)
        proxy = PolicyProxy(self.policy, estimator)
        random = torch.Generator().manual_seed(5)
        rewards = torch.randint(0, 2, (ROWS,), generator=random).float()
        noise = 0.1 * torch.randn(self.valid.shape, generator=random) * self.valid
        self.policy.prepare_for_lp_inference()
        prev = proxy.get_logprobs(self.data)["logprobs"] + noise  # ratios leave 1: bounds clip
        reference = self.policy.get_reference_policy_logprobs(self.data)["reference_logprobs"]
        mask = self.data["token_mask"] * self.data["sample_mask"][:, None]
        rollouts = Rollouts(
            group=torch.arange(ROWS) // GROUP,
            rewards=rewards,
            mask=mask.bool(),
            old_logprobs=prev,
            ref_logprobs=reference,
            entropy=estimator.entropy,
            sample_mask=self.data["sample_mask"].bool(),
        )
        advantages = estimator.compute_advantage(
            prompt_ids=rollouts.group[:, None],
            rewards=rewards,
            mask=mask,
            logprobs_policy=prev,
            logprobs_reference=reference,
        )
        columns = {
            "advantages": advantages,
            "prev_logprobs": prev,
            "generation_logprobs": prev,
            "reference_policy_logprobs": reference,
        }
        section = self.master.loss_fn.model_copy(update={"reference_policy_kl_penalty": 0.0})
        fused = (self.config.get("megatron_cfg") or {}).get("use_fused_linear_logprobs", False)
        extra = {"use_fused_linear_logprobs": True} if fused else {}
        loss = AlgorithmLoss(section, algorithm, **extra)
        self.policy.prepare_for_training()
        return proxy.train(type(self.data)({**self.data, **columns}), loss), rollouts

    def _train(self, algorithm: Any, rollouts: Rollouts) -> tuple[list[float], list[float]]:
        """The embedded loss on the plain model, in NeMo-RL's global batches."""
        signals = algorithm.signals(rollouts)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=configs.RATE)
        losses, norms = [], []
        for rows in self._batches():
            part = rollouts[rows]
            logprobs, _ = plain(self.model, self.data["input_ids"][rows], self.temperature)
            value = policy_loss(
                algorithm, logprobs, part, signals[rows], Counts.of(part.mask)
            ).value
            optimizer.zero_grad()
            value.backward()
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1000.0)
            losses.append(float(value))
            norms.append(float(norm))
            optimizer.step()
        return losses, norms

    def _batches(self) -> list[Tensor]:
        """The rows of each global batch: the batch in order, cut; each rank has a part of each."""
        size = self.config["train_global_batch_size"]
        return list(torch.arange(ROWS).split(size))


def plain_logprobs(model: Any, ids: Tensor, temperature: float) -> Tensor:
    with torch.no_grad():
        return plain(model, ids, temperature)[0]
