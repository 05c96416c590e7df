"""One batch, two engines: NeMo-RL's loss of a step on a GPU against the embedded engine's.

Compared are batches that `keeping.py` wrote: the columns of advantages, the loss of each step's
first update, where the policy is still the one that computed the old log-probs, and in the first
step its gradient norm against that of the start model in float32.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.loss import policy_loss
from nemo_algos.algorithms.rollouts import Rollouts

Kept = Mapping[str, Any]


class Batch:
    """A step's batch [B,S], and what NeMo-RL made of it."""

    def __init__(self, kept: Kept) -> None:
        columns = kept["columns"]
        mask = (columns["token_mask"] * columns["sample_mask"][:, None]).bool()
        self.kept = kept
        self.logprobs: Tensor = columns["prev_logprobs"].float().where(mask, 0.0)
        self.algorithm = build(kept["method"])
        own = {**kept["rollouts"], "sample_mask": columns["sample_mask"].bool()}
        rollouts = Rollouts(
            mask=mask,
            old_logprobs=self.logprobs,
            gen_logprobs=columns["generation_logprobs"].float().where(mask, 0.0),
            **own,
        )
        signals = self.algorithm.signals(rollouts, {}, kept["batch_size"])
        # the loss alone saw log-probs with noise, by which it would not know these rows
        self.signals = replace(signals, mark=None)
        self.rollouts = replace(
            rollouts, old_logprobs=kept["old_logprobs"].float().where(mask, 0.0)
        )
        self.first = slice(0, kept["batch_size"])

    def loss(self, logprobs: Tensor) -> Tensor:
        """The embedded engine's, of the first update; logprobs [B,S] of the policy."""
        return policy_loss(
            self.algorithm,
            logprobs[self.first],
            self.rollouts[self.first],
            self.signals[self.first],
            counts=Counts.of(self.rollouts.mask[self.first]),
            config=self.kept["loss_fn"],
        ).value

    def figures(self) -> dict[str, float]:
        """Both losses, how far they are apart over the mean size of A, and the advantages."""
        mask = self.rollouts.mask
        found = self.kept["columns"]["advantages"].float()
        wanted = self.signals.advantages.float().expand(mask.shape)
        size = float(wanted[mask].abs().mean()) or 1.0  # where every group is flat
        theirs = float(self.kept["loss"].flatten()[0])
        ours = float(self.loss(self.logprobs))
        return {
            "loss, NeMo-RL": theirs,
            "loss, embedded": ours,
            "loss, difference over the mean size of A": abs(theirs - ours) / size,
            "advantages, difference over the mean size of A": float(
                (found - wanted)[mask].abs().max()
            )
            / size,
        }

    def gradient(self, model: Any) -> dict[str, float]:
        """The same of log-probs, and of the norm, which NeMo-RL gives as a mean over updates.

        model: a causal LM in float32.
        """
        ids = self.kept["columns"]["input_ids"]
        scores = model(input_ids=ids).logits[:, :-1].float().log_softmax(-1)
        logprobs = scores.gather(-1, ids[:, 1:, None])[..., 0]
        logprobs = torch.nn.functional.pad(logprobs, (1, 0)).where(self.rollouts.mask, 0.0)
        apart = (logprobs.detach() - self.logprobs).abs().max()
        found = {"log-probs, largest difference": float(apart)}
        if self.kept["batch_size"] < len(ids):
            return found
        grads = torch.autograd.grad(self.loss(logprobs), list(model.parameters()))
        ours = float(torch.stack([grad.norm() for grad in grads]).norm())
        theirs = float(self.kept["grad_norm"].flatten()[0])
        return found | {
            "gradient norm, NeMo-RL": theirs,
            "gradient norm, float32": ours,
            "gradient norm, relative difference": abs(theirs - ours) / ours,
        }


def compared(folder: Path) -> Iterator[tuple[str, float]]:
    """The figures of a run's batches, by name."""
    from transformers import AutoModelForCausalLM

    for file in sorted(folder.glob("batch_*.pt")):
        batch = Batch(torch.load(file, weights_only=True))
        step = int(file.stem.removeprefix("batch_"))
        found = batch.figures()
        if step == 1:
            model = AutoModelForCausalLM.from_pretrained(
                folder / "start/model", dtype=torch.float32
            )
            found |= batch.gradient(model)
        for name, value in found.items():
            yield f"{batch.kept['method']}, step {step}: {name}", value
