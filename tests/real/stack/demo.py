"""make stack-demo: countdown's model through the whole of NeMo-RL, on this machine's CPU.

demo.py [key.path=value]...: overrides of recipes/cpu/countdown-1n1g-fsdp.yaml, as method.name=erpo.
What Ray, vLLM and NeMo-RL say is in the log.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import whole_run
from rehearsal.training import Attempt
from rehearse import checkout

from nemo_algos.terminal import echo

PAUSE = 2  # seconds


def main() -> int:
    """The program's exit status; a line for each step as it comes."""
    nemo_rl = checkout()
    folder = Path(tempfile.mkdtemp(prefix="nrh"))  # a short name, for Ray's sockets lie below it
    echo(f"logs, checkpoints and the start: {folder}")
    with whole_run.running(folder, nemo_rl, gpus=2) as env:
        attempt = whole_run.train(folder, env, *sys.argv[1:])
        for step, reward in rewards(attempt, folder):
            echo(f"step {step:3d}  reward {reward:.3f}")
        status = attempt.process.wait()
    if status:
        echo(f"{attempt.last_lines()}\nended with status {status}: {attempt.log}")
    return status


def rewards(attempt: Attempt, folder: Path) -> Iterator[tuple[int, float]]:
    """Steps and their mean rewards, until the process ends."""
    shown, running = 0, True
    while running:
        time.sleep(PAUSE)
        running = attempt.process.poll() is None
        found = [*whole_run.curve(folder, "train/reward").items()]
        yield from found[shown:]
        shown = len(found)


if __name__ == "__main__":
    sys.exit(main())
