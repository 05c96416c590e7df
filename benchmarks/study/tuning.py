"""An equal budget of tuning for every arm: by training reward, never by a test prompt."""

from collections.abc import Callable
from itertools import product
from statistics import fmean
from typing import Any

from design import (
    Regime,
    Settings,
    Study,
    StudyCell,
    Tuning,
    in_files,
    runs,
    tuning_of,
)
from runner import Row

Kept = dict[tuple[str, str], list[Settings]]  # the candidates of a regime's arm


def candidates(tune: Tuning, arm: str) -> list[Settings]:
    """Every combination of the grid's values and of the arm's own knobs."""
    grid = tune.grid | tune.knobs.get(arm, {})
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def label(arm: str, candidate: Settings) -> str:
    """The sweep's arm of an arm with these values, each behind its key's last word."""
    values = (f"{key.rpartition('.')[2]}={value}" for key, value in candidate.items())
    return " ".join((arm, *values))


def tune(study: Study, go: Callable[[Study], dict[str, Row]]) -> Study:
    """The study with each tuned arm's best values, behind its sweeps. go: runs one, rows by id."""
    kept, sweeps = _all(study), dict[str, Regime]()
    for i in range(max((len(t.rounds) for t in _tuned(study).values()), default=0)):
        part = _round(study, i, kept)
        rows, (_, cells) = go(part), runs(part)
        for name, tuning in _tuned(study).items():
            own = [c for c in cells if c.regime == tuning_of(name, i)]
            for arm in study.regimes[name].arms if own else ():
                best = _best(arm, kept[name, arm], own, rows)
                kept[name, arm] = best[: tuning.rounds[i].keep]
        sweeps |= part.regimes
    return study.model_copy(update={"regimes": sweeps | _chosen(study, kept)})


def sweeps(study: Study) -> Study:
    """What comes first: a regime NAME_tuning for each that has `tune`, an arm per candidate."""
    return _round(study, 0, _all(study))


def _tuned(study: Study) -> dict[str, Tuning]:
    return {name: regime.tune for name, regime in study.regimes.items() if regime.tune}


def _all(study: Study) -> Kept:
    tuned = _tuned(study).items()
    return {(n, arm): candidates(t, arm) for n, t in tuned for arm in study.regimes[n].arms}


def _round(study: Study, index: int, kept: Kept) -> Study:
    regimes = {
        tuning_of(name, index): _sweep(name, study.regimes[name], index, kept)
        for name, tuning in _tuned(study).items()
        if index < len(tuning.rounds)
    }
    return study.model_copy(update={"regimes": regimes, "path": 0})


def _sweep(name: str, regime: Regime, index: int, kept: Kept) -> Regime:
    """A round as a regime: an arm for each candidate of each arm."""
    assert regime.tune
    turn = regime.tune.rounds[index]
    arms = {label(a, c): _with(regime, a, c) for a in regime.arms for c in kept[name, a]}
    steps = {"grpo.max_num_steps": turn.steps} if turn.steps else {}
    return Regime(
        title=f"{regime.title}, tuning{f' {index + 1}' if index else ''}".lstrip(", "),
        claim=f"none; it chooses {_keys(regime.tune)} for each arm, by training reward",
        baseline=next(iter(arms)),
        arms=arms,
        settings=regime.settings | steps,
        seeds=turn.seeds,
        bases=min(regime.bases, turn.seeds),
        exploratory=True,
    )


def _keys(tuning: Tuning) -> str:
    """What is tuned, in words."""
    keys = ", ".join(f"`{key}`" for key in tuning.grid)
    return f"{keys} and its own knobs" if tuning.knobs else keys


def _with(regime: Regime, arm: str, candidate: Settings) -> Settings:
    return {"config": f"{in_files(arm)}.yaml", **regime.arms[arm], **candidate}


def _best(
    arm: str, found: list[Settings], cells: list[StudyCell], rows: dict[str, Row]
) -> list[Settings]:
    """The best first. A run that broke off counts as no reward at all; of equals the first."""

    def late_reward(candidate: Settings) -> float:
        done = [rows[c.run] for c in cells if c.arm == label(arm, candidate)]
        return fmean(0.0 if row.get("failed") else float(row["reward/mean"]) for row in done)

    return sorted(found, key=late_reward, reverse=True)


def _chosen(study: Study, kept: Kept) -> dict[str, Regime]:
    regimes: dict[str, Any] = {}
    for name, regime in study.regimes.items():
        source = name if regime.tune else regime.tuned_as
        best = {arm: kept[source, arm][0] for arm in regime.arms if (source, arm) in kept}
        arms = {
            a: _with(regime, a, best[a]) if a in best else own for a, own in regime.arms.items()
        }
        regimes[name] = regime.model_copy(update={"arms": arms})
    return regimes
