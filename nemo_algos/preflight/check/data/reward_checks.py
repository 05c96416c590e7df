"""The verdicts on an environment's rewards: the gold answer pays, and nothing else as much."""

import math
import statistics
from collections.abc import Callable
from typing import NamedTuple

from nemo_algos.preflight.check.data import answers
from nemo_algos.preflight.check.data.rows import MANY, Row
from nemo_algos.preflight.check.data.verdict import Stage, cut, list_rows, share

# seconds of one response
WARN = 1.0
FAIL = 10.0
# kinds of responses that must not be paid as the gold is, and what a message calls them
KINDS = {
    "empty": "empty answers",
    "wrong": "wrong answers",
    "truncated": "truncated answers",
    "blank": "answers with nothing in their place",
    "start": "the first digit alone",
    "end": "numbers that differ in the first digit",
    "dotted": "numbers with a point between their digits",
}
AGAIN = "again"  # the gold answer, asked a second time after all others
ASKED = (*KINDS, "doubled", "long", "short")
FAR = 100  # times the usual reward


class Scores(NamedTuple):
    """Rewards of the rows' trials, by kind; golds: their right responses; seconds: of those.

    sentences: numbers of the rows whose answer is a sentence.
    """

    rows: list[Row]
    golds: list[str]
    form: str
    rewards: dict[str, list[float]]
    seconds: list[float]
    sentences: frozenset[int] = frozenset()


def judge(
    stage: Stage, key: str, scores: Scores, wanted: list[str], reason: Callable[[str, str], str]
) -> None:
    """The verdicts on an environment's rewards.

    wanted: the forms that the prompts ask for; reason: why a response to an answer is not judged.
    """
    before = stage.raised
    unreadable = _numbers(stage, key, scores)
    same = not unreadable and _same(stage, key, scores, reason)
    noisy = not unreadable and not same and _check_noise(stage, key, scores)
    if not unreadable and not same and not noisy:
        _gold(stage, key, scores, reason)
        _format(stage, key, scores, wanted)
        _check_sentences(stage, key, scores)
        _check_sizes(stage, key, scores)
        for kind in KINDS:
            _wrong(stage, key, scores, kind)
        _check_doubled(stage, key, scores)
        _silence(stage, key, scores)
    worst = _times(stage, key, scores)
    if before == stage.raised:
        form = scores.form
        paid = sum(_paid(scores))
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
    row = scores.rows[0]
    reward = values.pop()
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


def _check_noise(stage: Stage, key: str, scores: Scores) -> bool:
    """Whether the same response to the same row is paid otherwise when it is asked again."""
    pairs = zip(scores.rows, scores.rewards["gold"], scores.rewards[AGAIN], strict=True)
    moved = [(row.number, first, then) for row, first, then in pairs if first != then]
    if moved:
        number, first, then = moved[0]
        stage.failed(
            f"`{key}` gives other rewards when it is asked again, for "
            f"{share(len(moved), len(scores.rows))} right responses ({first:g}, then {then:g} in "
            f"row {number:,}): noise, or a state that it keeps. The policy would be trained on "
            "that. Make the reward depend only on the response and the answer.",
            key,
        )
    return bool(moved)


def _check_sentences(stage: Stage, key: str, scores: Scores) -> None:
    """Answers that are sentences, whose number a policy would give, are paid for that too."""
    pairs = zip(
        scores.rows, scores.rewards["short"], scores.rewards["empty"], _paid(scores), strict=True
    )
    unpaid = [
        row
        for row, short, empty, paid in pairs
        if paid and row.number in scores.sentences and short <= empty
    ]
    if unpaid:
        say = stage.failed if len(unpaid) > MANY * len(scores.rows) else stage.warning
        say(
            f"The answers of {share(len(unpaid), len(scores.rows))} rows are sentences "
            f"({list_rows([row.number for row in unpaid])}, as {cut(unpaid[0].answer, 60)!r}), and "
            f"`{key}` pays the whole sentence and not its number. Keep only the number under "
            "output_key.",
            key,
        )


def _check_sizes(stage: Stage, key: str, scores: Scores) -> None:
    """No reward is far beyond the others, and none is for the length of a response."""
    paid = [(abs(r), row) for r, row in zip(scores.rewards["gold"], scores.rows, strict=True) if r]
    usual = statistics.median(size for size, _ in paid) if paid else 0.0
    far = [(size, row) for size, row in paid if size > FAR * usual]
    if far:
        stage.warning(
            f"`{key}` gives {far[0][0]:g} for the right answer of row {far[0][1].number:,}, and "
            f"{usual:g} usually: such a row would outweigh all others of its step. "
            "Bound the reward.",
            key,
        )
    pairs = zip(scores.rewards["gold"], scores.rewards["long"], strict=True)
    longer = [(gold, long) for gold, long in pairs if long > gold]
    if len(longer) > len(scores.rows) / 2:
        gold, long = longer[0]
        stage.warning(
            f"`{key}` pays more for the same answer behind {answers.LONGER} lines of filler "
            f"({long:g}, not {gold:g}): the policy would learn to write long. Do not pay for "
            "length.",
            key,
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
            f"`{key}` pays {KINDS[kind]} as much as the gold in "
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
    seconds = scores.seconds[worst]
    number = scores.rows[worst].number
    if seconds > WARN:
        say = stage.failed if seconds > FAIL else stage.warning
        say(
            f"`{key}` needs {seconds:.3g} s for one response (row {number:,}; the median is "
            f"{statistics.median(scores.seconds):.3g} s): a step waits for the slowest. Lower its "
            "deadline, or make the reward function faster.",
            key,
        )
    return f"{seconds:.3g} s (row {number:,})"
