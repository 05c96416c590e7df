"""Which experts a router chooses: those of another token or layer, or some at random."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nemo_algos.lab.mismatch.hypotheses.forward import (
    Candidates,
    Case,
    Hypothesis,
    each,
    of_model,
)
from nemo_algos.lab.mismatch.network import (
    Change,
    Lines,
    Network,
    edit_attributes,
    hidden_states,
)

PLACES = [(1, 0), (-1, 0), (2, 0), (-2, 0), (0, 1), (0, -1)]  # tokens, layers
Choice = Callable[[int, Tensor, Tensor], Tensor]  # router, its scores [N,E], experts [N,K]


class Chosen(TorchFunctionMode):
    """Within, a router's top-k gives what `choice` makes of scores and experts."""

    def __init__(self, router: int, choice: Choice) -> None:
        super().__init__()
        self.router, self.choice = router, choice

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """As torch has it."""
        out = func(*args, **(kwargs or {}))
        if func not in (torch.topk, Tensor.topk):
            return out
        experts = self.choice(self.router, args[0], out.indices)
        return torch.return_types.topk((args[0].gather(-1, experts), experts))


def routers(network: Network) -> list[nn.Module]:
    """As transformers names them, layer by layer; none of a dense model."""
    return [m for m in network.model.modules() if type(m).__name__.endswith("TopKRouter")]


@contextmanager
def chosen(network: Network, choice: Choice) -> Iterator[None]:
    """Within, each router takes the experts that `choice` gives."""

    def within(i: int, plain: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any) -> Any:
            with Chosen(i, choice):
                return plain(*args)

        return forward

    with ExitStack() as stack:
        for i, router in enumerate(routers(network)):
            stack.enter_context(edit_attributes([router], "forward", lambda f, i=i: within(i, f)))
        yield


def noisy(sigma: float) -> Change:
    """Experts by scores with noise, nats of a softmax."""

    def choice(_: int, scores: Tensor, experts: Tensor) -> Tensor:
        z = scores.clamp(min=1e-30).log() if (scores >= 0).all() else scores
        return (z + sigma * torch.randn_like(z)).topk(experts.shape[-1]).indices

    return of_model(lambda network: chosen(network, choice))


def routes(case: Case) -> Candidates:
    """The experts are replayed a token or a layer off."""
    if routers(case.network):
        yield from each([({"tokens": t, "layers": n}, replayed(t, n)) for t, n in PLACES])


def replayed(tokens: int, layers: int) -> Change:
    """Each token takes the experts of one so many before, of so many layers before."""

    @contextmanager
    def change(network: Network, shown: Lines, some: Sequence[Any]) -> Iterator[Lines]:
        own: list[Tensor] = []

        def kept(_: int, scores: Tensor, experts: Tensor) -> Tensor:
            own.append(experts)
            return experts

        with chosen(network, kept):
            hidden_states(network, shown)
        rows, width = shown.ids.shape
        place = (torch.arange(width) - tokens).clamp(0, width - 1)  # an end keeps its own
        layer = [min(max(i - layers, 0), len(own) - 1) for i in range(len(own))]
        moved = [own[i].view(rows, width, -1)[:, place].flatten(0, 1) for i in layer]
        with chosen(network, lambda i, *_: moved[i]):
            yield shown

    return change


HYPOTHESES = [Hypothesis("routes", routes)]
