"""An equal budget of tuning for every arm: by training reward, never by a test prompt."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from nemo_algos.lab.study.design import Regime, Settings, Study, StudyCell, in_files, tuning_of
from nemo_algos.lab.study.runner import Row


def sweeps(study: Study) -> Study:
    """What comes first: a regime NAME_tuning for each that has `tune`, an arm for each value."""
    tuned = {name: r for name, r in study.regimes.items() if r.tune}
    return study.model_copy(update={"regimes": {tuning_of(n): _sweep(r) for n, r in tuned.items()}})


def _sweep(regime: Regime) -> Regime:
    assert regime.tune
    key, values = regime.tune.key, regime.tune.values
    arms = {label(arm, v): _with(regime, arm, v) for arm in regime.arms for v in values}
    return Regime(
        title=f"{regime.title}, tuning".lstrip(", "),
        claim=f"none; it chooses {key} for each arm",
        baseline=next(iter(arms)),
        arms=arms,
        settings=regime.settings,
        seeds=regime.tune.seeds,
        exploratory=True,
    )


def label(arm: str, value: Any) -> str:
    """The sweep's arm of an arm with a value."""
    return f"{arm} {value}"


def _with(regime: Regime, arm: str, value: Any) -> Settings:
    assert regime.tune
    return {"config": f"{in_files(arm)}.yaml", **regime.arms[arm], regime.tune.key: value}


def choose(study: Study, cells: Sequence[StudyCell], rows: dict[str, Row]) -> Study:
    """The study with each tuned arm's best value, and its sweeps. cells: those of the sweeps."""
    regimes = dict(study.regimes)
    for name, regime in study.regimes.items():
        if regime.tune:
            own = [c for c in cells if c.regime == tuning_of(name)]
            arms = {arm: _with(regime, arm, _best(regime, arm, own, rows)) for arm in regime.arms}
            regimes[name] = regime.model_copy(update={"arms": arms})
    return study.model_copy(update={"regimes": sweeps(study).regimes | regimes})


def _best(regime: Regime, arm: str, cells: Sequence[StudyCell], rows: dict[str, Row]) -> Any:
    """A run that broke off counts as no reward at all; of equals the first."""
    assert regime.tune

    def late_reward(value: Any) -> float:
        found = [rows[c.run] for c in cells if c.arm == label(arm, value)]
        return fmean(0.0 if row.get("failed") else float(row["reward/mean"]) for row in found)

    return max(regime.tune.values, key=late_reward)
