"""Where a router sends a token: to two experts of its layer.

K experts of a token.
"""

import torch
from torch import Tensor, nn

from nemo_algos.engines.local.schema import Shape

EXPERTS_PER_TOKEN = 2


class TopExperts(nn.Module):
    """The experts that a router says; a module, so that a hook can say others."""

    def forward(self, logits: Tensor) -> Tensor:
        """logits [...,experts] -> [...,K], the likeliest first."""
        return logits.topk(EXPERTS_PER_TOKEN).indices


class Router(nn.Module):
    """Which experts a token is sent to, and their weights: a softmax over those."""

    def __init__(self, c: Shape) -> None:
        super().__init__()
        self.gate, self.top = nn.Linear(c.width, c.experts, bias=False), TopExperts()

    def forward(self, x: Tensor, replayed: Tensor | None) -> tuple[Tensor, Tensor]:
        """x [...,D] -> weights [...,experts], 0 off the chosen, and the router's own [...,K].

        replayed [...,K]: chosen in their place.
        """
        logits = self.gate(x)
        own: Tensor = self.top(logits)
        chosen = own if replayed is None else replayed
        among = logits.gather(-1, chosen).softmax(-1)
        return torch.zeros_like(logits).scatter(-1, chosen, among), own
