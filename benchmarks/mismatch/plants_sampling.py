"""Kinds in which the sampler draws from, or records, another distribution than the model's."""

from __future__ import annotations

import math
from typing import Any

import torch
from kinds import Kind, cause
from plants_weights import int4, int8, old
from rollouts import Edit, Logits, Side
from torch import Tensor

CUT = -1e9
IDS = (28, 30, 42, 198, 253, 260, 281, 284, 314, 339)  # frequent ones of SmolLM2, words elsewhere


def temperature(value: float) -> Logits:
    """Divides the logits."""
    return lambda z, *_: z / value


def top_p(mass: float) -> Logits:
    """Keeps the smallest set of tokens that holds the mass."""

    def keep(z: Tensor, *_: Tensor) -> Tensor:
        likely, order = z.softmax(-1).sort(-1, descending=True)
        out = likely.cumsum(-1) - likely >= mass
        return z.masked_fill(torch.zeros_like(out).scatter(-1, order, out), CUT)

    return keep


def top_k(count: int) -> Logits:
    """Keeps the likeliest."""
    return lambda z, *_: z.masked_fill(z < z.topk(count, -1).values[..., -1:], CUT)


def min_p(share: float) -> Logits:
    """Keeps those at least `share` times as likely as the likeliest."""
    return lambda z, *_: z.masked_fill(z < z.amax(-1, keepdim=True) + math.log(share), CUT)


def both(first: Logits, second: Logits) -> Logits:
    """One after the other."""
    return lambda z, *ids: second(first(z, *ids), *ids)


def repetition(penalty: float) -> Logits:
    """Of the tokens in prompt and response, as in vLLM."""

    def punish(z: Tensor, *ids: Tensor) -> Tensor:
        seen = torch.cat(ids, 1)
        there = z.gather(-1, seen)
        return z.scatter(-1, seen, torch.where(there > 0, there / penalty, there * penalty))

    return punish


def presence(penalty: float, most: float = 1) -> Logits:
    """Of the tokens in the response, as in vLLM; counted up to `most` times."""

    def punish(z: Tensor, prompt: Tensor, seen: Tensor) -> Tensor:
        times = torch.zeros_like(z).scatter_add(-1, seen, torch.ones(seen.shape))
        return z - penalty * times.clamp(max=most)

    return punish


def bias(ids: tuple[int, ...], by: float) -> Logits:
    """Adds to the logits of some ids."""
    return lambda z, *_: z.index_add(
        -1, torch.tensor(ids), torch.full((*z.shape[:-1], len(ids)), by)
    )


def cap(limit: float) -> Logits:
    """tanh, as Gemma 2 has it at the end."""
    return lambda z, *_: limit * torch.tanh(z / limit)


def padded(columns: int) -> Logits:
    """Untrained columns behind the vocabulary, with a tenth of the mass, are in the softmax."""

    def widen(z: Tensor, *_: Tensor) -> Tensor:
        some = z[..., :columns]
        noise = (some - some.mean(-1, keepdim=True)) / some.std(-1, keepdim=True)
        level = z.logsumexp(-1, keepdim=True) - math.log(columns) - 2.9
        return torch.cat([z, level + noise], -1)

    return widen


def _kind(name: str, logits: Logits, edit: Edit | None = None, **parameters: Any) -> Kind:
    """Of the sampler: the name's first part is the cause's."""
    return Kind(name, cause(name.rpartition("-")[0], **parameters), Side(edit, logits=logits))


KINDS = [
    _kind("temperature-0.7", temperature(0.7), temperature=[0.7, 0.03]),
    _kind("temperature-0.9", temperature(0.9), temperature=[0.9, 0.02]),
    _kind("temperature-1.2", temperature(1.2), temperature=[1.2, 0.04]),
    Kind(
        "temperature-trainer-0.8",
        cause("temperature", side="trainer", temperature=[0.8, 0.03]),
        trainer=Side(logits=temperature(0.8)),
    ),
    _kind("top_p-0.95", top_p(0.95), top_p=[0.95, 0.02]),
    _kind("top_p-0.8", top_p(0.8), top_p=[0.8, 0.04]),
    _kind("top_k-20", top_k(20), top_k=[20, 3]),
    _kind("top_k-100", top_k(100), top_k=[100, 30]),
    _kind("min_p-0.05", min_p(0.05), min_p=[0.05, 0.015]),
    _kind("repetition_penalty-1.1", repetition(1.1), penalty=[1.1, 0.02]),
    _kind("presence_penalty-0.5", presence(0.5), penalty=[0.5, 0.1]),
    _kind("frequency_penalty-0.3", presence(0.3, most=math.inf), penalty=[0.3, 0.08]),
    _kind("banned_tokens-4", bias(IDS[:4], CUT), ids=list(IDS[:4])),
    _kind("logit_bias-2", bias(IDS, 2.0), ids=list(IDS), bias=[2, 0.3]),
    Kind("softcap-30", cause("softcap", cap=[30, 4]), Side(logits=cap(30.0)),
         worlds=lambda name: name != "gemma"),
    Kind(
        "vocabulary_padding-64",
        cause("vocabulary_padding", side="trainer"),
        trainer=Side(logits=padded(64)),
    ),
    Kind(
        "recorded_before-temperature-0.8",
        cause("recorded_before", temperature=[0.8, 0.06]),
        Side(logits=temperature(0.8), raw=True),
        subtle=True,
    ),
    Kind(
        "recorded_before-top_p-0.9",
        cause("recorded_before", top_p=[0.9, 0.05]),
        Side(logits=top_p(0.9), raw=True),
        subtle=True,
    ),
    Kind(  # vLLM's raw_logprobs beside a trainer that divides by the temperature
        "recorded_before-tempered-trainer-0.7",
        cause("recorded_before", "temperature", side="either", temperature=[0.7, 0.04]),
        Side(logits=temperature(0.7), raw=True),
        Side(logits=temperature(0.7)),
    ),
    Kind("speculative-draft-records", cause("speculative"), Side(draft=int4)),
    Kind("speculative-uncorrected", cause("speculative"), Side(draft=int4, corrected=False),
         subtle=True),
    Kind("greedy-raw", cause("greedy"), Side(logits=temperature(1e-4), raw=True), subtle=True),
    Kind("greedy-zero", cause("greedy"), Side(logits=temperature(1e-4))),
    Kind("clean-temperature-0.7", also=("clean", "precision"),
         sampler=Side(logits=temperature(0.7)), trainer=Side(logits=temperature(0.7))),
    Kind(
        "double-temperature-top_p",
        cause("temperature", temperature=[0.8, 0.05]) + cause("top_p", top_p=[0.9, 0.04]),
        Side(logits=both(temperature(0.8), top_p(0.9))),
    ),
    Kind(
        "double-old_weights-temperature",
        cause("old_weights", version="v1") + cause("temperature", temperature=[0.8, 0.05]),
        Side(old("v1"), logits=temperature(0.8)),
    ),
    Kind(
        "double-int8-top_k",
        cause("quantized_weights", format="int8") + cause("top_k", top_k=[20, 4]),
        Side(int8, logits=top_k(20)),
    ),
]  # fmt: skip
