"""Optimizers and schedulers by the full name of their class, as NeMo-RL's configs name them."""

from collections.abc import Sequence
from math import isfinite
from pkgutil import resolve_name
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ConstantLR, LRScheduler, SequentialLR

from nemo_algos.config import ConfigError, Finding
from nemo_algos.engines.local.schema import Milestones, TorchClass

OPTIMIZER = "policy.optimizer"
SCHEDULER = "policy.scheduler"


def optimizer_of(component: TorchClass, parameters: Sequence[torch.nn.Parameter]) -> Optimizer:
    """The optimizer of these parameters. Raises ConfigError."""
    return _make(component, OPTIMIZER, Optimizer, parameters)


def scheduler_of(entries: Sequence[TorchClass | Milestones], optimizer: Optimizer) -> LRScheduler:
    """NeMo-RL's list: schedulers by name, then the milestones at which the next takes over.

    It takes one step per batch. Raises ConfigError with all that is wrong.
    """
    milestones = [m for e in entries if isinstance(e, Milestones) for m in e.milestones]
    made = list[LRScheduler]()
    findings = list[Finding]()
    named = [entry for entry in entries if isinstance(entry, TorchClass)]
    for entry in named:
        try:
            made.append(_make(entry, SCHEDULER, LRScheduler, optimizer))
        except ConfigError as error:
            findings += error.findings
    if named and (len(milestones) != len(named) - 1 or milestones != sorted(set(milestones))):
        needed = f"{len(named)} schedulers need {len(named) - 1} ascending milestones"
        findings.append(Finding(SCHEDULER, f"{needed}, got {milestones}"))
    if findings:
        raise ConfigError(findings)
    if not made:
        return ConstantLR(optimizer, factor=1.0)
    try:
        return SequentialLR(optimizer, made, milestones)
    except ValueError as error:
        raise ConfigError([Finding(SCHEDULER, str(error))]) from None


def _make(component: TorchClass, key: str, base: type, argument: Any) -> Any:
    module, _, name = component.name.rpartition(".")
    if not module:
        example = "torch.optim.AdamW" if base is Optimizer else "torch.optim.lr_scheduler.LinearLR"
        reason = f"{component.name} has no module. Name the class in full, such as {example}."
        raise ConfigError([Finding(key, reason)])
    try:
        kind = resolve_name(f"{module}:{name}")
        if not (isinstance(kind, type) and issubclass(kind, base)):
            raise TypeError(f"it is not a subclass of {base.__name__}")
        return kind(argument, **component.kwargs)
    except Exception as error:  # of the class: its own kinds
        reason = f"{component.name} cannot be built with {component.kwargs}: {error}"
        raise ConfigError([Finding(key, reason)]) from None


def rehearse(optimizer: TorchClass, scheduler: Sequence[TorchClass | Milestones]) -> list[Finding]:
    """Findings of one step of both on parameters of a few numbers."""
    findings = [
        Finding(f"{OPTIMIZER}.kwargs.{name}", f"must be a finite number, got {value}")
        for name, value in optimizer.kwargs.items()
        if (isinstance(value, float) and not isfinite(value))
        or (name == "lr" and isinstance(value, str))
    ]
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in (2, (2, 2))]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    stepped: Optimizer = torch.optim.AdamW(parameters)
    try:
        stepped = stepped if findings else optimizer_of(optimizer, parameters)
    except ConfigError as error:
        findings += error.findings
    rates = [group.get("lr", 1.0) for group in stepped.param_groups]
    if not findings and not all(rate > 0 for rate in rates):
        findings.append(Finding(f"{OPTIMIZER}.kwargs.lr", f"must be above 0, got {rates[0]}"))
    each: Any = stepped
    try:
        made = scheduler_of(scheduler, stepped)
        for each in (stepped, made):
            each.step()
    except ConfigError as error:
        findings += error.findings
    except Exception as error:  # such as LBFGS, which wants a function
        key = OPTIMIZER if each is stepped else SCHEDULER
        findings.append(Finding(key, f"a step of {type(each).__name__} fails: {error}"))
    return findings
