"""A run's folder, of one seed: what it recorded of itself, its training and its evaluations."""

import re
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from nemo_algos.config import read
from nemo_algos.lab.report.runs import LoadedRun, evaluations, read_events, read_nemo_run, read_run

RECORDED = ("config.yaml", "checkpoints/step_*/config.yaml")


class Seed:
    """FOLDER/PAPER/MODEL/METHOD[-seedN]: training where it is kept, and evaluations."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = f"{folder.parent.name}/{folder.name}"
        numbered = re.search(r"-seed(\d+)$", folder.name)
        self.number = int(numbered[1]) if numbered else None

    @cached_property
    def trained(self) -> LoadedRun:
        """Of the embedded engine, or NeMo-RL's logs; without metrics where there are none."""
        if (self.folder / "metrics.jsonl").exists():
            return read_run(self.folder)
        return replace(read_nemo_run(self.folder), metrics=read_events(self.folder))

    def evaluation_run(self, folder: str) -> LoadedRun | None:
        """The evaluations in a folder of the run's; None where none has ended."""
        place = self.folder / folder
        return read_run(place) if evaluations(place) else None

    def checkpoints(self, folder: str) -> list[int]:
        """Steps that are kept, or evaluated in FOLDER-STEP."""
        kept = [p.stem.removeprefix("step_") for p in self.folder.glob("checkpoints/step_*")]
        kept += [p.name.removeprefix(f"{folder}-") for p in self.folder.glob(f"{folder}-*")]
        return sorted({int(step) for step in kept if step.isdecimal()})

    @cached_property
    def configs(self) -> list[dict[str, Any]]:
        """As recorded by the engine, as submitted, and as NeMo-RL keeps it with a checkpoint."""
        paths = [path for pattern in RECORDED for path in sorted(self.folder.glob(pattern))]
        return [c for c in (self.trained.config, *map(_read_raw, paths)) if c]


def _read_raw(path: Path) -> dict[str, Any]:
    """A config as it is written: what it reads of the environment stays a name."""
    plain: Any = OmegaConf.to_container(read(path))
    return plain
