"""The tokenizer as NeMo-RL loads it: its chat template, its special tokens, its size."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_algos.engines.nemo.derived_config import is_vlm
from nemo_algos.preflight.check.data import stop_tokens
from nemo_algos.preflight.check.data.stop_tokens import NAME
from nemo_algos.preflight.check.data.verdict import Stage, cut

TEMPLATE = "policy.tokenizer.chat_template"
ASKED = "What is 2 + 3?"
SAID = "It is 5."


def judge(stage: Stage, config: Mapping[str, Any], asked: str) -> Any:
    """The tokenizer, or the processor of a model that sees; None where it cannot be loaded.

    asked: its name as the user wrote it.
    """
    section = config["policy"]["tokenizer"]
    vlm = is_vlm(config["data"])
    stands_in = str(section["name"]) == str(stand_in(stage.folder))
    reader = load(stage, section, vlm)
    if stands_in:
        stage.unchecked(
            f"The tokenizer {asked} is not available. A byte "
            "tokenizer replaces it, so lengths in tokens are not the model's. Download it into "
            "HF_HOME on a machine with a network, or name its folder with --model.",
            NAME,
        )
    if stands_in or reader is None:
        return reader
    tokenizer = getattr(reader, "tokenizer", reader)
    _special(stage, tokenizer)
    template = tokenizer.chat_template
    if template is None:
        stage.failed(
            f"`{NAME}` is {section['name']}, which has no chat template: NeMo-RL's processors "
            f"cannot render a prompt. Set `{TEMPLATE}`: a template, or null for the bare text.",
            TEMPLATE,
        )
        return None
    if section.get("chat_template", "default") is not None:
        _turns(stage, tokenizer)
    _bos(stage, tokenizer)
    stop_tokens.judge(stage, tokenizer, config, *_around_an_answer(tokenizer))
    if not stage.raised:
        stage.passed(_facts(tokenizer, section), NAME, prompt=render(tokenizer, user(ASKED)))
    return reader


def stand_in(folder: Path) -> Path:
    """Where the tokenizer of bytes is, in place of one that is not at hand."""
    return folder / "tokenizer"


def load(stage: Stage, section: Mapping[str, Any], vlm: bool) -> Any:
    """As NeMo-RL does."""
    from nemo_rl.algorithms.utils import get_tokenizer

    name = str(section["name"])
    try:
        return get_tokenizer(section, get_processor=vlm)  # type: ignore[arg-type]
    except Exception as error:  # whatever transformers raises
        what = f"`{NAME}` is {name}, and it does not load: {cut(error)}"
        if Path(name).exists():
            stage.failed(f"{what}. Name a folder with a whole tokenizer.", NAME)
        else:
            stage.unchecked(f"{what}. Download it into HF_HOME, or name its folder.", NAME)
        return None


def user(text: str) -> list[dict[str, str]]:
    """A conversation of one message."""
    return [{"role": "user", "content": text}]


def render(tokenizer: Any, messages: list[dict[str, str]], asks: bool = True) -> str:
    """A conversation by the chat template, with the prompt for an answer."""
    return str(
        tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=asks, add_special_tokens=False
        )
    )


def _special(stage: Stage, tokenizer: Any) -> None:
    """NeMo-RL puts eos in place of a pad token that is missing."""
    if tokenizer.pad_token_id is None:
        stage.failed(
            "The tokenizer has neither a pad nor an eos token: NeMo-RL pads with eos where pad is "
            "missing, and here it has nothing to pad with. Set both in its tokenizer_config.json.",
            NAME,
        )
    elif tokenizer.pad_token_id == tokenizer.eos_token_id:
        stage.passed(
            f"Padding is eos ({tokenizer.eos_token}), as NeMo-RL sets it where a tokenizer has no "
            "pad token. NeMo-RL finds the end of a sequence by its length, never by the pad "
            "token, so the eos that ends a response is still trained on.",
            NAME,
        )


def _turns(stage: Stage, tokenizer: Any) -> None:
    """What stands where the model begins to answer, and whether its turn ends in a stop token."""
    try:
        without, prompt = (render(tokenizer, user(ASKED), asks) for asks in (False, True))
        whole = render(tokenizer, [*user(ASKED), {"role": "assistant", "content": SAID}], False)
    except Exception as error:  # of any template
        stage.failed(f"The chat template fails: {cut(error)}. Correct it.", TEMPLATE)
        return
    before = whole.partition(SAID)[0] if SAID in whole else ""
    marks = len(before.strip()) > len(without.strip())  # a turn of the assistant's has a beginning
    if prompt == without and marks:
        opening = before[len(without.rstrip()) :].strip()
        stage.failed(
            f"The chat template adds no generation prompt: a prompt ends with {prompt[-30:]!r}, "
            f"and an answer would begin after {opening!r}. The model would write that itself, or "
            "go on with the question. Use a template that reads add_generation_prompt.",
            TEMPLATE,
            prompt=prompt,
        )
    added = prompt[len(without) :].strip() if prompt.startswith(without) else ""
    half = len(added) // 2
    twice = added[:half].strip() if added[:half].strip() == added[half:].strip() else ""
    if twice:
        stage.failed(
            f"The chat template opens the assistant's turn twice: a prompt ends with "
            f"{prompt[-60:]!r}. The model was trained with one {twice!r}. Remove the other from "
            "the template.",
            TEMPLATE,
            prompt=prompt,
        )
    _check_seam(stage, tokenizer, prompt)


def _check_seam(stage: Stage, tokenizer: Any, prompt: str) -> None:
    """The tokens of a prompt are those before an answer, also where it ends with a blank."""
    if prompt == prompt.rstrip(" "):
        return
    ids, whole = (
        tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, prompt + SAID)
    )
    if whole[: len(ids)] != ids:
        stage.warning(
            f"A prompt ends with a blank ({prompt[-20:]!r}): the tokenizer writes a blank and a "
            "word as one token, which can not follow it. The model would begin each response with "
            "a token that it never saw there. Remove the blank from the template's end.",
            TEMPLATE,
            prompt=prompt,
        )


def _bos(stage: Stage, tokenizer: Any) -> None:
    """NeMo-RL's processors tokenize the rendered text without special tokens."""
    bos = tokenizer.bos_token_id
    if bos is None:
        return
    try:
        text = render(tokenizer, user(ASKED))
    except Exception:  # already said
        return
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if ids[:2] == [bos, bos]:
        stage.failed(
            f"A prompt begins with {tokenizer.bos_token} twice: the chat template writes it, and "
            "the tokenizer or the template adds another. NeMo-RL stops at the first row. Remove "
            "one.",
            TEMPLATE,
            prompt=text,
        )
    elif bos not in ids and tokenizer("x")["input_ids"][:1] == [bos]:
        stage.warning(
            f"A prompt has no {tokenizer.bos_token}: the tokenizer would add it, but NeMo-RL "
            "tokenizes without special tokens and the chat template does not write it. Write it "
            "at the template's beginning.",
            TEMPLATE,
            prompt=text,
        )


def _around_an_answer(tokenizer: Any) -> tuple[str, str]:
    """What the chat template writes before it, and after."""
    answer = {"role": "assistant", "content": SAID}
    try:
        before, _, after = render(tokenizer, [*user(ASKED), answer], False).rpartition(SAID)
    except Exception:  # already said
        return "", ""
    return before, after


def _facts(tokenizer: Any, section: Mapping[str, Any]) -> str:
    kind = "the bare text" if section.get("chat_template", "") is None else "a chat template"
    return (
        f"{section['name']}: {len(tokenizer):,} tokens, eos {tokenizer.eos_token}, pad "
        f"{tokenizer.pad_token}, prompts by {kind}."
    )
