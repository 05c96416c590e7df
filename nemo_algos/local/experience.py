"""What a policy generates and is trained on. P prompts of L tokens, B = P * G responses of at most S tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn


@dataclass(frozen=True)
class Experience:
    """Responses to prompts.

    prompts [P,L] ids, left-padded where lengths differ (prompt_mask [P,L]); of [B]: each response's prompt;
    tokens [B,S] ids; mask [B,S] bool, the response with its end token; logprobs, entropy [B,S]: of the sampling
    policy at the sampling temperature, nats, 0 off the mask.
    """

    prompts: Tensor
    prompt_mask: Tensor
    of: Tensor
    tokens: Tensor
    mask: Tensor
    logprobs: Tensor
    entropy: Tensor

    def responses(self) -> list[list[int]]:
        """Token ids of each response, without padding."""
        lengths = self.mask.sum(1).tolist()
        return [row[:n] for row, n in zip(self.tokens.tolist(), lengths, strict=True)]


class Policy(Protocol):
    """A causal LM that samples and can be trained."""

    @property
    def model(self) -> nn.Module:
        """What the optimizer trains."""
        ...

    def generate(self, prompts: list[list[int]], group_size: int) -> Experience:
        """`group_size` responses to each prompt, sampled at the policy's temperature."""
        ...

    def logprobs(self, experience: Experience, rows: Tensor) -> Tensor:
        """[N,S] log-probs of the responses `rows` [N], with gradient; defined on the mask."""
        ...

    def save(self, folder: str) -> None:
        """The model in Hugging Face's format."""
        ...
