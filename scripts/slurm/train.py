"""The driver of a Slurm job: runs a training program that saves and ends when the job asks.

NeMo-RL asks its TimeoutChecker after every step whether to save and return early; here it is told
so also when the file `stop` is there. Exit status: 0 where training has ended, with the file
`finished`; 75 where it is to be continued; 1 where that would be of no use, with the reason.
"""

import os
import runpy
import sys
from pathlib import Path

import nemo_rl  # pyright: ignore
import yaml
from nemo_rl.utils.timer import TimeoutChecker  # pyright: ignore

ROOT = Path(__file__).parents[2]  # the container has no nemo_algos, but it mounts this checkout
sys.path.insert(0, str(ROOT))

from nemo_algos.preflight.slurm.attempts import last_saved_step  # noqa: E402

UNFINISHED = 75  # EX_TEMPFAIL; job.sh requeues on it


def stop_early(asked: Path) -> list[str]:
    """Let NeMo-RL's trainers stop once the file `asked` exists; the reasons, once one did."""
    reasons: list[str] = []
    in_time = TimeoutChecker.check_save

    def check_save(self: TimeoutChecker) -> bool:
        if in_time(self):
            reasons.append("checkpointing.checkpoint_must_save_by")
        elif asked.exists():
            reasons.append(f"{asked}")
        return bool(reasons)

    TimeoutChecker.check_save = check_save
    return reasons


def start(checkpoints: Path) -> int:
    """The step to resume from; exits where NeMo-RL could not."""
    whole = last_saved_step(checkpoints)
    for folder in checkpoints.glob("step_*"):
        if folder.name[5:].isdecimal() and int(folder.name[5:]) > whole:
            reason = "has no training_info.json, and NeMo-RL would resume from it: remove it"
            sys.exit(f"{folder} {reason}")
    return whole


def main(run: str, program: str, last_step: str = "0") -> int:
    """Train by `program --config RUN/config.yaml` in NeMo-RL's root, to `last_step` or beyond."""
    folder = Path(run)
    keys = yaml.safe_load((folder / "config.yaml").read_text())["checkpointing"]
    checkpoints = Path(keys["checkpoint_dir"])
    first = start(checkpoints)
    reasons = stop_early(folder / "stop")
    os.chdir(Path(nemo_rl.__path__[0]).parent)
    sys.path.insert(0, str(Path(program).parent))
    sys.argv = [program, "--config", str(folder / "config.yaml")]
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    step = last_saved_step(checkpoints)
    if reasons and step <= first:
        sys.exit(f"stopped early by {reasons[0]}, and nothing is saved after step {first}")
    if reasons:
        print(f"stopped early by {reasons[0]}: exit {UNFINISHED}", flush=True)
        return UNFINISHED
    if step < int(last_step):
        sys.exit(f"ended after step {step} of {last_step}: the error is above")
    (folder / "finished").touch()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
