"""A countdown model's sampler that is another model than the trainer."""

from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor

from nemo_algos.engines.local.experience import Experience
from nemo_algos.engines.local.low_precision import exact
from nemo_algos.engines.local.tiny_policy import TinyPolicy


class SeparateSampler(TinyPolicy):
    """A float32 copy of a policy, which samples in its place with the weights of the last update.

    Old log-probs and entropies are the policy's own, gen_logprobs those of the copy.
    """

    def __init__(self, trained: TinyPolicy) -> None:
        super().__init__(deepcopy(trained.model), trained.sampling)
        exact(self.model)
        self.trained = trained

    @torch.no_grad()
    def generate(
        self, prompts: list[list[int]], group_size: int, generator: torch.Generator
    ) -> Experience:
        """See Policy."""
        self.refit()
        drawn = super().generate(prompts, group_size, generator)
        *scored, experts = self.trained.score(drawn, torch.arange(len(drawn.group)))
        logprobs, entropy = (x.where(drawn.mask, 0.0) for x in scored)
        moved = {"mismatch/routes": _rerouted_share(drawn, experts)} if experts.shape[-1] else {}
        return replace(drawn, logprobs=logprobs, entropy=entropy, distances=moved)

    def refit(self) -> None:
        """Take over the policy's weights."""
        self.model.load_state_dict(self.trained.model.state_dict())


def _rerouted_share(drawn: Experience, experts: Tensor) -> float:
    """The share of tokens and layers that the trainer's routers send elsewhere: to `experts`."""
    assert drawn.routed_experts is not None
    differ = (drawn.routed_experts.sort().values != experts.sort().values).any(-1)
    read = torch.cat((drawn.prompt_mask[drawn.group], drawn.mask[:, 1:]), 1)
    return float(differ[read].double().mean())
