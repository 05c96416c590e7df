"""The stage of the data: every row, its prompt, its length, and how the rows fit together.

Together they show repetitions, answers that are given, validation in training, another language.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from string import Formatter
from typing import Any

from nemo_algos.engines.nemo.derived_config import is_vlm, uses_gym
from nemo_algos.preflight.check.data import rows, tokenizer_checks
from nemo_algos.preflight.check.data.answers import final
from nemo_algos.preflight.check.data.datasets import Loaded
from nemo_algos.preflight.check.data.rows import Row, squeeze
from nemo_algos.preflight.check.data.tokenizer_checks import TEMPLATE
from nemo_algos.preflight.check.data.verdict import Stage, cut, list_rows, share

REPEATED = 0.01  # share of prompts that are another row's, above which it is a warning
GIVEN = 0.05  # the same of problems that have their answer in them: of GSM8K's and MATH's 3 %
COMMON = 0.5  # share of rows with one answer, above which it is a warning
DISTINCT = 5  # different numbers as answers, below which it is one
TIMES = 2  # as long as its problem: too long for an answer
KNOWN = 0.2  # share of validation's words that training has, below which it is a warning
WORDS = 8  # of a problem, of which fewer say another thing in another order
ENOUGH = 20  # rows, of which fewer show no pattern
FEW = 100  # words of validation, of which less tell nothing
NUMBERING = re.compile(
    r"\A\s*(?:(?:problem|question|exercise|q)\s*)?#?\d+\s*[.):]\s", re.IGNORECASE
)
STYLE = re.compile(r"[{}$]|\\(?:left|right|text|mathrm|textbf|circ|[!,;: %])|\^\\circ")
WORD = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff]|[^\W\d_]+")  # or one character


def judge(
    stage: Stage, config: Mapping[str, Any], loaded: Loaded, tokenizer: Any, seen: dict[str, Any]
) -> list[Row]:
    """The rows that can be used."""
    gym = uses_gym(config.get("env"))
    splits = {"train": _split(stage, config, loaded, "train")}
    if loaded.validation is not None:
        splits["validation"] = _split(stage, config, loaded, "validation")
    if gym:
        stage.unchecked("NeMo Gym's servers make the prompts, so they were not checked.", "env")
    for name, found in splits.items():
        good = [row for row in found if not row.fault]
        if good and not gym:
            _prompts(stage, config, loaded, tokenizer, name, good, seen)
    if not loaded.absent and not gym:
        judge_together(stage, splits["train"], splits.get("validation", []))
        grpo = config["grpo"]
        more = grpo.get("batch_multiplier") or 1 if grpo.get("use_dynamic_sampling") else 1
        asked = int(grpo["num_prompts_per_step"] * more)
        if len(splits["train"]) < asked:
            stage.failed(
                f"A step takes {asked} prompts, and there are {len(splits['train'])} rows: NeMo-RL "
                "drops the incomplete batch, so no step is made. Lower "
                "`grpo.num_prompts_per_step`, or add rows.",
                "grpo.num_prompts_per_step",
            )
    return [row for found in splits.values() for row in found if not row.fault]


def _prompts(
    stage: Stage,
    config: Mapping[str, Any],
    loaded: Loaded,
    tokenizer: Any,
    name: str,
    good: list[Row],
    seen: dict[str, Any],
) -> None:
    read = config["policy"]["tokenizer"]["name"] != str(tokenizer_checks.stand_in(stage.folder))
    rows.judge_lengths(stage, good, config, name, read and not loaded.absent)
    first = next((render(row, tokenizer) for row in good if row.tokens), "")
    tokens = rows.length_summary([row.length for row in good])
    seen[name] = {"rows": len(good), "prompt_tokens": tokens, "first_prompt": first}
    seen["longest"] = max(seen["longest"], tokens["max"])
    default = config["data"].get("default") or {}
    for task in dict.fromkeys(row.task for row in good):
        key, section = loaded.sections[name][task]
        named = [f for f in ("prompt_file", "system_prompt_file") if section.get(f)]
        inherited = named and all(section[f] == default.get(f) for f in named)
        mine = [row for row in good if row.task == task]
        judge_prompts(stage, mine, tokenizer, "data.default" if inherited else key, section)


def judge_prompts(
    stage: Stage, rows: Sequence[Row], tokenizer: Any, key: str, section: Mapping[str, Any]
) -> None:
    """As the model sees them, of one data set: its rows, its path and its keys in the config."""
    seen = [row for row in rows if row.tokens]
    if not seen:
        return
    before = stage.raised
    first = render(seen[0], tokenizer)
    _check_problems(stage, seen, tokenizer, key, section)
    around = []
    for text, *_ in Formatter().parse(_text(section, "prompt_file")):
        around.append(text)
    lost = []
    for text in around:
        if text.strip() and not _within(text, seen[0], tokenizer):
            lost.append(text)
    if lost and _within(seen[0].problem, seen[0], tokenizer):
        stage.failed(
            f"`{key}.prompt_file` is {section['prompt_file']}, and its {cut(lost[0], 60)!r} is not "
            "in the prompt: the chat template or the processor drops it. Use a template that "
            "renders the whole of a message.",
            TEMPLATE,
            prompt=first,
        )
    system = _text(section, "system_prompt_file")
    if system.strip() and not _within(system, seen[0], tokenizer):
        stage.failed(
            f"`{key}.system_prompt_file` is {section['system_prompt_file']}, and its text is not "
            "in the prompt: the chat template drops the system message. Use a template that "
            "renders it, or put the text into the prompt_file.",
            TEMPLATE,
            prompt=first,
        )
    # NeMo-RL asserts one bos, of the first two tokens of the first row alone
    bos = tokenizer.bos_token_id
    doubled = [row for row in seen if row.tokens.count(bos) > 1]
    if doubled and bos not in (None, tokenizer.eos_token_id, tokenizer.pad_token_id):
        stage.failed(
            f"{share(len(doubled), len(seen))} prompts have {tokenizer.bos_token} more than once "
            f"({list_rows([row.number for row in doubled])}): the chat template writes it for each "
            "message that is rendered apart, or twice. The model was trained with one. Remove it "
            "from the template.",
            TEMPLATE,
            prompt=render(doubled[0], tokenizer),
        )
    if before == stage.raised:
        stage.passed(
            f"The first prompt of {key}, as the model sees it, ends with ...{first[-60:]!r}.",
            key,
            prompt=first,
        )


def _text(section: Mapping[str, Any], name: str) -> str:
    """The text of the section's file, "" where it names none."""
    path = section.get(name)
    if path:
        return Path(path).read_text(errors="replace")
    return ""


def render(row: Row, tokenizer: Any) -> str:
    """The prompt, special tokens visible."""
    return str(tokenizer.decode(row.tokens, skip_special_tokens=False))


def _check_problems(
    stage: Stage, rows: Sequence[Row], tokenizer: Any, key: str, section: Mapping[str, Any]
) -> None:
    """Python's format puts the problem into the first {}: those of LaTeX are doubled."""
    text = _text(section, "prompt_file")
    fields = []
    for before, field, _, _ in Formatter().parse(text):
        if field is not None:
            fields.append(before)
    lacking = []
    for row in rows:
        if row.problem and not _within(row.problem, row, tokenizer):
            lacking.append(row)
    what = (
        f"{share(len(lacking), len(rows))} prompts of {key} lack the problem "
        f"({list_rows([row.number for row in lacking])})"
    )
    if fields and fields[0].endswith("boxed"):
        stage.failed(
            f"`{key}.prompt_file` is {section['prompt_file']}, with boxed{{}}: NeMo-RL writes the "
            "problem into the first {}. Double those braces, and write {} where the problem goes.",
            f"{key}.prompt_file",
            prompt=render(rows[0], tokenizer),
        )
    elif lacking:
        stage.wrong(
            f"{what}: the chat template or the processor dropped or changed it. Compare the prompt "
            "with its row.",
            TEMPLATE,
            of=(len(lacking), len(rows)),
            prompt=render(lacking[0], tokenizer),
        )


def _within(text: str, row: Row, tokenizer: Any) -> bool:
    """Whether the prompt has the text, as far as the vocabulary can write it."""
    whole = squeeze(render(row, tokenizer))
    if squeeze(text) in whole:
        return True
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return squeeze(tokenizer.decode(ids, skip_special_tokens=False)) in whole


def _split(stage: Stage, config: Mapping[str, Any], loaded: Loaded, name: str) -> list[Row]:
    """The rows of training or validation; those that cannot be used are named."""
    parts = loaded.train if name == "train" else [loaded.validation]
    whole = sum(len(part) for part in parts)
    most = rows.PICTURED if is_vlm(config["data"]) else rows.MOST
    found = list(rows.read(parts, loaded.numbers[name], most))
    broken = [row for row in found if row.fault]
    if broken:
        stage.failed(
            f"{share(len(broken), len(found))} rows of data.{name} cannot be used: "
            f"{list_rows([row.number for row in broken])}. In row {broken[0].number:,} "
            f"{broken[0].fault}. Correct or remove them.",
            f"data.{name}",
            rows={row.number: row.fault for row in broken[:100]},
        )
    elif not loaded.absent:
        more = ""
        if loaded.split_off:
            where = "without" if name == "train" else "with"
            more = (
                f" That is {where} {loaded.split_off:,} rows of training's files that NeMo-RL "
                "validates on (split_validation_size)."
            )
        stage.passed(f"All {len(found):,} rows of data.{name} can be used.{more}", f"data.{name}")
    if whole > len(found):
        stage.unchecked(
            f"The first {len(found):,} of {whole:,} rows of data.{name} were read.", f"data.{name}"
        )
    return found


def judge_together(stage: Stage, train: Sequence[Row], validation: Sequence[Row]) -> None:
    _check_repeats(stage, train)
    _check_answers(stage, train)
    _compare(stage, train, validation)


def plain(text: str) -> str:
    """A problem without case, blanks, invisible letters and a number in front of it."""
    seen = NUMBERING.sub("", text, count=1)
    if not seen.isascii():
        seen = "".join(c for c in seen if unicodedata.category(c) != "Cf")
    return squeeze(seen).casefold()


def _check_repeats(stage: Stage, train: Sequence[Row]) -> None:
    """Prompts that are there twice, with one answer or with several."""
    same: dict[str, list[Row]] = defaultdict(list)
    for row in train:
        same[plain(row.problem)].append(row)
    several = list[list[Row]]()
    numbers = list[int]()
    for alike in same.values():
        if len({_value(row.answer) for row in alike}) > 1:
            several.append(alike)
            numbers += [row.number for row in alike]
    if several:
        answers = dict.fromkeys(row.answer for row in several[0])
        said = ", ".join(repr(cut(answer, 40)) for answer in answers)
        stage.wrong(
            f"{share(len(several), len(same))} training prompts have answers that contradict each "
            f"other ({list_rows(numbers)}): {cut(several[0][0].problem, 80)!r} has {said}. A "
            "response that is right in one row is wrong in the other. Correct or remove them.",
            "data.train",
            of=(len(numbers), len(train)),
        )
    equal = []
    again = 0
    for alike in same.values():
        if len(alike) > 1 and alike not in several:
            equal.append(alike)
            again += len(alike) - 1
    if again > REPEATED * len(train):
        most = max(equal, key=len)
        stage.warning(
            f"{share(again, len(train))} training prompts are repetitions of an earlier one. The "
            f"most frequent is there {len(most)} times: {cut(most[-1].problem, 80)!r} "
            f"({list_rows([row.number for row in most])}). Such prompts count several times in an "
            "epoch. Remove them.",
            "data.train",
        )


def _value(answer: object) -> str:
    """An answer, so that 0.50 and 1/2 are one, and so are LaTeX's ways to write one."""
    text = STYLE.sub("", final(str(answer))).replace("dfrac", "frac").replace("tfrac", "frac")
    text = squeeze(text).casefold().rstrip(".")
    try:
        return str(Fraction(text.replace(",", "")))
    except (ValueError, ZeroDivisionError):
        return text


def _check_answers(stage: Stage, train: Sequence[Row]) -> None:
    """Answers that are all the same, or count the rows, or stand in the problem, or are longer."""
    answers = [str(row.answer).strip() for row in sorted(train, key=lambda row: row.number)]
    enough = len(train) >= ENOUGH
    counts = Counter(map(_value, answers))
    value, most = counts.most_common(1)[0] if counts else ("", 0)
    few = len(counts) < DISTINCT and all(re.fullmatch(r"[-\d/]+", text) for text in counts)
    if enough and (most > COMMON * len(train) or few):
        stage.warning(
            f"{share(most, len(train))} training rows have the answer {cut(value, 60)!r}, and "
            f"{len(counts)} different answers are all: the policy may learn to write that one, "
            "whatever the problem. Check output_key.",
            "data.train",
        )
    elif enough and all(answer.isdecimal() for answer in answers):
        numbers = [int(answer) for answer in answers]
        if all(low < high for low, high in pairwise(numbers)):
            stage.warning(
                f"The answers of the training rows only ever increase, from {numbers[0]} to "
                f"{numbers[-1]}: are they the rows' ids? Set output_key to the key of the answers.",
                "data.train",
            )
    given = list[int]()
    for row in train:
        answer = str(row.answer).strip()
        # one letter, or digit, stands in many problems
        if len(answer) > 1 and re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", row.problem):
            given.append(row.number)
    if len(given) > max(2, GIVEN * len(train)):
        stage.warning(
            f"{share(len(given), len(train))} training problems have their answer in them "
            f"({list_rows(given)}): unless it is to be found there, the policy learns to copy it. "
            "Remove it from the problem.",
            "data.train",
        )

    # answers in JSON are a verifier's tests
    texts = [row for row in train if str(row.answer)[:1] not in ("{", "[")]
    longer = []
    for row in texts:
        if len(str(row.answer)) > TIMES * len(row.problem):
            longer.append(row.number)
    if longer and len(longer) > len(train) / 2:
        stage.warning(
            f"{share(len(longer), len(train))} answers are more than {TIMES} times as long as "
            f"their problems ({list_rows(longer)}): are input_key and output_key swapped, or the "
            f"answers whole solutions? The first problem is {cut(train[0].problem, 80)!r}.",
            "data.train",
        )


def _bag(row: Row) -> tuple[str, ...]:
    """The words of a problem without their order, and its answer; of a short one the row itself."""
    words = sorted(re.findall(r"\w+", row.problem.casefold()))
    if len(words) >= WORDS:
        return (*words, _value(row.answer))
    return (row.problem, _value(row.answer))


def _compare(stage: Stage, train: Sequence[Row], validation: Sequence[Row]) -> None:
    """Validation has other rows than training, in its words: of its language, and its task."""
    texts = set()
    for row in train:
        texts.update((plain(row.problem), _bag(row)))
    seen = []
    for r in validation:
        if plain(r.problem) in texts or _bag(r) in texts:
            seen.append(r.number)
    if seen:
        stage.wrong(
            f"{share(len(seen), len(validation))} validation rows are training rows too, some "
            f"perhaps in another order of words ({list_rows(seen)} of the validation data). The "
            "validation score then measures memory. Remove them from one of the two.",
            "data.validation",
            of=(len(seen), len(validation)),
        )
    known = set()
    for row in train:
        known.update(WORD.findall(row.problem.lower()))
    asked = []
    for row in validation:
        asked += WORD.findall(row.problem.lower())
    shared = sum(word in known for word in asked)
    if known and len(asked) >= FEW and shared < KNOWN * len(asked):
        stage.warning(
            f"Training has only {share(shared, len(asked))} of validation's words. Check that "
            "both are of one language and task. Its first problem: "
            f"{cut(validation[0].problem, 80)!r}.",
            "data.validation",
        )
