"""Prompts as the model sees them: whether the problem and the system prompt are in them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Any

from nemo_algos.preflight.check.data.rows import Row, squeeze
from nemo_algos.preflight.check.data.verdict import Stage, cut, list_rows, share

TEMPLATE = "policy.tokenizer.chat_template"


def judge(
    stage: Stage, rows: Sequence[Row], tokenizer: Any, key: str, section: Mapping[str, Any]
) -> None:
    """Of one data set: its rows, its path and keys in the config, `default` being data.default."""
    seen = [row for row in rows if row.tokens]
    if not seen:
        return
    before = stage.raised
    first = render(seen[0], tokenizer)
    _check_problems(stage, seen, tokenizer, key, section)
    around = [text for text, *_ in Formatter().parse(_text(section, "prompt_file"))]
    lost = [text for text in around if text.strip() and not _within(text, seen[0], tokenizer)]
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
    return Path(path).read_text(errors="replace") if path else ""


def render(row: Row, tokenizer: Any) -> str:
    """The prompt, special tokens visible."""
    return str(tokenizer.decode(row.tokens, skip_special_tokens=False))


def _check_problems(
    stage: Stage, rows: Sequence[Row], tokenizer: Any, key: str, section: Mapping[str, Any]
) -> None:
    """Python's format puts the problem into the first {}: those of LaTeX are doubled."""
    text = _text(section, "prompt_file")
    fields = [before for before, field, _, _ in Formatter().parse(text) if field is not None]
    lacking = [row for row in rows if row.problem and not _within(row.problem, row, tokenizer)]
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
    elif lacking and text and not fields:
        stage.failed(
            f"`{key}.prompt_file` is {section['prompt_file']}, which has no {{}}: {what}. Write "
            "{} where the problem goes.",
            f"{key}.prompt_file",
            prompt=render(lacking[0], tokenizer),
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
