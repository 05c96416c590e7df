"""The plain process beside NeMo-RL's workers: Hugging Face's model and the oracle's loss."""

from pathlib import Path
from typing import Any

import configs
import models
import oracle
import torch
from torch import Tensor

AUXILIARY = 1e-3  # coefficient of the routers' loss, which Bridge sets
EPS = torch.finfo(torch.float32).eps


class Plain:
    """The model in `start`; policy: NeMo-RL's section; adapters: the workers' at the start."""

    def __init__(self, start: Path, policy: dict[str, Any], adapters: dict[str, Tensor]) -> None:
        self.start, self.policy = start, policy
        self.temperature = policy["generation"]["temperature"]
        self.model = models.loaded(start)
        if adapters:
            self.model = models.adapted(self.model, adapters, configs.lora(policy))
        if configs.replayed(policy):
            self.model = models.routed(self.model)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies [B,S] of the tokens, 0 at the first."""
        return self._numbers(self.model, ids)

    @torch.no_grad()
    def reference(self, ids: Tensor) -> Tensor:
        """Log-probs [B,S] of the model that was saved; no route is replayed in NeMo-RL's."""
        return self._numbers(models.loaded(self.start), ids)[0]

    def _numbers(self, model: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
        scores = (model(ids).logits.float() / self.temperature).log_softmax(-1)
        entropy = -(scores.exp() * scores).sum(-1)
        chosen = scores[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
        pad = torch.nn.functional.pad
        return pad(chosen, (1, 0)), pad(entropy[:, :-1], (1, 0))

    @torch.no_grad()
    def detached(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """`forward`, without gradient."""
        return self.forward(ids)

    def train(
        self, method: str, asked: oracle.Setting, batch: oracle.Batch, ids: Tensor
    ) -> dict[str, list[float]]:
        """An update by each global batch, rows in order: losses; the last gradient's norm.

        mismatch: the largest of the batch, nats; none where old is the sampler.
        """
        gap = (batch.old - batch.generation)[batch.mask].abs().max()
        batch = asked.prepared(batch)
        signals = oracle.signals(method, batch)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=configs.RATE)
        losses, norm = [], 0.0
        for rows in torch.arange(len(ids)).split(self.policy["train_global_batch_size"]):
            part, of = batch[rows], {name: value[rows] for name, value in signals.items()}
            numbers = (x.double() for x in self.forward(ids[rows]))
            loss = asked.loss(method, *numbers, part, of)
            optimizer.zero_grad()
            (loss + self._imbalance(ids[rows]) / part.mask.sum()).backward()
            norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1000.0))
            losses.append(float(loss.detach()))
            optimizer.step()
        return {"losses": losses, "norms": [norm], "mismatch": [] if asked.bypass else [float(gap)]}

    def _imbalance(self, ids: Tensor) -> Tensor:
        """What Megatron adds to the gradient, by micro-batches; it is in no reported loss."""
        if self.policy["megatron_cfg"]["moe_router_load_balancing_type"] == "none":
            return torch.zeros(())
        parts = ids.split(self.policy["train_micro_batch_size"])
        return AUXILIARY * torch.stack([models.imbalance(self.model, part) for part in parts]).sum()

    def _named(self, model: Any) -> dict[str, Tensor]:
        """The weights by the names that a refit sends."""
        return models.named(model)

    def apart(self, weights: dict[str, Tensor], terms: int) -> float:
        """The largest error of a weight, of what float32 allows; terms: of the gradients' sums.

        Four updates round it in each process, half an ulp each; and each term of what moved it.
        """
        wanted, start = self._named(self.model), self._named(models.loaded(self.start))
        assert set(wanted) - set(weights) <= set(self.model.all_tied_weights_keys)
        errors = []
        for name, value in weights.items():
            moved = (wanted[name] - start[name]).abs().max()
            allowed = EPS * (4 * wanted[name].abs().max() + terms * moved)
            error = (value - wanted[name]).abs().max()
            errors.append(error / allowed.clamp(min=torch.finfo(torch.float32).tiny))  # 0 stays 0
        return float(torch.stack(errors).max())
