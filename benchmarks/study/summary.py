"""Every arm's mean, and its difference to its regime's baseline, pair by pair.

A pair is a seed. Where a regime has several taught models it is a model, with the mean over its
seeds: the intervals are then over models.
"""

from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from equal_reward import AT, KEPT, REACHED, STEPS
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

KS = (1, 2, 4, 8, 16, 32, 64)
# a metric's name -> its column in results.csv, or of equal_reward
METRICS = {
    **{f"pass@{k}": f"pass@{k}" for k in KS},
    **{f"UCC@{k}": f"UCC@{k}" for k in KS},
    "length": "length",
    "length of right": "length of right",
    "reward": "reward/mean",
    "entropy": "entropy/exact",
    "clipped": "clip/fraction",
    "cut, A > 0": "clip/positive_above",
    "cut, A < 0": "clip/negative_below",
    "ratio p99": "ratio/p99",
    "KL": "kl/old",
    REACHED: REACHED,
    STEPS: STEPS,
    **{AT.format(kept): AT.format(kept) for kept in KEPT},
}
DIFFERENCE = {  # what `paired` gives -> its column in summary.csv
    "n": "pairs",
    "mean": "difference",
    "low": "difference low",
    "high": "difference high",
    "p": "p",
    "detectable": "detectable",
}


def read_runs(folder: Path) -> pd.DataFrame:
    """A row per cell whose run has finished: cells.csv beside the columns of results.csv."""
    cells = pd.read_csv(folder / "cells.csv", dtype={"run": str})
    results = pd.read_csv(folder / "results.csv", dtype={"id": str})
    return cells.merge(results.drop(columns="seed"), left_on="run", right_on="id")


@cache
def detectable_effect(n: int) -> float:
    """The mean over the deviation that n pairs resolve (two-sided, 5 %) in 80 % of the cases."""
    return float(TTestPower().solve_power(nobs=n, alpha=0.05, power=0.8))


def paired(values: pd.Series) -> dict[str, float]:
    """The mean of values, its 95 % interval (Student's t), p of a mean of 0, what is detectable."""
    n = len(values)
    mean = float(values.mean())
    if n < 2:
        return {"n": n, "mean": mean}
    error = float(values.sem())
    half = float(stats.t.ppf(0.975, n - 1)) * error
    interval = {"n": n, "mean": mean, "low": mean - half, "high": mean + half}
    if not error:
        return {**interval, "detectable": 0.0}
    p = 2 * float(stats.t.sf(abs(mean) / error, n - 1))
    return {**interval, "p": p, "detectable": detectable_effect(n) * float(values.std())}


def summarise(study: dict[str, Any], runs: pd.DataFrame) -> pd.DataFrame:
    """A row per regime, arm and metric, as in summary.csv.

    study: as design.keep writes it; runs: as read_runs gives them, with equal_reward's columns.
    """
    regimes = study["regimes"]
    by_model = [bool(regimes[name]["bases"]) for name in runs["regime"]]
    runs = runs.assign(pair=runs["base"].where(by_model, runs["seed"]))
    columns = {name: column for name, column in METRICS.items() if column in runs}
    groups = runs.groupby(["regime", "arm", "pair"], sort=False)
    means = groups[list(columns.values())].mean()
    of_arm = {key: own.droplevel([0, 1]) for key, own in means.groupby(level=[0, 1], sort=False)}
    rows = []
    for (regime, arm), own in of_arm.items():
        base = of_arm.get((regime, regimes[regime]["baseline"]), own.iloc[:0])
        for metric, column in columns.items():
            values = own[column].dropna()
            if values.empty:
                continue
            value = {k: v for k, v in paired(values).items() if k not in ("p", "detectable")}
            gap = (values - base[column]).dropna()
            difference = {DIFFERENCE[k]: v for k, v in paired(gap).items()}
            row = {"regime": regime, "arm": arm, "metric": metric}
            rows.append({**row, **value, **difference})
    names = ["regime", "arm", "metric", "n", "mean", "low", "high", *DIFFERENCE.values()]
    return with_holm(study, pd.DataFrame(rows, columns=names))


def with_holm(study: dict[str, Any], table: pd.DataFrame) -> pd.DataFrame:
    """The table with "p Holm" over what study.confirm names, in regimes that are not exploratory.

    A difference that cannot be had (no pair, no spread) counts as p = 1.
    """
    table = table.assign(**{"p Holm": float("nan")})
    if confirm := study["confirm"]:
        fixed = [name for name, regime in study["regimes"].items() if not regime["exploratory"]]
        named = table["regime"].isin(fixed) & table["arm"].isin(confirm["arms"])
        named &= table["metric"].isin(confirm["metrics"])
        if named.any():
            p = table.loc[named, "p"].fillna(1.0)
            table.loc[named, "p Holm"] = multipletests(p, method="holm")[1]
    return table


def resolved(rows: pd.DataFrame) -> pd.Series:
    """Whether the interval of a difference leaves 0 out."""
    return (rows["difference low"] > 0) | (rows["difference high"] < 0)
