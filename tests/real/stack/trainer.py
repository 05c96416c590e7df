"""What a sampler is held against: a model of transformers, and how far the two are apart."""

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM

TEMPERATURE = 0.8
SAME = 1e-4  # nats: float32, other kernels


class Sampled(NamedTuple):
    """A response: token ids of prompt and response, log-probs of the response's, nats."""

    prompt: list[int]
    response: list[int]
    logprobs: torch.Tensor


class Trainer:
    """A policy's model in transformers."""

    def __init__(self, model: Path, dtype: torch.dtype = torch.float32) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval()

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

    def learn(self, ids: torch.Tensor, rate: float) -> None:
        """The first step of Adam on these [B,S]: every weight by the rate, down its gradient."""
        self.model(input_ids=ids, labels=ids).loss.backward()
        with torch.no_grad():
            for weight in self.model.parameters():
                weight -= rate * weight.grad.sign()
        self.model.zero_grad()

    @torch.no_grad()
    def logprobs(self, sampled: Sampled, temperature: float = TEMPERATURE) -> torch.Tensor:
        """Of the response's tokens, nats."""
        ids = torch.tensor([sampled.prompt + sampled.response])
        logits = self.model(ids).logits[0, len(sampled.prompt) - 1 : -1].float() / temperature
        return logits.log_softmax(-1).gather(1, ids[0, len(sampled.prompt) :, None])[:, 0]

    def distance(self, responses: Sequence[Sampled]) -> float:
        """The largest |trainer - sampler| of a token, nats."""
        return max(float((self.logprobs(s) - s.logprobs).abs().max()) for s in responses)


def prompts(count: int = 16, length: int = 5, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(8, 64, (count, length), generator=generator).tolist()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
