"""What every judgement of a config is spared."""

import functools

import omegaconf.base
import pytest


@pytest.fixture(autouse=True, scope="session")
def interpolations_are_parsed_once():
    """A third of a judgement's time: NeMo-RL's configs have the same some sixty everywhere."""
    parse = functools.cache(omegaconf.base.parse)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(omegaconf.base, "parse", parse)
        yield
