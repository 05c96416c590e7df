"""Kinds in which the sampler draws from, or records, another distribution than the model's."""

from __future__ import annotations

import math
from typing import Any

import torch
from kinds import Draws, Kind, cause, unclaimed
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


def kinds(draws: Draws) -> list[Kind]:
    """With a seed's parameters."""
    low = draws.number("cold", 0.5, 0.95)
    high = draws.number("hot", 1.05, 1.5)
    trainer = draws.number("cold-trainer", 0.6, 0.95)
    wide = draws.number("top_p-wide", 0.88, 0.98)
    narrow = draws.number("top_p-narrow", 0.6, 0.87)
    few = draws.count("top_k-few", 5, 40)
    many = draws.count("top_k-many", 41, 150)
    least = draws.number("min_p", 0.02, 0.15)
    repeated = draws.number("repetition_penalty", 1.03, 1.3)
    present = draws.number("presence", 0.2, 1)
    frequent = draws.number("frequency", 0.1, 0.6)
    banned = draws.count("banned", 2, 8)
    biased = draws.count("biased", 3, 10)
    by = draws.number("bias", 1, 4)
    raw = draws.number("raw", 0.6, 0.9)
    cut = draws.number("raw-top_p", 0.7, 0.93)
    both_raw = draws.number("raw-and-trainer", 0.5, 0.85)
    old_heat = draws.number("old-and-heat", 0.6, 0.9)
    two = both(temperature(draws.number("two", 0.6, 0.9)), top_p(draws.number("two-p", 0.8, 0.95)))
    return [
        _kind("temperature-cold", temperature(low), temperature=[low, 0.02]),
        _kind("temperature-hot", temperature(high), temperature=[high, 0.04]),
        Kind("temperature-trainer", cause("temperature", side="trainer",
             temperature=[trainer, 0.03]), trainer=Side(logits=temperature(trainer))),
        _kind("top_p-wide", top_p(wide), top_p=[wide, 0.02]),
        _kind("top_p-narrow", top_p(narrow), top_p=[narrow, 0.04]),
        _kind("top_k-few", top_k(few), top_k=[few, 3]),
        _kind("top_k-many", top_k(many), top_k=[many, many / 3]),
        _kind("min_p-any", min_p(least), min_p=[least, 0.015]),
        _kind("repetition_penalty-any", repetition(repeated), penalty=[repeated, 0.02]),
        _kind("presence_penalty-any", presence(present), penalty=[present, 0.1]),
        _kind("frequency_penalty-any", presence(frequent, most=math.inf),
              penalty=[frequent, 0.08]),
        _kind("banned_tokens-any", bias(IDS[:banned], CUT), ids=list(IDS[:banned])),
        _kind("logit_bias-any", bias(IDS[:biased], by), ids=list(IDS[:biased]), bias=[by, 0.3]),
        Kind("vocabulary_padding-64", cause("vocabulary_padding", side="trainer"),
             trainer=Side(logits=padded(64))),
        Kind("recorded_before-temperature", cause("recorded_before", temperature=[raw, 0.06]),
             Side(logits=temperature(raw), raw=True), subtle=True),
        Kind("recorded_before-top_p", cause("recorded_before", top_p=[cut, 0.05]),
             Side(logits=top_p(cut), raw=True), subtle=True),
        Kind(  # vLLM's raw_logprobs beside a trainer that divides by the temperature
            "recorded_before-tempered-trainer",
            cause("recorded_before", "temperature", side="either", temperature=[both_raw, 0.02]),
            Side(logits=temperature(both_raw), raw=True), Side(logits=temperature(both_raw)),
        ),
        Kind("speculative-draft-records", cause("speculative"), Side(draft=int4)),
        Kind("speculative-uncorrected", cause("speculative"), Side(draft=int4, corrected=False),
             subtle=True),
        Kind("greedy-raw", cause("greedy"), Side(logits=temperature(1e-4), raw=True), subtle=True),
        Kind("greedy-zero", cause("greedy"), Side(logits=temperature(1e-4))),
        Kind("clean-temperature", also=("clean", "precision"),
             sampler=Side(logits=temperature(low)), trainer=Side(logits=temperature(low))),
        Kind("double-old_weights-temperature",
             cause("old_weights", version="v1")
             + cause("temperature", temperature=[old_heat, 0.05]),
             Side(old("v1"), logits=temperature(old_heat))),
        Kind("double-int8-top_k",
             cause("quantized_weights", format="int8") + cause("top_k", top_k=[few, 4]),
             Side(int8, logits=top_k(few))),
        unclaimed("temperature-and-top_p", Side(logits=two)),
        unclaimed("softcap", Side(logits=cap(draws.number("softcap", 8, 20)))),
    ]  # fmt: skip
