"""All rules of a NeMo-RL run: the public generators of these modules, in their order.

A new rule is a function in one of them, and a line of tests/preflight/check/mistakes.txt.
"""

import inspect
from types import ModuleType

from nemo_algos.preflight.check import both_engines
from nemo_algos.preflight.check.rule import Rule
from nemo_algos.preflight.check.rules import (
    async_rl,
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
    single_controller,
    training,
)

MODULES = (
    layout, batch, both_engines, generation, quantization, single_controller, async_rl, training,
    lora, method, objective, data, rows, rewards, run,
)  # fmt: skip


def rules_of(module: ModuleType) -> list[Rule]:
    """The public generators that a module defines, in their order."""
    return [
        value
        for name, value in vars(module).items()
        if inspect.isgeneratorfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    ]


RULES: tuple[Rule, ...] = tuple(rule for module in MODULES for rule in rules_of(module))
