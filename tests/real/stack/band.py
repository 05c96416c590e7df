"""The embedded engine's reward curves, between which a run of the same model is one more."""

import math
import statistics

from whole_run import START

from nemo_algos import config
from nemo_algos.engines.local import build
from nemo_algos.preflight.check.local import judge as preflight


def embedded(method: str, steps: int, seeds: int = 8, rate: float = 2e-4) -> list[list[float]]:
    """Rewards [seeds][steps] of the embedded engine: the same problems, other samples."""
    path, rows = config.SHIPPED / START, []
    overrides = (f"method.name={method}", f"policy.optimizer.kwargs.lr={rate}")
    checked, algorithm = preflight.parse(config.load(path, overrides))
    for seed in range(seeds):
        trainer = build.build_trainer(checked, algorithm, build.Console(quiet=True))
        trainer.generator.manual_seed(seed)
        rows.append([trainer.step()["reward/mean"] for _ in range(steps)])
    return rows


def within(curve: list[float], band: list[list[float]]) -> None:
    """The curve is one more of the band: at each step, and as a whole.

    A mean of 8 seeds and one more differ by sd sqrt(1 + 1/8); 4.5 of it has odds of 1 to 100,000.
    """
    by_step = list(zip(*band, strict=True))
    spread = math.sqrt(statistics.fmean(statistics.variance(step) for step in by_step))
    apart = [x - statistics.fmean(step) for x, step in zip(curve, by_step, strict=True)]
    noise = math.sqrt(1 + 1 / len(band))
    assert max(map(abs, apart)) < 4.5 * noise * spread, (apart, spread)
    means = [statistics.fmean(row) for row in band]
    assert abs(statistics.fmean(apart)) < 4.5 * noise * statistics.stdev(means), (apart, means)
