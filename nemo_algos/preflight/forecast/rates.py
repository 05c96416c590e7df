"""The learning rate at every step, and what one step of the optimizer does to a weight.

DTensor's workers build torch's classes by name: so does this, on one CPU parameter. Megatron's
scheduler counts sequences; one step of a run is `train_global_batch_size` of them.
"""

import functools
import inspect
import json
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from nemo_algos.findings import did_you_mean
from nemo_algos.preflight.forecast.planned import Planned

OPTIMIZER = "policy.optimizer"
SCHEDULER = "policy.scheduler"
CORE = "policy.megatron_cfg.optimizer"
CORE_SCHEDULER = "policy.megatron_cfg.scheduler"
LONGEST = 5000  # steps of which rates are computed; of a longer run the first
TYPICAL = 0.02  # a weight of a language model
GRADIENT = 1e-3  # of one weight, where the gradient of millions has norm 1
ON_A_DEVICE = ("fused", "foreach", "capturable")  # arguments that ask for a GPU
STYLES = ("constant", "linear", "cosine", "inverse-square-root", "WSD")
WSD_STYLES = ("linear", "cosine", "exponential", "minus_sqrt")


class Wrong(Exception):
    """An optimizer or a scheduler cannot be built; args: the key, what is said of it."""


class Unknown(Exception):
    """A class that is not torch's; args: its key and name."""


class Move(NamedTuple):
    """What the optimizer does to a weight of 1, in units of the learning rate.

    first: its first step against a gradient, positive where it goes down; turned: whether it
    follows a gradient that has changed its sign for 20 steps; decayed: the share of a weight
    without gradients that a step takes away, as a fraction of 1; led: whether a gradient moves a
    weight of TYPICAL size, whatever the decay adds to that gradient.
    """

    first: float
    turned: bool
    decayed: float
    led: bool


def rates_of(run: Planned) -> list[float]:
    """The learning rate of each step, from the first on; of at most LONGEST steps.

    Raises Wrong or Unknown.
    """
    steps = min(run.last_step, LONGEST)
    if run.megatron:
        sections = run[CORE] or {}, run[CORE_SCHEDULER] or {}
        batch = run["policy.train_global_batch_size"] or 1
        return megatron_rates(*sections, run.last_step, steps, batch=batch)
    if "scheduler" in (run["policy"] or {}) and not run[SCHEDULER]:
        said = "NeMo-RL's workers stop at an empty one. Name a torch.optim.lr_scheduler.ConstantLR."
        raise Wrong(SCHEDULER, said)
    return torch_rates(run[OPTIMIZER] or {}, run[SCHEDULER], steps)


def rate_key(run: Planned) -> str:
    """The path of the learning rate."""
    if run.megatron:
        return f"{CORE}.lr"
    return f"{OPTIMIZER}.kwargs.lr"


def falls(rates: list[float]) -> int:
    """How often the rate falls by a tenth of its peak, each time after it rose so far."""
    tenth = 0.1 * max(rates)
    count = 0
    top = bottom = rates[0]
    falling = False
    for rate in rates:
        if falling:
            bottom = min(bottom, rate)
            if rate > bottom + tenth:
                falling = False
                top = rate
        else:
            top = max(top, rate)
            if rate < top - tenth:
                falling = True
                bottom = rate
                count += 1
    return count + (not falling and count > 0)


# ---- Megatron


def megatron_rates(
    optimizer: Mapping[str, Any],
    scheduler: Mapping[str, Any],
    whole: int,
    steps: int,
    batch: int = 1,
) -> list[float]:
    """The rates of Megatron's `OptimizerParamScheduler`, as Megatron Bridge fills it in.

    whole: the steps of the run; batch: sequences of a step, in which it counts. Raises Wrong for
    what either asserts.
    """
    peak = float(optimizer.get("lr") or 0)
    least = float(optimizer.get("min_lr") or 0)
    start = float(scheduler.get("lr_warmup_init") or 0)
    decay = scheduler.get("lr_decay_iters")
    decay = whole if decay is None else decay
    style = scheduler.get("lr_decay_style") or "linear"
    warm = scheduler.get("lr_warmup_iters") or 0
    fraction = scheduler.get("lr_warmup_fraction")
    _refuse(
        (
            style not in STYLES,
            "lr_decay_style",
            f"unknown value: {style}{did_you_mean(style, STYLES)}",
        ),
        (decay <= 0, "lr_decay_iters", f"must be above 0, got {decay}"),
        (
            fraction is not None and warm > 0,
            "lr_warmup_fraction",
            "it excludes lr_warmup_iters. Remove one of them.",
        ),
    )
    for key, value in {"min_lr": least, "lr_warmup_init": start}.items():
        if value > peak:
            path = f"{CORE if key == 'min_lr' else CORE_SCHEDULER}.{key}"
            said = f"{value:g} exceeds the learning rate (`{CORE}.lr: {peak:g}`)"
            raise Wrong(path, f"{said}. Set it to at most {peak:g}.")
    if fraction is not None:
        warm = fraction * decay
    tail = scheduler.get("lr_wsd_decay_iters") or decay
    shape = scheduler.get("lr_wsd_decay_style") or "exponential"
    if style == "WSD" and shape not in WSD_STYLES:
        said = f"unknown value: {shape}{did_you_mean(shape, WSD_STYLES)}"
        raise Wrong(f"{CORE_SCHEDULER}.lr_wsd_decay_style", said)
    warm = min(warm, decay - 1e-9)  # as Bridge does
    found = []
    for step in range(steps):
        if warm > 0 and step <= warm:
            found.append(start + (peak - start) * step / warm)
        elif style == "constant":
            found.append(peak)
        elif step > decay:
            found.append(least)
        elif style == "inverse-square-root":
            counted = max(warm * batch, 1) / max(step * batch, 1)
            found.append(max(least, peak * math.sqrt(counted)))
        else:
            done = (step - warm) / (decay - warm)
            share = _wsd(step, decay, tail, shape) if style == "WSD" else DECAYS[style](done)
            found.append(least + share * (peak - least))
    return found


def _wsd(step: int, decay: float, tail: float, shape: str) -> float:
    begun = decay - tail
    if step <= begun:
        return 1.0
    return DECAYS[shape]((step - begun) / tail)


DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda done: 1 - done,
    "cosine": lambda done: 0.5 * (math.cos(math.pi * done) + 1),
    "exponential": lambda done: 2 * 0.5**done - 1,
    "minus_sqrt": lambda done: 1 - math.sqrt(done),
}


def _refuse(*cases: tuple[bool, str, str]) -> None:
    for wrong, key, said in cases:
        if wrong:
            raise Wrong(f"{CORE_SCHEDULER}.{key}", said)


# ---- torch


def torch_rates(optimizer: Mapping[str, Any], scheduler: Any, steps: int) -> list[float]:
    """The rates of torch's classes, built and stepped as DTensor's workers do.

    Raises Wrong for what torch refuses, and Unknown for a class that is not torch's.
    """
    return list(_stepped(json.dumps((optimizer, scheduler)), steps))


@functools.lru_cache(maxsize=32)  # rules and the forecast ask alike; so does each layout of a plan
def _stepped(sections: str, steps: int) -> list[float]:
    optimizer, scheduler = json.loads(sections)
    built = build_optimizer(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch: of steps of a scheduler without one of weights
        schedule = build_scheduler(built, scheduler)
        found = []
        for _ in range(steps):
            found.append(float(built.param_groups[0]["lr"]))
            if schedule is not None:
                try:
                    schedule.step()
                except Exception as problem:
                    raise Wrong(SCHEDULER, f"torch stops in its first steps: {problem}") from None
    return found


def build_optimizer(section: Mapping[str, Any]) -> Any:
    """The optimizer of one weight of 1. Raises Wrong or Unknown."""
    import torch

    kwargs = {}
    for k, v in (section.get("kwargs") or {}).items():
        if k not in ON_A_DEVICE:
            kwargs[k] = v
    kind = _class(str(section.get("name")), "torch.optim", f"{OPTIMIZER}.name")
    given = section.get("kwargs") or {}
    if given.get("fused") and given.get("foreach"):
        said = "torch refuses both `fused` and `foreach`. Remove one of them."
        raise Wrong(f"{OPTIMIZER}.kwargs.fused", said)
    if isinstance(kwargs.get("betas"), list):
        kwargs["betas"] = tuple(kwargs["betas"])
    add = {"add_param_group": inspect.unwrap(kind.add_param_group)}
    kind = type(kind.__name__, (kind,), add)  # whose decorator loads torch's compiler
    return _made(kind, [torch.nn.Parameter(torch.ones(1))], kwargs, OPTIMIZER)


def build_scheduler(optimizer: Any, section: Any) -> Any:
    """The scheduler, or several one after the other; None where the rate stays.

    Raises Wrong or Unknown.
    """
    module = "torch.optim.lr_scheduler"
    if not section:
        return None
    if isinstance(section, Mapping):
        kind = _class(str(section.get("name")), module, f"{SCHEDULER}.name")
        return _made(kind, optimizer, section.get("kwargs") or {}, SCHEDULER)
    parts = []
    milestones = None
    for place, part in enumerate(section):
        path = f"{SCHEDULER}.{place}"
        if "name" in part:
            kind = _class(str(part["name"]), module, f"{path}.name")
            parts.append(_made(kind, optimizer, part.get("kwargs") or {}, path))
        elif "milestones" in part:
            milestones = part["milestones"]
        else:
            raise Wrong(path, "it has neither a name nor milestones")
    if milestones is None:
        raise Wrong(SCHEDULER, "several schedules need a last entry {milestones: [...]}")
    if sorted(milestones) != list(milestones):
        raise Wrong(f"{SCHEDULER}.{len(section) - 1}.milestones", "they must ascend")
    sequence = _class(f"{module}.SequentialLR", module, SCHEDULER)
    return _made(sequence, optimizer, {"schedulers": parts, "milestones": milestones}, SCHEDULER)


def _class(name: str, module: str, path: str) -> Any:
    """A class of torch by its path. Raises Unknown for another's: a config may be a stranger's."""
    import importlib

    where, _, own = name.rpartition(".")
    if not where:
        raise Wrong(path, f"{name} must be a path such as {module}.{name}")
    if not name.startswith("torch."):
        raise Unknown(path, name)
    kinds = importlib.import_module(module)
    found = getattr(kinds, own, None) if f"{where}.".startswith("torch.optim.") else None
    if not isinstance(found, type) or where not in (module, found.__module__):
        names = []
        for k, v in vars(kinds).items():
            if isinstance(v, type) and k[0] != "_":
                names.append(f"{module}.{k}")
        raise Wrong(path, f"torch has no {name}{did_you_mean(name, names)}")
    return found


def _made(kind: Any, first: Any, kwargs: Mapping[str, Any], path: str) -> Any:
    try:
        return kind(first, **kwargs)
    except Exception as problem:  # torch asserts, raises ValueError, TypeError, ZeroDivisionError
        said = " ".join(str(problem).split()) or type(problem).__name__
        at_fault = []
        for key in kwargs:
            if _is_made_without(key, kind, first, kwargs):
                at_fault.append(key)
        where = f"{path}.kwargs.{at_fault[0]}" if at_fault else f"{path}.kwargs"
        reason = said.removeprefix(f"{kind.__name__}.").rstrip(".")
        raise Wrong(where, f"torch refuses it: {reason}. Correct it, or remove it.") from None


def _is_made_without(key: str, kind: Any, first: Any, kwargs: Mapping[str, Any]) -> bool:
    try:
        kind(first, **{other: value for other, value in kwargs.items() if other != key})
    except Exception:
        return False
    return True


Walk = Callable[[float, float, list[float]], list[float]]  # rate, decay, gradients -> weights


def move_of(walk: Walk, rate: float, decay: float) -> Move:
    """What an optimizer does, asked at a rate at which a weight's float32 shows it."""
    large = 1e-2
    once = walk(large, 0.0, [GRADIENT])
    back = walk(large, 0.0, [GRADIENT] * 200 + [-GRADIENT] * 20)
    idle = walk(rate, decay, [0.0])
    alone = walk(large, decay, [0.0])
    led = walk(large, decay, [-GRADIENT / TYPICAL])  # of a weight of 1, in the same proportion
    return Move(
        first=(1 - once[-1]) / large,
        turned=back[-1] > back[-2] or once[-1] >= 1,
        decayed=1 - idle[-1],
        led=led[-1] > alone[-1] + large / 2,
    )


def move_of_torch(section: Mapping[str, Any]) -> Move:
    """What torch's optimizer does, at its own rate and decay. Raises Wrong or Unknown."""
    return _moved(json.dumps(section))


@functools.lru_cache(maxsize=32)
def _moved(text: str) -> Move:
    section = json.loads(text)
    group = build_optimizer(section).param_groups[0]
    walk = walk_of_torch(section)
    return move_of(walk, group.get("lr") or 0.0, group.get("weight_decay") or 0.0)


def walk_of_torch(section: Mapping[str, Any]) -> Walk:
    """Steps of torch's optimizer, from a weight of 1. Raises Wrong or Unknown."""
    import torch

    def walk(rate: float, decay: float, gradients: list[float]) -> list[float]:
        optimizer = build_optimizer(section)
        group = optimizer.param_groups[0]
        group["lr"] = rate
        if "weight_decay" in group:
            group["weight_decay"] = decay
        step = inspect.unwrap(type(optimizer).step)  # else torch loads its compiler, for 3 seconds
        weight = group["params"][0]
        weights = []
        with torch.no_grad():
            for gradient in gradients:
                weight.grad = torch.full_like(weight, gradient)
                step(optimizer)
                weights.append(weight.item())
        return weights

    return walk


def walk_of_megatron(section: Mapping[str, Any]) -> Walk:
    """Steps of Megatron's adam or sgd, from a weight of 1."""
    first = section.get("adam_beta1")
    if first is None:
        first = 0.9
    second = section.get("adam_beta2")
    if second is None:
        second = 0.999
    eps = section.get("adam_eps") or 1e-8
    plain = section.get("optimizer") == "sgd"

    def walk(rate: float, decay: float, gradients: list[float]) -> list[float]:
        weight = 1.0
        mean = square = 0.0
        weights = []
        for number, gradient in enumerate(gradients, 1):
            mean = first * mean + (1 - first) * gradient
            square = second * square + (1 - second) * gradient**2
            slope = (mean / (1 - first**number)) / (math.sqrt(square / (1 - second**number)) + eps)
            weight -= rate * (decay * weight + (gradient if plain else slope))
            weights.append(weight)
        return weights

    return walk
