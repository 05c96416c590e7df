"""What several files of the engine's tests look at, made once."""

import pytest
import short_runs
import small_llama


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """A run of twelve steps that nothing stopped; to be read alone."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with short_runs.quick(tmp_path_factory):
        short_runs.train(folder)
    return folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A small Llama on disk; to be read alone."""
    return small_llama.save(tmp_path_factory.mktemp("llama") / "llama")
