"""What the rules of `check` find that compare NeMo-RL's keys with a method."""

from releases import MAIN

from nemo_algos.preflight.check.rule import Preflight, ask
from nemo_algos.preflight.check.rules.index import CONFLICTS


def conflicts(plain, written, algorithm):
    return ask(CONFLICTS, Preflight(plain, None, None, written, algorithm, MAIN))
