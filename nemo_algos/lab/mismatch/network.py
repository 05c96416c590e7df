"""The trainer's model, and what it gives the tokens of some responses under a change.

Of the logits of a token's place enough is kept for any change of the distribution.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from nemo_algos.engines.dumps.responses import Response
from nemo_algos.engines.local.hf import from_pretrained
from nemo_algos.findings import first_line
from nemo_algos.lab.mismatch.responses import Array, Responses

TOP = 256  # logits that are kept as they are
# nats: the others are counted in bins so wide below the largest
WIDTH = 0.125
BINS = 240
BATCH = 8  # lines of a forward
OWN = 1e-3  # nats, float32: two ways to compute one row differ by less


@dataclass(frozen=True, eq=False)
class Logits:
    """What is kept of N places.

    token, chosen [N]: what was drawn, and its logit; rank [N]: how many are above; normalizer [N]:
    log sum exp of all.
    ids, top [N,K]: the highest, in order; tail [N,BINS]: how many of the others are so far below
    the largest. Of the ids U of prompt and response: seen [N,U]: their logits; before [N,U]: how
    often they stand before the place, written [N,U]: there in the response; own [N,U]: is drawn.
    """

    token: Array
    chosen: Array
    ids: Array
    top: Array
    tail: Array
    seen: Array
    before: Array
    written: Array
    own: Array
    rank: Array
    normalizer: Array

    def total(self, change: Callable[[Array], Array]) -> Array:
        """log sum over the vocabulary of exp(change(logit)) [N]."""
        return self._in_bins(change) + self._coarse

    @cached_property
    def _coarse(self) -> Array:
        """What the bins' width takes from a sum without a change [N]."""
        return self.normalizer - self._in_bins(lambda z: z)

    def _in_bins(self, change: Callable[[Array], Array]) -> Array:
        bins, log_count = self._others
        tail = change(self.top[:, :1] - WIDTH * (bins + 0.5)) + log_count
        return torch.from_numpy(np.concatenate([change(self.top), tail], 1)).logsumexp(1).numpy()

    @cached_property
    def _others(self) -> tuple[Array, Array]:
        """The bins [M] in which a place has logits, and the log of how many [N,M]."""
        bins = np.flatnonzero(self.tail.any(0))
        with np.errstate(divide="ignore"):
            return bins, np.log(self.tail[:, bins])

    @cached_property
    def logprobs(self) -> Array:
        """Of the chosen tokens [N], nats."""
        return self.chosen - self.normalizer

    @cached_property
    def probs(self) -> Array:
        """Of the highest [N,K]."""
        return np.exp(self.top - self.normalizer[:, None])

    @cached_property
    def unsure(self) -> Array:
        """How much of one nat of independent noise in the logits the log-prob takes [N]."""
        others = (self.probs**2).sum(1)
        p = np.exp(self.logprobs)
        return np.sqrt(np.maximum(1 - 2 * p + others, 1e-8))

    def only(self, where: Array) -> Logits:
        """Those places."""
        return Logits(**{name: getattr(self, name)[where] for name in COLUMNS})


COLUMNS = [field.name for field in fields(Logits)]


def kept(z: Tensor, response: Response) -> Logits:
    """Of one response's n tokens; z [n,V]."""
    z = z.float()
    ids = torch.as_tensor(response.ids)
    chosen = torch.as_tensor(response.tokens)
    top = z.topk(min(TOP, z.shape[-1]), -1)
    own = z.gather(-1, chosen[:, None])
    bins = ((top.values[:, :1] - z) / WIDTH).long().clamp_(0, BINS - 1)
    tail = torch.zeros(len(z), BINS).scatter_add_(1, bins, torch.ones(()).expand_as(z))
    best = bins.gather(1, top.indices)
    tail.scatter_add_(1, best, -torch.ones(()).expand_as(best))
    unique, which = ids.unique(return_inverse=True)
    stands = torch.nn.functional.one_hot(which).float()  # [T,U]
    place = torch.arange(len(ids))
    earlier = (place < torch.as_tensor(response.at)[:, None]).float()  # [n,T]
    arrays = {
        "token": chosen,
        "chosen": own[:, 0].double(),
        "ids": top.indices,
        "top": top.values.double(),
        "tail": tail,
        "seen": z[:, unique].double(),
        "before": earlier @ stands,
        "written": (earlier * (place >= response.begin)) @ stands,
        "own": unique == chosen[:, None],
        "rank": (z > own).sum(-1),
        "normalizer": z.double().logsumexp(-1),
    }
    return Logits(**{name: array.numpy() for name, array in arrays.items()})


def joined(parts: list[Logits]) -> Logits:
    """Of several responses; their ids are filled up with ids that never stood before."""
    width = max(p.seen.shape[1] for p in parts)
    columns = {}
    for name in COLUMNS:
        arrays = [getattr(p, name) for p in parts]
        if name in ("seen", "before", "written", "own"):
            arrays = [np.pad(a, ((0, 0), (0, width - a.shape[1]))) for a in arrays]
        columns[name] = np.concatenate(arrays)
    return Logits(**columns)


@dataclass(frozen=True)
class Lines:
    """What a model is shown: ids, positions [L,T]; attend [L,T,T] bool, of a query to a key.

    at: of each response its line, and the places there of the tokens it was drawn after [n].
    """

    ids: Tensor
    positions: Tensor
    attend: Tensor
    at: list[tuple[int, Tensor]]


@dataclass(frozen=True)
class Network:
    """model: in float32, as the folder has it; tokenizer: None where the folder has none."""

    model: Any
    tokenizer: Any

    @property
    def head(self) -> Any:
        return self.model.get_output_embeddings()


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
    other = kinds - {"full_attention", "sliding_attention"}
    if other:
        raise ValueError(
            f"{folder} has layers of {', '.join(sorted(other))}. Only attention is supported."
        )
    named = any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json"))
    tokenizer = from_pretrained(AutoTokenizer, str(folder), str(folder)) if named else None
    return Network(model, tokenizer)


def lines(responses: Sequence[Response], prompts: Sequence[Any] | None = None) -> Lines:
    """A response a line, padded behind its end; prompts: others in place of their own."""
    heads = prompts or [response.prompt for response in responses]
    rows = []
    at = []
    for i, (head, response) in enumerate(zip(heads, responses, strict=True)):
        rows.append(torch.as_tensor(np.r_[head, response.ids[response.begin :]]))
        at.append((i, torch.as_tensor(response.at) + len(head) - response.begin - 1))
    ids = pad_sequence(rows, batch_first=True)
    place = torch.arange(ids.shape[1])
    there = place < torch.tensor([len(row) for row in rows])[:, None]
    # a pad attends to itself: no row is empty
    attend = (place <= place[:, None]) & there[:, None] | torch.eye(len(place)).bool()
    return Lines(ids, place.expand_as(ids), attend, at)


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
            found = logits(network, shown)
            parts += [kept(z, r) for z, r in zip(found, some, strict=True)]
    return joined(parts)


def logits(network: Network, shown: Lines) -> list[Tensor]:
    """Of each response [n,V], float32, as the model's own forward gives them."""
    model = network.model
    config = network.model.config
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", 0)
    dtype = next(model.parameters()).dtype
    mask: Any = _added(shown.attend, dtype)
    if kinds and "sliding_attention" in kinds:
        sliding = _added(within(shown, window), dtype)
        mask = {"full_attention": mask, "sliding_attention": sliding}
    elif window and kinds is None and getattr(config, "use_sliding_window", True):
        mask = _added(within(shown, window), dtype)
    given = {"attention_mask": mask, "position_ids": shown.positions, "use_cache": False}
    with _wanted_places(network, shown):
        z = model(input_ids=shown.ids, **given).logits[0].float()
    return list(z.split([len(at) for _, at in shown.at]))


@contextmanager
def _wanted_places(network: Network, shown: Lines) -> Iterator[None]:
    """The head meets the places of the tokens alone [1,N,D]: all logits would fill the memory."""
    lines = torch.cat([torch.full_like(at, line) for line, at in shown.at])
    places = torch.cat([at for _, at in shown.at])

    def pick(_: Any, args: Any) -> Any:
        return (args[0][lines, places][None], *args[1:])

    handle = network.head.register_forward_pre_hook(pick)
    try:
        yield
    finally:
        handle.remove()


def confirm(network: Network, response: Response, folder: Path) -> None:
    """Raises ValueError where the recomputed logits are not the model's own for one row."""
    ids = torch.as_tensor(response.ids)[None]
    try:
        with torch.no_grad():
            (z,) = logits(network, lines([response]))
            own = network.model(input_ids=ids).logits[0, torch.as_tensor(response.at) - 1]
        apart = float((logprobs(z, response) - logprobs(own, response)).abs().max())
        reason = f"its log-probs differ by {apart:.2g} nats from those of its forward pass"
    except (AttributeError, IndexError, LookupError, RuntimeError, TypeError, ValueError) as error:
        apart = math.inf
        reason = first_line(error)
    if not apart < OWN:
        raise ValueError(
            f"{folder}: a {network.model.config.model_type} model cannot be recomputed here "
            f"({reason}). Run the command without --model."
        )


def within(shown: Lines, window: int) -> Tensor:
    """attend, where a query sees so many keys, itself the last."""
    place = torch.arange(shown.ids.shape[1])
    return shown.attend & (place[:, None] - place < window)


def _added(attend: Tensor, dtype: torch.dtype) -> Tensor:
    zero = torch.zeros((), dtype=dtype)
    return torch.where(attend, zero, torch.finfo(dtype).min)[:, None]


def logprobs(z: Tensor, response: Response) -> Tensor:
    """Of the response's tokens [n]; z [n,V]."""
    return z.log_softmax(-1).gather(1, torch.as_tensor(response.tokens)[:, None])[:, 0]


def modules(network: Network, *endings: str) -> list[nn.Module]:
    return [m for name, m in network.model.named_modules() if name.endswith(endings)]


@contextmanager
def edit_outputs(of: Sequence[nn.Module], edit: Callable[[int, Tensor], Tensor]) -> Iterator[None]:
    """What these modules give is edit(number, output) meanwhile."""

    def hook(number: int, module: nn.Module, inputs: Any, output: Any) -> Tensor:
        return edit(number, output)

    with ExitStack() as stack:
        for i, module in enumerate(of):
            stack.callback(module.register_forward_hook(partial(hook, i)).remove)
        yield


@contextmanager
def edit_attributes(of: Mapping[Any, Any], name: str, edit: Callable[..., Any]) -> Iterator[None]:
    """This attribute of each value is edit(key, attribute) meanwhile."""
    before = {key: getattr(one, name) for key, one in of.items()}
    try:
        for key, one in of.items():
            setattr(one, name, edit(key, before[key]))
        yield
    finally:
        for key, one in of.items():
            setattr(one, name, before[key])
