"""The command `nemo-algos`, which is also `python -m nemo_algos`."""

import os
import signal
from traceback import extract_stack
from types import FrameType


def interrupted(number: int, frame: FrameType | None) -> None:
    """End at Ctrl-C while a module is loaded, which may not survive an exception; else raise it."""
    if any(called.filename.startswith("<frozen importlib") for called in extract_stack(frame)):
        os.write(2, b"Stopped while loading. Nothing was saved.\n")
        os._exit(128 + number)
    raise KeyboardInterrupt


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGINT, interrupted)
    from nemo_algos.cli import main as command_line  # typer and others, under that handler

    command_line()


if __name__ == "__main__":
    main()
