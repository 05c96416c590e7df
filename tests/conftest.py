"""Makes tests/ importable (batches.py), and keeps the tests and what they start on one thread."""

import gc
import os
import sys
from pathlib import Path

if sys.dont_write_bytecode:  # else each process of the suite would compile the libraries anew
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(__file__).parents[1] / ".pytest_cache" / "bytecode")
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": sys.pycache_prefix}

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two workers, two cores: more threads wait

import pytest

gc.disable()  # while modules are imported, which stay: to look for garbage in them takes seconds
# files of few tests that take long: at the end, one of them would leave the other cores idle
FIRST = {
    "test_check.py",
    "test_doc_commands.py",
    "test_entropy_triton.py",
    "test_examination.py",
    "test_imports.py",
    "test_papers.py",
    "test_pool.py",
    "test_programs.py",
    "test_report.py",
    "test_runs.py",
    "test_wheel.py",
}


def pytest_collection_modifyitems(items):
    """The order in which the workers take the files (--no-loadscope-reorder)."""
    gc.freeze()
    gc.enable()
    items.sort(key=lambda item: item.path.name not in FIRST)


def pytest_unconfigure():
    gc.unfreeze()  # or triton says at the end that it leaked


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """A single file runs in this process: the start of a worker takes longer than most files."""
    files = {argument.partition("::")[0] for argument in config.args}
    return 0 if len(files) == 1 and files.pop().endswith(".py") else None
