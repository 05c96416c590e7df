"""The verdicts on an environment's rewards: the gold answer pays, and nothing else as much."""

import math
import statistics
from collections.abc import Callable
from typing import NamedTuple

from nemo_algos.preflight.rehearsal import answers
from nemo_algos.preflight.rehearsal.lengths import MANY
from nemo_algos.preflight.rehearsal.rows import Row
from nemo_algos.preflight.rehearsal.stage import Stage, cut, list_rows, share

WARN, FAIL = 1.0, 10.0  # seconds of one response
KINDS = ("empty", "wrong", "truncated")


class Scores(NamedTuple):
    """Rewards of the rows' trials, by kind; golds: their right responses; seconds: of those."""

    rows: list[Row]
    golds: list[str]
    form: str
    rewards: dict[str, list[float]]
    seconds: list[float]


def judge(
    stage: Stage, key: str, scores: Scores, wanted: list[str], reason: Callable[[str, str], str]
) -> None:
    """The verdicts on an environment's rewards.

    wanted: the forms that the prompts ask for; reason: why a response to an answer is not judged.
    """
    before = stage.raised
    unreadable = _numbers(stage, key, scores)
    same = not unreadable and _same(stage, key, scores, reason)
    if not unreadable and not same:
        _gold(stage, key, scores, reason)
        _format(stage, key, scores, wanted)
        for kind in KINDS:
            _wrong(stage, key, scores, kind)
        _check_doubled(stage, key, scores)
        _silence(stage, key, scores)
    worst = _times(stage, key, scores)
    if before == stage.raised:
        form, paid = scores.form, sum(_paid(scores))
        stage.passed(
            f"`{key}` pays the gold answer as {form} in {paid} of {len(scores.rows)} rows, and "
            f"less for empty, wrong and truncated ones. A response takes "
            f"{statistics.median(scores.seconds):.3g} s, at most {worst}.",
            key,
            form=form,
            rows=len(scores.rows),
            rewards={kind: statistics.fmean(values) for kind, values in scores.rewards.items()},
        )


def _numbers(stage: Stage, key: str, scores: Scores) -> bool:
    every = [value for values in scores.rewards.values() for value in values]
    bad = [value for value in every if not math.isfinite(value)]
    if bad:
        stage.failed(
            f"`{key}` gives {bad[0]} for {share(len(bad), len(every))} responses: any "
            "reward that is not finite makes the loss NaN. Correct the reward function.",
            key,
        )
    return bool(bad)


def _same(stage: Stage, key: str, scores: Scores, reason: Callable[[str, str], str]) -> bool:
    values = {value for kind in scores.rewards.values() for value in kind}
    if len(values) > 1:
        return False
    row, reward = scores.rows[0], values.pop()
    said = reason(scores.golds[0], str(row.answer)) if not reward else ""
    why = f" On the gold answer of row {row.number:,} it ends with {said}." if said else ""
    stage.failed(
        f"`{key}` gives {reward:g} for every response to {len(scores.rows)} rows, right, wrong or "
        f"empty, the gold answer {cut(row.answer, 60)!r} written in {len(answers.FORMS)} ways "
        f"included: no advantage, nothing to learn.{why} Compare what the verifier reads with the "
        "prompt and the data's answers.",
        key,
        example=scores.golds[0],
    )
    return True


def _paid(scores: Scores) -> list[bool]:
    """Whether a gold response is paid more than an empty one."""
    pairs = zip(scores.rewards["gold"], scores.rewards["empty"], strict=True)
    return [right > nothing for right, nothing in pairs]


def _gold(stage: Stage, key: str, scores: Scores, reason: Callable[[str, str], str]) -> None:
    unpaid = [row for row, paid in zip(scores.rows, _paid(scores), strict=True) if not paid]
    if not unpaid:
        return
    first = unpaid[0]
    said = reason(scores.golds[scores.rows.index(first)], str(first.answer))
    why = f", where it ends with {said}" if said else ""
    texts = ", ".join(repr(cut(row.answer, 40)) for row in unpaid[:3])
    say = stage.failed if len(unpaid) > MANY * len(scores.rows) else stage.warning
    say(
        f"`{key}` does not pay the gold answer as {scores.form} in "
        f"{share(len(unpaid), len(scores.rows))} rows: {list_rows([r.number for r in unpaid])} "
        f"({texts}){why}. The verifier cannot read these answers, so no response to them is ever "
        "right. Correct or remove them.",
        key,
        rows=[row.number for row in unpaid],
    )


def _format(stage: Stage, key: str, scores: Scores, wanted: list[str]) -> None:
    if wanted and scores.form not in wanted:
        stage.failed(
            f"The prompts ask for {' and '.join(wanted)}, and `{key}` does not pay an answer "
            f"that is written so: it pays {scores.form}. Change the prompt_file, or the verifier.",
            key,
            example=scores.golds[0],
        )
    elif not wanted and scores.form not in answers.PLAIN:
        stage.warning(
            f"`{key}` pays an answer as {scores.form}, and no prompt asks for one: the model has "
            "to find that by chance. Say it in the prompt_file or the system_prompt_file.",
            "data.default.prompt_file",
        )


def _wrong(stage: Stage, key: str, scores: Scores, kind: str) -> None:
    """Of the rows whose gold is paid; an empty response that is paid leaves none."""
    together = zip(
        scores.rows, _paid(scores), scores.rewards["gold"], scores.rewards[kind], strict=True
    )
    as_much = [row.number for row, paid, right, other in together if paid and other >= right]
    if as_much:
        say = stage.failed if len(as_much) > MANY * len(scores.rows) else stage.warning
        say(
            f"`{key}` pays {kind} answers as much as the gold in "
            f"{share(len(as_much), len(scores.rows))} rows ({list_rows(as_much)}): the policy "
            "would learn to write anything. Make the verifier compare with the whole answer.",
            key,
        )


def _check_doubled(stage: Stage, key: str, scores: Scores) -> None:
    together = zip(scores.rewards["gold"], scores.rewards["doubled"], _paid(scores), strict=True)
    taken = sum(paid and other >= right for right, other, paid in together)
    if taken > len(scores.rows) / 2:
        stage.warning(
            f"`{key}` pays a response that gives the gold answer and then takes it back for a "
            f"wrong one, in {share(taken, len(scores.rows))} rows: the policy may learn to list "
            "answers. Read only the last answer.",
            key,
        )


def _silence(stage: Stage, key: str, scores: Scores) -> None:
    kinds = (scores.rewards[kind] for kind in ("gold", "empty", "wrong"))
    better = [(e, w) for gold, e, w in zip(*kinds, strict=True) if gold > e > w]
    if len(better) > len(scores.rows) / 2:
        nothing, wrong = better[0]
        stage.warning(
            f"`{key}` gives {wrong:g} for a wrong answer and {nothing:g} for none: a policy that "
            "is often wrong learns to answer nothing. Give none no more than a wrong one.",
            key,
        )


def _times(stage: Stage, key: str, scores: Scores) -> str:
    worst = max(range(len(scores.rows)), key=lambda i: scores.seconds[i])
    seconds, number = scores.seconds[worst], scores.rows[worst].number
    if seconds > WARN:
        say = stage.failed if seconds > FAIL else stage.warning
        say(
            f"`{key}` needs {seconds:.3g} s for one response (row {number:,}; the median is "
            f"{statistics.median(scores.seconds):.3g} s): a step waits for the slowest. Lower its "
            "deadline, or make the reward function faster.",
            key,
        )
    return f"{seconds:.3g} s (row {number:,})"
