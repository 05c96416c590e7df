"""Prompts as the model sees them: whether the problem and the system prompt are in them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Any

from nemo_algos.preflight.check.data.rows import MANY, Row, squeeze
from nemo_algos.preflight.check.data.verdict import Stage, cut, list_rows, share


def judge(
    stage: Stage, rows: Sequence[Row], tokenizer: Any, key: str, section: Mapping[str, Any]
) -> None:
    """Of one data set: its rows, its path and keys in the config, `default` being data.default."""
    seen = [row for row in rows if row.tokens]
    if not seen:
        return
    before = stage.raised
    _problems(stage, seen, tokenizer, key, section)
    _check_prompt_file(stage, seen[0], tokenizer, key, section)
    _system(stage, seen[0], tokenizer, key, section)
    _starts(stage, seen, tokenizer)
    if before == stage.raised:
        first = render(seen[0], tokenizer)
        stage.passed(
            f"The first prompt of {key}, as the model sees it, ends with ...{first[-60:]!r}.",
            key,
            prompt=first,
        )


def at_hand(section: Mapping[str, Any], name: str) -> str:
    """The text of the section's file, "" where it names none."""
    path = section.get(name)
    return Path(path).read_text(errors="replace") if path else ""


def render(row: Row, tokenizer: Any) -> str:
    """The prompt, special tokens visible."""
    return str(tokenizer.decode(row.tokens, skip_special_tokens=False))


def _problems(
    stage: Stage, rows: Sequence[Row], tokenizer: Any, key: str, section: Mapping[str, Any]
) -> None:
    """Python's format puts the problem into the first {}: those of LaTeX are doubled."""
    path = f"{key}.prompt_file"
    text = at_hand(section, "prompt_file")
    fields = [before for before, field, _, _ in Formatter().parse(text) if field is not None]
    if fields and fields[0].endswith("boxed"):
        stage.failed(
            f"`{path}` is {section['prompt_file']}, with boxed{{}}: NeMo-RL writes the problem "
            "into the first {}. Double those braces, and write {} where the problem goes.",
            path,
            prompt=render(rows[0], tokenizer),
        )
        return
    lacking = [row for row in rows if row.problem and not _within(row.problem, row, tokenizer)]
    if not lacking:
        return
    what = (
        f"{share(len(lacking), len(rows))} prompts of {key} lack the problem "
        f"({list_rows([row.number for row in lacking])})"
    )
    example = render(lacking[0], tokenizer)
    if text and not fields:
        name = section["prompt_file"]
        stage.failed(
            f"`{path}` is {name}, which has no {{}}: {what}. Write {{}} where the problem goes.",
            path,
            prompt=example,
        )
        return
    say = stage.failed if len(lacking) > MANY * len(rows) else stage.warning
    say(
        f"{what}: the chat template or the processor dropped or changed it. Compare the prompt "
        "with its row.",
        "policy.tokenizer.chat_template",
        prompt=example,
    )


def _check_prompt_file(
    stage: Stage, row: Row, tokenizer: Any, key: str, section: Mapping[str, Any]
) -> None:
    """What the prompt file says around the problem."""
    texts = [before for before, *_ in Formatter().parse(at_hand(section, "prompt_file"))]
    lost = [text for text in texts if text.strip() and not _within(text, row, tokenizer)]
    if lost and _within(row.problem, row, tokenizer):
        stage.failed(
            f"`{key}.prompt_file` is {section['prompt_file']}, and its {cut(lost[0], 60)!r} is not "
            "in the prompt: the chat template or the processor drops it. Use a template that "
            "renders the whole of a message.",
            "policy.tokenizer.chat_template",
            prompt=render(row, tokenizer),
        )


def _system(stage: Stage, row: Row, tokenizer: Any, key: str, section: Mapping[str, Any]) -> None:
    text = at_hand(section, "system_prompt_file")
    if text.strip() and not _within(text, row, tokenizer):
        stage.failed(
            f"`{key}.system_prompt_file` is {section['system_prompt_file']}, and its text is not "
            "in the prompt: the chat template drops the system message. Use a template that "
            "renders it, or put the text into the prompt_file.",
            "policy.tokenizer.chat_template",
            prompt=render(row, tokenizer),
        )


def _starts(stage: Stage, rows: Sequence[Row], tokenizer: Any) -> None:
    """NeMo-RL asserts this of the first two tokens of the first row alone."""
    bos = tokenizer.bos_token_id
    if bos is None or bos in (tokenizer.eos_token_id, tokenizer.pad_token_id):
        return
    doubled = [row.number for row in rows if row.tokens.count(bos) > 1]
    if doubled:
        stage.failed(
            f"{share(len(doubled), len(rows))} prompts have {tokenizer.bos_token} more than once "
            f"({list_rows(doubled)}): the chat template writes it for each message that is "
            "rendered apart, or twice. The model was trained with one. "
            "Remove it from the template.",
            "policy.tokenizer.chat_template",
            prompt=render(next(r for r in rows if r.number == doubled[0]), tokenizer),
        )


def _within(text: str, row: Row, tokenizer: Any) -> bool:
    """Whether the prompt has the text, as far as the vocabulary can write it."""
    whole = squeeze(tokenizer.decode(row.tokens, skip_special_tokens=False))
    if squeeze(text) in whole:
        return True
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return squeeze(tokenizer.decode(ids, skip_special_tokens=False)) in whole
