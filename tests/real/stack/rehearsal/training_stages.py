"""The run itself, small: two steps, killed, resumed, stopped by its time limit; a verdict each."""

import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_algos.preflight.check.data.verdict import Verdict
from nemo_algos.preflight.check.layout import Run
from rehearsal.training import Attempt, curves, samples, traces

SOON = "checkpointing.checkpoint_must_save_by=00:00:00:01"
TRACED = 8  # responses of which the page shows the tokens
FLOOR = {"float32": 1e-3, "bfloat16": 0.3}  # nats a token, at most, between sampler and trainer
Say = Callable[[Verdict], object]
Batch = Mapping[str, list[Any]]


def started(name: str, folder: Path, env: Mapping[str, str]) -> Attempt:
    """A program that imports, and waits for its words; with a log of this name."""
    return Attempt(folder / f"{name}.log", env, ["-m", "rehearsal.prestart"])


class Stack:
    """What is run, and where: the folder with miniature.yaml, the variables (a Ray's, too)."""

    def __init__(
        self, run: Run, folder: Path, env: Mapping[str, str], steps: int, lent: bool = False
    ) -> None:
        self.run, self.folder, self.env, self.steps = run, folder, dict(env), steps
        self.waiting: dict[str, Attempt] = {}  # by name: started before its turn
        self.lent = lent  # the rows are none of the run's, and its verifiers may want others
        self.begun = time.monotonic()

    def verdict(
        self, stage: str, outcome: str, message: str, key: str = "", **more: Any
    ) -> Verdict:
        """With the seconds since the verdict before."""
        now = time.monotonic()
        seconds, self.begun = now - self.begun, now
        return Verdict(stage, outcome, message, key, seconds, more)  # type: ignore[arg-type]

    @property
    def length(self) -> str:
        """Of every attempt the same, and more than is made: Megatron's schedule must not change."""
        return f"grpo.max_num_steps={self.steps + 2 * self.saves}"

    @property
    def saves(self) -> bool:
        """Whether there are checkpoints to resume from."""
        return bool(self.run["checkpointing.enabled"])

    def attempt(self, name: str, *overrides: str) -> Attempt:
        """`nemo-algos train` over the miniature."""
        attempt = self.waiting.pop(name, None) or started(name, self.folder, self.env)
        attempt.tell(["train", str(self.folder / "miniature.yaml"), *overrides], self.env)
        return attempt

    def saved(self, step: int) -> Path:
        """The checkpoint of a step."""
        return self.folder / "results" / f"step_{step}"

    def rehearse(self, say: Say) -> None:
        """Every stage in its order, up to the first that the next ones need and do not have."""
        later = (self.second(), self.check_monitor()) if self.saves else ()
        for verdict in itertools.chain(self.first(), *later):
            say(verdict)
            if verdict.outcome == "failed" and verdict.stage in ("start", "step", "save"):
                return

    def first(self) -> Iterator[Verdict]:
        """Two steps; then its workers are killed."""
        last = self.steps
        attempt = self.attempt("first", self.length)
        whole = attempt.reaches(self.saved(last)) if self.saves else attempt.ended() == 0
        if whole and self.saves:
            self.waiting["second"] = started("second", self.folder, self.env)
        attempt.lose_workers()
        if not whole and not samples(self.folder, 1):
            yield self.failure("start", attempt)
            return
        yield self.verdict(
            "start", "passed", "Ray, the workers, the engine and the first refit started."
        )
        for found in judge_steps(self, range(1, last + 1)):
            ended = not whole and found.outcome == "failed"  # the log knows more
            yield self.failure(found.stage, attempt, f"{found.message} ") if ended else found
        if not whole:
            yield self.failure("step", attempt)
            return
        yield self.verdict("save", *self.checkpoints())

    def checkpoints(self) -> tuple[str, str, str]:
        """Of the steps, where the run has any."""
        if self.saves:
            return "passed", f"Checkpoints of steps 1 to {self.steps} are written.", ""
        key = "checkpointing.enabled"
        return "unchecked", f"`{key}` is false: nothing is saved, no resume was tried.", key

    def failure(self, stage: str, attempt: Attempt, said: str = "") -> Verdict:
        """With the last lines of the log, which is named."""
        status = attempt.process.returncode
        ended = f"The run ended with status {status}: {attempt.reason()}"
        message = f"{said}{ended}. Its log is {attempt.log}."
        return self.verdict(stage, "failed", message, lines=attempt.last_lines())

    def second(self) -> Iterator[Verdict]:
        """As if killed before the last save: resumed, and ended by the time limit."""
        last = self.steps
        lost = samples(self.folder, last)
        os.rename(self.saved(last), self.folder / "lost")
        limited = (self.length, "checkpointing.save_period=1000", SOON)
        attempt = self.attempt("second", *limited)
        status = attempt.ended()
        if status != 0 or not self.saved(last).exists():
            yield self.failure("resume", attempt)
            return
        yield self.verdict(
            "resume",
            *compare_resume(self.run, samples(self.folder, 1), lost, samples(self.folder, last)),
        )
        yield self.verdict(
            "stop", "passed", "The time limit ended the run, and its step was saved."
        )

    def check_monitor(self) -> Iterator[Verdict]:
        """Where the config has a limit of the mismatch, the monitor's stop leaves a checkpoint."""
        if not self.run["mismatch.stop_above"]:
            return
        limits = (self.length, "mismatch.stop_above=1e-12")
        attempt = self.attempt("third", *limits)
        if attempt.ended() != 1 or not self.saved(self.steps).exists():
            yield self.failure("stop", attempt)
            return
        yield self.verdict(
            "stop", "passed", "The monitor stopped the run; the last checkpoint is whole."
        )


def judge_steps(stack: Stack, steps: range) -> Iterator[Verdict]:
    """What the metrics and the logged responses of these steps say."""
    found = curves(stack.folder)
    batches = [samples(stack.folder, step) for step in steps]
    yield stack.verdict("rollouts", *rollouts(batches), samples=sample_rows(batches[0]))
    yield from unjudged_responses(stack, found)
    learned = advantages(batches, stack.run["grpo.num_generations_per_prompt"])
    traced = traces(stack.folder, steps[0])[:TRACED]
    yield stack.verdict("advantages", *learned, traces=traced)
    equal = learned[0] == "unchecked"
    yield stack.verdict("step", *updates(found, steps, equal), metrics=last(found))
    yield stack.verdict("refit", *refit(found, steps, stack.run["policy.precision"]))
    yield from validation(stack, found)


def unjudged_responses(stack: Stack, found: Mapping[str, Mapping[int, float]]) -> Iterator[Verdict]:
    """What our verifiers could not judge, by status."""
    for status in ("timeout", "error", "too_long", "memory"):
        number = sum(found.get(f"train/verifier/{status}", {}).values())
        if number:
            message = f"{number:.0f} responses could not be judged and earned 0: verifier/{status}."
            if stack.lent:
                message = f"{message} The rows that stand in may lack what the verifier reads."
            outcome = "unchecked" if stack.lent else "failed"
            yield stack.verdict("rollouts", outcome, message, "env")


def rollouts(batches: Sequence[Batch]) -> tuple[str, str]:
    """How many responses there are, and their rewards."""
    rewards = [float(r) for batch in batches for r in flat(batch.get("rewards", []))]
    if not rewards:
        return "failed", "No responses were logged."
    bad = sum(not math.isfinite(r) for r in rewards)
    if bad:
        return "failed", f"{bad} of {len(rewards)} rewards are not finite. Correct the environment."
    mean = sum(rewards) / len(rewards)
    return (
        "passed",
        f"{len(rewards)} responses have rewards of {min(rewards):g} to {max(rewards):g}, "
        f"on average {mean:.2f}.",
    )


def advantages(batches: Sequence[Batch], group: int) -> tuple[str, str]:
    """The share of groups whose rewards are all the same."""
    rewards = [float(r) for batch in batches for r in flat(batch.get("rewards", []))]
    groups = [rewards[i : i + group] for i in range(0, len(rewards), group)]
    same = sum(len(set(g)) == 1 for g in groups)
    finite = all(math.isfinite(a) for b in batches for a in flat(b.get("advantages", [])))
    if not finite:
        return "failed", "An advantage is not finite. Look at the method, or at its parameters."
    if same == len(groups):
        return "unchecked", f"All {same} groups have equal rewards, so no advantage is shown."
    return (
        "passed",
        f"{same} of {len(groups)} groups have equal rewards; all advantages are finite.",
    )


def updates(
    found: Mapping[str, Mapping[int, float]], steps: range, equal: bool
) -> tuple[str, str, str]:
    """Loss and gradient norm of each step; equal: all rewards of a group are, in every group."""
    for name in ("train/loss", "train/grad_norm"):
        values = found.get(name, {})
        bad = [s for s in steps if s in values and not math.isfinite(values[s])]
        if bad or not values:
            if not bad:
                return "failed", f"{name} was not logged.", ""
            wrong = f"{name} is not finite in step {bad[0]}"
            return "failed", f"{wrong}. Look at the method and its parameters.", "method"
    norms = found["train/grad_norm"]
    if not any(norms.get(s, 0) for s in steps):
        if equal:
            return "unchecked", "The gradient is 0, as groups of equal rewards make it.", ""
        return "warning", "The gradient is 0 in every step: nothing would be learned.", ""
    losses = ", ".join(f"{found['train/loss'].get(s, math.nan):.3g}" for s in steps)
    return "passed", f"Losses {losses}; the gradient is finite and not 0.", ""


def refit(
    found: Mapping[str, Mapping[int, float]], steps: range, precision: str
) -> tuple[str, str, str]:
    """The sampler against the trainer, after the first refit and after the second."""
    values = found.get("train/mismatch/mean") or found.get("train/gen_kl_error") or {}
    if not values:
        return "unchecked", "Sampler and trainer were not compared in this configuration.", ""
    largest, limit = max(values.values()), FLOOR.get(precision, 0.3)
    said = f"The sampler's log-probs are {largest:.1e} nats a token from the trainer's on average"
    if largest > limit:
        return (
            "failed",
            f"{said}. Run `nemo-algos mismatch` on the real run's dumps.",
            "policy.generation",
        )
    return "passed", f"{said}, after {len(values)} refits.", ""


def validation(stack: Stack, found: Mapping[str, Mapping[int, float]]) -> Iterator[Verdict]:
    """Its metrics, and the one that checkpoints are chosen by."""
    names = sorted(n for n in found if n.startswith("validation/"))
    chosen = stack.run["checkpointing.metric_name"]
    if not names:
        off = not stack.run["grpo.val_period"]
        said = "The config has no validation." if off else "No validation metric was logged."
        yield stack.verdict("validation", "unchecked" if off else "failed", said, "grpo.val_period")
        return
    name = str(chosen).replace("val:", "validation/").replace("train:", "train/")
    if chosen and name not in found:
        message = f"`checkpointing.metric_name` is {chosen}, which was not logged."
        yield stack.verdict("validation", "failed", message, "checkpointing.metric_name")
        return
    shown_names = ", ".join(n.removeprefix("validation/") for n in names[:6])
    yield stack.verdict("validation", "passed", f"It logs {shown_names}.")


def compare_resume(run: Run, first: Batch, lost: Batch, again: Batch) -> tuple[str, str, str]:
    """Whether the step after the checkpoint has the prompts that it had before the kill."""
    before, after, seen = (prompts(batch) for batch in (lost, again, first))
    if before == after:
        return (
            "passed",
            f"Killed and resumed: the next step has its {len(set(after))} prompts again, "
            "none skipped, none twice.",
            "",
        )
    twice = set(after) & set(seen) - set(before)
    if twice:
        return (
            "failed",
            f"After a resume {len(twice)} prompts of step 1 are trained on again.",
            "data",
        )
    if run["grpo.use_dynamic_sampling"]:
        said = "Dynamic sampling keeps prompts by their rewards, so another sample trains on others"
        return "unchecked", f"{said}. None of step 1 came again after the resume.", "data"
    ahead = run.controlled or run["grpo.async_grpo.enabled"]
    message = "After a resume prompts are skipped: those that were being sampled at the save"
    if ahead:
        return "warning", f"{message}. NeMo-RL's asynchronous trainers do not keep them.", ""
    return "failed", f"{message}.", "data"


def prompts(batch: Batch) -> list[str]:
    """Each response's prompt, sorted: its tokens up to the first that is trained on."""
    if "prompt" in batch:
        return sorted(batch["prompt"])
    rows = zip(batch.get("token_ids", []), batch.get("token_loss_mask", []), strict=True)
    cut = ([*flat([tokens])][: first_one(flat([mask]))] for tokens, mask in rows)
    return sorted(str(tokens) for tokens in cut)


def first_one(mask: Any) -> int:
    """The position of the first 1."""
    return next((i for i, x in enumerate(mask) if x), 0)


def flat(values: Any) -> Iterator[Any]:
    """The numbers of nested lists."""
    for value in values:
        if isinstance(value, list):
            yield from flat(value)
        else:
            yield value


def sample_rows(batch: Batch) -> list[dict[str, Any]]:
    """Some responses with their rewards, for the report."""
    return [
        {k: batch[k][i] for k in ("content", "rewards") if k in batch}
        for i in range(min(4, len(batch.get("content", []))))
    ]


def last(found: Mapping[str, Mapping[int, float]]) -> dict[str, float]:
    """The last value of every metric."""
    return {name: values[max(values)] for name, values in found.items()}
