"""What ends a response, and the size of the vocabulary, against the tokenizer and the model."""

from collections.abc import Mapping
from typing import Any

from nemo_algos.config import at
from nemo_algos.preflight.check.data.verdict import Stage, share

NAME = "policy.tokenizer.name"
STOPS = "policy.generation.stop_token_ids"
STRINGS = "policy.generation.stop_strings"
SOME = 0.01  # share of ids up to which reserved ones may have been given names


def judge(stage: Stage, tokenizer: Any, config: Mapping[str, Any], before: str, after: str) -> None:
    """before, after: what the chat template writes there of an answer."""
    stops = _stops(stage, tokenizer, at(dict(config), STOPS))
    _end_of_turn(stage, tokenizer, before, after, stops)
    name = str(config["policy"]["model_name"])
    _own_tokenizer(stage, tokenizer, name, str(config["policy"]["tokenizer"]["name"]))
    _model(stage, tokenizer, name, stops)


def _own_tokenizer(stage: Stage, tokenizer: Any, model: str, name: str) -> None:
    """Each id means what it means in the model's own tokenizer; tokens may be added at the end."""
    from transformers import AutoTokenizer

    if name == model:
        return
    try:
        own = AutoTokenizer.from_pretrained(model).get_vocab()
    except Exception:  # not at hand
        return
    given = {number: token for token, number in tokenizer.get_vocab().items()}
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
    unknown = [stop for stop in stops if not isinstance(stop, int) or not 0 <= stop < size]
    if unknown:
        stage.failed(
            f"`{STOPS}` has {', '.join(map(str, unknown))}, and the vocabulary has the ids 0 to "
            f"{size - 1:,}: no response can end with that. Name ids of this tokenizer.",
            STOPS,
        )
    return [stop for stop in stops if stop not in unknown]


def _end_of_turn(stage: Stage, tokenizer: Any, before: str, after: str, stops: list[int]) -> None:
    """The token by which the chat template ends an answer ends a response too."""
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    opens, ends = (
        tokenizer(text.strip(), add_special_tokens=False)["input_ids"] for text in (before, after)
    )
    end = ends[:1]
    marks = special.intersection(opens) - {tokenizer.bos_token_id}
    if stops and marks and not special.intersection(ends):
        stage.warning(
            f"The chat template ends an answer with {after!r}, and generation only stops at "
            f"{stops}. A model trained on this template never writes that, so each response runs "
            "to its limit. Let the template end a turn with a stop token.",
            "policy.tokenizer.chat_template",
        )
    elif stops and end and end[0] in tokenizer.all_special_ids and end[0] not in stops:
        stage.warning(
            f"The chat template ends an answer with {tokenizer.convert_ids_to_tokens(end[0])} "
            f"({end[0]}), and generation only stops at {stops}. A model trained on this "
            f"template would write on to its limit. Add {end[0]} to `{STOPS}`.",
            STOPS,
        )


def _model(stage: Stage, tokenizer: Any, name: str, stops: list[int]) -> None:
    """What the model's own files say, where they are at hand."""
    from transformers import AutoConfig, GenerationConfig

    try:
        config = AutoConfig.from_pretrained(name).get_text_config()
    except Exception:  # not at hand
        config = None
    rows = getattr(config, "vocab_size", None)
    largest = max(tokenizer.get_vocab().values())
    if rows is not None and largest >= rows:
        stage.failed(
            f"The tokenizer has ids up to {largest:,}, and {name} has {rows:,} embeddings "
            "(vocab_size): such a token is out of range. Use the model's own tokenizer.",
            NAME,
        )
    try:
        generation = GenerationConfig.from_pretrained(name).eos_token_id
    except Exception:  # not at hand
        return
    ends = generation if isinstance(generation, list) else [generation]
    missing = [end for end in ends if end is not None and end not in stops]
    if missing and stops:
        named = ", ".join(f"{tokenizer.convert_ids_to_tokens(end)} ({end})" for end in missing)
        stage.warning(
            f"The model's generation_config.json ends a response with {named} too, and NeMo-RL "
            f"only stops at {stops}: such a response runs to its limit. Add it to `{STOPS}`.",
            STOPS,
        )
