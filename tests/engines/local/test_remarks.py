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


def told(rows, group=8, **given):
    remarks = Remarks(group, 64, 12)
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
    "below 0": ({"reward/mean": -0.2}, "-0.2 less than half of the best"),
    "no entropy where only an approximation is known": (
        {"entropy/exact": None, "entropy/approximate": 1e-6},
        "entropy 1e-06",
    ),
    "weights gone": ({"correction/ess": 0.45}, "correction/ess=0.45"),
    "weights small": ({"correction/weight_mean": 0.45}, "correction/weight_mean=0.45"),
    "nan loss": ({"loss": math.nan}, "finite loss=nan"),
    "infinite gradient": ({"grad_norm": math.inf}, "finite grad_norm=inf"),
    "nan reward": ({"reward/mean": math.nan}, "finite reward/mean=nan"),
}
FALLS = ("unlearned", "below 0")  # from what was better
AT_ONCE = ("cut", "empty", "unjudged", "nan loss", "weights gone")

# what comes near a sign, and is none
NEAR = {
    "cut": {"length/cut_share": 0.85},
    "unknown": {"length/cut_share": None},
    "advantages of flat groups": {"groups/flat_share": 1.0, "advantages/max": 1.2},
    "weights": {"correction/ess": 0.55, "correction/weight_mean": 0.55},
    "entropy": {"entropy/exact": 0.001},  # 1.6 nats of 8 responses
    "entropy of nobody knows how many tokens": {"entropy/exact": 0.01, "length/mean": None},
    "clipped": {"clip/fraction": 0.85},
}


@pytest.mark.parametrize("near", NEAR)
def test_what_comes_near_a_death_is_none(near):
    assert told(dying(NEAR[near], 5))[1] == []


def test_the_entropy_of_groups_of_one_response_is_of_all():
    assert told(dying({"entropy/exact": 2e-4}, 5), group=1)[1] == []
    assert len(told(dying({"entropy/exact": 5e-5}, 5), group=1)[1]) == 1


def test_rewards_that_were_never_better_have_no_half():
    zero = [{**row, "reward/mean": 0.0} for row in healthy()]
    negative = [{**row, "reward/mean": -0.5 - (n > 20)} for n, row in enumerate(healthy())]
    assert told(zero)[1] == told(negative)[1] == []


@pytest.mark.parametrize(("steps", "count"), [(9, 0), (10, 1)])
def test_a_fall_is_told_where_it_lasts(steps, count):
    rows = dying({"reward/mean": 0.05}, 31)[: 30 + steps] + healthy()
    assert len(told(rows)[1]) == count


def test_signs_that_begin_within_three_steps_are_one():
    for apart, count in ((2, 1), (3, 2)):
        rows = dying({"groups/flat_share": 1.0}, 31)
        for row in rows[30 + apart :]:
            row["clip/fraction"] = 0.97
        assert len(told(rows)[1]) == count


def test_a_step_may_have_fewer_responses():
    (sentence,) = told([{**healthy()[0], "reward/unverified": 32, "responses": 32}])[1]
    assert "32 of 32 responses could not be judged" in sentence


def test_the_end_has_the_finite_evaluations_of_the_rows():
    values = (0.5, 0.25, math.nan)
    rows = [{**r, "validation/accuracy": v} for r, v in zip(healthy(), values, strict=False)]
    last = []
    told(rows)[0].end(last.append)
    assert last == [Says("0.500, after step 1 0.250, after step 2")]


@pytest.mark.parametrize("begin", [1, 2, 31])
@pytest.mark.parametrize("death", DEATHS)
def test_each_death_is_told_once_and_at_the_end(death, begin):
    change, words = DEATHS[death]
    remarks, found = told(dying(change, begin))
    if begin < 11 and death in FALLS:
        assert found == []  # there was nothing better
        return
    if begin == 1 and death.startswith("no reward"):
        words = "every group same reward"
    (sentence,) = found
    assert sentence == Says(words)
    step = int(sentence.split(":")[0].removeprefix("step "))
    assert begin <= step <= begin + 9
    assert (f"since step {begin} " in sentence) == (step > begin)
    assert step == begin or death not in AT_ONCE
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
    small = ["grpo.val_samples_per_prompt=4", "grpo.max_val_samples=8"]
    small += ["logger.tensorboard_enabled=false"]
    small += ["policy.optimizer.kwargs.lr=0.05", f"logger.log_dir={tmp_path}"]
    done = invoke("train", "grpo.yaml", "grpo.max_num_steps=8", *small)
    assert done.exit_code == 0, done.output
    (warning,) = (line for line in done.output.splitlines() if line.startswith("warning: "))
    assert warning == Says("cut policy.generation.max_new_tokens=12 mean reward of 0")
    assert done.output.splitlines()[-1] == Says("8 steps, 1 to 8 after step 8 Warnings: 1 cut")
    again = invoke("train", "--resume", tmp_path / "exp_001", "grpo.max_num_steps=10")
    assert "warning: " not in again.output
    assert again.output.splitlines()[-1] == Says("10 steps, 1 to 10 Warnings: 1 cut")
