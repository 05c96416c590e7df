"""Where methods train: the embedded engine, NeMo-RL, other trainers; their data and rewards.

Inside another trainer a module logs to the logger of its name. Each message is a line on stdout,
until the program gives the logger `nemo_algos` handlers of its own.
"""

import logging


class Lines(logging.Handler):
    """Print a message, with `warning: ` before one of that level."""

    def emit(self, record: logging.LogRecord) -> None:
        prefix = "warning: " if record.levelno >= logging.WARNING else ""
        print(f"{prefix}{record.getMessage()}", flush=True)


PACKAGE = logging.getLogger("nemo_algos")
if not PACKAGE.handlers:
    PACKAGE.addHandler(Lines())
    PACKAGE.setLevel(logging.INFO)
    PACKAGE.propagate = False  # or a program that configures the root has each line twice
