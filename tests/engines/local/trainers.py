"""A trainer of an untaught countdown model on made-up rewards, some groups flat."""

from dataclasses import replace
from pathlib import Path

import torch

from nemo_algos import config
from nemo_algos.engines.data import countdown
from nemo_algos.engines.data.tasks import Puzzles
from nemo_algos.engines.local.schema import SHAPES, TINY_MOE, GenerationSection, Shape
from nemo_algos.engines.local.tiny import Tiny
from nemo_algos.engines.local.tiny_policy import SeparateSampler, TinyPolicy
from nemo_algos.engines.local.trainer import Trainer
from nemo_algos.engines.rewards import Verdict
from nemo_algos.preflight.check.local.judge import parse

ADAM = {"name": "torch.optim.AdamW", "kwargs": {"lr": 0.003}}

CONFIGS = Path(__file__).parents[3] / "examples" / "configs"
PROMPTS, GROUP = 8, 4
ROWS = PROMPTS * GROUP
SGD = {"name": "torch.optim.SGD", "kwargs": {"lr": 0.02, "momentum": 0.5}}
SMALL = [
    f"grpo.num_prompts_per_step={PROMPTS}",
    f"grpo.num_generations_per_prompt={GROUP}",
    "policy.train_global_batch_size=16",
    "policy.train_micro_batch_size=16",
    "policy.max_grad_norm=1000",
]
UP_TO_12 = GenerationSection(max_new_tokens=12)


class MadeUp(Puzzles):
    """Rewards by the parity of a response; groups before `mixed` are flat, 1 and 0 in turn."""

    mixed = 4

    def verify(self, examples, responses):
        rewards = []
        for i, response in enumerate(responses):
            group, tokens = i * PROMPTS // len(responses), countdown.tokens_of(response)
            ended = len(tokens) <= 12  # else <eos> did not come
            odd = sum(tokens if ended else tokens[:-1]) % 2
            rewards.append(odd if group >= self.mixed else (group + 1) % 2)
        return [Verdict(float(reward), "ok") for reward in rewards]


def checked(*overrides, method="grpo", optimizer=SGD, scheduler=()):
    own = (CONFIGS / f"{method}.yaml").exists()
    named = [] if own else [f"method.name={method}"]
    plain = config.load(CONFIGS / f"{method if own else 'grpo'}.yaml", [*SMALL, *named, *overrides])
    plain["policy"] |= {"optimizer": optimizer, "scheduler": list(scheduler)}
    return parse(plain)


def policy(seed=0):
    """Its probabilities are far from equal, and its responses of all lengths."""
    torch.manual_seed(seed)
    model = Tiny(Shape())
    model.embed.weight.data *= 2
    model.embed.weight.data[countdown.EOS] *= 8
    return TinyPolicy(model, UP_TO_12)


class Noisy(SeparateSampler):
    """Its linear weights, routers too, are off by the same noise in every step."""

    def refit(self):
        super().refit()
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for weight in (p for n, p in self.model.named_parameters() if p.dim() > 1):
                weight += 0.2 * weight.std() * torch.randn(weight.shape, generator=generator)


class NoisyTrainer(Trainer):
    """Its rollouts come from a Noisy sampler."""

    def build_sampler(self):
        return Noisy(self.policy)


def trainer(*overrides, trained=None, reference=None, task=None, kind=Trainer, **settings):
    """trained, reference: policies; untaught ones of two seeds unless given."""
    cfg, algorithm = checked(*overrides, **settings)
    needed = cfg.loss_fn.reference_policy_kl_penalty > 0 or "ref_logprobs" in algorithm.needs
    reference = (reference or policy(seed=1)).logprobs if needed else None
    task = task or MadeUp(cfg.data, cfg.grpo.seed)
    return kind(cfg, algorithm, trained or policy(), task, reference)


def weights(trainer):
    """All parameters, [N]."""
    return torch.cat([p.detach().flatten() for p in trainer.policy.model.parameters()])


def update(*overrides, steps=1, **settings):
    """What `steps` steps add to the parameters, [N], and the metrics of the last."""
    made = trainer(*overrides, **settings)
    before = weights(made)
    metrics = [made.step() for _ in range(steps)][-1]
    return weights(made) - before, metrics


def counted(trainer):
    """The rows of every training forward, and the lr of every optimizer step, as they come."""
    rows, rates, logprobs = [], [], trainer.policy.logprobs

    def spy(experience, micro):
        if torch.is_grad_enabled():
            rows.extend(micro.tolist())
        return logprobs(experience, micro)

    trainer.policy.logprobs = spy
    trainer.update.optimizer.register_step_post_hook(
        lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"])
    )
    return rows, rates


class Mismatched(TinyPolicy):
    """Its sampler says half the probability that it trains on."""

    def generate(self, prompts, group_size, generator):
        drawn = super().generate(prompts, group_size, generator)
        half = (drawn.logprobs - torch.tensor(2.0).log()).where(drawn.mask, 0.0)
        return replace(drawn, gen_logprobs=half)


def mismatched():
    """pi / pi_sampler is 2 at every token."""
    return Mismatched(policy().model, UP_TO_12)


MOE = f"policy.model_name={TINY_MOE}"


def moe(replays=False):
    """A policy with experts of which each token prefers one by far."""
    torch.manual_seed(0)
    model = Tiny(SHAPES[TINY_MOE])
    for layer in model.layers:
        layer.router.gate.weight.data *= 20
    model.embed.weight.data *= 3
    return TinyPolicy(model, UP_TO_12, replays)
