"""What every judgement of a config is spared."""

import functools
import os
import pickle

import omegaconf.base
import pytest
from omegaconf import OmegaConf
from releases import MAIN

from nemo_algos.preflight.check import judge
from nemo_algos.preflight.check.compose import compose

COMPOSED = {}


@pytest.fixture(autouse=True, scope="session")
def interpolations_are_parsed_once():
    """A third of a judgement's time: NeMo-RL's configs have the same some sixty everywhere."""
    parse = functools.cache(omegaconf.base.parse)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(omegaconf.base, "parse", parse)
        yield


def compose_once(written, release):
    """As compose, once for equal configs; a copy, for a judgement changes it.

    Configs over another release than these tests' are composed anew. HF_HOME is the one variable
    that NeMo-RL's configs read.
    """
    if release is not MAIN:
        return compose(written, release)
    key = os.environ.get("HF_HOME"), repr(OmegaConf.to_container(written))
    if key not in COMPOSED:
        COMPOSED[key] = compose(written, release)
    made = COMPOSED[key]
    return made._replace(plain=pickle.loads(pickle.dumps(made.plain)))


@pytest.fixture(autouse=True, scope="session")
def composed_once():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "compose", compose_once)
        yield
