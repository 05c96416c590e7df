"""Every environment on answers that are known: the right one must pay, no other as much."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from nemo_algos.preflight.rehearsal import answers
from nemo_algos.preflight.rehearsal.lengths import MANY
from nemo_algos.preflight.rehearsal.rows import Row
from nemo_algos.preflight.rehearsal.scoring import Judge, Unpaid
from nemo_algos.preflight.rehearsal.stage import Stage, cut, listed, share

ROWS, FEW = 64, 8  # on which it is tried; on which the form of an answer is found
BUDGET = 60.0  # seconds for an environment
WARN, FAIL = 1.0, 10.0  # seconds of one response
KINDS = ("empty", "wrong", "truncated")


class Known(NamedTuple):
    """A row, and what a right response to it has in it."""

    row: Row
    text: str


class Scores(NamedTuple):
    """Rewards of the rows' trials, by kind; seconds: of the gold responses."""

    rows: list[Row]
    form: str
    rewards: dict[str, list[float]]
    seconds: list[float]


def judge(
    stage: Stage, name: str, judge: Judge, rows: Sequence[Row], prompts: Sequence[str], lent: bool
) -> str:
    """The text of a right response with {answer} in it, "" where none is known.

    lent: the rows are none of the run's, so that the environment may want other answers.
    """
    key, known = f"env.{name}", known_answers(judge, rows)
    try:
        judge.started()
        if not known:
            _without_gold(stage, key, judge, rows)
            return ""
        wanted = answers.asked(prompts)
        affordable = _affordable(judge, known[0], wanted)
        if not affordable:
            _too_slow(stage, key, known[0])
            return ""
        known = known[:affordable]
        form, paid = _form(judge, known, wanted)
        if lent and not paid:
            stage.unchecked(f"`{key}` pays nothing for sums, which stand in for the rows.", key)
            return ""
        scores = _scores(judge, known, form)
    except Unpaid as problem:
        stage.failed(f"`{key}` {problem}. Nothing would be trained on. Mend it.", key)
        return ""
    _judge(stage, key, judge, scores, wanted)
    return answers.FORMS[form] if paid else ""


def known_answers(judge: Judge, rows: Sequence[Row]) -> list[Known]:
    """With what a right response has in it; [] where the rows do not say it."""
    found: list[Known] = []
    for row in rows[:ROWS]:
        try:
            text = answers.gold_text(judge.section, str(row.answer))
        except (ValueError, KeyError, TypeError):  # the verifier cannot read it either
            text = str(row.answer)
        if text is None:
            return []
        found.append(Known(row, text))
    return found


def _affordable(judge: Judge, first: Known, wanted: list[str]) -> int:
    """As many rows as the time is for, by that of the first."""
    response = answers.written((wanted or [*answers.FORMS])[0], first.text)
    _, seconds = judge.timed(response, str(first.row.answer))
    each = max(seconds, 1e-6) * (len(answers.FORMS) + len(KINDS))
    return 0 if seconds > FAIL else max(1, min(ROWS, int(BUDGET / each)))


def _form(judge: Judge, known: Sequence[Known], wanted: list[str]) -> tuple[str, bool]:
    """The form that pays for most rows, of those that the prompts ask for if any of them does."""
    few = known[:FEW]
    texts = [str(row.answer) for row, _ in few]
    nothing = judge.rewards([""] * len(few), texts)
    best: tuple[int, str] = (0, (wanted or [*answers.FORMS])[0])
    for group in (wanted, [form for form in answers.FORMS if form not in wanted]):
        for form in group:
            got = judge.rewards([answers.written(form, text) for _, text in few], texts)
            paid = sum(g > n for g, n in zip(got, nothing, strict=True))
            best = max(best, (paid, form), key=lambda pair: pair[0])
        if best[0] > len(few) / 2:
            break
    return best[1], best[0] > 0


def _scores(judge: Judge, known: Sequence[Known], form: str) -> Scores:
    texts = [text for _, text in known]
    trials = [answers.trial(form, text, texts) for text in texts]
    golds = [str(row.answer) for row, _ in known]
    timed = [judge.timed(t.gold, gold) for t, gold in zip(trials, golds, strict=True)]
    rewards = {"gold": [reward for reward, _ in timed]}
    for kind in (*KINDS, "doubled"):
        rewards[kind] = judge.rewards([getattr(one, kind) for one in trials], golds)
    return Scores([row for row, _ in known], form, rewards, [seconds for _, seconds in timed])


def _judge(stage: Stage, key: str, judge: Judge, scores: Scores, wanted: list[str]) -> None:
    """The verdicts on an environment's rewards."""
    before = stage.sound
    unreadable = _numbers(stage, key, scores)
    same = not unreadable and _same(stage, key, judge, scores)
    if not unreadable and not same:
        _gold(stage, key, judge, scores)
        _format(stage, key, scores, wanted)
        for kind in KINDS:
            _wrong(stage, key, scores, kind)
        _doubled(stage, key, scores)
    worst = _times(stage, key, scores)
    if before and stage.sound:
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
            f"`{key}` gives {bad[0]} for {share(len(bad), len(every))} responses: a reward is a "
            "finite number, and one that is not makes the loss nan. Mend the reward function.",
            key,
        )
    return bool(bad)


def _same(stage: Stage, key: str, judge: Judge, scores: Scores) -> bool:
    values = {value for kind in scores.rewards.values() for value in kind}
    if len(values) > 1:
        return False
    row, reward = scores.rows[0], values.pop()
    reason = judge.reason(_gold_response(scores, row), str(row.answer)) if not reward else ""
    why = f" On the gold answer of row {row.number:,} it ends with {reason}." if reason else ""
    stage.failed(
        f"`{key}` gives {reward:g} for every response to {len(scores.rows)} rows, right, wrong or "
        f"empty, the gold answer {cut(row.answer, 60)!r} written in {len(answers.FORMS)} ways "
        f"included: no advantage, nothing to learn.{why} Compare what the verifier reads with the "
        "prompt and the data's answers.",
        key,
        example=_gold_response(scores, row),
    )
    return True


def _gold_response(scores: Scores, row: Row) -> str:
    return answers.written(scores.form, str(row.answer))


def _paid(scores: Scores) -> list[bool]:
    """Whether a gold response is paid more than an empty one."""
    pairs = zip(scores.rewards["gold"], scores.rewards["empty"], strict=True)
    return [right > nothing for right, nothing in pairs]


def _gold(stage: Stage, key: str, judge: Judge, scores: Scores) -> None:
    unpaid = [row for row, paid in zip(scores.rows, _paid(scores), strict=True) if not paid]
    if not unpaid:
        return
    first = unpaid[0]
    reason = judge.reason(_gold_response(scores, first), str(first.answer))
    why = f", where it ends with {reason}" if reason else ""
    texts = ", ".join(repr(cut(row.answer, 40)) for row in unpaid[:3])
    say = stage.failed if len(unpaid) > MANY * len(scores.rows) else stage.warning
    say(
        f"`{key}` does not pay the gold answer as {scores.form} in "
        f"{share(len(unpaid), len(scores.rows))} rows: {listed([r.number for r in unpaid])} "
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
            example=_gold_response(scores, scores.rows[0]),
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
            f"{share(len(as_much), len(scores.rows))} rows ({listed(as_much)}): the policy would "
            "learn to write anything. Make the verifier compare with the whole answer.",
            key,
        )


def _doubled(stage: Stage, key: str, scores: Scores) -> None:
    together = zip(scores.rewards["gold"], scores.rewards["doubled"], _paid(scores), strict=True)
    taken = sum(paid and other >= right for right, other, paid in together)
    if taken > len(scores.rows) / 2:
        stage.warning(
            f"`{key}` pays a response that gives the gold answer and then takes it back for a "
            f"wrong one, in {share(taken, len(scores.rows))} rows: the policy may learn to list "
            "answers. Read the last answer alone.",
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


def _too_slow(stage: Stage, key: str, first: Known) -> None:
    stage.failed(
        f"`{key}` needs more than {FAIL:g} s for one response (row {first.row.number:,}): a step "
        "waits for the slowest, and nothing else was tried. Lower its deadline, or make the "
        "reward function faster.",
        key,
    )


def _without_gold(stage: Stage, key: str, judge: Judge, rows: Sequence[Row]) -> None:
    """A right response is not known; that an empty or a careless one pays nothing is."""
    few = [str(row.answer) for row in rows[:FEW]]
    paid = [r for said in ("", "I do not know.") for r in judge.rewards([said] * len(few), few)]
    if any(reward > 0 for reward in paid):
        stage.failed(f"`{key}` pays for an empty response, or for 'I do not know.'.", key)
        return
    stage.unchecked(
        f"`{key}`: a row's answer does not say how a right response is written, so no right one "
        f"was tried. Empty and careless ones are not paid in {len(few)} rows.",
        key,
    )
