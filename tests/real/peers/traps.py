"""The batches of the conformance cases: a plain one, and one for each trap.

Their numbers are decimals, alike on any machine.

    plain             four groups of four, every position a token: the formula, its constants
    holes             tokens within a response that are not the policy's
    empty_rows        two responses without a token: their rewards count, but in no mean of the loss
    flat_groups       two groups of equal rewards: advantages of 0 that are part of every mean
    groups_of_one     four prompts with one response each
    extreme_ratios    log-ratios of 3, 6 and 25 to both sides: cut beyond 20
    nan_off_mask      NaN in every input off the mask
    micro_batches     pieces of 1, 5, 3 and 7 responses
    data_parallel     two ranks with every other response, each in two micro-batches; one is empty
    unequal_lengths   responses of 1 to 8 tokens: which mean, and of what
    unequal_groups    groups of 2, 3, 5 and 6
    shuffled_groups   the responses of a prompt are not next to one another
"""

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

POSITIONS = 8
REWARDS = ((0.0, 1.0, 0.3, 0.6), (1.0, 1.0, 0.0, 0.7), (0.2, 0.9, 0.4, 0.0), (0.0, 0.0, 1.0, 0.5))
ROWS = range(16)
TOKENS = ("old_logprobs", "logprobs", "ref_logprobs", "gen_logprobs", "entropy")
CUT = [[0], [*range(1, 6)], [*range(6, 9)], [*range(9, 16)]]  # micro-batches
# two ranks with every other response each, in two micro-batches
RANKS = [[*ROWS[0:8:2]], [*ROWS[8::2]], [*ROWS[1:8:2]], [*ROWS[9::2]]]
Inputs = dict[str, Any]


class Batch(NamedTuple):
    """pieces: the rows of each, where the batch is cut."""

    inputs: Inputs
    pieces: list[list[int]] | None = None


def traps() -> dict[str, Batch]:
    """The batches by the names above."""
    holes = [[int((i + 2 * t) % 3 > 0) for t in range(POSITIONS)] for i in ROWS]
    empty = [[int(i not in (2, 9))] * POSITIONS for i in ROWS]
    unequal = ((0.0, 1.0), (1.0, 0.2, 0.0), (0.0, 0.0, 1.0, 0.3, 0.0), (1.0,) * 4 + (0.0, 0.6))
    plain = build_inputs()
    return {
        "plain": Batch(plain),
        "holes": Batch(build_inputs(mask=holes)),
        "empty_rows": Batch(build_inputs(mask=empty)),
        "flat_groups": Batch(build_inputs(((1.0,) * 4, REWARDS[0], (0.1,) * 4, REWARDS[3]))),
        "groups_of_one": Batch(build_inputs((*REWARDS[:3], (1.0,), (0.0,), (0.7,), (0.4,)))),
        "extreme_ratios": Batch(_extreme(build_inputs())),
        "nan_off_mask": Batch(_nan_off_mask(build_inputs(mask=_lengths()))),
        "micro_batches": Batch(build_inputs(mask=_lengths()), CUT),
        "data_parallel": Batch(build_inputs(mask=_lengths(empty=5)), RANKS),
        "unequal_lengths": Batch(build_inputs(mask=_lengths())),
        "unequal_groups": Batch(build_inputs(unequal)),
        "shuffled_groups": Batch(
            {k: [rows[7 * i % 16] for i in ROWS] for k, rows in plain.items()}
        ),
    }


def build_inputs(
    rewards: Sequence[Sequence[float]] = REWARDS, mask: list[list[int]] | None = None
) -> Inputs:
    """Groups of these rewards, one after another; off the mask are numbers like those on it."""
    rng = random.Random(18)  # of it random() alone, which is the same everywhere
    flat = [(label, reward) for label, group in enumerate(rewards) for reward in group]

    def moved(rows: list[list[float]], scale: float) -> list[list[float]]:
        """By -scale to scale, half of it alike for the whole response; below 0."""
        by = [[rng.random() - 0.5 for _ in range(POSITIONS + 1)] for _ in rows]
        pairs = zip(rows, by, strict=True)
        return [
            [round(min(x + scale * (u + of), -0.01), 4) for x, u in zip(r, us, strict=True)]
            for r, (of, *us) in pairs
        ]

    old = moved([[-1.2] * POSITIONS for _ in flat], 1.2)
    return {
        "group": [label for label, _ in flat],
        "rewards": [reward for _, reward in flat],
        "reward/right": [float(reward > 0.5) for _, reward in flat],
        "reward/rest": [round(reward - (reward > 0.5), 4) for _, reward in flat],
        "prompt": [label for label, _ in flat],
        "drift": [0.01 for _ in flat],
        "mask": mask or [[1] * POSITIONS for _ in flat],
        "old_logprobs": old,
        "logprobs": moved(old, 0.7),
        "ref_logprobs": moved(old, 0.3),
        "gen_logprobs": moved(old, 0.3),
        "entropy": [[-x for x in row] for row in moved([[-1.0] * POSITIONS for _ in flat], 0.9)],
    }


def _lengths(empty: int = -1) -> list[list[int]]:
    """Responses of 1 to 8 tokens, and one of none."""
    each = [0 if i == empty else 1 + 5 * i % POSITIONS for i in ROWS]
    return [[int(t < length) for t in range(POSITIONS)] for length in each]


def _extreme(inputs: Inputs) -> Inputs:
    for i, jump in enumerate((25, -25, 6, -6, 3, -3) * 2):
        row = inputs["old_logprobs" if jump > 0 else "logprobs"][i]
        row[i % POSITIONS] = round(row[i % POSITIONS] - abs(jump), 4)
    return inputs


def _nan_off_mask(inputs: Inputs) -> Inputs:
    for name in TOKENS:
        for row, own in zip(inputs[name], inputs["mask"], strict=True):
            row[:] = [x if token else None for x, token in zip(row, own, strict=True)]
    return inputs
