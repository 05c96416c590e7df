"""What is wrong in either engine."""

from collections.abc import Iterator, Mapping

from nemo_algos.algorithms.extensions.correction import vanishing
from nemo_algos.algorithms.extensions.loss_config import no_anchor
from nemo_algos.algorithms.extensions.old_policy import (
    inert_on_policy,
    on_policy_objective,
    takes_sampler,
)
from nemo_algos.findings import Finding
from nemo_algos.preflight.check.rule import AnyRun, error, note, warning

GLOBAL = "policy.train_global_batch_size"
PROMPTS = "grpo.num_prompts_per_step"
GROUP = "grpo.num_generations_per_prompt"
NOT_IN_A_PROJECT = "/\\#?%:"  # what W&B refuses in a project's name


def group_of_one(run: AnyRun) -> Iterator[Finding]:
    """Advantages compare the responses of a prompt, unless they remember earlier ones."""
    a = run.algorithm
    if run[GROUP] == 1 and not (a and "memory" in a.advantage_needs):
        yield error(
            GROUP,
            "a group of 1 response has no advantage, so nothing would be learned. Set it to 8 or "
            "more.",
        )


def tracked_project(run: AnyRun) -> Iterator[Finding]:
    """W&B takes the name of the project."""
    project = str(run["logger.wandb.project"] or "")
    odd = [letter for letter in NOT_IN_A_PROJECT if letter in project]
    if run["logger.wandb_enabled"] and odd:
        yield error(
            "logger.wandb.project",
            f"W&B refuses {' '.join(odd)} in a project's name, after the model has loaded. Write "
            "another name; a team's is `logger.wandb.entity`.",
        )


def one_update(run: AnyRun, apart: bool = True) -> Iterator[Finding]:
    """Where the old policy has the trainer's own log-probs, the only update has ratios of 1.

    apart: whether the sampler's log-probs are others, so that a ratio to them is not 1.
    """
    a = run.algorithm
    responses = run[PROMPTS] * run[GROUP]
    one = responses == run[GLOBAL] and run["grpo.num_update_epochs"] in (1, None)
    if a is None or not one or (a.correction.bypass_mode and apart):
        return
    left = on_policy_objective(a)
    lost = inert_on_policy(a)
    if not left:
        return
    more = f"lower it to a fraction of the {responses} responses"
    cure = (
        f"Set `old_policy: sampler`, or {more}."
        if apart and takes_sampler(a)
        else f"To clip, {more}."
    )
    idle = f" The ratio terms of {' and '.join(lost)} have no effect." if lost else ""
    say = warning if lost else note
    yield say(
        GLOBAL,
        f"{responses} responses make one update per step. With the trainer's old policy every "
        f"ratio is then 1, and {a.name} is {left}.{idle} {cure}",
    )


def kl_without_anchor(run: AnyRun) -> Iterator[Finding]:
    """A KL penalty in the loss depends on the reference; in the reward any estimator does."""
    section = run["loss_fn"]
    if isinstance(section, Mapping) and section.get("use_kl_in_reward"):  # NeMo-RL's
        return
    kind = run["loss_fn.reference_policy_kl_type"]
    yield from no_anchor(run["loss_fn.reference_policy_kl_penalty"], kind)


def vanishing_weights(run: AnyRun) -> Iterator[Finding]:
    """The product of a long response's weights is nearly always cut or near 0."""
    tokens = run["policy.generation.max_new_tokens"] or run["policy.max_total_sequence_length"]
    if run.algorithm and tokens:
        yield from vanishing(run.algorithm.correction, tokens)
