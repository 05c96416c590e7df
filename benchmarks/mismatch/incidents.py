"""Incidents of 2026, rebuilt as dumps from what their threads say. The thread is in truth.json."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from kinds import CORRECT, VERSION, Cause, Kind, Rollout, cause
from plants_inputs import chat
from plants_records import on, retokenized, rows
from plants_sampling import both, temperature, top_k, top_p
from plants_weights import adapter, dropout, fp8, hooked, layer, old, swap
from rollouts import GROUP, Side
from torch import Tensor
from worlds import World


def _incident(
    thread: str, name: str, causes: tuple[Cause, ...],
    sampler: Side = CORRECT, trainer: Side = CORRECT, **more: Any,
) -> Kind:  # fmt: skip
    return Kind(f"incident-{name}", causes, sampler, trainer, thread=thread, **more)


def _stamped_late(rollout: Rollout, world: World, draw: torch.Generator) -> Rollout:
    """Every response carries the version at its completion."""
    return replace(rollout, versions=torch.full((len(rollout.tokens),), VERSION))


def _other_prompts(count: int, draw: torch.Generator) -> Tensor:
    """A quarter of the groups get the log-probs of the next prompt's responses."""
    groups = torch.arange(count).reshape(-1, GROUP)
    groups[: len(groups) // 4] = groups[: len(groups) // 4].roll(1, 0)
    return groups.flatten()


KINDS = [
    # disaggregated sync sends the frozen base: the sampler never gets the adapter
    _incident("verl-project/verl#7495", "adapter-never-sent", cause("adapter_missing"), Side(),
              Side(adapter()), adapted=True),
    # sleep level 2 drops the weights, and waking reloads the checkpoint
    _incident("huggingface/trl#5312", "sleep-drops-weights",
              cause("old_weights", version="v1"), Side(old("v1"))),
    # W + scale B A is stored on the BF16 grid
    _incident("NVIDIA-NeMo/RL#3696", "merged-on-bf16-grid",
              cause("adapter_merged_bf16", "precision", "clean"),
              Side(adapter(merged=torch.bfloat16)), Side(adapter()), adapted=True),
    # alpha's key is lost on the way: scale 1 for alpha / rank = 2
    _incident("Tencent-Hunyuan/UniRL#155", "alpha-lost", cause("adapter_scale", scale=[0.5, 0.1]),
              Side(adapter(0.5)), Side(adapter()), adapted=True),
    # Megatron's default dropout of 0.1 is on while log-probs are computed
    _incident("Human-Agent-Society/reef#536", "dropout-on", (), Side(),
              Side(dropout(0.1)), also=("unknown",)),
    # top-p and top-k without replay of the sampling mask
    _incident("PrimeIntellect-ai/prime-rl#3431", "truncation-without-replay",
              (), Side(logits=both(top_k(20), top_p(0.95))), also=("unknown",)),
    _incident("huggingface/trl#6789", "truncated-support", cause("top_p", top_p=[0.8, 0.04]),
              Side(logits=top_p(0.8))),
    # raw_logprobs beside a trainer that divides by the rollout's temperature
    _incident("vllm-project/vime#64", "raw-logprobs",
              cause("recorded_before", "temperature", side="either", temperature=[0.8, 0.04]),
              Side(logits=temperature(0.8), raw=True), Side(logits=temperature(0.8))),
    # log-probs recomputed by a prefill that ignores the rollout's temperature
    _incident("radixark/miles#1345", "prefill-ignores-temperature",
              cause("recorded_before", "temperature", side="either", temperature=[1.2, 0.04]),
              Side(logits=temperature(1.2), raw=True), Side(logits=temperature(1.2))),
    # the prefix cache outlives refits
    _incident("NVIDIA-NeMo/RL#4018", "prefix-outlives-refits", cause("stale_prefix", folder="v1"),
              Side(prefix=old("v1"), stale=2)),
    _incident("huggingface/trl#5224", "retokenized", cause("retokenized", side="trainer"),
              score=retokenized, prompts=16, worlds=chat),
    # weights change in flight, and the version is read when the response is complete
    _incident("rllm-org/rllm#622", "stamped-at-completion", (),
              Side(old("v1"), later=lambda model, world: None), records=_stamped_late,
              also=("unknown",)),
    # the trainer's log-probs lie one place to the left, and the temperature is missing there
    _incident("modelscope/ms-swift#8427", "shifted-and-raw",
              cause("shift", side="either", places=(-1, 1))
              + cause("temperature", temperature=[0.8, 0.06]),
              Side(logits=temperature(0.8)), records=on("trainer", lambda x: x.roll(-1, 1))),
    # an index mixes up prompts and responses
    _incident("allenai/open-instruct#1483", "indices-mixed-up", cause("rows", side="either"),
              records=rows(_other_prompts), prompts=16),
    _incident("vllm-project/vllm#54035", "fp8-cache", cause("quantized_cache", format="fp8"),
              Side(hooked(("k_proj", "v_proj"), fp8))),
    # a resume leaves corrupt weights in the sampler: text turns to soup
    _incident("verl-project/verl#7904", "weights-corrupt-after-resume",
              (), Side(layer(0.5, "self_attn.o_proj", swap)), also=("unknown",)),
    _incident("swiss-ai/model-launch#173", "double-bos", cause("template", side="either"),
              Side(prompt=lambda prompt: [prompt[0], *prompt])),
]  # fmt: skip
