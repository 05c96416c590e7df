"""Lengths of prompts against the run's limits."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from nemo_algos.config import at
from nemo_algos.preflight.check.data.rows import Row
from nemo_algos.preflight.check.data.verdict import Stage, list_rows, share

BINS = 20
MANY = 0.05  # share of rows from which on a warning is a failure
SOME = 0.01  # share of rows whose responses are cut short, from which on it is a warning
LIMIT = "data.max_input_seq_length"
TOTAL = "policy.max_total_sequence_length"
NEW = "policy.generation.max_new_tokens"
ENGINE = "policy.generation.vllm_cfg.max_model_len"


def summary(lengths: Sequence[int]) -> dict[str, Any]:
    """Median, 99th percentile, largest, and a histogram: pairs of a length and the rows from it."""
    ordered = sorted(lengths)
    width = ordered[-1] // BINS + 1
    counts = [0] * (ordered[-1] // width + 1)
    for length in ordered:
        counts[length // width] += 1
    histogram = [[i * width, count] for i, count in enumerate(counts)]
    last = len(ordered) - 1
    ranks = {"p50": ordered[last // 2], "p99": ordered[math.ceil(0.99 * last)], "max": ordered[-1]}
    return {**ranks, "histogram": histogram}


def judge(
    stage: Stage, rows: Sequence[Row], config: Mapping[str, Any], name: str, real: bool
) -> None:
    """What NeMo-RL masks, what no processor cuts, what leaves too little for a response.

    real: neither the rows nor the tokenizer stand in for others.
    """
    plain = dict(config)
    found = summary([row.length for row in rows])
    if not real:
        what = "the rows or the tokenizer stand in for the run's own"
        stage.unchecked(f"Lengths of {name} were not judged: {what}.", LIMIT, **found)
        return
    whole = int(at(plain, ENGINE) or at(plain, TOTAL) or 0)
    _check_masked(stage, rows, at(plain, LIMIT), name)
    if whole:
        _beyond(stage, rows, whole, name)
        _short(stage, rows, whole, int(at(plain, NEW) or 0), name)
    message = (
        f"Prompts of {name} have {found['p50']:,} tokens (median), {found['p99']:,} (99th "
        f"percentile) and {found['max']:,} (longest)."
    )
    stage.passed(message, **found)


def _check_masked(stage: Stage, rows: Sequence[Row], limit: Any, name: str) -> None:
    """NeMo-RL's processors cut what reaches the limit to some tokens, and mask it."""
    masked = [row.number for row in rows if row.masked]
    if not masked:
        return
    say = stage.failed if len(masked) > MANY * len(rows) else stage.warning
    say(
        f"`{LIMIT}` is {limit}: {share(len(masked), len(rows))} prompts of {name} reach it "
        f"({list_rows(masked)}). NeMo-RL cuts such a prompt to a few tokens, samples responses to "
        "what is left, and drops them from the loss. Raise the limit, or remove these rows.",
        LIMIT,
    )


def _beyond(stage: Stage, rows: Sequence[Row], whole: int, name: str) -> None:
    long = [row.number for row in rows if not row.masked and row.length >= whole]
    if long:
        stage.failed(
            f"`{TOTAL}` is {whole}: {share(len(long), len(rows))} prompts of {name} leave no "
            f"token for a response ({list_rows(long)}), and nothing masks them. Set `{LIMIT}` "
            f"below `{TOTAL}`, or remove these rows.",
            TOTAL,
        )


def _short(stage: Stage, rows: Sequence[Row], whole: int, new: int, name: str) -> None:
    """Half of the length is taken for enough where max_new_tokens is as much as all of it."""
    enough = new if new < whole else whole // 2
    short = [row for row in rows if not row.masked and whole - enough < row.length < whole]
    if len(short) > SOME * len(rows):
        room = min(whole - row.length for row in short)
        stage.warning(
            f"`{NEW}` is {new:,} and `{TOTAL}` is {whole:,}: {share(len(short), len(rows))} "
            f"prompts of {name} leave less than {enough:,} tokens for a response, the longest "
            f"{room:,}. Raise `{TOTAL}`, or lower `{LIMIT}` so that such prompts are masked.",
            TOTAL,
        )
