"""When a run validates, saves and ends, and which checkpoint is then the best."""

from collections.abc import Iterator
from math import sqrt
from typing import NamedTuple

from nemo_algos.findings import Finding, at, did_you_mean, sections_of
from nemo_algos.preflight.forecast.planned import (
    ENDLESS,
    TRIAL,
    Planned,
    error,
    note,
    warning,
    written_of,
)

METRIC = "checkpointing.metric_name"
HIGHER = "checkpointing.higher_is_better"
MUST_SAVE = "checkpointing.checkpoint_must_save_by"
STOP = "grpo.stop_at_validation_metric"
THRESHOLD = "grpo.stop_at_validation_threshold"
SEVERAL = "grpo.val_num_generations_per_prompt"
BETTER = ("accuracy", "pass_k", "reward")  # metrics of which more is better
WORSE = ("loss", "kl_penalty", "grad_norm", "token_mult_prob_error")  # of which less is, or none
SHARES = ("accuracy", "pass_k")  # from 0 to 1, where rewards are
MEASURED = ("accuracy", "avg_length")  # by NeMo-RL's validation; NeMo-Gym adds its own
FEW = 30  # prompts, of which a share of 1/2 has a standard error of 9 points
HELD_OUT = (
    "data.validation",
    "data.train.split_validation_size",
    "data.default.split_validation_size",
    "data.train.data_path",
)
SAMPLES = ("grpo.max_val_samples", "grpo.val_batch_size")
LONG = 100  # steps that one would miss
NO_STEPS = range(0)


class Timeline(NamedTuple):
    """What comes when, in steps from 1.

    validations, saves: periodic ones; at_start, at_end: whether there is one before the first
    step, and one at the last. prompts, responses: of one validation. share: of all rollouts that
    are for validation.
    """

    steps: int
    validations: range
    at_start: bool
    at_end: bool
    prompts: int
    responses: int
    share: float
    saves: range

    def validates(self, step: int) -> bool:
        """Whether there is a validation after this step."""
        return step in self.validations or (self.at_end and step == self.steps)


def timeline_of(run: Planned) -> Timeline:
    """The run's validations and saves."""
    steps = run.last_step
    period = int(run["grpo.val_period"] or 0)
    first = max(period, 1)
    begun = int(run["grpo.val_start_at"] or 0)
    if period and begun > 0:
        first = -(-begun // period) * period
    batch = run["grpo.val_batch_size"] or 1
    samples = run["grpo.max_val_samples"] or 0
    prompts = samples // batch * batch
    prompts = min(prompts, run.held_out or prompts)
    responses = run[SEVERAL] or 1
    validations = range(first, steps + 1, period) if period > 0 else NO_STEPS
    at_start = bool(run["grpo.val_at_start"])
    at_end = bool(run["grpo.val_at_end"])
    count = len(validations) + at_start + (at_end and steps not in validations)
    validated = count * prompts * responses
    save = int(run["checkpointing.save_period"] or 0)
    saves = range(save, steps + 1, save) if save > 0 and run["checkpointing.enabled"] else NO_STEPS
    return Timeline(
        steps=steps,
        validations=validations,
        at_start=at_start,
        at_end=at_end,
        prompts=prompts,
        responses=responses,
        share=validated / max(1, validated + steps * run.rollouts),
        saves=saves,
    )


def validations(run: Planned) -> Iterator[Finding]:
    """A validation that is asked for comes about, and takes the smaller part of the rollouts."""
    t = timeline_of(run)
    period = run["grpo.val_period"] or 0
    if period > 0 and not t.validations and not t.at_end:
        late = (run["grpo.val_start_at"] or 0) > t.steps
        say = note if t.steps <= TRIAL else warning
        yield say(
            f"grpo.val_{'start_at' if late else 'period'}",
            f"the run has {t.steps} steps, so it is never validated while it trains. Set it below "
            f"{t.steps}, or `grpo.val_at_end: true`.",
        )
    elif t.share > 0.8 and not run["env.should_use_nemo_gym"]:
        yield warning(
            "grpo.val_period",
            f"{t.share:.0%} of all responses would be for validation: {t.prompts * t.responses} "
            f"every {period} steps, {run.rollouts} a step for training. Validate less often, or "
            "less.",
        )


def training_rows(run: Planned) -> Iterator[Finding]:
    """Validation is on other rows than training."""
    trained = _named(run, "train")
    held = _named(run, "validation")
    if trained & held:
        yield warning(
            "data.validation",
            "validation would be on the rows that are trained on, so it shows what was learned by "
            "heart. Name others, or set `data.train.split_validation_size` and this to null.",
        )


def _named(run: Planned, part: str) -> set[tuple[str, ...]]:
    named = set()
    keys = ("dataset_name", "data_path", "split", "subset")
    for one in sections_of(run[f"data.{part}"]):
        if one.get("dataset_name"):
            named.add(tuple(str(one.get(key)) for key in keys))
    return named


def best_metric(run: Planned) -> Iterator[Finding]:
    """Checkpoints are ranked by a metric that is there when they are saved."""
    name = str(run[METRIC] or "train:")
    metric = name.partition(":")[2]
    t = timeline_of(run)
    if not run["checkpointing.enabled"]:
        return
    if run[HIGHER] is False and metric in BETTER:
        yield warning(
            HIGHER,
            f"more {name} is better, so the worst checkpoints would be kept. Set it to true.",
        )
    if metric == "avg_length":
        kept = "longest" if run[HIGHER] else "shortest"
        yield warning(
            METRIC,
            f"the checkpoints with the {kept} responses would be kept, right or wrong. Name a "
            "score, such as val:accuracy.",
        )
    if run[HIGHER] and name.startswith("train:") and metric in WORSE:
        yield warning(
            METRIC,
            f"the checkpoints with the largest {metric} would be kept. Name another metric, such "
            "as val:accuracy, or set `checkpointing.higher_is_better: false`.",
        )
    if not name.startswith(("train:", "val:")):
        yield error(METRIC, f"must begin with train: or val:, such as val:accuracy, got {name!r}")
    known = [f"val:{metric}" for metric in MEASURED]
    if (run[SEVERAL] or 1) > 1:
        known.append("val:pass_k")
    if name.startswith("val:") and name not in known and not run["env.should_use_nemo_gym"]:
        near = did_you_mean(name, known)
        yield error(
            METRIC,
            f"unknown metric {name}{near}, so the first save would fail. Name one that validation "
            "has.",
        )
    unranked = [step for step in t.saves[:1000] if not t.validates(step)]
    if name.startswith("val:") and unranked:
        yield warning(
            METRIC,
            f"checkpoints come every {t.saves.step} steps and validation every "
            f"{run['grpo.val_period'] or 0}. That of step {unranked[0]} is without a validation, "
            "and ranks last: align the two periods.",
        )


def saves(run: Planned) -> Iterator[Finding]:
    """Something is saved before the end, also where the monitor ends the run."""
    t = timeline_of(run)
    on = run["checkpointing.enabled"]
    what = f"the run has {t.steps} steps"
    if on and not t.saves:
        say = note if t.steps <= TRIAL else warning
        yield say(
            "checkpointing.save_period",
            f"{what}, so only its end is saved. Set it below {t.steps}.",
        )
    if not on and t.steps > LONG:
        yield note(
            "checkpointing.enabled",
            f"{what} and saves no checkpoint: it cannot resume, and the model is lost at its end. "
            "Set it to true.",
        )
    must_save = run[MUST_SAVE]
    if must_save and not on:
        key = written_of(run, MUST_SAVE, "checkpointing.enabled")
        say = note if at(run.written, key) is None else warning
        yield say(
            key,
            f"the run ends after {must_save} to save in time, but saves nothing. Set "
            "`checkpointing.enabled: true`, or this to null.",
        )
    elif must_save and run["checkpointing.save_optimizer"] is False:
        yield warning(
            "checkpointing.save_optimizer",
            f"the run is to go on after {must_save}, and would do so with a new optimizer and its "
            "warm-up. Set it to true.",
        )
    path = "mismatch.stop_above"
    every = run["checkpointing.save_period"] or 1
    what = "the run ends without a save when the mismatch is above this limit"
    if run[path] and not on:
        yield warning(
            path,
            f"{what}, and no checkpoint is saved: all its work is lost. Set "
            "`checkpointing.enabled: true` and a short `checkpointing.save_period`.",
        )
    elif run[path] and every > 1:
        yield note(
            path,
            f"{what}, and the work since the last checkpoint is lost, up to {every} steps. To "
            "lose less, lower `checkpointing.save_period`.",
        )


def end(run: Planned) -> Iterator[Finding]:
    """Something bounds the run: the base configs have a million steps."""
    path = "grpo.max_num_steps"
    epochs = run["grpo.max_num_epochs"]
    if run["data.use_multiple_dataloader"] and at(run.written, "grpo.max_num_epochs") is not None:
        yield warning(
            "grpo.max_num_epochs",
            f"no effect with several dataloaders: the run ends after {run[path]:,} steps. Set "
            f"`{path}`.",
        )
    if at(run.written, path) is None and run[path] >= ENDLESS:
        or_sooner = "" if run.controlled else f", or with `grpo.max_num_epochs: {epochs}`"
        yield note(
            path,
            f"the run ends after {run[path]:,} steps, the base config's number{or_sooner}. Set it "
            "to the steps that you want, such as 500.",
        )


def early_stop(run: Planned) -> Iterator[Finding]:
    """A score that ends the run is measured, and can be reached, but not by every model."""
    metric, threshold = run[STOP], run[THRESHOLD]
    t = timeline_of(run)
    if metric is None:
        if threshold is not None:
            yield warning(
                THRESHOLD, f"nothing stops at it without `{STOP}`. Set that, e.g. to accuracy."
            )
        return
    if threshold is None:
        yield error(
            THRESHOLD,
            f"the run stops when {metric} reaches this threshold, which is not set. Set it, such "
            "as to 0.5.",
        )
        return
    known = [*MEASURED, "pass_k"]
    if metric not in known and not run["env.should_use_nemo_gym"]:
        yield error(STOP, f"validation has no metric {metric}{did_you_mean(metric, known)}")
    if metric == "pass_k" and (run[SEVERAL] or 1) <= 1:
        yield error(SEVERAL, "pass_k needs several responses per prompt. Set it to 2 or more.")
    if not t.validations and not t.at_start:
        yield warning(STOP, "the run is never validated before its end, so it cannot stop early.")
    if metric == "avg_length":
        yield warning(
            STOP,
            f"the run stops when responses have {threshold:g} tokens or more, right or wrong. Name "
            "a score such as accuracy.",
        )
    if metric in SHARES and threshold > 1:
        percent = f" Set {threshold / 100:g}, if percent were meant." if threshold <= 100 else ""
        yield warning(
            THRESHOLD,
            f"{metric} is at most 1 where right answers earn 1: {threshold:g} is never reached."
            f"{percent}",
        )
    elif metric in SHARES and threshold <= 0:
        yield warning(THRESHOLD, f"every model reaches {threshold:g}, so the run ends at once.")


def kept(run: Planned) -> Iterator[Finding]:
    """Some checkpoint is kept."""
    path = "checkpointing.keep_top_k"
    if run["checkpointing.enabled"] and run[path] is not None and run[path] < 1:
        yield error(
            path, f"{run[path]} keeps none but the last one. Set it to 1 or more, or to null."
        )


def enough_prompts(run: Planned) -> Iterator[Finding]:
    """A score that ranks checkpoints, or ends the run, is of enough prompts to tell them apart."""
    t = timeline_of(run)
    ranks = run["checkpointing.enabled"] and str(run[METRIC]).startswith("val:")
    used = ranks or (run[STOP] is not None and run[THRESHOLD] is not None)
    key = written_of(run, *(HELD_OUT if t.prompts == run.held_out else SAMPLES))
    if used and t.validations and 0 < t.prompts < FEW and at(run.written, key) is not None:
        yield (note if t.steps <= TRIAL else warning)(
            key,
            f"validation is on {t.prompts} prompts, of which an accuracy has a standard error of "
            f"up to {50 / sqrt(t.prompts):.0f} points, and checkpoints are ranked or the run ends "
            "by it. Validate on 100 or more: a split of 1 or more is a number, below 1 a share.",
        )
