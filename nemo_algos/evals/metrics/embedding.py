"""Sentence embeddings of responses, by a sentence-transformers model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Encoder(Protocol):
    """What is used of a `SentenceTransformer`."""

    def encode(self, sentences: list[str], /) -> Any:
        """[U] texts -> [U, D]"""
        ...


def load(model: str) -> Encoder:
    """By hub name or path; reads no more of a text than the model's `max_seq_length` tokens.

    Raises:
        ValueError: sentence-transformers is not installed.
    """
    try:
        from sentence_transformers import SentenceTransformer  # pyright: ignore
    except ImportError as error:
        raise ValueError(
            "embedding similarity needs sentence-transformers: install nemo-algos[embeddings], "
            "or take embedding out of similarities"
        ) from error
    return SentenceTransformer(model)


def embed(encoder: Encoder, responses: Iterable[list[str]]) -> Iterator[NDArray[np.floating]]:
    """[U, D] for each problem's different responses, sorted: what `Texts.unique` holds."""
    for texts in responses:
        yield np.asarray(encoder.encode(sorted(set(texts))))
