"""Rollouts: every bad input is one sentence that names the field; rows and lengths."""

import pytest
import torch
from says import Says

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.rollouts import Rollouts

NAN, INF = float("nan"), float("inf")
MASK = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 1]]).bool()


def rollouts(**fields):
    """Three sequences of two prompts, the second one empty."""
    good = {
        "group": torch.tensor([7, -2, 7]),
        "rewards": torch.tensor([0.0, 1.0, 1.0]),
        "mask": MASK,
        "old_logprobs": -torch.ones(3, 3),
    }
    return Rollouts(**{**good, **fields})


def refusal(make_it):
    """The message of the ValueError, which is one line."""
    with pytest.raises(ValueError) as error:
        make_it()
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("rewards", "where"),
    [
        ([0.0, NAN, 1.0], "sequence 1 nan (1"),
        ([INF, 0.0, NAN], "sequence 0 inf (2"),
        ([0.0, 1.0, -INF], "sequence 2 -inf (1"),
    ],
)
def test_rewards_must_be_finite(rewards, where):
    got = refusal(lambda: rollouts(rewards=torch.tensor(rewards)))
    assert got == Says(f"rewards finite {where}")


@pytest.mark.parametrize(
    ("mask", "what"),
    [
        (MASK.long(), "torch.int64 [3, 3]"),
        (MASK.float(), "torch.float32 [3, 3]"),
        (MASK[0], "torch.bool [3]"),
        (MASK[None], "torch.bool [1, 3, 3]"),
    ],
)
def test_mask_must_be_bool_of_two_dimensions(mask, what):
    assert refusal(lambda: rollouts(mask=mask)) == Says(f"mask bool [B, S] {what}")


@pytest.mark.parametrize(
    ("field", "shape"),
    [
        ("group", (2,)),
        ("group", (3, 1)),
        ("rewards", (4,)),
        ("rewards", (3, 3)),
        ("old_logprobs", (3, 4)),
        ("ref_logprobs", (2, 3)),
        ("entropy", (3,)),
        ("entropy", (1, 3)),
        ("gen_logprobs", (3, 2)),
    ],
)
def test_shapes_must_agree(field, shape):
    want = "[3]" if field in ("group", "rewards") else "[3, 3]"
    got = refusal(lambda: rollouts(**{field: torch.zeros(shape)}))
    assert got.startswith(field) and got == Says(f"{list(shape)} mask [3, 3] {want}")


@pytest.mark.parametrize("reward", [-0.001, 1.001, -1.0, 2.0])
@pytest.mark.parametrize("block", ["apmpo", {"name": "grpo", "bounds": "apmpo"}])
def test_rewards_outside_0_1_for_apmpo(block, reward):
    algorithm = build(block)
    bad = rollouts(rewards=torch.tensor([0.0, 1.0, reward], dtype=torch.float64))
    got = refusal(lambda: algorithm.signals(bad))
    assert got == Says(f"{algorithm.name} rewards [0, 1] sequence 2 {reward:g} (R + 1) / 2")
    algorithm.signals(rollouts())  # 0 and 1 are inside


@pytest.mark.parametrize(
    ("rows", "kept"),
    [
        (torch.tensor([2, 0]), [2, 0]),
        (torch.tensor([True, False, True]), [0, 2]),
        (slice(1, 3), [1, 2]),
        (slice(0, 0), []),
    ],
)
def test_rows(rows, kept):
    part = rollouts(entropy=torch.arange(9.0).view(3, 3))[rows]
    assert len(part) == len(kept)
    assert part.group.tolist() == [[7, -2, 7][i] for i in kept]
    assert part.rewards.tolist() == [[0, 1, 1][i] for i in kept]
    assert part.lengths.tolist() == [[2, 0, 2][i] for i in kept]
    assert part.entropy is not None and part.entropy[:, 0].tolist() == [3.0 * i for i in kept]
    assert part.ref_logprobs is None and part.gen_logprobs is None
