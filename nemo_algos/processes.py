"""Processes that compute beside this one."""

import os
import signal
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from threading import Thread


def fresh(number: int) -> ProcessPoolExecutor:
    """So many new ones; each ends at Ctrl-C, and when this process does, even if it is killed."""
    return ProcessPoolExecutor(number, get_context("spawn"), _begin)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent
    parent.join()
    os._exit(1)
