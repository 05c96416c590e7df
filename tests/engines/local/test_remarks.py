"""What a run is told of itself: each way to die once, from any step, and a healthy run nothing."""

import math
import random
from types import SimpleNamespace

import pytest
from commands import invoke
from says import Says

from nemo_algos.engines.local.observer import cut_share
from nemo_algos.engines.remarks import CHANCE, Remarks

STEPS = 60


def healthy(seed=0, steps=STEPS, rho=0.9):
    """Rows of a run whose metrics waver slowly: AR(1)."""
    rng = random.Random(seed)
    wave = 0.0
    rows = []
    for step in range(steps):
        wave = rho * wave + math.sqrt(1 - rho**2) * rng.gauss(0, 1)
        row = {
            "reward/mean": min(max(0.3 + 0.2 * step / steps + 0.04 * wave, 0.02), 0.98),
            "reward/positive_share": 0.4,
            "reward/unverified": 0,
            "groups/flat_share": min(max(0.4 + 0.2 * wave, 0), 0.95),
            "grad_norm": math.exp(0.3 * wave),
            "entropy/exact": 0.3 * math.exp(0.2 * wave),
            "clip/fraction": min(0.05 * math.exp(wave), 0.6),
            "length/mean": 200.0,
            "length/cut_share": min(max(0.3 + 0.1 * wave, 0), 0.8),
            "length/empty_share": 0.0,
            "correction/ess": 0.9,
            "loss": 0.01 * wave,
        }
        rows.append(row)
    return rows


def told(rows, **given):
    remarks = Remarks(8, 64, 12)
    found = [s for n, row in enumerate(rows, 1) for s in remarks.of(n, row, **given)]
    return remarks, found


def dying(change, begin, seed=0):
    return [r if n < begin else {**r, **change} for n, r in enumerate(healthy(seed), 1)]


DEAD = {"reward/mean": 0, "reward/positive_share": 0, "groups/flat_share": 1, "grad_norm": 0}
# the metrics from the death on, and what is said of it
DEATHS = {
    "flat": ({"groups/flat_share": 1.0}, "every group same reward"),
    "no gradient": ({"grad_norm": 0.0}, "gradient is 0"),
    "no reward, so flat, so no gradient": (DEAD, "mean reward is 0 was up to broken"),
    "cut": ({"length/cut_share": 1.0}, "100% cut policy.generation.max_new_tokens=12"),
    "cut, so dead": ({"length/cut_share": 0.95, **DEAD}, "95% cut mean reward of 0"),
    "empty": ({"length/mean": 0.0, **DEAD}, "responses are empty"),
    "unjudged": ({"reward/unverified": 64, **DEAD}, "64 of 64 could not be judged"),
    "no entropy": ({"entropy/exact": 1e-6}, "entropy 1e-06"),
    "clipped": ({"clip/fraction": 0.97}, "clipping 97%"),
    "unlearned": ({"reward/mean": 0.05}, "0.05 less than half of the best"),
    "weights gone": ({"correction/ess": 0.01}, "correction/ess=0.01"),
    "nan": ({"loss": math.nan, "grad_norm": math.nan}, "finite loss=nan grad_norm=nan"),
}


@pytest.mark.parametrize("begin", [1, 2, 31])
@pytest.mark.parametrize("death", DEATHS)
def test_each_death_is_told_once_and_at_the_end(death, begin):
    change, words = DEATHS[death]
    remarks, found = told(dying(change, begin))
    never = begin == 1 and death.startswith("no reward")
    if never or (begin < 11 and death == "unlearned"):
        # there was nothing better; a reward that was always 0 is a flat group's
        assert len(found) == (death != "unlearned")
        return
    (sentence,) = found
    assert sentence == Says(words)
    step = int(sentence.split(":")[0].removeprefix("step "))
    assert begin <= step <= begin + 9
    assert f"since step {begin} " in sentence or step == begin
    last = []
    remarks.end(last.append)
    assert last == [Says(f"60 steps 1 to 60 Warnings: 1 {words}")]


@pytest.mark.parametrize("rho", [0, 0.5, 0.8, 0.9])
def test_a_run_that_wavers_is_told_nothing(rho):
    for seed in range(20):
        remarks, found = told(healthy(seed, steps=400, rho=rho))
        assert found == []
    last = []
    remarks.held_out = {0: 0.25, 200: 0.5, 400: 0.375}
    remarks.end(last.append)
    assert last == [Says("400 steps 0.500, after step 200 0.375, after step 400 Warnings: 0")]


def test_a_step_that_chance_explains_is_no_sign_and_what_returns_is_told_again():
    """One prompt a step: half of the steps are flat, and 17 in a row are rarer than CHANCE."""
    rng = random.Random(0)
    rows = [{**row, "groups/flat_share": float(rng.random() < 0.5)} for row in healthy(steps=300)]
    assert rows[0]["groups/flat_share"] == 0 and CHANCE > 0.5**17
    assert told(rows)[1] == []
    flat = {"groups/flat_share": 1.0}
    rows = [
        {**r, **flat} if n in (*range(10, 15), *range(50, 60)) else r
        for n, r in enumerate(healthy(steps=100), 1)
    ]
    assert [s.split(":")[0] for s in told(rows)[1]] == ["step 12", "step 55"]
    single = Remarks(1, 64, 12)  # a group of one response is flat by definition
    assert not [s for n, r in enumerate(rows, 1) for s in single.of(n, {**r, **flat})]


def test_a_method_that_learns_from_flat_groups_is_told_nothing():
    assert told(dying({"groups/flat_share": 1.0, "advantage/max": 1.2}, 5))[1] == []


def test_failures_are_told_when_they_begin_and_when_they_double():
    """The same words each time; none where nothing fails."""
    counts = [0, 1, 1, 1, 2, 3, 8, 64, 64]
    rows = [{**row, "reward/unverified": n} for row, n in zip(healthy(), counts, strict=False)]
    found = told(rows, failure="no answer within 10 s")[1]
    assert found == [
        f"step {step}: {n} of 64 responses could not be judged; the last one: no answer within 10 s"
        for step, n in ((2, 1), (5, 2), (7, 8), (8, 64))
    ]


def test_the_share_of_responses_that_were_cut():
    rows = [[5, 2]] * 3 + [[5, 1], []]
    assert cut_share(SimpleNamespace(responses=lambda: rows), {1}) == pytest.approx(0.6)


def test_a_learning_rate_that_kills_is_told_and_so_is_its_end(tmp_path):
    """Also after a resume, which reads the steps before."""
    small = ["grpo.val_samples_per_prompt=4", "logger.tensorboard_enabled=false"]
    small += ["policy.optimizer.kwargs.lr=0.05", f"logger.log_dir={tmp_path}"]
    done = invoke("train", "grpo.yaml", "grpo.max_num_steps=8", *small)
    assert done.exit_code == 0, done.output
    (warning,) = (line for line in done.output.splitlines() if line.startswith("warning: "))
    assert warning == Says("cut policy.generation.max_new_tokens=12 mean reward of 0")
    assert done.output.splitlines()[-1] == Says("8 steps, 1 to 8 after step 8 Warnings: 1 cut")
    again = invoke("train", "--resume", tmp_path / "exp_001", "grpo.max_num_steps=10")
    assert "warning: " not in again.output
    assert again.output.splitlines()[-1] == Says("10 steps, 1 to 10 Warnings: 1 cut")
