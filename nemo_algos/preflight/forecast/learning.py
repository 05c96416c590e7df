"""What is wrong with how fast a run would learn: its learning rate, and its optimizer's steps."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from nemo_algos.findings import Finding, did_you_mean
from nemo_algos.preflight.forecast.planned import (
    ENDLESS,
    SMALL,
    TRIAL,
    InNeMoRL,
    Planned,
    error,
    note,
    small,
    warning,
)
from nemo_algos.preflight.forecast.rates import (
    CORE,
    CORE_SCHEDULER,
    GRADIENT,
    OPTIMIZER,
    SCHEDULER,
    Move,
    Unknown,
    Wrong,
    falls,
    move_of,
    move_of_torch,
    rate_key,
    rates_of,
    walk_of_megatron,
)

ADAPTERS = ("policy.dtensor_cfg.lora_cfg.enabled", "policy.megatron_cfg.peft.enabled")
MEGATRON_OPTIMIZERS = ("adam", "sgd", "muon", "dist_muon", "lion", "soap")
INCREASES = ("constant", "linear", "cosine")


def schedule(run: InNeMoRL) -> Iterator[Finding]:
    """The rate can be computed, is of a usual size, has one peak, and lasts."""
    try:
        rates = rates_of(run)
    except Wrong as problem:
        yield error(*problem.args)
        return
    except Unknown as unknown:
        key, name = unknown.args
        yield note(key, f"{name} is not torch's, so its learning rate is not foretold.")
        return
    where = CORE_SCHEDULER if run.megatron else SCHEDULER
    if rates:
        given = rate_key(run)
        yield from _warm_up_ends(run)
        yield from _decays(run)
        beyond = max(rates) > 1.1 * (run[given] or 0.0)
        yield from _size(run, rates, where if beyond else given)
        if rates[0] == 0 < max(rates):
            yield note(
                _warm_up(run, where),
                "the warm-up starts at a learning rate of 0, so the first step changes nothing. "
                "Start it above 0 to use that step.",
            )
        cut = _cut_ramp(rates)
        lost = _lost_peak(rates)
        if lost:
            yield warning(
                where,
                f"the learning rate warms up to {rates[lost - 1]:.3g} and falls at once to "
                f"{rates[lost]:.3g}, at step {lost + 1}: the warm-up's end is no rate of the next "
                "schedule. Let that begin where this one ends.",
            )
        elif cut:
            yield warning(
                where,
                f"the learning rate goes slowly to {rates[cut - 1]:.3g} and then jumps to "
                f"{rates[cut]:.3g} at step {cut + 1}: the next schedule begins before this one "
                "ends, or its factors are rates. Set the milestone to its total_iters.",
            )
        elif run.last_step < ENDLESS:
            yield from _course(run, rates, where)


def _warm_up_ends(run: Planned) -> Iterator[Finding]:
    """Before the decay of Megatron's rate does."""
    warm, decay = (run[f"{CORE_SCHEDULER}.lr_{part}_iters"] or 0 for part in ("warmup", "decay"))
    if run.megatron and 0 < decay <= warm:
        yield warning(
            f"{CORE_SCHEDULER}.lr_warmup_iters",
            f"{warm} must be below lr_decay_iters: {decay}. Megatron-Core stops, or a newer "
            "Megatron Bridge cuts the warm-up short. Change one of them.",
        )


def _decays(run: Planned) -> Iterator[Finding]:
    """Megatron's rate falls where its style says so."""
    lr, least = (run[f"{CORE}.{key}"] or 0 for key in ("lr", "min_lr"))
    style = run[f"{CORE_SCHEDULER}.lr_decay_style"]
    if run.megatron and style not in (None, "constant") and 0 < lr <= least:
        said = f"it is the learning rate, so {style} has no decay. Set e.g. {lr / 10:g}."
        yield warning(f"{CORE}.min_lr", said)


def _size(run: InNeMoRL, rates: list[float], key: str) -> Iterator[Finding]:
    peak = max(rates)
    high = 1e-3 if any(run[path] for path in ADAPTERS) else 1e-4
    usual = f"{high:g}. The papers use 1e-06 to 1e-05"
    if small(run):
        high = 1e-2
        usual = f"{high:g} of a model below {SMALL / 1e6:.0f} million parameters"
    if min(rates) < 0:
        yield error(key, f"the learning rate falls to {min(rates):g}. Set it to 0 or more.")
    elif not peak:
        yield error(key, "the learning rate is 0 in every step. Set e.g. 1e-6.")
    elif not 1e-8 <= peak <= high:
        yield warning(key, f"{peak:g} is outside the usual 1e-08 to {usual}. Check the digits.")


def _course(run: Planned, rates: list[float], where: str) -> Iterator[Finding]:
    """What a reader of the curve would see."""
    asked = float(run[rate_key(run)] or 0)
    peak = max(rates)
    steps = run.last_step
    whole = len(rates) == steps
    if whole and asked and peak < 0.9 * asked:
        say = note if steps <= TRIAL else warning
        yield say(
            _warm_up(run, where),
            f"the run ends before its warm-up of the rate does: of {asked:g} it reaches {peak:g} "
            f"in {steps} steps. Shorten the warm-up.",
        )
        return
    swings = falls(rates) - 1
    if swings > 0:
        yield warning(
            where,
            f"the learning rate falls and rises again, {swings} times in {len(rates)} steps, "
            f"as if its period were longer than meant. Give it the {steps} steps of the run.",
        )
    elif whole and sum(rate <= 0.2 * peak for rate in rates[rates.index(peak) :]) > 0.5 * steps:
        low = next(
            n for n, rate in enumerate(rates) if n > rates.index(peak) and rate <= 0.2 * peak
        )
        yield warning(
            _decay(run, where),
            f"the learning rate has fallen from {peak:g} to {rates[low]:g} by step {low + 1} of "
            f"{steps}, and stays low for the rest of the run. Let it decay over {steps} steps.",
        )
    elif whole and 0.9 * peak < rates[-1] < peak * (1 - 1e-9) and steps > 10:
        yield warning(
            _decay(run, where),
            f"the learning rate only falls from {peak:g} to {rates[-1]:g} in the {steps} steps of "
            "the run. Let it decay over these, or make it constant.",
        )


def _cut_ramp(rates: list[float]) -> int:
    """The place where a ramp, up or down, ends in a jump by a third of the peak, or 0."""
    rises = [after - before for before, after in pairwise(rates)]
    for place, (slope, rise) in enumerate(pairwise(rises)):
        if slope and rise > 5 * abs(slope) and rise > max(rates) / 3:
            return place + 2
    return 0


def _lost_peak(rates: list[float]) -> int:
    """The place where a rate that rose slowly falls to less than half in a step, or 0."""
    for place in range(2, len(rates)):
        earlier, before, after = rates[place - 2 : place + 1]
        if earlier < before < 1.5 * earlier and after < before / 2:
            return place
    return 0


def _warm_up(run: Planned, where: str) -> str:
    if run.megatron:
        return f"{where}.lr_warmup_iters"
    return where


def _decay(run: Planned, where: str) -> str:
    if run.megatron:
        return f"{where}.lr_decay_iters"
    return where


def weight_decay(run: Planned) -> Iterator[Finding]:
    """Megatron's weight decay grows from its start to its end, in a way that it knows."""
    section = run[CORE_SCHEDULER] or {}
    start, end = (section.get(f"{side}_weight_decay") for side in ("start", "end"))
    style = section.get("weight_decay_incr_style") or "constant"
    path = f"{CORE_SCHEDULER}.weight_decay_incr_style"
    if not run.megatron or start is None or end is None:
        return
    if style not in INCREASES:
        yield error(path, f"unknown value: {style}{did_you_mean(style, INCREASES)}")
    elif start < 0 or end < start:
        yield error(
            f"{CORE_SCHEDULER}.end_weight_decay",
            f"it must be at least start_weight_decay: {start:g}, and neither below 0",
        )
    elif style == "constant" and start != end:
        yield error(
            path, f"constant needs equal ends, got {start:g} and {end:g}. Set it to linear."
        )


def optimizer(run: Planned) -> Iterator[Finding]:
    """One step goes down the gradient by about the learning rate, and later ones follow it."""
    core = run[CORE] or {}
    name = str(core.get("optimizer") or "adam")
    section = run[OPTIMIZER] or {}
    if run.megatron and name not in MEGATRON_OPTIMIZERS:
        near = did_you_mean(name, MEGATRON_OPTIMIZERS)
        yield error(f"{CORE}.optimizer", f"Megatron-Core has no optimizer {name}{near}")
        return
    if run.megatron and name not in ("adam", "sgd"):
        return
    betas = [core.get(f"adam_beta{n}") or 0.0 for n in (1, 2)]
    if run.megatron and not all(0 <= beta < 1 for beta in betas):
        key = "adam_beta1" if not 0 <= betas[0] < 1 else "adam_beta2"
        yield error(f"{CORE}.{key}", "must be at least 0 and below 1, or Adam divides by 0")
        return
    try:
        if run.megatron:
            walk = walk_of_megatron(core)
            move = move_of(walk, core.get("lr") or 0.0, core.get("weight_decay") or 0.0)
        else:
            move = move_of_torch(section)
        yield from _moves(run, move, core if run.megatron else section.get("kwargs") or {})
    except (Wrong, Unknown):
        return  # the schedule says so


def _moves(run: Planned, move: Move, settings: Mapping[str, Any]) -> Iterator[Finding]:
    """settings: of Megatron's optimizer, or the arguments of torch's."""
    above, prefix = (CORE, "adam_") if run.megatron else (f"{OPTIMIZER}.kwargs", "")
    name = f"{CORE}.optimizer" if run.megatron else f"{OPTIMIZER}.name"
    if move.first < 0:
        key = f"{above}.maximize" if settings.get("maximize") else name
        yield error(key, "a step then goes up the loss. Set it to false.")
    elif move.first < 0.1:
        large = (settings.get(f"{prefix}eps") or 0) >= GRADIENT
        yield warning(
            f"{above}.{prefix}eps" if large else name,
            f"where the gradient of a weight is {GRADIENT:g}, a first step moves the weight by "
            f"{move.first:.2g} of the learning rate. Adam's rates of 1e-6 and its eps of 1e-8 "
            "move it by all of it: the run would hardly learn.",
        )
    elif not move.turned:
        yield warning(
            f"{above}.{'adam_beta1' if run.megatron else 'betas'}",
            "the weights still move against a gradient 20 steps after it has turned round. Set "
            "[0.9, 0.999].",
        )
    if move.first > 0.1 and not move.led:
        yield warning(
            f"{above}.weight_decay" if run.megatron else name,
            "it adds the weight decay to the gradient, which that outweighs: every step shrinks "
            "the weights. Set it to torch.optim.AdamW, or the decay to 0.",
        )
        return
    lost = 1 - (1 - min(move.decayed, 1.0)) ** min(run.last_step, 1000)
    if lost > 0.5:
        yield warning(
            f"{above}.weight_decay",
            f"a weight without gradients would lose {lost:.0%} in {min(run.last_step, 1000)} "
            "steps. Check the digits.",
        )
