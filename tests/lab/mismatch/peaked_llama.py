"""A small model with a peaked distribution, its rollouts, and their log-probs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from torch import Tensor

from nemo_algos.engines.dumps.dump import Dump, from_arrays
from nemo_algos.lab.mismatch.responses import Responses, gather

VOCABULARY, PROMPTS, SAMPLES, LENGTH = 64, 8, 4, 20
CONFIG: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}

Change = Callable[[Tensor], Tensor]
DRAWN = dict[Any, "Rollouts"]()


def model(seed: int = 0, **config: Any) -> Any:
    """Random weights, with logits that differ by some nats."""
    torch.manual_seed(seed)
    made = hf.LlamaForCausalLM(hf.LlamaConfig(**CONFIG, **config)).eval()
    with torch.no_grad():
        made.lm_head.weight *= 20
        for name, weight in made.named_parameters():
            if "proj" in name:
                weight *= 4
    return made


def moved(made: Any, size: float = 0.05) -> Any:
    """Another model, some updates away."""
    other = hf.LlamaForCausalLM(made.config).eval()
    other.load_state_dict(made.state_dict())
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in other.parameters():
            weight += size * weight.std() * torch.randn(weight.shape, generator=generator)
    return other


@dataclass(frozen=True)
class Rollouts:
    """prompts, responses: ids of each row."""

    prompts: list[Tensor]
    responses: list[Tensor]

    def arrays(self, sampler: list[Tensor], trainer: list[Tensor], **more: Any) -> dict[str, Any]:
        """As a dump has them, padded on the left."""
        width = max(map(len, self.prompts))
        rows = len(self.prompts)
        out: dict[str, Any] = {
            "tokens": np.zeros((rows, width + LENGTH), int),
            "mask": np.zeros((rows, width + LENGTH), bool),
            "sampler_logprobs": np.zeros((rows, width + LENGTH)),
            "trainer_logprobs": np.zeros((rows, width + LENGTH)),
            "prompt_length": np.array([len(p) for p in self.prompts]),
        }
        for i, (p, r) in enumerate(zip(self.prompts, self.responses, strict=True)):
            there = slice(width, width + len(r))
            out["tokens"][i, width - len(p) : width] = p
            out["tokens"][i, there] = r
            out["mask"][i, there] = True
            out["sampler_logprobs"][i, there] = sampler[i]
            out["trainer_logprobs"][i, there] = trainer[i]
        return out | more


@torch.no_grad()
def logits(made: Any, rollouts: Rollouts, **given: Any) -> list[Tensor]:
    """What predicts each response's tokens [n,V]; rows of one length at once, none is padded."""
    pairs = [*zip(rollouts.prompts, rollouts.responses, strict=True)]
    rows = [torch.cat(pair) for pair in pairs]
    found = dict[int, Tensor]()
    for width in {len(row) for row in rows}:
        alike = [i for i, row in enumerate(rows) if len(row) == width]
        made_of = made(input_ids=torch.stack([rows[i] for i in alike]), **given).logits
        found |= zip(alike, made_of, strict=True)
    return [found[i][len(p) - 1 : -1] for i, (p, _) in enumerate(pairs)]


def logprobs(z: list[Tensor], rollouts: Rollouts) -> list[Tensor]:
    """Of the responses' tokens under these logits."""
    pairs = zip(z, rollouts.responses, strict=True)
    return [a.log_softmax(-1).gather(1, r[:, None])[:, 0] for a, r in pairs]


def values(made: Any, rollouts: Rollouts, change: Change | None = None) -> list[Tensor]:
    """Log-probs of the responses' tokens by this model, under softmax(change(logits))."""
    z = [row.float() for row in logits(made, rollouts)]
    return logprobs([change(row) for row in z] if change else z, rollouts)


def dump(rollouts: Rollouts, sampler: list[Tensor], trainer: list[Tensor], **more: Any) -> Dump:
    return from_arrays(rollouts.arrays(sampler, trainer, **more))


def gathered(rollouts: Rollouts) -> Responses:
    """The responses, without a log-prob."""
    zeros = [torch.zeros(len(r)) for r in rollouts.responses]
    return gather([dump(rollouts, zeros, zeros)], 64)


def in_int8(made: Any, which: Callable[[str], bool]) -> Any:
    """A copy whose weights of these names are rounded, a scale for each output."""
    coarse = copy.deepcopy(made)
    with torch.no_grad():
        for name, weight in coarse.named_parameters():
            if which(name):
                scale = weight.abs().amax(-1, keepdim=True) / 127
                weight.copy_((weight / scale).round() * scale)
    return coarse


def sampled(made: Any, seed: int = 0, change: Any = None) -> Rollouts:
    """Responses of several lengths, drawn from softmax(change(logits))."""
    if change:
        return drawn(made, seed, change)
    weights = b"".join(w.detach().numpy().tobytes() for w in made.state_dict().values())
    key = repr(made.config), sha256(weights).digest(), seed
    if key not in DRAWN:  # many tests begin with the same ones
        DRAWN[key] = drawn(made, seed, lambda z: z)
    return Rollouts([*DRAWN[key].prompts], [*DRAWN[key].responses])


@torch.no_grad()
def drawn(made: Any, seed: int, change: Any) -> Rollouts:
    """Prompts of one length are answered at once."""
    draws = torch.Generator().manual_seed(seed)
    prompts, noise = [], []
    for i in range(PROMPTS):
        prompt = torch.randint(3, VOCABULARY, (5 + i % 4,), generator=draws)
        prompt[0] = CONFIG["bos_token_id"]
        for j in range(SAMPLES):
            prompts.append(prompt)
            lots = torch.empty(LENGTH - 2 * j, made.config.vocab_size)
            noise.append([lot.exponential_(generator=draws) for lot in lots])
    rows = list(prompts)
    for width in {len(prompt) for prompt in prompts}:
        alike = [i for i, prompt in enumerate(prompts) if len(prompt) == width]
        for place in range(LENGTH):
            some = [i for i in alike if place < len(noise[i])]
            z = made(input_ids=torch.stack([rows[i] for i in some])).logits[:, -1]
            for i, own in zip(some, z, strict=True):
                token = (change(own).softmax(-1) / noise[i][place]).argmax()  # as multinomial does
                rows[i] = torch.cat([rows[i], token[None]])
    responses = [row[len(prompt) :] for prompt, row in zip(prompts, rows, strict=True)]
    return Rollouts(prompts, responses)


def saved(made: Any, folder: Path) -> Path:
    """As a Hugging Face folder."""
    made.save_pretrained(folder)
    return folder
