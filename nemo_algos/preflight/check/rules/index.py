"""All rules of a NeMo-RL run: the public generators of the modules here, in their order.

A new rule is a function in one of them, and a line of tests/preflight/check/mistakes.txt.
"""

import inspect
from types import ModuleType

from nemo_algos.preflight.check import both_engines
from nemo_algos.preflight.check.rule import Rule
from nemo_algos.preflight.check.rules import (
    batch,
    conflicts,
    data,
    fp8,
    generation,
    layout,
    lora,
    method,
    quantization,
    resume,
    rows,
    run,
    single_controller,
    training,
    upstream,
)
from nemo_algos.preflight.forecast import batch as forecast_batch
from nemo_algos.preflight.forecast import (
    inert,
    learning,
    names,
    networks,
    rewards,
    sampling,
    timeline,
)

MODULES = (
    layout, batch, both_engines, generation, quantization, single_controller, training, lora,
    method, data, rows, run, resume, forecast_batch, learning, rewards, inert, timeline,
    networks, names, sampling, upstream,
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


# asked of the config as it is written, before the method's own keys are set in it
CONFLICTS: tuple[Rule, ...] = (*rules_of(conflicts), *rules_of(fp8))
AFTER_KEYS = rules_of(learning)  # torch, which some need, takes seconds to load
RULES: tuple[Rule, ...] = tuple(rule for module in MODULES for rule in rules_of(module))
