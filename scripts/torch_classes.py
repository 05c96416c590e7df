"""Write torch_classes.json: torch's optimizers and schedulers, and numbers that they work with.

Found by rehearsing the installed torch, so that `nemo-algos check` need not load it for a config
that names one of these classes with arguments within its ranges.
"""

import inspect
import json
from collections.abc import Iterator
from typing import Any

import torch

from nemo_algos.engines.local.schema import TorchClass
from nemo_algos.engines.local.updates import rehearse
from nemo_algos.preflight.check.local.resources import FILE

WHOLE, SHARE = ((1,), (10**6,)), ((0.0, 1e-12), (1.0, 0.999))  # ends of a range, the wider first
ADAMW = TorchClass(name="torch.optim.AdamW")


def works(name: str, kwargs: dict[str, Any], optimizers: list[str]) -> bool:
    """Whether nothing is wrong with the class, a scheduler's beside any of the optimizers."""
    made = TorchClass(name=name, kwargs=kwargs)
    pairs = [(TorchClass(name=o), [made]) for o in optimizers] or [(made, [])]
    return not any(rehearse(*pair) for pair in pairs)


def ranges(kind: type, name: str, optimizers: list[str]) -> dict[str, Any] | None:
    """What the class takes, and what it cannot do without; None where that is no numbers."""
    parameters = [*inspect.signature(kind).parameters.values()][1:]
    needs = [p.name for p in parameters if p.default is p.empty]
    usual = dict.fromkeys(needs, 10)
    if "gamma" in needs or not works(name, usual, optimizers):  # it is no number of steps
        return None
    takes = dict[str, Any]()
    for p in parameters:
        default = 10 if p.name in needs else p.default
        many = isinstance(default, tuple)
        one = default[0] if many and default else default
        if type(one) not in (int, float) or p.name == "last_epoch":
            continue
        ends = [
            next((e for e in end if works(name, usual | _like(p, default, e), optimizers)), None)
            for end in (WHOLE if optimizers and type(one) is int else SHARE)
        ]
        if None not in ends:
            takes[p.name] = [*ends, len(default) if many else 0]
    return {"needs": needs, "takes": takes}


def _like(p: inspect.Parameter, default: Any, number: float) -> dict[str, Any]:
    return {p.name: [number] * len(default) if isinstance(default, tuple) else number}


def classes(module: Any, base: type) -> Iterator[tuple[type, str]]:
    """The subclasses that a module shows."""
    for name, kind in sorted(vars(module).items()):
        if inspect.isclass(kind) and issubclass(kind, base) and kind is not base and name[0] != "_":
            yield kind, f"{module.__name__}.{name}"


def table() -> dict[str, Any]:
    """By the full names."""
    of_optimizers = classes(torch.optim, torch.optim.Optimizer)
    optimizers = {n: r for kind, n in of_optimizers if (r := ranges(kind, n, []))}
    schedules = torch.optim.lr_scheduler
    of_schedulers = classes(schedules, schedules.LRScheduler)
    schedulers = {n: r for kind, n in of_schedulers if (r := ranges(kind, n, [*optimizers]))}
    return {"optimizers": optimizers, "schedulers": schedulers}


def written() -> str:
    """The file."""
    lines = {
        section: ",\n".join(f"  {json.dumps(n)}: {json.dumps(r)}" for n, r in found.items())
        for section, found in table().items()
    }
    return "{" + ",\n".join(f'"{s}": {{\n{text}\n}}' for s, text in lines.items()) + "}\n"


if __name__ == "__main__":
    FILE.write_text(written())
