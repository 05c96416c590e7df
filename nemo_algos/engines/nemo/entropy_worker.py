"""What both backends' workers add to NeMo-RL's: entropies, of two forwards.

Of the previous log-probs' forward, without gradient, for the driver half; of training's, with
gradient, for the terms of the loss.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from nemo_algos.algorithms.core.entropy import token_logprobs_and_entropy
from nemo_algos.engines.nemo import versions
from nemo_algos.engines.nemo.policy import ENTROPY


def entropies(logits: Tensor, group: Any, vocabulary: int | None = None) -> Tensor:
    """[...,V/TP] -> exact entropies [...], nats, over the real rows of the vocabulary."""
    no_tokens = torch.zeros(logits.shape[:-1], dtype=torch.long, device=logits.device)
    return token_logprobs_and_entropy(logits, no_tokens, group=group, vocabulary=vocabulary)[1]


@contextmanager
def recording(module: Any, processor: type, **kwargs: Any) -> Iterator[list[Tensor]]:
    """Within, the log-prob forward of the worker's module appends entropies; kwargs: its own."""
    sink: list[Tensor] = []
    ours = functools.partial(processor, sink=sink, **kwargs)
    with versions.replace_attributes((module, "LogprobsPostProcessor", ours)):
        yield sink


@contextmanager
def for_the_loss(*places: tuple[Any, str, Callable[..., Tensor]]) -> Iterator[None]:
    """Within, NeMo-RL's functions that prepare the inputs of a loss add entropies [b,S-1].

    places: module, the function's name there, and what makes entropies of its arguments.
    """
    ours = ((module, name, _adding(getattr(module, name), of)) for module, name, of in places)
    with versions.replace_attributes(*ours):
        yield


def _adding(prepare: Callable[..., Any], of: Callable[..., Tensor]) -> Callable[..., Any]:
    def prepared(logits: Tensor, data: Any, loss_fn: Any, **kwargs: Any) -> Any:
        inputs, data = prepare(logits, data, loss_fn, **kwargs)
        if getattr(loss_fn, "takes_entropy", False):
            inputs["entropy"] = of(logits, data, **kwargs)
        return inputs, data

    return prepared


class GradientMixin:
    """Before a worker class: its losses may take entropies with gradient.

    prepared: the places of `for_the_loss`.
    """

    def prepared(self) -> tuple[tuple[Any, str, Callable[..., Tensor]], ...]:
        raise NotImplementedError

    def train(self, *args: Any, **kwargs: Any) -> Any:
        with for_the_loss(*self.prepared()):
            return super().train(*args, **kwargs)  # pyright: ignore

    def train_microbatch(self, *args: Any, **kwargs: Any) -> Any:
        """As the worker's, a chunk of the single controller's step."""
        with for_the_loss(*self.prepared()):
            return super().train_microbatch(*args, **kwargs)  # pyright: ignore


class EntropyMixin:
    """Before a worker class: no entropies of the reference, and a column of the data plane."""

    reference_pass = False

    def get_reference_policy_logprobs(self, *args: Any, **kwargs: Any) -> Any:
        self.reference_pass = True
        try:
            return super().get_reference_policy_logprobs(*args, **kwargs)  # pyright: ignore
        finally:
            self.reference_pass = False

    def _write_back_result_field(self, meta: Any, result: Any, **kwargs: Any) -> None:
        """With the previous log-probs go the entropies (grpo_train_sync)."""
        super()._write_back_result_field(meta, result, **kwargs)  # pyright: ignore
        if "entropies" in result:
            from nemo_rl.data_plane import column_io

            column_io.TOKEN_ALIGNED_FIELDS |= {ENTROPY}  # in this process
            self._write_back(meta, {ENTROPY: result["entropies"]})  # pyright: ignore
