"""Imports megatron.core once (7 to 18 s); every case forks from here."""

import oracle as one_process
import pytest
import ranks


@pytest.fixture(scope="session")
def oracle() -> one_process.Oracle:
    """The one-process run, in a process of its own: this one never runs a backward."""
    (result,) = ranks.run(1, one_process.run)
    return result
