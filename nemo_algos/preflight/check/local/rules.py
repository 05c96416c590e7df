"""Keys of the embedded engine against one another, and against the method. Loads no torch."""

from collections.abc import Iterator

from nemo_algos.algorithms.extensions.loss_config import centred_weights, contradictions
from nemo_algos.engines.data.puzzles import FAMILIES
from nemo_algos.engines.data.schema import VERIFIER
from nemo_algos.engines.local.schema import (
    SHAPES,
    TINY,
    TINY_MOE,
    TorchClass,
)
from nemo_algos.findings import Finding, did_you_mean
from nemo_algos.preflight.check import both_engines
from nemo_algos.preflight.check.both_engines import (
    group_of_one,
    kl_without_anchor,
    tracked_project,
    vanishing_weights,
)
from nemo_algos.preflight.check.rule import LocalRun, Rule, divisors, error, near, note, warning

# keys of which a task of ours, or a countdown model, makes nothing
TEXTS = ("data.prompt", "data.answer_prefix", "data.system_prompt")
UNREAD = {
    "countdown": TEXTS,
    "sums": (*TEXTS, "data.use_all"),
    "math": ("data.numbers", "data.use_all"),
}
OF_TRANSFORMERS = ("policy.tokenizer", "policy.dtensor_cfg.activation_checkpointing")
MODEL = "policy.model_name"
SUPPORT = "policy.generation.support_replay"
TOP = "policy.generation.top_logprobs"
STOP = "grpo.stop_at_validation_metric"
METRIC = "checkpointing.metric_name"


def model_fits_task(run: LocalRun) -> Iterator[Finding]:
    """The countdown models know countdown's words only."""
    tiny = run.model in SHAPES
    task = run["data.task"]
    if (tiny and task == "math") or (not tiny and task in FAMILIES):
        yield error(
            MODEL,
            f"{run.model} does not support `data.task={task}`. Use {TINY} for "
            f"{', '.join(FAMILIES)}, or a transformers model for math.",
        )


def shape(run: LocalRun) -> Iterator[Finding]:
    """Sizes are countdown-tiny's; rotary embeddings turn pairs of a head's numbers."""
    sizes = run["policy.shape"]
    if sizes and run.model != TINY:
        yield error(
            "policy.shape", f"it only applies to {TINY}, but the model is {run.model}. Remove it."
        )
    elif sizes and sizes.width % (2 * sizes.heads):
        yield error(
            "policy.shape.heads",
            f"{sizes.heads} heads of an even size do not divide a width of {sizes.width}. Choose "
            "a divisor of half the width.",
        )


def experts(run: LocalRun) -> Iterator[Finding]:
    """Routes are of a model with experts."""
    usual = SHAPES.get(run.model)
    number = (run["policy.shape"] or usual).experts if usual else 1
    if run["policy.router_replay.enabled"] and number == 1:
        yield error(
            "policy.router_replay.enabled", f"{run.model} has no experts: set `{MODEL}: {TINY_MOE}`"
        )


def unread(run: LocalRun) -> Iterator[Finding]:
    """What the countdown models, and the two tasks of ours, would not read."""
    task = run["data"].task
    tiny = run.model in SHAPES
    reasons = dict.fromkeys(UNREAD.get(task, ()), f"`data.task={task}` does not use it")
    others = OF_TRANSFORMERS if tiny else ("policy.taught",)
    reasons |= dict.fromkeys(others, f"{run.model} does not support it")
    if tiny and run["policy.precision"] == "bfloat16":
        yield error("policy.precision", f"{run.model} only computes in float32. Remove it.")
    for key, why in reasons.items():
        if run.changed(key):
            yield error(key, f"{why}. Remove it.")


def lora(run: LocalRun) -> Iterator[Finding]:
    """Adapters are put on a transformers model, by peft, in layers named in one way."""
    key = "policy.dtensor_cfg.lora_cfg"
    section = run[key]
    named = []
    for n in ("target_modules", "exclude_modules"):
        if getattr(section, n):
            named.append(n)
    if section.enabled and run.model in SHAPES:
        yield error(f"{key}.enabled", f"{run.model} does not support LoRA. Set it to false.")
    if len(named) + section.match_all_linear != 1:
        yield error(
            f"{key}.match_all_linear",
            "set exactly one of match_all_linear, target_modules and exclude_modules",
        )


def puzzle(run: LocalRun) -> Iterator[Finding]:
    """A family has its numbers, and room for its right responses."""
    numbers = run["data.numbers"]
    family = FAMILIES.get(run["data.task"])
    if family is None:
        return
    if numbers not in family.numbers:
        yield error(
            "data.numbers",
            f"{numbers} is not possible with `data.task={run['data.task']}`. Use "
            f"{family.numbers[0]} to {family.numbers[-1]}.",
        )
        return
    needed = family.longest(run["data"].rules)
    if run["policy.generation.max_new_tokens"] < needed:
        sized = f" with `data.numbers={numbers}`" if len(family.numbers) > 1 else ""
        yield error(
            "policy.generation.max_new_tokens",
            f"right responses to {run['data.task']}{sized} take up to {needed} tokens, so they "
            f"would be cut. Set it to {needed} or more.",
        )


def support_replay(run: LocalRun) -> Iterator[Finding]:
    """Who draws from some tokens is the trainer only where that scores the same ones."""
    filters = run["policy.generation"].filters
    replays = run[SUPPORT]
    if replays and not filters:
        yield error(
            SUPPORT,
            "it replays the effect of top_p, top_k or min_p, and none of them is set. Set one of "
            "them, or set this to false.",
        )
    elif replays:
        yield note(
            SUPPORT,
            "new, old and reference log-probs cover only the tokens that the sampler kept; "
            "entropies still cover the whole vocabulary",
        )
    for key in filters if not replays else ():
        yield warning(
            f"policy.generation.{key}",
            "the sampler keeps only some tokens, but the trainer's log-probs cover all, so ratios "
            "are biased. Set `policy.generation.support_replay: true`.",
        )


def score_centering(run: LocalRun) -> Iterator[Finding]:
    """Scores are centred under what has drawn the tokens, with weights of the policy as it is."""
    key = "loss_fn.score_centering"
    if run[key] != bool(run[TOP]):
        yield error(
            TOP,
            f"`{key}` reads it, and nothing else does. Set both (to true, and to 128, say), or "
            "neither.",
        )
    if not run[key] or run.algorithm is None:
        return
    if run["policy.generation"].filters:
        yield error(
            key,
            "the sampler draws from the tokens that top_p, top_k or min_p keep, and the log-probs "
            "are of all tokens. Remove the filters.",
        )
    try:
        centred_weights(run.algorithm, run["loss_fn"])
    except ValueError as wrong:
        yield error(key, str(wrong))
    responses = run["grpo.num_prompts_per_step"] * run["grpo.num_generations_per_prompt"]
    several = run["grpo.num_update_epochs"] > 1 or run["policy.train_global_batch_size"] < responses
    if several and run["loss_fn.use_importance_sampling_correction"]:
        yield error(
            key,
            "`loss_fn.use_importance_sampling_correction` has weights of the policy before the "
            "updates, whose mean is another after the first. Set that to false, and set "
            "`old_policy: sampler` and `rollout_correction.rollout_is: token`.",
        )
    if not several and run["policy.precision"] == "float32":
        yield warning(
            key,
            f"{responses} responses make one update per step, of the policy that sampled them, so "
            "there is nothing to centre. Lower `policy.train_global_batch_size`.",
        )


def batches_divide(run: LocalRun) -> Iterator[Finding]:
    """Every update has as many responses."""
    key = "policy.train_global_batch_size"
    rollouts = run["grpo.num_prompts_per_step"] * run["grpo.num_generations_per_prompt"]
    if rollouts % run[key]:
        yield error(
            key,
            f"{run[key]} does not divide the rollout batch of num_prompts_per_step * "
            f"num_generations_per_prompt = {rollouts}. Set it to "
            f"{near(run[key], divisors(rollouts))}.",
        )


def one_update(run: LocalRun) -> Iterator[Finding]:
    """The sampler is the trainer but for a low precision, or filters of the draw."""
    filtered = run["policy.generation"].filters and not run[SUPPORT]
    apart = bool(filtered) or run["policy.precision"] != "float32"
    yield from both_engines.one_update(run, apart)


def evaluations(run: LocalRun) -> Iterator[Finding]:
    """What an evaluation is asked for is what it measures, and it comes."""
    grpo = run["grpo"]
    ranked = run[METRIC]
    name = grpo.stop_at_validation_metric
    threshold = grpo.stop_at_validation_threshold
    source, _, metric = (ranked or "").partition(":")
    if ranked and (source not in ("train", "val") or not metric):
        yield error(METRIC, f"must be val:NAME or train:NAME, got {ranked!r}")
    if ranked and not run["checkpointing.enabled"]:
        yield error(METRIC, "it needs checkpoints. Set `checkpointing.enabled: true`.")
    if (name is None) != (threshold is None):
        yield error(STOP, "it needs both a metric and a threshold. Set both, or neither.")
        return
    asked = {STOP: name, METRIC: metric if source == "val" else None}
    if not any(asked.values()):
        return
    from nemo_algos.engines.local.evaluation import names

    known = names(grpo.val_samples_per_prompt, run.functions)
    for key, wanted in asked.items():
        if wanted and wanted not in known:
            yield error(key, f"unknown metric {wanted}{did_you_mean(wanted, known)}")
        elif wanted and not grpo.val_period:
            yield error(
                key,
                f"{wanted} is only measured in evaluations. Set `grpo.val_period`, such as to 10.",
            )


def schedule_lasts(run: LocalRun) -> Iterator[Finding]:
    """Some schedules end with an error."""
    steps = run["grpo.max_num_steps"]
    for entry in run["policy.scheduler"]:
        total = entry.kwargs.get("total_steps") if isinstance(entry, TorchClass) else None
        if isinstance(total, int) and total < steps:
            yield error(
                "policy.scheduler",
                f"total_steps={total} is below `grpo.max_num_steps={steps}`. The run would fail "
                f"at step {total}. Set it to {steps} or more.",
            )


def reward_parts(run: LocalRun) -> Iterator[Finding]:
    """What a method reads by name is among the named rewards."""
    algorithm = run.algorithm
    known = [*(run["data.rewards"] or {})]
    if algorithm is None or ":" in run["data.task"]:  # whose verdicts may have parts of their own
        return
    if "reward_parts" in algorithm.advantage_needs and not known:
        yield error("data.rewards", f"{algorithm.name} needs several rewards. Set two or more.")
    if "turn_rewards" in algorithm.needs:
        yield error(
            "data.task",
            f"{algorithm.name} goes by turn, and {run['data.task']} has one turn. Set it to a "
            "task of your own with turns.",
        )
    for key, name in algorithm.columns.items():
        if name not in known:
            yield error(
                key,
                f"`data.rewards` does not have a reward {name}{did_you_mean(name, known)}. Set "
                f"`data.rewards.{name}.function`.",
            )
    weights = getattr(algorithm.advantages.params, "reward_weights", {})
    path = "method.reward_weights"
    if isinstance(weights, list):
        if known and len(weights) != len(known):
            names = ", ".join(sorted(known))
            yield error(path, f"must have one weight for each of {names}, got {len(weights)}")
        return
    for name in weights:
        if known and name not in known:
            yield error(f"{path}.{name}", f"unknown reward {name}{did_you_mean(name, known)}")


def unit_rewards(run: LocalRun) -> Iterator[Finding]:
    """Functions in [0, 1] have a weighted sum there, where the method needs it."""
    weights = [reward.weight for reward in run.functions.values()]
    low = sum(w for w in weights if w < 0)
    high = sum(w for w in weights if w > 0)
    if run.algorithm and None in run.algorithm.unit_columns and (low < 0 or high > 1 + 1e-9):
        yield warning(
            "data.rewards",
            f"with these weights, rewards range from {low:g} to {high:g}. {run.algorithm.name} "
            "stops at rewards outside 0 to 1. Use positive weights that add up to 1.",
        )


def teacher(run: LocalRun) -> Iterator[Finding]:
    """A method that learns from a teacher has one, and it is no reference for a KL penalty."""
    algorithm = run.algorithm
    if algorithm is None or "teacher" not in algorithm.needs:
        return
    if algorithm.advantages.params.teacher is None:
        slot = "" if algorithm.advantages is algorithm.base else ".advantages"
        yield error(
            f"method{slot}.teacher",
            "without a teacher the reference is the policy itself, so nothing is learned. Set it "
            "to a model's folder or hub name.",
        )
    if run["loss_fn.reference_policy_kl_penalty"]:
        yield error(
            "loss_fn.reference_policy_kl_penalty",
            f"{algorithm.name} uses the reference for its teacher, so a KL penalty does not "
            "apply. Set it to 0.",
        )


def correction(run: LocalRun) -> Iterator[Finding]:
    """One weighing by the sampler, and a limit on what is measured."""
    weighed = run["loss_fn"].use_importance_sampling_correction
    yield from contradictions(run["rollout_correction"], weighed, run["mismatch"].stop_above)


def task_has_data(run: LocalRun) -> Iterator[Finding]:
    """Files are math's."""
    task = run["data.task"]
    train = run["data.train"]
    if task == "math" and train is None:
        yield error(
            "data.train",
            "the math task needs training data. Set `data.train.data_path` to a file of rows, or "
            "to a data set.",
        )
    if task in FAMILIES and (train or run["data.validation"]):
        yield error(
            "data.task",
            f"the task {task} generates its puzzles and does not read files. Set `data.task: "
            "math`.",
        )


def one_reward(run: LocalRun) -> Iterator[Finding]:
    """A verifier is the reward where no others are named."""
    if run["data.rewards"] and run["data.verifier"] != VERIFIER:
        yield error(
            "data.verifier",
            "`data.rewards` already names the reward functions. Remove this key, or add the "
            "function there.",
        )


def prompt_has_problem(run: LocalRun) -> Iterator[Finding]:
    """Else all prompts are one."""
    if "{problem}" not in run["data.prompt"]:
        yield error("data.prompt", "must contain `{problem}`, the place of the problem's text")


RULES: tuple[Rule, ...] = (
    model_fits_task, shape, experts, unread, lora, puzzle,
    support_replay, score_centering, batches_divide, one_update, correction, vanishing_weights,
    task_has_data, kl_without_anchor, one_reward, prompt_has_problem, evaluations, schedule_lasts,
    group_of_one, reward_parts, tracked_project, unit_rewards, teacher,
)  # fmt: skip
