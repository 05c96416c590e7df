"""GRPO once more, in NumPy alone: it conforms, and with any one defect a named trap sees it."""

import numpy as np
import pytest
from conformance import build_cases, judge

CASES = build_cases(["grpo"])
# defect: the trap that sees it
DEFECTS = {
    "sign": "plain",
    "gradient_doubled": "plain",
    "advantages_not_centred": "plain",
    "population_std": "plain",
    "clip_on_the_wrong_side": "plain",
    "gradient_through_the_clip": "plain",
    "token_mean": "unequal_lengths",
    "mean_over_positions": "holes",
    "mask_ignored": "holes",
    "gradient_off_the_mask": "holes",
    "empty_rows_counted": "empty_rows",
    "flat_groups_not_counted": "flat_groups",
    "flat_groups_not_flat": "flat_groups",
    "group_of_one_has_its_reward": "groups_of_one",
    "log_ratio_not_cut": "extreme_ratios",
    "nan_times_0": "nan_off_mask",
    "own_counts": "micro_batches",
    "mean_of_means": "data_parallel",
    "groups_of_four": "unequal_groups",
    "groups_in_a_row": "shuffled_groups",
}


def advantages(rewards, group, defect):
    A = np.zeros(len(rewards))
    if defect == "groups_in_a_row":
        group = np.arange(len(rewards)) // 4
    for label in np.unique(group):
        own, R = group == label, rewards[group == label]
        mean = R.sum() / 4 if defect == "groups_of_four" else R.mean()
        std = R.std(ddof=defect != "population_std") if len(R) > 1 else 0.0
        if defect == "advantages_not_centred":
            mean = 0.0
        A[own] = (R - mean) / (std + 1e-6)
        if np.ptp(R) == 0:
            A[own] = 1.0 if defect == "flat_groups_not_flat" and len(R) > 1 else 0.0
        if len(R) == 1 and defect == "group_of_one_has_its_reward":
            A[own] = R
    return A


def function(method, params, inputs, signals, counts, defect=""):
    mask = inputs["mask"]
    gap = inputs["logprobs"] - inputs["old_logprobs"]
    off = gap * mask if defect == "nan_times_0" else np.where(mask, gap, 0.0)
    l = gap if defect == "mask_ignored" else off  # noqa: E741
    A, own = signals["advantages"], {}
    if "rewards" in inputs:
        A = advantages(inputs["rewards"], inputs["group"], defect)
        own = {"advantages": A}
    ratio = np.exp(l if defect == "log_ratio_not_cut" else l.clip(-20, 20))
    gain, A = ratio * A[:, None], A[:, None]
    cut = ratio.clip(1 - params["clip_low"], 1 + params["clip_high"]) * A
    chosen = gain <= cut if defect != "clip_on_the_wrong_side" else gain >= cut
    J = np.where(chosen, gain, cut)
    slope = np.where(chosen if defect != "gradient_through_the_clip" else True, gain, 0.0)
    if defect != "log_ratio_not_cut":
        slope = np.where(np.abs(l) <= 20, slope, 0.0)
    weights = weight(mask, counts, A, defect)
    J, slope = J * weights, slope * weights
    sign = 1 if defect == "sign" else -1
    grad = sign * slope * (2 if defect == "gradient_doubled" else 1)
    if defect == "gradient_off_the_mask":
        grad = np.where(mask, grad, 0.01)
    return {"loss": sign * J.sum(), "grad": grad, **own}


def weight(mask, counts, A, defect):
    """What a token's term is multiplied by, [B,S]."""
    seen = np.ones_like(mask) if defect == "mask_ignored" else mask
    lengths = np.maximum(seen.sum(1, keepdims=True), 1)
    sequences = counts["sequences"]
    if defect == "mean_over_positions":
        lengths = mask.shape[1]
    if defect == "own_counts":
        sequences = mask.any(1).sum()
    if defect == "mean_of_means":  # each rank its mean, as if all had as many
        sequences = max(mask.any(1).sum(), 1) * counts["pieces"]
    if defect == "empty_rows_counted":
        sequences = counts["rows"]
    if defect == "flat_groups_not_counted":
        sequences = max((A != 0).sum(), 1) if counts["pieces"] == 1 else sequences
    if defect == "token_mean":
        return seen / counts["tokens"]
    return seen / (lengths * sequences)


def verdicts(defect):
    tested = lambda *args: function(*args, defect=defect)  # noqa: E731
    return {case["trap"]: judge(tested, case, 1e-8)[0] for case in CASES}


def test_grpo_by_itself_conforms():
    assert set(verdicts("").values()) == {"pass"}


@pytest.mark.parametrize(("defect", "trap"), DEFECTS.items())
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_defect_is_seen_by_its_trap(defect, trap):
    found = verdicts(defect)
    assert found[trap] == "departs"
    assert (found["plain"] == "pass") == (trap != "plain")


def test_every_trap_has_a_defect_that_only_traps_see():
    assert {*DEFECTS.values()} == {case["trap"] for case in CASES}
