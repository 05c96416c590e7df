"""The driver of a Slurm job: runs a training program that saves and ends when the job asks.

NeMo-RL asks its TimeoutChecker after every step whether to save and return early; here it is told
so also when the file `stop` is there. Exit status: 75 where training is to be continued.
"""

import runpy
import sys
from pathlib import Path

from nemo_rl.utils.timer import TimeoutChecker

ROOT = Path(__file__).parents[2]  # the container has no nemo_algos, but it mounts this checkout
UNFINISHED = 75  # EX_TEMPFAIL; job.sh requeues on it


def stop_early(asked: Path) -> list[str]:
    """Let NeMo-RL's trainers stop once the file `asked` exists; holds why, once one did."""
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


def main(run: str, program: str) -> int:
    """Train by `program --config RUN/config.yaml`."""
    reasons = stop_early(Path(run, "stop"))
    sys.path[:0] = [str(Path(program).parent), str(ROOT)]
    sys.argv = [program, "--config", str(Path(run, "config.yaml"))]
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    if reasons:
        print(f"stopped early by {reasons[0]}: exit {UNFINISHED}", flush=True)
    return UNFINISHED if reasons else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
