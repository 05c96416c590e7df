"""What both engines do with each rollout batch: measure it, and dump it where that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_algos.algorithms.core.logprob_gap import Monitor

if TYPE_CHECKING:
    from nemo_algos.algorithms.riders.loss_config import MismatchConfig
    from nemo_algos.engines.mismatch.dump import Dump


FAINT = 0.5  # of a mean weight, or of the share of tokens that count


class Watch:
    """A run's monitor, and where its dumps go: folder/mismatch, nowhere without a folder."""

    def __init__(self, settings: MismatchConfig, folder: Path | None = None) -> None:
        self.settings, self.folder = settings, folder
        self.monitor = Monitor(settings.threshold, settings.stop_above)
        self.faint = False
        self.first: Dump | None = None  # probe, and how many there were
        self.probes, self.state = 0, ""

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

    def due(self, step: int) -> bool:
        """Whether the step, from 1, has a probe: the first two, and each settings.probe-th."""
        every = self.settings.probe
        return bool(every) and (self.probes < 2 or step % every == 0)

    def probed(self, step: int, columns: Mapping[str, Any]) -> tuple[dict[str, float], str]:
        """How far each side has moved since the first probe, and a sentence where it is news.

        columns: as of `of`, of the same prompts at each probe; folder/probe/step_NNNNNN.npz.
        """
        from nemo_algos.engines.mismatch.arrival import compared

        dump = self._written("probe", step, columns)
        self.probes += 1
        if self.first is None:
            self.first = dump
            return {}, ""
        found = compared(self.first, dump)
        before, self.state = self.state, found.state
        moved = {"mismatch/probe_sampler": found.sampler, "mismatch/probe_trainer": found.trainer}
        return moved, found.sentence if found.state != before else ""

    def _written(self, name: str, step: int, columns: Mapping[str, Any]) -> Dump:
        from nemo_algos.engines.mismatch.dump import from_arrays, write  # few runs dump

        dump = from_arrays({name: column.cpu().numpy() for name, column in columns.items()})
        if self.folder:
            write(self.folder / name / f"step_{step:06d}.npz", dump)
        return dump

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
                self._written("mismatch", step, columns)
