"""What both engines do with each rollout batch: measure it, and dump it where that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_algos.core.mismatch import monitor
from nemo_algos.mismatch.dump import made, write

if TYPE_CHECKING:
    from nemo_algos.objective.loss import MismatchConfig


def watched(
    settings: MismatchConfig, folder: Path | None, step: int, columns: Mapping[str, Any]
) -> dict[str, float]:
    """`monitor`'s metrics; folder/mismatch/step_NNNNNN.npz of every settings.dump-th step.

    And of the step that the monitor stops. step: from 1; columns: tensors named as in `Dump`;
    folder: None where there is none. Raises FloatingPointError as `monitor`.
    """
    pair = columns["trainer_logprobs"], columns["sampler_logprobs"], columns["mask"]
    due = settings.dump and step % settings.dump == 0
    try:
        return monitor(*pair, settings.threshold, settings.stop_above)
    except FloatingPointError:
        due = settings.dump
        raise
    finally:
        if due and folder and pair[-1].any():
            arrays = {name: column.numpy() for name, column in columns.items()}
            write(folder / "mismatch" / f"step_{step:06d}.npz", made(arrays))
