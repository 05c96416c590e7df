"""All rules: the functions of these modules from a run to findings (docs/check.md has each)."""

from collections.abc import Iterator

from nemo_algos.config import Finding
from nemo_algos.preflight.check.rule import Preflight, Rule
from nemo_algos.preflight.check.rules import (
    batch,
    data,
    generation,
    layout,
    lora,
    method,
    objective,
    quantization,
    rewards,
    rows,
    run,
    training,
)

MODULES = (layout, batch, generation, quantization, training, lora)
MODULES += (method, objective, data, rows, rewards, run)
SIGNATURE = {"run": Preflight, "return": Iterator[Finding]}
RULES: tuple[Rule, ...] = tuple(
    function
    for module in MODULES
    for function in vars(module).values()
    if getattr(function, "__annotations__", None) == SIGNATURE
)
