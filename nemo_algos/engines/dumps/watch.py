"""What both engines do with each rollout batch: measure it, and dump it where that is asked for.

A sum of each parameter of a sampler shows those that a refit leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nemo_algos.algorithms.core.logprob_gap import Monitor, sick

if TYPE_CHECKING:
    from nemo_algos.algorithms.extensions.loss_config import MismatchConfig
    from nemo_algos.engines.dumps.dump import Dump


SHOWN = 3  # names


def checksums(model: nn.Module) -> dict[str, float]:
    """Of each parameter, by name: its sum, which any update moves."""
    return {name: float(_sum(parameter.detach())) for name, parameter in model.named_parameters()}


def _sum(x: Tensor) -> Tensor:
    wide = x if x.element_size() > 1 else x.float()  # FP8 has no sum
    return wide.sum(dtype=torch.float64)


def unchanged(before: Mapping[str, float], now: Mapping[str, float]) -> str:
    """A sentence on the parameters that are as before; "" without any."""
    same = [name for name, value in now.items() if before.get(name) == value]
    shown = ", ".join(same[:SHOWN]) + (", ..." if len(same) > SHOWN else "")
    text = f"{len(same)} of the sampler's {len(now)} parameters are as in the first step: {shown}"
    return text if same else ""


class Watch:
    """A run's monitor, and where its dumps go: folder/mismatch, nowhere without a folder.

    precision: the lowest of sampler and trainer, by name.
    """

    def __init__(
        self, settings: MismatchConfig, folder: Path | None = None, precision: str = ""
    ) -> None:
        self.settings = settings
        self.folder = folder
        self.monitor = Monitor(settings.threshold, settings.stop_above, sick(precision))
        self.first: Dump | None = None  # probe, and the steps of all
        self.steps = list[int]()
        self.state = ""
        self.sums: Mapping[str, float] = {}  # of the sampler's parameters then

    def due(self, step: int) -> bool:
        """Whether the step, from 1, has a probe: the first two, and each settings.probe-th."""
        every = self.settings.probe
        if every == "on_stop":
            return not self.steps  # what the last one is compared with
        return bool(every) and (len(self.steps) < 2 or step % every == 0)

    def probed(
        self, step: int, columns: Mapping[str, Any], sums: Mapping[str, float]
    ) -> tuple[dict[str, float], str]:
        """How far each side has moved since the first probe, and a sentence where it is news.

        columns: as of `of`, of the same prompts at each probe; folder/probe/step_NNNNNN.npz.
        sums: `checksums` of the sampler, {} where it is the trainer.
        """
        from nemo_algos.engines.dumps.arrival import compared

        dump = self._written("probe", step, columns)
        self.steps.append(step)
        if self.first is None:
            self.first = dump
            self.sums = sums
            return {}, ""
        found = compared(self.first, dump)
        before = self.state
        self.state = found.state
        moved = {"mismatch/probe_sampler": found.sampler, "mismatch/probe_trainer": found.trainer}
        if not found.state or found.state == before:
            return moved, ""
        return moved, ". ".join(filter(None, (found.sentence, unchanged(self.sums, sums))))

    def _written(self, name: str, step: int, columns: Mapping[str, Any]) -> Dump:
        from nemo_algos.engines.dumps.dump import from_arrays, write  # few runs dump

        dump = from_arrays({name: column.cpu().numpy() for name, column in columns.items()})
        if self.folder:
            write(self._file(name, step), dump)
        return dump

    def _file(self, name: str, step: int) -> Path:
        assert self.folder
        return self.folder / name / f"step_{step:06d}.npz"

    def of(
        self,
        step: int,
        columns: Mapping[str, Any],
        ask: Callable[[], tuple[Mapping[str, Any], Mapping[str, float]]] | None = None,
    ) -> tuple[dict[str, float], str]:
        """As `Monitor.of`; step_NNNNNN.npz of every settings.dump-th step, and of one it stops.

        step: from 1; columns: tensors named as in `Dump`; ask: for a probe, which a step that is
        stopped has. Raises as the monitor, with what the probe says.
        """
        mask = columns["mask"]
        due = self.settings.dump and step % self.settings.dump == 0
        try:
            return self.monitor.of(columns["trainer_logprobs"], columns["sampler_logprobs"], mask)
        except FloatingPointError as error:
            # what was said before is said again
            due = self.settings.dump
            self.state = ""
            said = [f"step {step}: {error}"]
            if self.settings.probe and step not in self.steps and ask:
                asked, sums = ask()
                remark = self.probed(step, asked, sums)[1]
                if remark:
                    said.append(f"The probe: {remark}.")
            if due and self.folder and mask.any():
                said.append(f"For the cause: nemo-algos mismatch {self._file('mismatch', step)}")
            raise FloatingPointError(" ".join(said)) from None
        finally:
            if due and self.folder and mask.any():
                self._written("mismatch", step, columns)
