"""Every environment on answers that are known: the right one must pay, no other as much."""

import math
import random
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from nemo_algos.preflight.check.data import answers
from nemo_algos.preflight.check.data.rows import Row
from nemo_algos.preflight.check.data.scoring import Judge, Unpaid
from nemo_algos.preflight.check.data.tokenizer_checks import STRINGS
from nemo_algos.preflight.check.data.verdict import Stage, cut, list_rows, share

# on which it is tried; on which the form of an answer is found
ROWS = 64
FEW = 8
# seconds for an environment; of a response that is tried on all rows
BUDGET = 60.0
QUICK = 0.5


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
    "negated": "numbers of the other sign",
    "evaluated": "Python code that computes the answer (the response is run)",
    "listed": "a list of the answers of all rows",
}
# kinds of right responses that must be paid
RIGHT = {
    "behind": "with ten sentences behind it",
    "dollars": "between dollar signs",
}
LONG = (f"{answers.LONGER} lines of filler", "write long. Do not pay for length")
HABITS = (f"words of habit ({cut(answers.HABITS, 60)!r})", "write these. Pay only for the answer")
# kinds of right responses that must not be paid more: behind what, and what would be learnt of it
MORE = {"long": LONG, "habits": HABITS}
AGAIN = "again"  # the gold answer, asked a second time after all others
ASKED = (*KINDS, *RIGHT, "doubled", "long", "short", "habits")
FAR = 100  # times the usual reward


class Scored(NamedTuple):
    """The rewards of a row's trial, by kind; seconds: of its right response."""

    row: Row
    trial: answers.Trial
    rewards: dict[str, float]
    seconds: float

    @property
    def paid(self) -> bool:
        """Whether the right response is paid: more than an empty one, or else than a wrong one."""
        gold = self.rewards["gold"]
        return gold > self.rewards["empty"] or gold > max(self.rewards["wrong"], 0)


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
        few = known[:: -(-len(known) // FEW)]
        golds = [str(row.answer) for row, _ in few]
        asked = [answers.write_answer((wanted or [*answers.FORMS])[0], text) for _, text in few]
        first = judge.rewards(asked, golds)  # before it has seen any other response
        form, paid = _form(judge, few, golds, wanted)
        again = judge.rewards(asked[::-1], golds[::-1])[::-1]  # in turns, it would be the same
        if _is_moved(stage, key, [row for row, _ in few], first, again):
            return ""
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
    judge_scores(stage, key, scored, form, wanted=wanted, reason=judge.reason)
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
    if seconds > FAIL:
        return 0
    return max(1, min(ROWS, int(BUDGET / each)))


def _form(
    judge: Judge, few: Sequence[Known], golds: Sequence[str], wanted: list[str]
) -> tuple[str, bool]:
    """The form that pays for most rows, of those that the prompts ask for if any of them does."""
    nothing = judge.rewards([""] * len(few), golds)
    best: tuple[int, str] = (0, (wanted or [*answers.FORMS])[0])
    for group in (wanted, [form for form in answers.FORMS if form not in wanted]):
        for form in group:
            got = judge.rewards([answers.write_answer(form, text) for _, text in few], golds)
            paid = sum(g > n for g, n in zip(got, nothing, strict=True))
            best = max(best, (paid, form), key=lambda pair: pair[0])
        if best[0] > len(few) / 2:
            break
    return best[1], best[0] > 0


def _scored(judge: Judge, known: Sequence[Known], form: str) -> list[Scored]:
    texts = [text for _, text in known]
    trials = [answers.trial(form, text, texts) for text in texts]
    golds = [str(row.answer) for row, _ in known]
    timed = []
    for trial, gold in zip(trials, golds, strict=True):
        timed.append(judge.timed(trial.gold, gold))
    rewards = {"gold": [reward for reward, _ in timed]}
    for kind in ASKED:
        rewards[kind] = judge.rewards([getattr(trial, kind) for trial in trials], golds)
    rewards[AGAIN] = judge.rewards([trial.gold for trial in trials], golds)
    found = list[Scored]()
    for i, (row, _) in enumerate(known):
        own = {kind: values[i] for kind, values in rewards.items()}
        found.append(Scored(row, trials[i], own, seconds=timed[i][1]))
    return found


def _without_gold(stage: Stage, key: str, judge: Judge, rows: Sequence[Row]) -> None:
    """A right response is not known; that an empty or a careless one pays nothing is."""
    few = [str(row.answer) for row in rows[:FEW]]
    paid = []
    for said in ("", "I do not know."):
        paid += judge.rewards([said] * len(few), few)
    if any(reward > 0 for reward in paid):
        stage.failed(f"`{key}` pays for an empty response, or for 'I do not know.'.", key)
        return
    stage.unchecked(
        f"`{key}`: a row's answer does not say how a right response is written, so no right one "
        f"was tried. Empty and careless ones are not paid in {len(few)} rows.",
        key,
    )


def judge_scores(
    stage: Stage,
    key: str,
    scored: Sequence[Scored],
    form: str,
    wanted: Sequence[str],
    reason: Callable[[str, str], str],
) -> None:
    """The verdicts on an environment's rewards.

    form: how the answers are written; wanted: the forms that the prompts ask for; reason: why a
    response to an answer is not judged.
    """
    before = stage.raised
    if not _is_useless(stage, key, scored, reason):
        _check_gold(stage, key, scored, form, reason)
        if wanted and form not in wanted:
            stage.failed(
                f"The prompts ask for {' and '.join(wanted)}, and `{key}` does not pay an answer "
                f"that is written so: it pays {form}. Change the prompt_file, or the verifier.",
                key,
                example=scored[0].trial.gold,
            )
        elif not wanted and form not in answers.PLAIN:
            stage.warning(
                f"`{key}` pays an answer as {form}, and no prompt asks for one: the model has "
                "to find that by chance. Say it in the prompt_file or the system_prompt_file.",
                "data.default.prompt_file",
            )
        _check_others(stage, key, scored)
    worst = max(scored, key=lambda one: one.seconds)
    median = statistics.median(one.seconds for one in scored)
    if worst.seconds > WARN:
        say = stage.failed if worst.seconds > FAIL else stage.warning
        say(
            f"`{key}` needs {worst.seconds:.3g} s for one response (row {worst.row.number:,}; the "
            f"median is {median:.3g} s): a step waits for the slowest. Lower its "
            "deadline, or make the reward function faster.",
            key,
        )
    if before == stage.raised:
        paid = sum(one.paid for one in scored)
        means = {}
        for kind in scored[0].rewards:
            means[kind] = statistics.fmean(one.rewards[kind] for one in scored)
        stage.passed(
            f"`{key}` pays the gold answer as {form} in {paid} of {len(scored)} rows, and less for "
            f"empty, wrong and truncated ones. A response takes {median:.3g} s, at most "
            f"{worst.seconds:.3g} s (row {worst.row.number:,}).",
            key,
            form=form,
            rows=len(scored),
            rewards=means,
        )


def _is_useless(
    stage: Stage, key: str, scored: Sequence[Scored], reason: Callable[[str, str], str]
) -> bool:
    """Whether the rewards are no numbers, or all the same, or others when asked again."""
    every = []
    for one in scored:
        every += one.rewards.values()
    bad = [value for value in every if not math.isfinite(value)]
    if bad:
        stage.failed(
            f"`{key}` gives {bad[0]} for {share(len(bad), len(every))} responses: any "
            "reward that is not finite makes the loss NaN. Correct the reward function.",
            key,
        )
        return True
    row = scored[0].row
    if len(set(every)) == 1:
        said = reason(scored[0].trial.gold, str(row.answer)) if not every[0] else ""
        why = f" On the gold answer of row {row.number:,} it ends with {said}." if said else ""
        stage.failed(
            f"`{key}` gives {every[0]:g} for every response to {len(scored)} rows, right, wrong or "
            f"empty, the gold answer {cut(row.answer, 60)!r} written in {len(answers.FORMS)} ways "
            f"included: no advantage, nothing to learn.{why} Compare what the verifier reads with "
            "the prompt and the data's answers.",
            key,
            example=scored[0].trial.gold,
        )
        return True
    gold, again = ([one.rewards[kind] for one in scored] for kind in ("gold", AGAIN))
    return _is_moved(stage, key, [one.row for one in scored], gold, again)


def _is_moved(
    stage: Stage, key: str, rows: Sequence[Row], first: Sequence[float], again: Sequence[float]
) -> bool:
    """Whether right responses earn something else when they are asked again."""
    moved = []
    for row, before, after in zip(rows, first, again, strict=True):
        if before != after and not math.isnan(before):
            moved.append(f"{before:g}, then {after:g} in row {row.number:,}")
    if moved:
        stage.failed(
            f"`{key}` gives other rewards when it is asked again, for "
            f"{share(len(moved), len(rows))} right responses ({moved[0]}): noise, or a state that "
            "it keeps from one response to the next. The policy would be trained on that. Make the "
            "reward depend only on the response and the answer.",
            key,
        )
    return bool(moved)


def _check_gold(
    stage: Stage,
    key: str,
    scored: Sequence[Scored],
    form: str,
    reason: Callable[[str, str], str],
) -> None:
    """The right response is paid in every row, and as much in one as in another."""
    unpaid = [one for one in scored if not one.paid]
    if unpaid:
        said = reason(unpaid[0].trial.gold, str(unpaid[0].row.answer))
        why = f", where it ends with {said}" if said else ""
        numbers = [one.row.number for one in unpaid]
        texts = ", ".join(repr(cut(one.row.answer, 40)) for one in unpaid[:3])
        stage.wrong(
            f"`{key}` does not pay the gold answer as {form} in "
            f"{share(len(unpaid), len(scored))} rows: {list_rows(numbers)} "
            f"({texts}){why}. The verifier cannot read these answers, so no response to them is "
            "ever right. Correct or remove them.",
            key,
            of=(len(unpaid), len(scored)),
            rows=numbers,
        )
    sizes = []
    for one in scored:
        if one.rewards["gold"]:
            sizes.append((abs(one.rewards["gold"]), one.row))
    usual = statistics.median(size for size, _ in sizes) if sizes else 0.0
    far = [(size, row) for size, row in sizes if size > FAR * usual]
    if far:
        stage.warning(
            f"`{key}` gives {far[0][0]:g} for the right answer of row {far[0][1].number:,}, and "
            f"{usual:g} usually: such a row would outweigh all others of its step. "
            "Bound the reward.",
            key,
        )


def _check_others(stage: Stage, key: str, scored: Sequence[Scored]) -> None:
    """No other response is paid as the right one, of the rows whose right one is paid."""
    paid = [one for one in scored if one.paid]
    for kind, named in KINDS.items():
        as_much = []
        for one in paid:
            written = kind == "empty" or getattr(one.trial, kind)
            if written and one.rewards[kind] >= one.rewards["gold"]:
                as_much.append(one.row.number)
        if as_much:
            stage.wrong(
                f"`{key}` pays {named} as much as the gold in "
                f"{share(len(as_much), len(scored))} rows ({list_rows(as_much)}): the policy "
                "would learn to write anything. Make the verifier compare with the whole answer.",
                key,
                of=(len(as_much), len(scored)),
            )
    paid = [one for one in paid if one.rewards["gold"] > one.rewards["empty"]]
    sentences = [one for one in paid if one.trial.short]
    whole = []
    for one in sentences:
        if one.rewards["short"] <= one.rewards["empty"]:
            whole.append(one.row)
    if whole:
        stage.wrong(
            f"The answers of {share(len(whole), len(scored))} rows are sentences "
            f"({list_rows([row.number for row in whole])}, as {cut(whole[0].answer, 60)!r}), and "
            f"`{key}` pays the whole sentence and not its number. Keep only the number under "
            "output_key.",
            key,
            of=(len(whole), len(scored)),
        )
    most = len(scored) / 2
    for kind, named in RIGHT.items():
        refused = 0
        for one in paid:
            written = getattr(one.trial, kind)
            refused += bool(written) and one.rewards[kind] <= one.rewards["empty"]
        if refused > most:
            stage.warning(
                f"`{key}` does not pay the gold answer {named}, in {share(refused, len(scored))} "
                "rows: a right policy would be punished for it. Read the answer wherever it "
                "stands, or ask in the prompt_file for the one form that is paid.",
                key,
            )
    taken = sum(one.rewards["doubled"] >= one.rewards["gold"] for one in paid)
    if taken > most:
        stage.warning(
            f"`{key}` pays a response that gives the gold answer and then takes it back for a "
            f"wrong one, in {share(taken, len(scored))} rows: the policy may learn to list "
            "answers. Read only the last answer.",
            key,
        )
    for kind, (more, learned) in MORE.items():
        dearer = [one for one in scored if one.rewards[kind] > one.rewards["gold"]]
        if len(dearer) > most:
            stage.warning(
                f"`{key}` pays more for the same answer behind {more}: "
                f"{dearer[0].rewards[kind]:g}, not {dearer[0].rewards['gold']:g}. The policy would "
                f"learn to {learned}.",
                key,
            )
    silent = []
    for one in scored:
        if one.rewards["gold"] > one.rewards["empty"] > one.rewards["wrong"]:
            silent.append(one.rewards)
    if len(silent) > most:
        stage.warning(
            f"`{key}` gives {silent[0]['wrong']:g} for a wrong answer and {silent[0]['empty']:g} "
            "for none: a policy that is often wrong learns to answer nothing. Give none no more "
            "than a wrong one.",
            key,
        )
