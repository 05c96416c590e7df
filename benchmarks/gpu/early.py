"""`nemo-algos train` in NeMo-RL, started before its config, as rehearsal/prestart.py.

While the driver waits for vLLM and Megatron it imports what it would import after them: on two CPU
cores 11 of the 60 seconds before a first step.
"""

import importlib
from contextlib import suppress
from threading import Thread

from rehearsal import prestart

LATE = "megatron.bridge"


def main() -> None:
    """The program."""
    Thread(target=_import, daemon=True).start()
    prestart.main()


def _import() -> None:
    with suppress(ImportError):  # the run would say so
        importlib.import_module(LATE)


if __name__ == "__main__":
    main()
