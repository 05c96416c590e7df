"""What the sampler is held against: a transformers model, and the distance of the two's log-probs."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM

TEMPERATURE = 0.8


class Sampled(NamedTuple):
    """A response: token ids of prompt and response, log-probs of the response's, nats."""

    prompt: list[int]
    response: list[int]
    logprobs: torch.Tensor


class Trainer:
    """A policy's weights in float32."""

    def __init__(self, model: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return dict(self.model.state_dict())

    @property
    def shapes(self) -> dict[str, tuple[torch.Size, torch.dtype]]:
        return {name: (w.shape, w.dtype) for name, w in self.weights.items()}

    def move(self, seed: int, size: float = 0.2) -> None:
        """A step: every weight by a factor of 1 + size times a normal deviate."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.mul_(1 + size * torch.randn(weight.shape, generator=generator))

    @torch.no_grad()
    def logprobs(self, sampled: Sampled) -> torch.Tensor:
        """Of the response's tokens, nats."""
        ids = torch.tensor([sampled.prompt + sampled.response])
        logits = self.model(ids).logits[0, len(sampled.prompt) - 1 : -1] / TEMPERATURE
        return logits.log_softmax(-1).gather(1, ids[0, len(sampled.prompt) :, None])[:, 0]

    def distance(self, responses: Sequence[Sampled]) -> float:
        """The largest |trainer - sampler| of a token, nats."""
        return max(float((self.logprobs(s) - s.logprobs).abs().max()) for s in responses)


def prompts(count: int = 16, length: int = 5, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(8, 64, (count, length), generator=generator).tolist()
