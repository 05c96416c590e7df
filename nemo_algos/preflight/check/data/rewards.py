"""Every environment on answers that are known: the right one must pay, no other as much."""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from nemo_algos.preflight.check.data import answers
from nemo_algos.preflight.check.data.reward_checks import AGAIN, ASKED, FAIL, Scored
from nemo_algos.preflight.check.data.reward_checks import judge as verdicts
from nemo_algos.preflight.check.data.rows import Row
from nemo_algos.preflight.check.data.scoring import Judge, Unpaid
from nemo_algos.preflight.check.data.tokenizer_checks import STRINGS
from nemo_algos.preflight.check.data.verdict import Stage, cut

# on which it is tried; on which the form of an answer is found
ROWS = 64
FEW = 8
# seconds for an environment; of a response that is tried on all rows
BUDGET = 60.0
QUICK = 0.5


class Known(NamedTuple):
    """A row, and what a right response to it has in it."""

    row: Row
    text: str


def judge(
    stage: Stage,
    name: str,
    judge: Judge,
    rows: Sequence[Row],
    prompts: Sequence[str],
    lent: bool,
    stops: Sequence[str] = (),
) -> str:
    """The text of a right response with {answer} in it, "" where none is known.

    lent: the rows are none of the run's, so that the environment may want other answers; stops:
    texts that end a response.
    """
    key = f"env.{name}"
    known = known_answers(judge, rows)
    try:
        judge.started()
        if not known:
            _without_gold(stage, key, judge, rows)
            return ""
        wanted = answers.asked_forms(prompts)
        affordable = _affordable(judge, known[0], wanted)
        if not affordable:
            stage.failed(
                f"`{key}` needs more than {FAIL:g} s for one response (row "
                f"{known[0].row.number:,}): a step waits for the slowest, and nothing else was "
                "tried. Lower its deadline, or make the reward function faster.",
                key,
            )
            return ""
        known = known[:: -(-len(known) // affordable)]
        form, paid = _form(judge, known, wanted)
        if lent and not paid:
            stage.unchecked(
                f"`{key}` was not checked: it gives no reward on the sums that replace the rows.",
                key,
            )
            return ""
        scored = _scored(judge, known, form)
    except Unpaid as problem:
        stage.failed(
            f"`{key}` {problem}. No response would get a reward. Correct the environment.", key
        )
        return ""
    before = answers.FORMS[form].partition(answers.PLACE)[0]
    early = [stop for stop in stops if stop and stop in before]
    if paid and early:
        stage.failed(
            f"`{STRINGS}` has {early[0]!r}, which stands in front of the answer in a right response"
            f" as {cut(before, 60)!r}: each response would end there, without one. Remove it.",
            STRINGS,
        )
    if lent and not wanted:
        wanted = [form]  # the rows that are not at hand may ask for it themselves
    verdicts(stage, key, scored, form, wanted=wanted, reason=judge.reason)
    return answers.FORMS[form] if paid else ""


def known_answers(judge: Judge, rows: Sequence[Row]) -> list[Known]:
    """With what a right response has in it; [] where the rows do not say it."""
    found: list[Known] = []
    for row in drawn(rows):
        try:
            text = answers.gold_text(judge.section, str(row.answer))
        except (ValueError, KeyError, TypeError):  # the verifier cannot read it either
            text = str(row.answer)
        if text is None:
            return []
        found.append(Known(row, text))
    return found


def drawn(rows: Sequence[Row]) -> list[Row]:
    """ROWS of the rows, one drawn of each of as many equal parts: files are often sorted."""
    if len(rows) <= ROWS:
        return list(rows)
    rng = random.Random(0)
    edges = [len(rows) * i // ROWS for i in range(ROWS + 1)]
    return [rows[rng.randrange(low, high)] for low, high in pairwise(edges)]


def _affordable(judge: Judge, first: Known, wanted: list[str]) -> int:
    """As many rows as the time is for, by that of the first."""
    response = answers.write_answer((wanted or [*answers.FORMS])[0], first.text)
    _, seconds = judge.timed(response, str(first.row.answer))
    if seconds < QUICK:
        return ROWS
    each = seconds * (len(answers.FORMS) + len(ASKED))
    return 0 if seconds > FAIL else max(1, min(ROWS, int(BUDGET / each)))


def _form(judge: Judge, known: Sequence[Known], wanted: list[str]) -> tuple[str, bool]:
    """The form that pays for most rows, of those that the prompts ask for if any of them does."""
    few = known[:: -(-len(known) // FEW)]
    texts = [str(row.answer) for row, _ in few]
    nothing = judge.rewards([""] * len(few), texts)
    best: tuple[int, str] = (0, (wanted or [*answers.FORMS])[0])
    for group in (wanted, [form for form in answers.FORMS if form not in wanted]):
        for form in group:
            got = judge.rewards([answers.write_answer(form, text) for _, text in few], texts)
            paid = sum(g > n for g, n in zip(got, nothing, strict=True))
            best = max(best, (paid, form), key=lambda pair: pair[0])
        if best[0] > len(few) / 2:
            break
    return best[1], best[0] > 0


def _scored(judge: Judge, known: Sequence[Known], form: str) -> list[Scored]:
    texts = [text for _, text in known]
    trials = [answers.trial(form, text, texts) for text in texts]
    golds = [str(row.answer) for row, _ in known]
    timed = [judge.timed(trial.gold, gold) for trial, gold in zip(trials, golds, strict=True)]
    rewards = {"gold": [reward for reward, _ in timed]}
    for kind in ASKED:
        rewards[kind] = judge.rewards([getattr(trial, kind) for trial in trials], golds)
    rewards[AGAIN] = judge.rewards([trial.gold for trial in trials], golds)
    found = list[Scored]()
    for i, (row, _) in enumerate(known):
        own = {kind: values[i] for kind, values in rewards.items()}
        found.append(Scored(row, trials[i].gold, own, timed[i][1], bool(trials[i].short)))
    return found


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
