"""What both engines do with each rollout batch: measure it, and dump it where that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_algos.algorithms.core.logprob_gap import Monitor

if TYPE_CHECKING:
    from nemo_algos.algorithms.riders.loss_config import MismatchConfig


FAINT = 0.5  # of a mean weight, or of the share of tokens that count


class Watch:
    """A run's monitor, and where its dumps go: folder/mismatch, nowhere without a folder."""

    def __init__(self, settings: MismatchConfig, folder: Path | None = None) -> None:
        self.settings, self.folder = settings, folder
        self.monitor = Monitor(settings.threshold, settings.stop_above)
        self.faint = False

    def weights(self, metrics: Mapping[str, float]) -> str:
        """A sentence, once, where the correction's weights leave little of the gradient."""
        names = ("correction/weight_mean", "correction/ess")
        low = [f"{name} is {metrics[name]:.2f}" for name in names if metrics.get(name, 1.0) < FAINT]
        before, self.faint = self.faint, self.faint or bool(low)
        if before or not low:
            return ""
        return (
            f"{' and '.join(low)}: the correction for the sampler removes most of the gradient. "
            "Look at mismatch/mean. If that is small, weigh tokens or their geometric mean "
            "(rollout_correction.rollout_is: token or geometric) in place of a product"
        )

    def of(self, step: int, columns: Mapping[str, Any]) -> tuple[dict[str, float], str]:
        """As `Monitor.of`; step_NNNNNN.npz of every settings.dump-th step, and of one it stops.

        step: from 1; columns: tensors named as in `Dump`. Raises as the monitor.
        """
        pair = columns["trainer_logprobs"], columns["sampler_logprobs"], columns["mask"]
        due = self.settings.dump and step % self.settings.dump == 0
        try:
            return self.monitor.of(*pair)
        except FloatingPointError:
            due = self.settings.dump
            raise
        finally:
            if due and self.folder and pair[-1].any():
                from nemo_algos.engines.mismatch.dump import made, write  # few runs dump

                arrays = {name: column.cpu().numpy() for name, column in columns.items()}
                write(self.folder / "mismatch" / f"step_{step:06d}.npz", made(arrays))
