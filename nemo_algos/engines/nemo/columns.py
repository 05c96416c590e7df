"""A method's signals as columns of NeMo-RL's batches: what the workers read, and nothing else.

float32 [B] or [B,S], the only shapes that NeMo-RL's sharding and packing carry. Bounds that are
numbers do not travel: every worker computes them from the method's parameters.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.algorithms.kernel import Signals

PREFIX = "nemo_algos_signal_"


def names(algorithm: Algorithm) -> dict[str, str]:
    """The signals that travel beside the advantages, and their columns' keys."""
    return {k: PREFIX + k for k in algorithm.per_token if k != "advantages"}


def write(signals: Signals, algorithm: Algorithm) -> dict[str, Tensor]:
    """The columns by key, float32: [B] per sequence, [B,S] per token."""
    tensors: dict[str, Any] = {"low": signals.low, "high": signals.high, **signals.extras}
    columns = {}
    for name, key in names(algorithm).items():
        column = tensors[name] if algorithm.per_token[name] else _row(tensors[name])
        columns[key] = column.float().contiguous()
    return columns


def widen(columns: Mapping[str, Tensor], shape: torch.Size) -> dict[str, Tensor]:
    """All of them [B,S], the one shape that every data plane carries."""
    wide = {}
    for key, column in columns.items():
        if column.dim() != 2:
            column = column[:, None]
        wide[key] = column.expand(shape).contiguous()
    return wide


def read(data: Mapping[str, Any], algorithm: Algorithm) -> Signals:
    """The signals [B,1] or [B,S-1] of a micro-batch's columns; NeMo-RL's losses use [:, 1:].

    Per sequence a column is [B], or [B,S] with equal values. Advantages are [B,S-1] but where a
    response must have one: NeMo-RL may give a message's tokens another (`estimator.Limits`).
    Raises KeyError where a column is missing.
    """
    keys = {"advantages": "advantages", **names(algorithm)}
    wide = {**algorithm.per_token, "advantages": not algorithm.one_advantage}
    signals = {}
    for name, per_token in wide.items():
        column = data[keys[name]]
        signals[name] = column[:, 1:] if per_token else _row(column)[:, None]
    low, high = algorithm.constant_bounds or (signals.pop("low"), signals.pop("high"))
    return Signals(signals.pop("advantages"), low, high, signals)


def _row(x: Tensor) -> Tensor:
    """[B] of [B], or of [B,1] or [B,S] with equal values."""
    return x if x.dim() == 1 else x[:, 0]
