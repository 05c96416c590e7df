"""From a config to a trainer: the policy, its task, and a reference where one is needed."""

from collections.abc import Callable
from functools import partial
from pkgutil import resolve_name

from rich.console import Console
from rich.progress import Progress

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.engines.data.countdown import Rules
from nemo_algos.engines.data.tasks import OURS
from nemo_algos.engines.local.experience import Policy, Score
from nemo_algos.engines.local.hardware import device_of
from nemo_algos.engines.local.lora import without_adapters
from nemo_algos.engines.local.schema import (
    EMULATED,
    SHAPES,
    LocalConfig,
    PolicySection,
    RouterReplaySection,
    TokenizerSection,
)
from nemo_algos.engines.local.tiny_policy import TinyPolicy, warm_start
from nemo_algos.engines.local.trainer import Trainer
from nemo_algos.findings import ConfigError, Finding

PROBE = "1 + 2 = 3"


def build_trainer(
    config: LocalConfig,
    algorithm: Algorithm,
    console: Console,
    make: Callable[..., Trainer] = Trainer,
) -> Trainer:
    """Ready for its first step. The countdown model is taught on first use.

    make: Trainer, or what builds a subclass of it from the same arguments.
    """
    data = config.data
    task = resolve_name(OURS.get(data.task, data.task))(data, config.grpo.seed)
    rescores = not config.rollout_correction.bypass_mode
    policy = policy_of(config.policy, data.rules, console, rescores)
    limit = data.max_input_seq_length
    if limit:
        task.keep(lambda e: len(policy.encode(task.prompt(e), task.prefix(e))) <= limit)
    reference = None
    if config.loss_fn.reference_policy_kl_penalty > 0 or "ref_logprobs" in algorithm.needs:
        teacher = getattr(algorithm.advantages.params, "teacher", None)
        made = partial(_teacher, teacher) if teacher else _reference
        reference = made(config, policy, console)
    limited = algorithm.with_max_tokens(config.policy.generation.max_new_tokens)
    return make(config, limited, policy, task, reference)


def _teacher(name: str, config: LocalConfig, policy: Policy, console: Console) -> Score:
    """Another model with the policy's tokens. Raises ConfigError where they differ."""
    plain = {"router_replay": RouterReplaySection(), "tokenizer": TokenizerSection(), "shape": None}
    section = config.policy.model_copy(update={**plain, "model_name": name})
    section = section.model_copy(update={"dtensor_cfg": type(section.dtensor_cfg)()})
    teacher = policy_of(section, config.data.rules, console)
    ids = policy.ids(PROBE)
    if teacher.ids(PROBE) != ids or teacher.decode(ids) != policy.decode(ids):
        raise ConfigError(
            [
                Finding(
                    "method.teacher",
                    f"{name} has a different tokenizer from {config.policy.model_name}. The "
                    "teacher scores the policy's token ids, so both must be the same.",
                )
            ]
        )
    teacher.model.requires_grad_(False)
    return teacher.logprobs


def _reference(config: LocalConfig, policy: Policy, console: Console) -> Score:
    """The policy as before the first step, also in a resumed run; not replayed, as NeMo-RL's."""
    if config.policy.dtensor_cfg.lora_cfg.enabled:
        return partial(without_adapters, policy)
    own_routes = config.policy.model_copy(update={"router_replay": RouterReplaySection()})
    reference = policy_of(own_routes, config.data.rules, console)
    reference.model.requires_grad_(False)
    return reference.logprobs


def policy_of(
    policy: PolicySection, rules: Rules, console: Console, rescores: bool = True
) -> Policy:
    """The policy before training; the countdown model is taught on first use."""
    device = device_of(policy)
    if policy.model_name not in SHAPES:
        from nemo_algos.engines.local.hf import HFPolicy  # transformers

        return HFPolicy(policy, device, rescores)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("warm start (once, then cached)", total=1.0)
        told = [0.0]

        def tell(share: float) -> None:
            progress.update(bar, completed=share)
            if not console.is_terminal and share >= told[0]:
                console.print(f"warm start (once, then cached): {share:.0%}")
                told[0] = share + 0.25

        shape = policy.shape or SHAPES[policy.model_name]
        taught = policy.taught
        model = warm_start(rules, taught.seed, tell, shape, taught.steps, taught.device)
    if policy.precision in EMULATED:
        from nemo_algos.engines.local.low_precision import RECIPES, emulate  # few runs are

        emulate(model, RECIPES[policy.precision])
    return TinyPolicy(model.to(device), policy.generation, policy.router_replay.enabled)
