"""What is wrong with a run of the embedded engine, all of it at once, before a model is loaded.

A rule yields findings of a typed config. RULES names the keys that each reads: where one of them is
wrong by itself, the rule is not asked. torch is loaded only by the rules that need it.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from nemo_algos import config as configs
from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.riders.correction import vanishing
from nemo_algos.algorithms.riders.loss_config import contradictions
from nemo_algos.config import ConfigError, Finding, UnknownKey, did_you_mean, validate
from nemo_algos.engines.data.countdown import TOKENS_PER_STEP
from nemo_algos.engines.data.schema import VERIFIER, DataSection
from nemo_algos.engines.local.schema import (
    SHAPES,
    TINY,
    TINY_MOE,
    Component,
    DTensorSection,
    LocalConfig,
    PlantedSection,
    TokenizerSection,
)
from nemo_algos.preflight.check.local import resources
from nemo_algos.preflight.check.snapshot import VERSIONS, load

# keys of which a task of ours, or a countdown model, makes nothing
UNREAD = {
    "countdown": ("data.prompt", "data.answer_prefix", "data.system_prompt"),
    "math": ("data.numbers", "data.use_all"),
}
OF_TRANSFORMERS = ("policy.tokenizer", "policy.dtensor_cfg.activation_checkpointing")
USUAL = {
    "data": DataSection().model_dump(),
    "policy": {
        "tokenizer": TokenizerSection().model_dump(),
        "dtensor_cfg": DTensorSection().model_dump(),
    },
}
Rules = Mapping[Callable[[LocalConfig], Iterator[Finding]], tuple[str, ...]]
PLANTED = "policy.generation.planted"
GROUP = "grpo.num_generations_per_prompt"
STOP, METRIC = "grpo.stop_at_validation_metric", "checkpointing.metric_name"


class Judged(NamedTuple):
    """What a run is made of, and the warnings about it."""

    config: LocalConfig
    algorithm: Algorithm
    warnings: list[Finding]


def parse(plain: dict[str, Any]) -> tuple[LocalConfig, Algorithm]:
    """The typed config and its algorithm, files and devices aside. Raises ConfigError with all."""
    config, algorithm, _ = _judged(plain, BETWEEN_KEYS)
    return config, algorithm


def judged(plain: dict[str, Any], folder: Path | None = None) -> Judged:
    """As parse; data, rewards, optimizer, device, model and folder are looked at too.

    folder: of a run to go on with, in place of one below logger.log_dir.
    """
    made: Rules = {} if folder else {log_dir: ("logger.log_dir",)}
    return _judged(plain, {**BETWEEN_KEYS, **resources.RULES, **made})


def _judged(plain: dict[str, Any], rules: Rules) -> Judged:
    config, wrong, findings = _typed(plain)
    algorithm, method = None, plain.get("method")
    try:
        corrected = plain.get("rollout_correction")
        algorithm = build(method, corrected) if isinstance(method, (dict, str)) else None
    except ConfigError as error:
        findings += error.findings
    with_method = {partial(rule, algorithm=algorithm): keys for rule, keys in OF_METHOD.items()}
    for rule, keys in {**rules, **with_method}.items():
        if config and not any(_above(k, w) or _above(w, k) for k in keys for w in wrong):
            findings += rule(config)
    findings = list(dict.fromkeys(findings))
    wrong_at_all = any(f.severity == "error" for f in findings)
    if wrong_at_all or config is None or algorithm is None:
        raise ConfigError(findings)
    return Judged(config, algorithm, findings)


def _above(key: str, other: str) -> bool:
    """Whether a key is the other, or a section that it is in."""
    return f"{other}.".startswith(f"{key}.")


def _typed(plain: dict[str, Any]) -> tuple[LocalConfig | None, set[str], list[Finding]]:
    """The config with the usual values in place of wrong ones; their keys; what is wrong."""
    plain, wrong, findings = deepcopy(plain), set[str](), list[Finding]()
    if isinstance(plain.get("method"), str):
        plain["method"] = {"name": plain["method"]}
    while True:
        try:
            return validate(LocalConfig, plain), wrong, findings
        except ConfigError as error:
            usual = configs.load(configs.SHIPPED / "grpo.yaml")
            replaced = {_replace(plain, finding.path, usual) for finding in error.findings}
            findings += map(_of_nemo_rl, error.findings)
            if replaced <= wrong:
                return None, wrong, findings
            wrong |= replaced


def _of_nemo_rl(finding: Finding) -> Finding:
    """An unknown key that NeMo-RL declares is said to be NeMo-RL's."""
    if isinstance(finding, UnknownKey) and any(finding.path in load(v).declared for v in VERSIONS):
        return Finding(finding.path, "is NeMo-RL's, not in the embedded engine: remove it")
    return finding


def _replace(plain: dict[str, Any], path: str, usual: Any) -> str:
    """The usual value in place of the one at the path, or of the list above it; where that is."""
    above, _, key = path.rpartition(".")
    section = configs.at(plain, above) if above else plain
    if not isinstance(section, dict):
        return _replace(plain, above, usual)
    section.pop(key, None)
    if (value := configs.at(usual, path)) is not None:
        section[key] = deepcopy(value)
    return path


def model_fits_task(c: LocalConfig) -> Iterator[Finding]:
    """The countdown models know countdown's words only."""
    tiny, task = c.policy.model_name in SHAPES, c.data.task
    if (tiny and task == "math") or (not tiny and task == "countdown"):
        does = c.policy.model_name if tiny else TINY
        can = f"{does} does countdown, a transformers model does math"
        reason = f"{c.policy.model_name} cannot do data.task={task}: {can}"
        yield Finding("policy.model_name", reason)


def shape(c: LocalConfig) -> Iterator[Finding]:
    """Sizes are countdown-tiny's; rotary embeddings turn pairs of a head's numbers."""
    sizes = c.policy.shape
    if sizes and c.policy.model_name != TINY:
        yield Finding("policy.shape", f"is countdown-tiny's: {c.policy.model_name} has its own")
    elif sizes and sizes.width % (2 * sizes.heads):
        reason = f"{sizes.heads} heads of an even size do not make a width of {sizes.width}"
        yield Finding("policy.shape.heads", f"{reason}: choose a divisor of half the width")


def experts(c: LocalConfig) -> Iterator[Finding]:
    """Routes are of a model with experts, and a flip needs a third one."""
    name, planted = c.policy.model_name, c.policy.generation.planted
    number = _experts(c)
    if c.policy.router_replay.enabled and number == 1:
        reason = f"{name} has no experts here: set policy.model_name: {TINY_MOE}"
        yield Finding("policy.router_replay.enabled", reason)
    if planted and planted.route_flips and number < 3:
        reason = f"{name} has no third expert: set policy.model_name: {TINY_MOE}"
        yield Finding(f"{PLANTED}.route_flips", reason)


def _experts(c: LocalConfig) -> int:
    usual = SHAPES.get(c.policy.model_name)
    return 1 if usual is None else (c.policy.shape or usual).experts


def unread(c: LocalConfig) -> Iterator[Finding]:
    """What the countdown models, and the two tasks of ours, would not read."""
    keys = UNREAD.get(c.data.task, ())
    name, says = c.policy.model_name, f"data.task={c.data.task} does not read it"
    reasons = dict.fromkeys(keys, says)
    if name in SHAPES:
        reasons |= dict.fromkeys(OF_TRANSFORMERS, f"{name} has none of it")
        if c.policy.precision == "bfloat16":
            yield Finding("policy.precision", f"{name} computes in float32: remove it")
    given, usual = c.model_dump(), USUAL
    for key, reason in reasons.items():
        if configs.at(given, key) != configs.at(usual, key):
            yield Finding(key, f"{reason}: remove it")


def planted(c: LocalConfig) -> Iterator[Finding]:
    """A countdown model has a sampler apart; noise is scaled until the mismatch is as asked."""
    section = c.policy.generation.planted
    if section and c.policy.model_name not in SHAPES:
        reason = f"{c.policy.model_name} samples from the weights that it trains: remove it"
        yield Finding(PLANTED, reason)
    elif section and section.noise and section != PlantedSection(noise=section.noise):
        reason = "is the whole mismatch in nats: plant nothing beside it"
        yield Finding(f"{PLANTED}.noise", reason)


def lora(c: LocalConfig) -> Iterator[Finding]:
    """Adapters are put on a transformers model, by peft, in layers named in one way."""
    section, key = c.policy.dtensor_cfg.lora_cfg, "policy.dtensor_cfg.lora_cfg"
    named = [n for n in ("target_modules", "exclude_modules") if getattr(section, n)]
    if section.enabled and c.policy.model_name in SHAPES:
        yield Finding(f"{key}.enabled", f"{c.policy.model_name} is trained whole: set it to false")
    if len(named) + section.match_all_linear != 1:
        reason = "set this, or else target_modules or else exclude_modules"
        yield Finding(f"{key}.match_all_linear", reason)


def countdown_fits_response(c: LocalConfig) -> Iterator[Finding]:
    """A worked solution has a step for all numbers but one."""
    needed = TOKENS_PER_STEP * (c.data.numbers - 1)
    if c.data.task == "countdown" and c.policy.generation.max_new_tokens < needed:
        reason = f"data.numbers={c.data.numbers} needs {needed}, or every response is cut"
        yield Finding("policy.generation.max_new_tokens", reason)


def whole_distribution(c: LocalConfig) -> Iterator[Finding]:
    """The sampler is the policy itself."""
    if c.policy.generation.top_p < 1:
        reason = "must be 1 in training: the log-probs are of the whole distribution"
        yield Finding("policy.generation.top_p", reason)


def batches_divide(c: LocalConfig) -> Iterator[Finding]:
    """Every update has as many responses."""
    rollouts = c.grpo.num_prompts_per_step * c.grpo.num_generations_per_prompt
    if rollouts % c.policy.train_global_batch_size:
        batch = f"num_prompts_per_step * num_generations_per_prompt = {rollouts}"
        reason = f"{c.policy.train_global_batch_size} must divide the rollout batch of {batch}"
        yield Finding("policy.train_global_batch_size", reason)


def group_of_one(c: LocalConfig, algorithm: Algorithm | None) -> Iterator[Finding]:
    """Advantages compare the responses of a prompt, unless they remember earlier ones."""
    remembers = algorithm and "memory" in algorithm.advantage_needs
    if c.grpo.num_generations_per_prompt == 1 and not remembers:
        reason = "a group of one has no advantage, so nothing is learned: set 8 or more"
        yield Finding(GROUP, reason)


def evaluations(c: LocalConfig) -> Iterator[Finding]:
    """What an evaluation is asked for is what it measures, and it comes."""
    section, grpo = c.checkpointing, c.grpo
    name, threshold = grpo.stop_at_validation_metric, grpo.stop_at_validation_threshold
    source, _, metric = (section.metric_name or "").partition(":")
    if section.metric_name and (source not in ("train", "val") or not metric):
        yield Finding(METRIC, f"{section.metric_name!r}: write it as val:NAME or train:NAME")
    if section.metric_name and not section.enabled:
        yield Finding(METRIC, "no checkpoint is the best of none: set checkpointing.enabled")
    if (name is None) != (threshold is None):
        yield Finding(STOP, "is a metric and its threshold: set both, or neither")
        return
    asked = {STOP: name, METRIC: metric if source == "val" else None}
    if not any(asked.values()):
        return
    from nemo_algos.engines.local.evaluation import names

    known = names(grpo.val_samples_per_prompt, c.data.functions)
    for key, wanted in asked.items():
        if wanted and wanted not in known:
            yield Finding(key, f"an evaluation has no {wanted}{did_you_mean(wanted, known)}")
        elif wanted and not grpo.val_period:
            yield Finding(key, f"{wanted} is measured by evaluations: set grpo.val_period")


def schedule_lasts(c: LocalConfig) -> Iterator[Finding]:
    """Some schedules end with an error."""
    for entry in c.policy.scheduler:
        total = entry.kwargs.get("total_steps") if isinstance(entry, Component) else None
        if isinstance(total, int) and total < c.grpo.max_num_steps:
            reason = f"total_steps={total} is below grpo.max_num_steps={c.grpo.max_num_steps}"
            yield Finding("policy.scheduler", f"{reason}: the run would end with an error there")


def reward_parts(c: LocalConfig, algorithm: Algorithm | None) -> Iterator[Finding]:
    """What a method reads by name is among the named rewards."""
    if algorithm is None or ":" in c.data.task:  # whose verdicts may have parts of their own
        return
    known = [*(c.data.rewards or {})]
    if "reward_parts" in algorithm.advantage_needs and not known:
        yield Finding("data.rewards", f"{algorithm.name} needs named rewards: name two or more")
    for key, name in algorithm.columns.items():
        if name not in known:
            none = f"data.rewards names none: set data.rewards.{name}.function"
            reason = f"data.rewards has no {name}" if known else none
            yield Finding(key, f"{reason}{did_you_mean(name, known)}")
    weights = getattr(algorithm.advantages.params, "weights", {})
    for name in (n for n in weights if known and n not in known):
        yield Finding(f"method.weights.{name}", f"no such reward{did_you_mean(name, known)}")


def teacher(c: LocalConfig, algorithm: Algorithm | None) -> Iterator[Finding]:
    """A method that learns from a teacher has one, and it is no reference for a KL penalty."""
    if algorithm is None or "teacher" not in algorithm.needs:
        return
    key = (
        "method.teacher" if algorithm.advantages is algorithm.base else "method.advantages.teacher"
    )
    if algorithm.advantages.params.teacher is None:
        own = "without a teacher the reference is the policy itself, and nothing is learned"
        yield Finding(key, f"{own}: set it to a model's folder or hub name")
    penalty = "loss_fn.reference_policy_kl_penalty"
    if c.loss_fn.reference_policy_kl_penalty:
        yield Finding(penalty, f"the reference of {algorithm.name} is its teacher: set it to 0")


def correction(c: LocalConfig) -> Iterator[Finding]:
    """One weighing by the sampler, and a limit on what is measured."""
    weighed = c.loss_fn.use_importance_sampling_correction
    yield from contradictions(c.rollout_correction, weighed, c.mismatch.stop_above)
    yield from vanishing(c.rollout_correction, c.policy.generation.max_new_tokens)


def task_has_data(c: LocalConfig) -> Iterator[Finding]:
    """Files are math's."""
    if c.data.task == "math" and c.data.train is None:
        reason = "task math needs data.train.data_path: a file of rows, or a data set"
        yield Finding("data.train", reason)
    if c.data.task == "countdown" and (c.data.train or c.data.validation):
        reason = "countdown makes its own puzzles: set data.task: math for files"
        yield Finding("data.task", reason)


def one_reward(c: LocalConfig) -> Iterator[Finding]:
    """A verifier is the reward where no others are named."""
    if c.data.rewards and c.data.verifier != VERIFIER:
        reason = "data.rewards names the functions: remove this, or name it there"
        yield Finding("data.verifier", reason)


def unit_rewards(c: LocalConfig, algorithm: Algorithm | None) -> Iterator[Finding]:
    """Functions in [0, 1] have a weighted sum there, where the method needs it."""
    weights = [reward.weight for reward in c.data.functions.values()]
    low, high = sum(w for w in weights if w < 0), sum(w for w in weights if w > 0)
    if algorithm and None in algorithm.unit_columns and (low < 0 or high > 1 + 1e-9):
        reason = f"functions in [0, 1] so weighted add up to a reward in [{low:g}, {high:g}]"
        cure = f"{algorithm.name} stops at one outside [0, 1]: let positive weights add up to 1"
        yield Finding("data.rewards", f"{reason}; {cure}", "warning")


def prompt_has_problem(c: LocalConfig) -> Iterator[Finding]:
    """Else all prompts are one."""
    if "{problem}" not in c.data.prompt:
        yield Finding("data.prompt", "must contain {problem}")


def log_dir(c: LocalConfig) -> Iterator[Finding]:
    """A folder is made there and removed again."""
    above = Path(c.logger.log_dir).absolute()
    while not above.exists():
        above = above.parent
    try:
        tempfile.TemporaryDirectory(dir=above).cleanup()
    except OSError as error:
        reason = f"{c.logger.log_dir} cannot be written: {error.strerror}: choose another folder"
        yield Finding("logger.log_dir", reason)


BETWEEN_KEYS: Rules = {
    model_fits_task: ("policy.model_name", "data.task"),
    shape: ("policy.shape", "policy.model_name"),
    experts: ("policy.shape", "policy.model_name", "policy.router_replay", PLANTED),
    unread: ("policy.model_name", "policy.precision", "data", *OF_TRANSFORMERS),
    planted: ("policy.model_name", PLANTED),
    lora: ("policy.model_name", "policy.dtensor_cfg.lora_cfg"),
    countdown_fits_response: ("data.task", "data.numbers", "policy.generation.max_new_tokens"),
    whole_distribution: ("policy.generation.top_p",),
    batches_divide: ("grpo.num_prompts_per_step", GROUP, "policy.train_global_batch_size"),
    correction: ("rollout_correction", "loss_fn", "mismatch", "policy.generation.max_new_tokens"),
    task_has_data: ("data.task", "data.train", "data.validation"),
    one_reward: ("data.verifier", "data.rewards"),
    prompt_has_problem: ("data.prompt",),
    evaluations: ("grpo", "checkpointing", "data.rewards", "data.verifier"),
    schedule_lasts: ("policy.scheduler", "grpo.max_num_steps"),
}

OF_METHOD = {
    group_of_one: (GROUP,),
    reward_parts: ("data.rewards", "data.task"),
    unit_rewards: ("data.rewards",),
    teacher: ("loss_fn.reference_policy_kl_penalty",),
}
