"""What the rules of `check` find that compare NeMo-RL's keys with a method."""

from releases import MAIN

from nemo_algos.preflight.check.nemo_run import Preflight
from nemo_algos.preflight.check.rule import ask
from nemo_algos.preflight.check.rules.index import CONFLICTS


def conflicts(plain, written, algorithm):
    return ask(CONFLICTS, Preflight(plain, None, None, written, algorithm, MAIN))
