"""Makes tests/ importable (batches.py), and keeps the tests on one thread."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """A single file runs in this process: the start of a worker takes longer than most files."""
    files = {argument.partition("::")[0] for argument in config.args}
    return 0 if len(files) == 1 and files.pop().endswith(".py") else None
