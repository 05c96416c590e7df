"""What is kept of the logits of a token's place: enough for any change of the distribution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from nemo_algos.engines.mismatch.responses import Response

Array = np.ndarray
TOP = 256  # logits that are kept as they are
# nats: the others are counted in bins so wide below the largest
WIDTH = 0.125
BINS = 240


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
