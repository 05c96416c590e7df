"""NeMo-RL's real Policy with our half around it, over rows of random tokens.

In a forked child, or in a process with a real Ray.
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
from torch import Tensor


class Workers:
    def __init__(
        self,
        backend: str,
        model: Path,
        cluster: Any,
        extension: str,
        overrides: tuple[str, ...],
        **paths: Path,
    ) -> None:
        """paths: Policy's of a checkpoint to go on from."""
        from nemo_rl.algorithms.utils import get_tokenizer
        from nemo_rl.models.generation import configure_generation_config

        self.master = self.composed(backend, model, overrides)
        config = self.config = self.master.policy
        tokenizer = get_tokenizer(config["tokenizer"])
        config["generation"] = configure_generation_config(config["generation"], tokenizer)
        self.policy = self.made(
            cluster, config, tokenizer, worker_extension_cls_fqn=extension, **paths
        )
        self.backend = backend
        width = config["max_total_sequence_length"]
        self.data = self.batch_of(model, width)
        self.ids = self.data["input_ids"]
        columns = torch.arange(width)
        self.valid = (columns < self.data["input_lengths"][:, None]) & (columns > 0)

    def composed(self, backend: str, model: Path, overrides: tuple[str, ...]) -> Any:
        """The run's config."""
        return configs.composed(backend, model, overrides)

    def batch_of(self, model: Path, width: int) -> Any:
        """The rows of a step."""
        shape = models.loaded(model).config
        data = drawn.batch(shape.vocab_size, width)
        if configs.replayed(self.config):
            data["routed_experts"] = models.routes(shape, data["input_ids"])
        return data

    def made(self, *args: Any, **kwargs: Any) -> Any:
        """NeMo-RL's policy."""
        from nemo_rl.models.policy.lm_policy import Policy

        return Policy(*args, **kwargs)

    def in_workers(self, function: Any) -> Any:
        """What the first worker answers; all of them run it."""
        workers = self.policy.worker_group.workers
        return ray.get([worker.__ray_call__.remote(function) for worker in workers])[0]

    def forward(self) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies [B,S]."""
        self.policy.prepare_for_lp_inference()
        got = self.policy.get_logprobs(self.data)
        return got["logprobs"], got["entropies"]

    def reference(self) -> Tensor:
        return self.policy.get_reference_policy_logprobs(self.data)["reference_logprobs"]

    def sent(self) -> dict[str, Tensor]:
        """What a refit sends."""
        return self.in_workers(in_workers.weights)

    def proxied(self, algorithm: Any) -> Any:
        """The policy that NeMo-RL's trainers are given."""
        from nemo_algos.engines.nemo.estimator import Estimator
        from nemo_algos.engines.nemo.policy import PolicyProxy

        size = self.config["train_global_batch_size"]
        return PolicyProxy(self.policy, Estimator(algorithm, GROUP, size))

    def batch(
        self, logprobs: Tensor, entropies: Tensor, reference: Tensor, given: Drawn
    ) -> oracle.Batch:
        """Of a policy's numbers [B,S], its own or others."""
        numbers = (logprobs + given.old, reference + given.reference, logprobs + given.sampler)
        taking_part = self.data["sample_mask"].bool()
        return oracle.Batch(
            torch.arange(configs.ROWS) // GROUP,
            given.rewards.double(),
            self.data["token_mask"].bool() & taking_part[:, None],
            *(x.double() for x in (*numbers, entropies)),
            taking_part,
        )

    def step(self, proxy: Any, asked: settings.Asked, given: Drawn) -> dict[str, list[float]]:
        """What NeMo-RL's trainers do between rollouts and weights: losses, norms, mismatch."""
        from nemo_algos.engines.nemo.estimator import tensor_of

        logprobs, _ = self.forward()
        columns = {
            "prev_logprobs": torch.zeros_like(logprobs),  # NeMo-RL's, where it computes none
            "generation_logprobs": logprobs + given.sampler,
            "reference_policy_logprobs": self.reference() + given.reference,
        }
        if not asked.wanted.bypass:
            columns["prev_logprobs"] = proxy.get_logprobs(self.data)["logprobs"] + given.old
        columns["advantages"] = tensor_of(
            proxy._estimator.compute_advantage(
                prompt_ids=torch.arange(configs.ROWS)[:, None] // GROUP,
                rewards=given.rewards,
                mask=self.data["token_mask"] * self.data["sample_mask"][:, None],
                repeated_batch={"loss_multiplier": self.data["sample_mask"]},
                logprobs_policy=columns["prev_logprobs"],
                logprobs_reference=columns["reference_policy_logprobs"],
                generation_logprobs=columns["generation_logprobs"],
            )
        )
        self.policy.prepare_for_training()
        batch = type(self.data)({**self.data, **columns})
        results = proxy.train(batch, self._loss(proxy._estimator.algorithm, asked))
        # Megatron's workers report the mean over the updates
        updates = configs.ROWS // self.config["train_global_batch_size"]
        parts = updates if self.backend == "megatron" else 1
        return {
            "losses": [parts * loss for loss in results["loss"].tolist()],
            "norms": results["grad_norm"].flatten().tolist(),
            "mismatch": results["all_mb_metrics"].get("mismatch/max", []),
        }

    def _loss(self, algorithm: Any, asked: settings.Asked) -> Any:
        from nemo_algos.engines.nemo.loss import AlgorithmLoss

        keys = {"reference_policy_kl_penalty": settings.KL, **asked.loss}
        fused = (self.config.get("megatron_cfg") or {}).get("use_fused_linear_logprobs", False)
        extra = {"use_fused_linear_logprobs": True} if fused else {}
        return AlgorithmLoss(self.master.loss_fn.model_copy(update=keys), algorithm, **extra)
