"""Rewards and methods of one's own, `module:NAME`, as the job will look for their modules."""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nemo_algos.config import Finding
from nemo_algos.preflight.check.rule import warning
from nemo_algos.preflight.slurm import batch, outputs
from nemo_algos.preflight.slurm.batch import Job

NAME = re.compile(r"([A-Za-z_][\w.]*):[A-Za-z_][\w.]*")
INSTALLED = ("site-packages", "dist-packages")


def unseen(plain: Mapping[str, Any], job: Job, folder: Path) -> Iterator[Finding]:
    """Modules that `check` has imported here, and that the job would not find.

    The job starts in the run's folder, then changes to NeMo-RL's root: of PYTHONPATH it only has
    absolute folders that are mounted at their own place.
    """
    mounted = batch.mounts(job, folder)
    searched = [os.path.normpath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    for key, value in outputs.texts(plain):
        named = NAME.fullmatch(value)
        home = _home(named[1]) if named else ""
        if not home or home in (str(batch.ROOT), str(job.program.parent)):
            continue
        if os.path.basename(home) in INSTALLED:
            what = f"{value} is installed on this machine, in {home}"
            yield warning(key, f"{what}. Make sure that the image has it, too.")
            continue
        cures = [] if home in searched else [f"put PYTHONPATH={home} before the command"]
        if not outputs.at_its_place(home, mounted):
            cures.append(f"add --mounts {home}:{home}")
        if cures:
            what = f"{value} is imported from {home}, where the job does not find it"
            yield Finding(key, f"{what}. To cure this, {' and '.join(cures)}.")


def _home(module: str) -> str:
    """The folder of sys.path that an imported module came from; empty for Python's own."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or module.partition(".")[0] in sys.stdlib_module_names:
        return ""
    path = Path(file)
    return str(path.parents[module.count(".") + (path.name == "__init__.py")])
