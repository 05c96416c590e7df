"""NeMo-RL's real Policy beside one plain process: the same rows, the same method, the same updates.

`Driver` lives in a forked child (or in a process with a real Ray); what it returns is numbers.
"""

from pathlib import Path
from typing import Any

import configs
import drawn
import in_workers
import models
import oracle
import ray
import settings
import torch
from drawn import GROUP, Drawn
from plain import Plain
from torch import Tensor

from nemo_algos import build

STEPS = 2  # each of two updates: what is kept of one must not reach the next


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
        self.reset()
        width = config["max_total_sequence_length"]
        self.data = drawn.batch(self.plain.model.config.vocab_size, width)
        self.ids = self.data["input_ids"]
        if configs.replayed(config):
            self.data["routed_experts"] = models.routes(self.plain.model.config, self.ids)
        columns = torch.arange(width)
        self.valid = (columns < self.data["input_lengths"][:, None]) & (columns > 0)

    def forward(self) -> dict[str, float]:
        """How far log-probs and entropies are apart; the largest entropy beyond a row's end."""
        self.policy.prepare_for_lp_inference()
        got = self.policy.get_logprobs(self.data)
        logprobs, entropies = self.plain.detached(self.ids)
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
        self._in_workers(in_workers.restore)
        lora = configs.lora(self.config)["enabled"]
        adapters = self._in_workers(in_workers.adapters)[0] if lora else {}
        self.plain = Plain(self.start, self.config, adapters)

    def updates(self, case: str) -> dict[str, Any]:
        """Steps by NeMo-RL's Policy and by the plain process, and the forward after them.

        losses of all updates and norms, each step's last: a pair, NeMo-RL's and the plain; moved:
        how far the plain log-probs went; reference: how far the reference's did; weights: the
        largest error of a weight, in units of what float32 allows.
        """
        method, asked = settings.of(case)
        before, _ = self.plain.detached(self.ids)
        reference = self._reference()
        results, losses, norms = self._steps(method, asked, before)
        now, _ = self.plain.detached(self.ids)
        return self.forward() | {
            "losses": ([x for r in results for x in r["loss"].tolist()], losses),
            "norms": ([x for r in results for x in r["grad_norm"].flatten().tolist()], norms),
            "moved": self.apart(now, before),
            "reference": self.apart(self._reference(), reference),
            "weights": self.plain.apart(self._in_workers(in_workers.weights)[0], self.ids.numel()),
        }

    def _reference(self) -> Tensor:
        return self.policy.get_reference_policy_logprobs(self.data)["reference_logprobs"]

    def _in_workers(self, function: Any) -> list[Any]:
        workers = self.policy.worker_group.workers
        return ray.get([worker.__ray_call__.remote(function) for worker in workers])

    def _steps(
        self, method: str, asked: settings.Asked, start: Tensor
    ) -> tuple[list[dict[str, Any]], list[float], list[float]]:
        """Every step's results of NeMo-RL, losses of the plain updates, a norm of each step."""
        from nemo_algos.nemo.estimator import Estimator
        from nemo_algos.nemo.policy import PolicyProxy

        algorithm = build({"name": method, "terms": asked.terms}, asked.correction)
        size = self.config["train_global_batch_size"]
        proxy = PolicyProxy(self.policy, Estimator(algorithm, GROUP, size))
        results, losses, norms = [], [], []
        for step in range(1, STEPS + 1):
            given = Drawn.of(step, self.valid)
            batch = self._batch(given, start)
            results.append(self._step(proxy, algorithm, asked, given))
            step_losses, step_norms = self.plain.train(method, asked.wanted, batch, self.ids)
            # Megatron's workers report the mean over the global batches
            parts = len(step_losses) if self.backend == "megatron" else 1
            losses += [loss / parts for loss in step_losses]
            norms.append(step_norms[-1])
        return results, losses, norms

    def _batch(self, given: Drawn, start: Tensor) -> oracle.Batch:
        """Of the plain process's own forward; start: its log-probs before the first step."""
        logprobs, entropies = self.plain.detached(self.ids)
        numbers = (logprobs + given.old, start + given.reference, logprobs + given.sampler)
        taking_part = self.data["sample_mask"].bool()
        return oracle.Batch(
            torch.arange(configs.ROWS) // GROUP,
            given.rewards.double(),
            self.data["token_mask"].bool() & taking_part[:, None],
            *(x.double() for x in (*numbers, entropies)),
            taking_part,
        )

    def _step(
        self, proxy: Any, algorithm: Any, asked: settings.Asked, given: Drawn
    ) -> dict[str, Any]:
        """What NeMo-RL's trainers do between rollouts and weights, by its Policy and our half."""
        from nemo_algos.nemo.loss import AlgorithmLoss

        self.policy.prepare_for_lp_inference()
        logprobs = self.policy.get_logprobs(self.data)["logprobs"]
        columns = {
            "prev_logprobs": torch.zeros_like(logprobs),  # NeMo-RL's, where it computes none
            "generation_logprobs": logprobs + given.sampler,
            "reference_policy_logprobs": self._reference() + given.reference,
        }
        if not asked.wanted.bypass:
            columns["prev_logprobs"] = proxy.get_logprobs(self.data)["logprobs"] + given.old
        columns["advantages"] = proxy._estimator.compute_advantage(
            prompt_ids=torch.arange(configs.ROWS)[:, None] // GROUP,
            rewards=given.rewards,
            mask=self.data["token_mask"] * self.data["sample_mask"][:, None],
            repeated_batch={"loss_multiplier": self.data["sample_mask"]},
            logprobs_policy=columns["prev_logprobs"],
            logprobs_reference=columns["reference_policy_logprobs"],
            generation_logprobs=columns["generation_logprobs"],
        )
        keys = {"reference_policy_kl_penalty": settings.KL, **asked.loss}
        fused = (self.config.get("megatron_cfg") or {}).get("use_fused_linear_logprobs", False)
        extra = {"use_fused_linear_logprobs": True} if fused else {}
        loss = AlgorithmLoss(self.master.loss_fn.model_copy(update=keys), algorithm, **extra)
        self.policy.prepare_for_training()
        return proxy.train(type(self.data)({**self.data, **columns}), loss)
