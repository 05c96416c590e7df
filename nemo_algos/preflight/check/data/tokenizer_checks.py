"""The tokenizer as NeMo-RL loads it: its chat template, its special tokens, its size.

What ends a response, and the size of the vocabulary, are compared with the model's.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nemo_algos.engines.nemo.derived_config import is_vlm
from nemo_algos.findings import at
from nemo_algos.preflight.check.data.verdict import Stage, cut, share

TEMPLATE = "policy.tokenizer.chat_template"
SAID = "It is 5."
NAME = "policy.tokenizer.name"
STOPS = "policy.generation.stop_token_ids"
STRINGS = "policy.generation.stop_strings"
SOME = 0.01  # share of ids up to which reserved ones may have been given names


def judge(stage: Stage, config: Mapping[str, Any], asked: str) -> Any:
    """The tokenizer, or the processor of a model that sees; None where it cannot be loaded.

    asked: its name as the user wrote it.
    """
    section = config["policy"]["tokenizer"]
    stands_in = str(section["name"]) == str(stand_in(stage.folder))
    reader = load(stage, section, is_vlm(config["data"]))
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
    if tokenizer.chat_template is None:
        stage.failed(
            f"`{NAME}` is {section['name']}, which has no chat template: NeMo-RL's processors "
            f"cannot render a prompt. Set `{TEMPLATE}`: a template, or null for the bare text.",
            TEMPLATE,
        )
        return None
    prompt, before, after = _check_template(stage, tokenizer, section)
    stops = _stops(stage, tokenizer, at(dict(config), STOPS))
    # the token by which the chat template ends an answer ends a response too
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    opens = tokenizer(before.strip(), add_special_tokens=False)["input_ids"]
    ends = tokenizer(after.strip(), add_special_tokens=False)["input_ids"]
    marks = special.intersection(opens) - {tokenizer.bos_token_id}
    if stops and marks and not special.intersection(ends):
        stage.warning(
            f"The chat template ends an answer with {after!r}, and generation only stops at "
            f"{stops}. A model trained on this template never writes that, so each response runs "
            "to its limit. Let the template end a turn with a stop token.",
            "policy.tokenizer.chat_template",
        )
    elif stops and ends and ends[0] in tokenizer.all_special_ids and ends[0] not in stops:
        stage.warning(
            f"The chat template ends an answer with {tokenizer.convert_ids_to_tokens(ends[0])} "
            f"({ends[0]}), and generation only stops at {stops}. A model trained on this "
            f"template would write on to its limit. Add {ends[0]} to `{STOPS}`.",
            STOPS,
        )
    _compare(stage, tokenizer, str(section["name"]), str(config["policy"]["model_name"]), stops)
    if not stage.raised:
        kind = "the bare text" if section.get("chat_template", "") is None else "a chat template"
        stage.passed(
            f"{section['name']}: {len(tokenizer):,} tokens, eos {tokenizer.eos_token}, pad "
            f"{tokenizer.pad_token}, prompts by {kind}.",
            NAME,
            prompt=prompt,
        )
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


def _check_template(
    stage: Stage, tokenizer: Any, section: Mapping[str, Any]
) -> tuple[str, str, str]:
    """A prompt by the chat template, and what that writes before an answer, and after."""
    asked = [{"role": "user", "content": "What is 2 + 3?"}]
    try:
        without = _render(tokenizer, asked)
        prompt = _render(tokenizer, asked, asks=True)
        whole = _render(tokenizer, [*asked, {"role": "assistant", "content": SAID}])
    except Exception as error:  # of any template
        stage.failed(f"The chat template fails: {cut(error)}. Correct it.", TEMPLATE)
        return "", "", ""
    before, _, after = whole.rpartition(SAID)
    added = prompt[len(without) :].strip() if prompt.startswith(without) else ""
    half = len(added) // 2
    twice = added[:half].strip() if added[:half].strip() == added[half:].strip() else ""
    templated = section.get("chat_template", "default") is not None
    # where the assistant's turn has a beginning
    if templated and prompt == without and len(before.strip()) > len(without.strip()):
        opening = before[len(without.rstrip()) :].strip()
        stage.failed(
            f"The chat template adds no generation prompt: a prompt ends with {prompt[-30:]!r}, "
            f"and an answer would begin after {opening!r}. The model would write that itself, or "
            "go on with the question. Use a template that reads add_generation_prompt.",
            TEMPLATE,
            prompt=prompt,
        )
    if templated and twice:
        stage.failed(
            f"The chat template opens the assistant's turn twice: a prompt ends with "
            f"{prompt[-60:]!r}. The model was trained with one {twice!r}. Remove the other from "
            "the template.",
            TEMPLATE,
            prompt=prompt,
        )
    ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    continued = tokenizer(prompt + SAID, add_special_tokens=False)["input_ids"]
    if templated and prompt.endswith(" ") and continued[: len(ids)] != ids:
        stage.warning(
            f"A prompt ends with a blank ({prompt[-20:]!r}): the tokenizer writes a blank and a "
            "word as one token, which can not follow it. The model would begin each response with "
            "a token that it never saw there. Remove the blank from the template's end.",
            TEMPLATE,
            prompt=prompt,
        )
    # NeMo-RL's processors tokenize the rendered text without special tokens
    bos = tokenizer.bos_token_id
    if bos is not None and ids[:2] == [bos, bos]:
        stage.failed(
            f"A prompt begins with {tokenizer.bos_token} twice: the chat template writes it, and "
            "the tokenizer or the template adds another. NeMo-RL stops at the first row. Remove "
            "one.",
            TEMPLATE,
            prompt=prompt,
        )
    elif bos is not None and bos not in ids and tokenizer("x")["input_ids"][:1] == [bos]:
        stage.warning(
            f"A prompt has no {tokenizer.bos_token}: the tokenizer would add it, but NeMo-RL "
            "tokenizes without special tokens and the chat template does not write it. Write it "
            "at the template's beginning.",
            TEMPLATE,
            prompt=prompt,
        )
    return prompt, before, after


def _render(tokenizer: Any, messages: list[dict[str, str]], asks: bool = False) -> str:
    """A conversation by the chat template; asks: with the prompt for an answer."""
    return str(
        tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=asks, add_special_tokens=False
        )
    )


def _stops(stage: Stage, tokenizer: Any, written: Any) -> list[int]:
    """The tokens that end a response: as written, else eos."""
    stops = [tokenizer.eos_token_id] if written is None else list(written)
    if stops == [None]:
        stage.failed(
            f"`{STOPS}` is null and the tokenizer has no eos token: no response ever ends before "
            "its limit. Name the tokens that end one.",
            STOPS,
        )
        return []
    size = len(tokenizer)
    unknown = []
    for stop in stops:
        if not isinstance(stop, int) or not 0 <= stop < size:
            unknown.append(stop)
    if unknown:
        stage.failed(
            f"`{STOPS}` has {', '.join(map(str, unknown))}, and the vocabulary has the ids 0 to "
            f"{size - 1:,}: no response can end with that. Name ids of this tokenizer.",
            STOPS,
        )
    return [stop for stop in stops if stop not in unknown]


def _compare(stage: Stage, tokenizer: Any, name: str, model: str, stops: list[int]) -> None:
    """With what the model's own files say, where they are at hand."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    given = {number: token for token, number in tokenizer.get_vocab().items()}
    own = {}
    if name != model:
        with suppress(Exception):
            own = AutoTokenizer.from_pretrained(model).get_vocab()
    # tokens may be added at the end
    others = [(number, token) for token, number in own.items() if given.get(number, token) != token]
    if others:
        number, token = min(others)
        say = stage.failed if len(others) > SOME * len(own) else stage.warning
        say(
            f"`{NAME}` is {name}, in which {share(len(others), len(own))} ids are other tokens "
            f"than in the own tokenizer of {model} (id {number:,} is {token!r} there and "
            f"{given[number]!r} here): the model would read noise. Use the model's own tokenizer.",
            NAME,
        )
    rows = None
    with suppress(Exception):
        rows = getattr(AutoConfig.from_pretrained(model).get_text_config(), "vocab_size", None)
    if rows is not None and max(given) >= rows:
        stage.failed(
            f"The tokenizer has ids up to {max(given):,}, and {model} has {rows:,} embeddings "
            "(vocab_size): such a token is out of range. Use the model's own tokenizer.",
            NAME,
        )
    ends = None
    with suppress(Exception):
        ends = GenerationConfig.from_pretrained(model).eos_token_id
    several = ends if isinstance(ends, list) else [ends]
    missing = [end for end in several if end is not None and end not in stops]
    if missing and stops:
        named = ", ".join(f"{tokenizer.convert_ids_to_tokens(end)} ({end})" for end in missing)
        stage.warning(
            f"The model's generation_config.json ends a response with {named} too, and NeMo-RL "
            f"only stops at {stops}: such a response runs to its limit. Add it to `{STOPS}`.",
            STOPS,
        )
