"""A sampler that is not the trainer, by as much as is asked: the keys `planted.*` of an arm.

The trainer and evaluations stay as they are.
"""

from collections import deque
from functools import partial
from typing import Any

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.optim import Optimizer

from nemo_algos.engines.local.experience import Experience
from nemo_algos.engines.local.low_precision import e4m3
from nemo_algos.engines.local.schema import EMULATED, SHAPES, LocalConfig
from nemo_algos.engines.local.tiny import TopExperts
from nemo_algos.engines.local.tiny_policy import SeparateSampler, TinyPolicy
from nemo_algos.engines.local.trainer import Trainer
from nemo_algos.findings import Section

BLOCK = 128  # of e4m3


class Planted(Section):
    """What makes a countdown model's sampler another than its trainer."""

    noise: float = Field(default=0.0, ge=0)
    """Mean |log-ratio| of the sampled tokens in nats, made by noise in the weights."""
    fp8: bool = False
    """Linear layers in e4m3."""
    stale_updates: int = Field(default=0, ge=0)
    """Sample with the weights of N optimizer updates ago."""
    route_flips: float = Field(default=0.0, ge=0, le=1)
    """Share of tokens per layer that get another expert, where two are nearly tied."""

    @model_validator(mode="after")
    def _noise_is_alone(self) -> "Planted":
        if self.noise and (self.fp8 or self.stale_updates or self.route_flips):
            raise ValueError("noise sets the whole mismatch in nats. Remove the other keys.")
        return self

    def problem(self, config: LocalConfig) -> str:
        """Why this cannot be planted in a run, or nothing."""
        policy = config.policy
        if policy.model_name not in SHAPES:
            return f"{policy.model_name} samples from the same weights that it trains"
        if self.noise and policy.precision in EMULATED:
            return f"noise sets the whole mismatch, but {policy.precision} adds to it"
        if self.route_flips and (policy.shape or SHAPES[policy.model_name]).experts < 3:
            return f"route_flips needs a third expert, and {policy.model_name} has none"
        return ""


class PlantedTrainer(Trainer):
    """A trainer whose rollouts come from a damaged copy of its policy."""

    def __init__(self, planted: Planted, *run: Any) -> None:
        self.planted = planted
        super().__init__(*run)

    def build_sampler(self) -> "PlantedSampler":
        """See Trainer."""
        assert isinstance(self.policy, TinyPolicy)  # Planted.problem has judged it
        seed = self.config.grpo.seed
        return PlantedSampler(self.policy, self.planted, self.update.optimizer, seed)


class PlantedSampler(SeparateSampler):
    """A copy of the policy that is refitted before each batch, and damaged then.

    Noise, of weights or of router logits, errs alike in all steps and for equal inputs, as other
    kernels or roundings do; only its size follows what is measured. So routes flip at near ties.
    Embedding, output head and norms are spared, by fp8 routers too.
    """

    def __init__(
        self, trained: TinyPolicy, planted: Planted, optimizer: Optimizer, seed: int
    ) -> None:
        super().__init__(trained)
        self.planted = planted
        device = trained.model.embed.weight.device
        generator = torch.Generator(device).manual_seed(seed)
        draw = partial(torch.randn, device=device, generator=generator)
        self.noise = {
            name: draw(module.weight.shape)
            for name, module in self.model.named_modules()
            if isinstance(module, nn.Linear)
        }
        self.past = deque([_copy(trained.model)], planted.stale_updates + 1)
        self.asked = planted.noise or planted.route_flips  # one of them
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
        """See Policy. The damage's scale then follows what this batch measures."""
        drawn = super().generate(prompts, group_size, generator)
        if self.planted.noise:
            self._follow(float((drawn.logprobs - drawn.gen_logprobs)[drawn.mask].abs().mean()))
        elif self.planted.route_flips:
            self._follow(drawn.distances["mismatch/routes"])
        return drawn

    def _follow(self, measured: float) -> None:
        """Half of the way, since a batch is a sample."""
        self.scale *= max(0.5, self.asked / max(measured, self.asked / 2)) ** 0.5

    @torch.no_grad()
    def refit(self) -> None:
        """Take over the weights of so many updates ago, and damage them."""
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


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in model.state_dict().items()}


def _rounded_input(module: nn.Module, args: tuple[Tensor]) -> Tensor:
    x = args[0]
    return e4m3(BLOCK, x.flatten(0, -2), False).view(x.shape)
