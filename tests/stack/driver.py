"""NeMo-RL's real Policy beside one plain process: the same rows, the same method, the same updates.

`Driver` lives in a forked child (or in a process with a real Ray); what it returns is numbers.
"""

from pathlib import Path
from typing import Any

import configs
import in_workers
import models
import ray
import torch
from configs import ROWS
from plain import Plain
from torch import Tensor

from nemo_algos import Rollouts, build

GROUP = 4


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
        self.data = batch(self.plain.model.config.vocab_size)
        self.ids = self.data["input_ids"]
        if configs.replayed(config):
            self.data["routed_experts"] = models.routes(self.plain.model.config, self.ids)
        columns = torch.arange(configs.WIDTH)
        self.valid = (columns < self.data["input_lengths"][:, None]) & (columns > 0)

    def forward(self) -> dict[str, float]:
        """How far log-probs and entropies are apart; the largest entropy beyond a row's end."""
        self.policy.prepare_for_lp_inference()
        got = self.policy.get_logprobs(self.data)
        with torch.no_grad():
            logprobs, entropies = self.plain.forward(self.ids)
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

    def updates(self, method: str) -> dict[str, Any]:
        """Two updates by NeMo-RL's Policy and by the plain process, and the forward after them.

        losses of both updates and norms, the last one's gradient: a pair, NeMo-RL's and the plain;
        moved: how far the plain log-probs went; reference: how far the reference's did; weights:
        the largest error of a weight, in units of what float32 allows.
        """
        with torch.no_grad():
            before, _ = self.plain.forward(self.ids)
        algorithm = build(method)
        results, rollouts = self._steps(algorithm)
        losses, norms = self.plain.train(algorithm, rollouts, self.ids)
        if self.backend == "megatron":  # its workers report the mean over the global batches
            losses = [loss / len(losses) for loss in losses]
        with torch.no_grad():
            now, _ = self.plain.forward(self.ids)
        again = self.policy.get_reference_policy_logprobs(self.data)["reference_logprobs"]
        return self.forward() | {
            "losses": (results["loss"].tolist(), losses),
            "norms": (results["grad_norm"].flatten().tolist(), norms[-1:]),
            "moved": self.apart(now, before),
            "reference": self.apart(again, rollouts.ref_logprobs),
            "weights": self.plain.apart(self._in_workers(in_workers.weights)[0]),
        }

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
