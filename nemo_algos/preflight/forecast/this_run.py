"""The forecast of a run as one record, and as the ten lines that `check` ends with."""

from collections.abc import Iterator
from math import isfinite
from typing import Any, NamedTuple

from nemo_algos.preflight.forecast.batch import THRESHOLD, Batch, batch_of
from nemo_algos.preflight.forecast.planned import ENDLESS, Planned
from nemo_algos.preflight.forecast.rates import Unknown, Wrong, falls, rates_of
from nemo_algos.preflight.forecast.rewards import Rewards, limit, rewards_of
from nemo_algos.preflight.forecast.timeline import METRIC, Timeline, timeline_of

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 32  # of the curve of the learning rate, in characters
POINTS = 200  # rates that the record keeps


class Forecast(NamedTuple):
    """What a run will do.

    rates: the learning rate as (step, rate), of its peak and every so many steps; None where it is
    not known. swings: how often it rises again.
    limit: the most tokens of a response.
    """

    rewards: Rewards
    batch: Batch
    rates: list[tuple[int, float]] | None
    swings: int
    timeline: Timeline
    limit: int


def forecast_of(run: Planned) -> Forecast:
    """The forecast of a composed config."""
    rates = list[float]()
    try:
        rates = rates_of(run)
        every = max(1, len(rates) // POINTS)
        kept = {*range(0, len(rates), every), len(rates) - 1, rates.index(max(rates))}
        points = [(n + 1, rates[n]) for n in sorted(kept)]
    except (Wrong, Unknown):
        points = None
    swings = max(0, falls(rates) - 1) if points else 0
    return Forecast(
        rewards=rewards_of(run),
        batch=batch_of(run),
        rates=points,
        swings=swings,
        timeline=timeline_of(run),
        limit=limit(run),
    )


def as_json(forecast: Forecast) -> dict[str, Any]:
    """The record as JSON has it: periodic steps as first, last and period, no number as null."""
    timeline = forecast.timeline._asdict()
    for key in ("validations", "saves"):
        steps = timeline[key]
        ends = {"first": steps[0], "last": steps[-1], "every": steps.step} if steps else None
        timeline[key] = ends
    rewards = {}
    for length, pair in forecast.rewards._asdict().items():
        rewards[length] = []
        for reward in pair:
            rewards[length].append(reward if isfinite(reward) else None)
    return {
        "rewards": rewards,
        "batch": forecast.batch._asdict(),
        "rates": forecast.rates,
        "swings": forecast.swings,
        "timeline": timeline,
        "longest_response": forecast.limit,
    }


def lines(run: Planned, forecast: Forecast, drawn: bool) -> Iterator[str]:
    """What the run will do, for people. drawn: whether the rate's curve is drawn, too."""
    yield "This run"
    for name, text in _parts(run, forecast, drawn):
        yield f"  {name:<11}{text}"


def _parts(run: Planned, forecast: Forecast, drawn: bool) -> Iterator[tuple[str, str]]:
    rewards, batch, rates, _, t, longest = forecast
    yield "rewards", f"right {rewards.short[0]:g}, wrong {rewards.short[1]:g}"
    if rewards.long != rewards.short or rewards.cut != rewards.short:
        yield "", f"of {longest - 1} tokens: right {rewards.long[0]:g}, wrong {rewards.long[1]:g}"
        yield "", f"cut at {longest}: right {rewards.cut[0]:g}, wrong {rewards.cut[1]:g}"
    each = run["policy.train_global_batch_size"]
    updates = f"{batch.updates} updates of {each}" if batch.updates > 1 else "1 update"
    size = f"{batch.prompts} prompts x {batch.responses} responses of up to {longest:,} tokens"
    yield "each step", f"{size}; {updates}"
    share = f"{batch.flat:.1%} of" if batch.flat > 0.0005 else "hardly any"
    yield "", f"{share} groups all right or all wrong at a pass rate of 1/2"
    if run[THRESHOLD] is not None:
        yield (
            "",
            f"sequences above {run[THRESHOLD]:g} are masked; rounding gives {batch.error[1]:.2f}",
        )
    if batch.kept[-1] < 0.999:
        shares = ", ".join(f"{share:.0%}" for share in batch.kept)
        yield "", f"weights kept at gaps of 0, 0.01, 0.05 nats: {shares}"
    yield "rate", _rate(rates, forecast.swings)
    if drawn and rates and len({rate for _, rate in rates}) > 1:
        yield "", curve([rate for _, rate in rates])
    yield "validates", _validation(run, t)
    yield from _saves(run, t)
    yield "ends", _end(run, t)


def _rate(rates: list[tuple[int, float]] | None, swings: int) -> str:
    if not rates:
        return "not known here"
    values = [rate for _, rate in rates]
    top = values.index(max(values))
    peak = f"{values[top]:.3g}"
    last = f"{values[-1]:.3g} at step {rates[-1][0]:,}"
    if swings:
        return f"{values[0]:.3g}, falls and rises again {swings} times, {last}"
    text = f"from {values[0]:.3g} to {peak} at step {rates[top][0]}" if top else peak
    if values[-1] != values[top]:
        return f"{text}, then {last}"
    return f"{text}, then constant"


def curve(values: list[float]) -> str:
    """Values from 0 to the largest as at most WIDTH bars."""
    count = min(WIDTH, len(values))
    chosen = []
    for n in range(count):
        chosen.append(values[n * (len(values) - 1) // max(1, count - 1)])
    largest = max(values) or 1.0
    return "".join(BARS[min(7, max(0, int(8 * value / largest)))] for value in chosen)


def _validation(run: Planned, t: Timeline) -> str:
    when = []
    if t.at_start:
        when.append("before the first step")
    if t.validations:
        late = f", from {t.validations[0]} on" if t.validations[0] != t.validations.step else ""
        when.append(f"every {t.validations.step} steps{late}")
    if t.at_end:
        when.append("at the end")
    if not when:
        return "never"
    if not t.prompts:
        return ", ".join(when)
    size = f"{t.prompts} prompts x {t.responses}" if t.responses > 1 else f"{t.prompts} prompts"
    return f"{', '.join(when)}: {size}, {t.share:.0%} of the run's responses"


def _saves(run: Planned, t: Timeline) -> Iterator[tuple[str, str]]:
    if not run["checkpointing.enabled"]:
        yield "saves", "never"
        return
    yield "saves", f"every {t.saves.step} steps, and at the end" if t.saves else "at the end alone"
    kept = run["checkpointing.keep_top_k"]
    metric = run[METRIC]
    higher = "highest" if run["checkpointing.higher_is_better"] else "lowest"
    rank = f"the {kept} with the {higher} {metric}" if metric else f"the last {kept}"
    measured = any(t.validates(step) for step in (*t.saves[:1000], t.steps))
    if str(metric).startswith("val:") and not measured:
        rank = f"{kept} by {metric}, which none of them has"
    yield "", f"keeps {rank if kept else 'all'}"


def _end(run: Planned, t: Timeline) -> str:
    metric = run["grpo.stop_at_validation_metric"]
    threshold = run["grpo.stop_at_validation_threshold"]
    parts = [f"after step {t.steps:,}"]
    if t.steps >= ENDLESS and not run.controlled:
        epochs = run["grpo.max_num_epochs"]
        parts.append(f"after {epochs} epoch{'s' * (epochs != 1)} of its data")
    if metric and threshold is not None:
        parts.append(f"when {metric} reaches {threshold:g}")
    if run["checkpointing.checkpoint_must_save_by"]:
        parts.append(f"after {_lasting(str(run['checkpointing.checkpoint_must_save_by']))}")
    return " or ".join(parts)


def _lasting(text: str) -> str:
    """NeMo-RL's DD:HH:MM:SS in words; another text as it is."""
    numbers = text.split(":")
    if len(numbers) != 4 or not all(number.isdecimal() for number in numbers):
        return text
    units = ("days", "hours", "minutes", "seconds")
    said = [f"{int(n)} {unit}" for n, unit in zip(numbers, units, strict=True) if int(n)]
    return " ".join(said) or text
