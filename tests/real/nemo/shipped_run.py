"""The shipped config for NeMo-RL, with overrides, as the launcher composes it."""

from pathlib import Path

from nemo_algos import config as strict
from nemo_algos.preflight.check import launcher

SHIPPED = Path(__file__).parents[3] / "examples" / "configs" / "nemo_rl.yaml"


def overridden(*overrides):
    return strict.apply_overrides(strict.read(SHIPPED), overrides)


def compose(*overrides):
    return launcher.compose(overridden(*overrides))[:2]
