"""From a config to a trainer: the policy, its task, and a reference where one is needed."""

from __future__ import annotations

import torch
from rich.console import Console
from rich.progress import Progress

from nemo_algos.local.countdown import Rules
from nemo_algos.local.experience import Policy
from nemo_algos.local.hf import HFPolicy
from nemo_algos.local.math_problems import MathProblems
from nemo_algos.local.schema import GenerationSection, LocalConfig, PolicySection
from nemo_algos.local.tasks import Countdown, Task
from nemo_algos.local.tiny import Tiny
from nemo_algos.local.tiny_policy import TinyPolicy, warm_started
from nemo_algos.local.trainer import Trainer
from nemo_algos.methods.algorithm import Algorithm


def build_trainer(config: LocalConfig, algorithm: Algorithm, console: Console) -> Trainer:
    """Ready for its first step. The countdown model is taught on first use."""
    device = device_named(config.policy.device)
    policy: Policy
    task: Task
    if config.data.task == "countdown":
        policy = warm_policy(config.policy, config.data.rules, device, console)
        task = Countdown(config.data.rules, config.grpo.seed)
    else:
        policy = HFPolicy(config.policy, device)
        task = MathProblems(config.data, policy.tokenizer, config.grpo.seed)
        if task.dropped:
            console.print(f"{task.dropped} problems dropped: empty answer, or prompt too long")
    kl = config.loss_fn.reference_policy_kl_penalty
    reference = None
    if kl > 0 or "ref_logprobs" in algorithm.needs:
        reference = _frozen(config, device, console)
    return Trainer(config, algorithm, policy, task, reference)


def _frozen(config: LocalConfig, device: torch.device, console: Console) -> Policy:
    """The policy as it is before the first step, also when a run is resumed."""
    tiny = config.data.task == "countdown"
    reference = (
        warm_policy(config.policy, config.data.rules, device, console)
        if tiny
        else HFPolicy(config.policy, device)
    )
    reference.model.requires_grad_(False)
    return reference


def warm_policy(
    policy: PolicySection, rules: Rules, device: torch.device, console: Console
) -> TinyPolicy:
    """The countdown model, taught on first use."""
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("warm start (once, then cached)", total=1.0)
        model = warm_started(rules, 0, lambda share: progress.update(bar, completed=share))
    return tiny_policy(model, policy.generation, device)


def tiny_policy(model: Tiny, sampling: GenerationSection, device: torch.device) -> TinyPolicy:
    """A countdown model that samples so."""
    return TinyPolicy(
        model.to(device), sampling.max_new_tokens, sampling.temperature, sampling.top_p
    )


def device_named(name: str) -> torch.device:
    """cpu, cuda, mps or auto. Raises ValueError where this machine has no such device."""
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next((d for d, there in found.items() if there), "cpu")
    if not found.get(name, True):
        raise ValueError(f"policy.device: {name} is not available here; use cpu or auto")
    return torch.device(name)
