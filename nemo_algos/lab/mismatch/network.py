"""The trainer's model, and what it gives the tokens of some responses under a change."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from nemo_algos.engines.local.hf import from_pretrained
from nemo_algos.lab.mismatch.logits import Logits, joined, kept
from nemo_algos.lab.mismatch.responses import Response, Responses

BATCH = 8  # lines of a forward


@dataclass(frozen=True)
class Lines:
    """What a model is shown: ids, positions [L,T]; attend [L,T,T] bool, of a query to a key.

    at: of each response its line, and the places there of the tokens it was drawn after [n];
    known: of each response the logits [m,V] of its first tokens, where another model gives them.
    """

    ids: Tensor
    positions: Tensor
    attend: Tensor
    at: list[tuple[int, Tensor]]
    known: Sequence[Tensor] = ()


@dataclass(frozen=True)
class Network:
    """model: in float32, as the folder has it; tokenizer: None where the folder has none."""

    model: Any
    tokenizer: Any

    @property
    def layers(self) -> list[nn.Module]:
        """Its blocks."""
        return list(next(m for m in self.model.modules() if isinstance(m, nn.ModuleList)))


def in_bfloat16(network: Network) -> Network:
    """A copy whose weights are bfloat16; buffers stay as they are, as frameworks keep them."""
    copied = copy.deepcopy(network.model)
    for parameter in copied.parameters():
        parameter.data = parameter.data.bfloat16()
    return Network(copied, network.tokenizer)


Change = Callable[[Network, Lines, Sequence[Response]], AbstractContextManager[Lines]]


def load(folder: Path) -> Network:
    """A Hugging Face folder's. Raises ValueError where it cannot be recomputed here."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not folder.is_dir():  # the hub would be asked for it
        raise ValueError(f"{folder} is not a folder: name one with config.json and safetensors")
    kwargs = {"dtype": torch.float32, "use_safetensors": True}
    model = from_pretrained(AutoModelForCausalLM, str(folder), str(folder), **kwargs).eval()
    kinds = set(getattr(model.config, "layer_types", None) or ())
    if other := kinds - {"full_attention", "sliding_attention"}:
        raise ValueError(
            f"{folder} has layers of {', '.join(sorted(other))}. Only attention is supported."
        )
    named = any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json"))
    tokenizer = from_pretrained(AutoTokenizer, str(folder), str(folder)) if named else None
    return Network(model, tokenizer)


def lines(responses: Sequence[Response], prompts: Sequence[Any] | None = None) -> Lines:
    """A response a line, padded behind its end; prompts: others in place of their own."""
    heads = prompts or [r.ids[: r.begin] for r in responses]
    rows = [
        torch.cat([torch.as_tensor(h), torch.as_tensor(r.ids[r.begin :])])
        for h, r in zip(heads, responses, strict=True)
    ]
    width = max(map(len, rows))
    ids = torch.stack([torch.nn.functional.pad(row, (0, width - len(row))) for row in rows])
    length = torch.tensor([len(row) for row in rows])
    there = torch.arange(width) < length[:, None]
    attend = torch.ones(width, width).tril().bool() & there[:, None]
    attend = attend | torch.eye(width).bool()  # a pad attends to itself: no row is empty
    moved = [len(h) - r.begin for h, r in zip(heads, responses, strict=True)]
    at = [(i, torch.as_tensor(r.at) + moved[i] - 1) for i, r in enumerate(responses)]
    return Lines(ids, torch.arange(width).expand_as(ids), attend, at)


@torch.no_grad()
def recompute(network: Network, responses: Responses, changes: Sequence[Change] = ()) -> Logits:
    """Of the tokens of all responses, under all the changes at once."""
    parts = []
    for i in range(0, len(responses.each), BATCH):
        some = responses.each[i : i + BATCH]
        with ExitStack() as stack:
            shown = lines(some)
            for change in changes:
                shown = stack.enter_context(change(network, shown, some))
            parts += _logits(network, shown, some)
    return joined(parts)


def _logits(network: Network, shown: Lines, some: Sequence[Response]) -> list[Logits]:
    found = []
    for z, r in zip(logits(network, shown), some, strict=True):
        tokens, ids = torch.as_tensor(r.tokens), torch.as_tensor(r.ids)
        found.append(kept(z, tokens, ids, torch.as_tensor(r.at), r.begin))
    return found


def logits(network: Network, shown: Lines) -> Iterator[Tensor]:
    """Of each response [n,V]."""
    hidden = hidden_states(network, shown)
    for i, (line, at) in enumerate(shown.at):
        first = list(shown.known[i : i + 1])
        z = output_head(network, hidden[line, at[len(first[0]) :] if first else at])
        yield torch.cat([*first, z]) if first else z


def hidden_states(network: Network, shown: Lines) -> Tensor:
    """[L,T,D] after the last norm."""
    model = network.model
    dtype = next(model.parameters()).dtype
    masks = {"full_attention": shown.attend}
    window = getattr(model.config, "sliding_window", None)
    kinds = getattr(model.config, "layer_types", None)
    if window and kinds is None and getattr(model.config, "use_sliding_window", True):
        masks["full_attention"] = within(shown, window)
    elif window:
        masks["sliding_attention"] = within(shown, window)
    added = {k: _added(attend, dtype) for k, attend in masks.items()}
    mask: Any = added if kinds and "sliding_attention" in kinds else added["full_attention"]
    output = model.model(
        input_ids=shown.ids, attention_mask=mask, position_ids=shown.positions, use_cache=False
    )
    return output[0]


def within(shown: Lines, window: int) -> Tensor:
    """attend, where a query sees so many keys, itself the last."""
    place = torch.arange(shown.ids.shape[1])
    return shown.attend & (place[:, None] - place < window)


def _added(attend: Tensor, dtype: torch.dtype) -> Tensor:
    zero = torch.zeros((), dtype=dtype)
    return torch.where(attend, zero, torch.finfo(dtype).min)[:, None]


def output_head(network: Network, hidden: Tensor) -> Tensor:
    """Logits [n,V] in float32, with the model's own scale and cap."""
    config = network.model.config
    z = network.model.lm_head(hidden).float()
    z = z / getattr(config, "logits_scaling", 1.0)
    cap = getattr(config, "final_logit_softcapping", None)
    return cap * torch.tanh(z / cap) if cap else z


@contextmanager
def edit_parameters(network: Network, names: Callable[[str], bool], edit: Any) -> Iterator[None]:
    """The parameters of these names are edit(name, parameter) meanwhile."""
    before = {k: p.data for k, p in network.model.named_parameters() if names(k)}
    try:
        for name, parameter in network.model.named_parameters():
            if name in before:
                parameter.data = edit(name, parameter.data)
        yield
    finally:
        for name, parameter in network.model.named_parameters():
            if name in before:
                parameter.data = before[name]


def modules(network: Network, *endings: str) -> list[nn.Module]:
    """Those whose names end so."""
    return [m for name, m in network.model.named_modules() if name.endswith(endings)]


@contextmanager
def edit_outputs(of: Sequence[nn.Module], edit: Callable[[int, Tensor], Tensor]) -> Iterator[None]:
    """What these modules give is edit(number, output) meanwhile."""
    with ExitStack() as stack:
        for i, module in enumerate(of):
            # torch hands a hook the output as it is; its types say a dictionary of keywords
            give = lambda _, __, out, i=i: edit(i, cast(Tensor, out))  # noqa: E731
            stack.callback(module.register_forward_hook(give).remove)
        yield


@contextmanager
def edit_attributes(
    of: Sequence[nn.Module], name: str, edit: Callable[[Any], Any]
) -> Iterator[None]:
    """This attribute of each module is edit(value) meanwhile."""
    before = [getattr(m, name) for m in of]
    try:
        for module, value in zip(of, before, strict=True):
            setattr(module, name, edit(value))
        yield
    finally:
        for module, value in zip(of, before, strict=True):
            setattr(module, name, value)
