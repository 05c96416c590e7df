"""The run under test: megatron's DDP, schedule and gradients with our log-probs and losses.

Micro-batches are of two sequences.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import model
import substitutes
import torch
from megatron.core import parallel_state as ps
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from oracle import METHODS, TEMPERATURE, Oracle, inputs
from torch import Tensor

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.entropy import token_logprobs_and_entropy
from nemo_algos.algorithms.core.linear_entropy import token_logprobs_and_entropy_from_hidden
from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.loss import policy_loss

MICRO = 2


class Parallel:
    """A rank of a layout, with the oracle's weights and batch."""

    def __init__(self, layout: model.Layout, oracle: Oracle, **config: Any) -> None:
        self.layout, self.oracle = layout, oracle
        self.part = model.build(layout)
        model.load(self.part, oracle.weights)
        self.part.config.finalize_model_grads_func = finalize_model_grads
        ddp = DistributedDataParallelConfig(**config)
        self.ddp = DistributedDataParallel(self.part.config, ddp, self.part)
        every = torch.arange(len(oracle.tokens)).split(MICRO)
        self.micros = every[ps.get_data_parallel_rank() :: layout.dp]
        self.seen: list[tuple[Tensor, Tensor, Tensor]] = []  # rows, log-probs, entropies [MICRO,S]

    def forward_backward(self, method: str, forward_only: bool = False) -> None:
        """Leave the gradient of the batch's loss in every parameter's main_grad.

        On the last stage, what it saw is in `seen`.
        """
        self.seen.clear()
        self.ddp.zero_grad_buffer()
        get_forward_backward_func()(
            forward_step_func=partial(self._forward, self._loss_of(method)),
            data_iterator=iter(self.micros),
            model=[self.ddp],
            num_microbatches=len(self.micros),
            seq_length=model.LENGTH,
            micro_batch_size=MICRO,
            forward_only=forward_only,
        )

    def values(self, logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies [B,S/C] from this rank's logits [B,S/C,V/TP]."""
        group = ps.get_tensor_model_parallel_group()
        return token_logprobs_and_entropy(logits, tokens, TEMPERATURE, group, model.VOCABULARY)

    def _forward(self, loss: Any, data: Iterator[Tensor], part: torch.nn.Module) -> Any:
        rows = next(data)
        tokens = self.oracle.tokens[rows]
        position, mask = inputs(tokens)
        output = part(self._own(tokens), self._own(position), mask)
        return output, partial(self._share, loss, rows)

    def _share(self, loss: Any, rows: Tensor, output: Tensor) -> tuple[Tensor, dict]:
        """A loss whose sum over micro-batches and ranks is the batch's: megatron takes means."""
        logprobs, entropy = self._at_tokens(rows, output)
        self.seen.append((rows, logprobs.detach(), entropy.detach()))
        return loss(rows, logprobs) * (len(self.micros) * self.layout.dp), {}

    def _at_tokens(self, rows: Tensor, output: Tensor) -> list[Tensor]:
        """Log-probs and entropies [B,S] at the tokens that they are of; 0 at the first."""
        following = self._own(self.oracle.tokens[rows].roll(-1, 1))
        own = self.values(output, following)
        whole = [substitutes.gather(x, ps.get_context_parallel_group()) for x in own]
        return [torch.nn.functional.pad(x[:, :-1], (1, 0)) for x in whole]

    def _own(self, whole: Tensor) -> Tensor:
        """[B,S] -> [B,S/C], the positions of this context-parallel rank."""
        group = ps.get_context_parallel_group()
        return whole[:, substitutes.positions(whole.shape[1], group.rank(), group.size())]

    def _loss_of(self, method: str) -> Any:
        algorithm, rollouts = build(method), self.oracle.rollouts
        counts, signals = Counts.of(rollouts.mask), algorithm.signals(rollouts)
        return lambda rows, logprobs: (
            policy_loss(algorithm, logprobs, rollouts[rows], signals[rows], counts).value
        )

    def errors(self) -> dict[str, float]:
        """The largest errors against the oracle, by quantity.

        Log-probs and entropies on the last stage; gradients as method/parameter, relative to its
        largest number.
        """
        found = {}
        for method in METHODS:
            self.forward_backward(method)
            found |= self._of_gradients(method)
            for rows, *values in self.seen:
                for name, got in zip(("logprobs", "entropy"), values, strict=True):
                    error = apart(got, getattr(self.oracle, name)[rows])
                    found[name] = max(error, found.get(name, 0.0))
        return found

    def _of_gradients(self, method: str) -> dict[str, float]:
        found = {}
        for name, parameter in model.parameters(self.part).items():
            whole = self.oracle.grads[method][name]
            error = apart(parameter.main_grad, model.cut(name, whole))
            found[f"{method}/{name}"] = error / float(whole.abs().max())
        return found


class FromHidden(Parallel):
    """The same with an output layer that hands the hidden states on: the logits never exist."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.part.post_process:
            self.part.output_layer.forward = lambda hidden, **_: (hidden, None)

    def values(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """hidden [B,S/C,H]; under sequence parallelism this rank's [B,S/C/TP,H]."""
        if self.layout.sp:  # each rank's gradient is already the sum, so none is summed here
            hidden = gather_from_sequence_parallel_region(hidden.transpose(0, 1), False)
            hidden = hidden.transpose(0, 1)
        weight = self.part.shared_embedding_or_output_weight()
        group = ps.get_tensor_model_parallel_group()
        return token_logprobs_and_entropy_from_hidden(
            hidden, weight, tokens, TEMPERATURE, group, model.VOCABULARY
        )


def apart(got: Tensor, want: Tensor) -> float:
    """max |got - want|; infinite where a number is not one."""
    assert got.shape == want.shape, (got.shape, want.shape)
    return float((got - want).abs().nan_to_num(nan=torch.inf).max())
