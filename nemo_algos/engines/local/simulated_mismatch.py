"""`policy.generation.planted`: a sampler that is not the trainer, by as much as is asked.

A trainer in an emulated precision has one too, in float32.

The trainer and evaluations stay as they are: old log-probs are the trainer's own, gen_logprobs
those of the distribution that was drawn from.
"""

from collections import deque
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nemo_algos.engines.local.experience import Experience, Policy
from nemo_algos.engines.local.low_precision import e4m3, exact
from nemo_algos.engines.local.schema import LocalConfig, PlantedSection
from nemo_algos.engines.local.tiny import TopExperts
from nemo_algos.engines.local.tiny_policy import TinyPolicy

BLOCK = 128  # of e4m3
Weights = dict[str, Tensor]


class PlantedSampler(TinyPolicy):
    """A copy of the policy that is refitted before each batch, and damaged then.

    Noise, of weights or of router logits, errs alike in all steps and for equal inputs, as other
    kernels or roundings do; only its size follows what is measured. So routes flip at near ties.
    Embedding, output head and norms are spared, by fp8 routers too.
    """

    def __init__(
        self, trained: TinyPolicy, planted: PlantedSection, optimizer: Optimizer, seed: int
    ) -> None:
        super().__init__(deepcopy(trained.model), trained.sampling)
        exact(self.model)
        self.trained, self.planted = trained, planted
        device = trained.model.embed.weight.device
        draw = partial(
            torch.randn, device=device, generator=torch.Generator(device).manual_seed(seed)
        )
        self.noise = {
            name: draw(module.weight.shape)
            for name, module in self.model.named_modules()
            if isinstance(module, nn.Linear)
        }
        self.past = deque([_copy(trained.model)], planted.stale_updates + 1)
        self.asked = planted.noise or planted.route_flips  # one of them, says preflight
        self.scale = planted.noise**0.75 or planted.route_flips / 2  # of noise; then as measured
        optimizer.register_step_post_hook(lambda *_: self.past.append(_copy(trained.model)))
        experts = trained.model.shape.experts
        for name, module in self.model.named_modules():
            if isinstance(module, TopExperts) and planted.route_flips:
                module.register_forward_hook(partial(self._flip, draw((experts, experts))))
            if planted.fp8 and isinstance(module, nn.Linear) and "router" not in name:
                module.register_forward_pre_hook(_rounded_input)

    def generate(
        self, prompts: list[list[int]], group_size: int, generator: torch.Generator
    ) -> Experience:
        """See Policy."""
        self._refit()
        drawn = super().generate(prompts, group_size, generator)
        with torch.no_grad():
            *scored, experts = self.trained.score(drawn, torch.arange(len(drawn.group)))
        logprobs, entropy = (x.where(drawn.mask, 0.0) for x in scored)
        moved = {"mismatch/routes": _rerouted_share(drawn, experts)} if experts.shape[-1] else {}
        distance = float((logprobs - drawn.gen_logprobs)[drawn.mask].abs().mean())
        self._follow(distance if self.planted.noise else moved.get("mismatch/routes", 0.0))
        return replace(drawn, logprobs=logprobs, entropy=entropy, distances=moved)

    def _follow(self, measured: float) -> None:
        """Half of the way, since a batch is a sample."""
        if self.asked:
            self.scale *= max(0.5, self.asked / max(measured, self.asked / 2)) ** 0.5

    @torch.no_grad()
    def _refit(self) -> None:
        self.model.load_state_dict(self.past[0])
        for name, noise in self.noise.items():
            weight = self.model.get_parameter(f"{name}.weight")
            if self.planted.noise:
                weight += self.scale * weight.std() * noise
            if self.planted.fp8 and "router" not in name:
                weight.copy_(e4m3(BLOCK, weight, True))

    def _flip(
        self, noise: Tensor, module: TopExperts, args: tuple[Tensor], chosen: Tensor
    ) -> Tensor:
        """The experts of logits [...,experts] that are a little off; their weights stay."""
        return module.forward(args[0] + self.scale * args[0] @ noise)

    def state(self) -> dict[str, Any]:
        """What the next batch depends on."""
        return {"past": [*self.past], "scale": self.scale}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a state, on the same kind of device."""
        self.past.clear()
        self.past.extend(state["past"])
        self.scale = state["scale"]


def build_sampler(policy: Policy, config: LocalConfig, optimizer: Optimizer) -> PlantedSampler:
    """The sampler of a config that has one: in float32, whatever the trainer's precision."""
    section = config.policy.generation.planted or PlantedSection()
    assert isinstance(policy, TinyPolicy)  # says preflight
    return PlantedSampler(policy, section, optimizer, config.grpo.seed)


def _copy(model: nn.Module) -> Weights:
    return {name: weight.detach().clone() for name, weight in model.state_dict().items()}


def _rerouted_share(drawn: Experience, experts: Tensor) -> float:
    """The share of tokens and layers that the trainer's routers send elsewhere: to `experts`."""
    assert drawn.routed_experts is not None
    differ = (drawn.routed_experts.sort().values != experts.sort().values).any(-1)
    read = torch.cat((drawn.prompt_mask[drawn.group], drawn.mask[:, 1:]), 1)
    return float(differ[read].double().mean())


def _rounded_input(module: nn.Module, args: tuple[Tensor]) -> Tensor:
    x = args[0]
    return e4m3(BLOCK, x.flatten(0, -2), False).view(x.shape)
