"""What NeMo-RL's trainers create and compute by our functions, in place of theirs."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import torch
from nemo_rl.algorithms import advantage_estimator, grpo
from pydantic import ValidationError
from torch import Tensor

from nemo_algos.algorithms.core.groups import Groups
from nemo_algos.algorithms.shapes import PerSequence
from nemo_algos.engines.nemo import versions
from nemo_algos.engines.nemo.derived_config import ESTIMATOR
from nemo_algos.engines.nemo.estimator import (
    OUTCOMES,
    UNPENALIZED,
    Estimator,
    Limits,
    reward_parts,
    row_hash,
)
from nemo_algos.terminal import echo

FACTORY = "_create_advantage_estimator"
DEVIATIONS = "calculate_baseline_and_std_per_prompt"
SCALED = "scale_rewards"
QUEUED = "nemo_rl.algorithms.grpo_sync"
PARTS = "get_gdpo_reward_component_keys"
CREATORS = (
    "nemo_rl.algorithms.grpo",
    "nemo_rl.algorithms.grpo_sync",
    "nemo_rl.algorithms.single_controller_utils.setup",
)


def given(*configs: Any) -> Estimator:
    """What the class path ESTIMATOR names, for a NeMo-RL that takes one, outside `in_place`."""
    raise LookupError(
        f"{ESTIMATOR} only works in a run that nemo-algos starts: use `nemo-algos train`"
    )


def estimator_name() -> str:
    """What a config calls our estimator: ESTIMATOR, where NeMo-RL's type takes any name."""
    kind = getattr(advantage_estimator, "AdvEstimatorConfig", None)  # not in v0.7.0
    try:
        if kind:
            return kind(name=ESTIMATOR).name
        return ESTIMATOR
    except ValidationError:
        return "grpo"


@contextmanager
def in_place(estimator: Estimator) -> Iterator[None]:
    """Within, NeMo-RL's trainers create this estimator, and sample whole groups.

    Their batches keep OUTCOMES, and dynamic sampling drops groups whose outcomes are equal.
    """
    modules = []
    for name in CREATORS:
        if versions.present(name):
            modules.append(import_module(name))
    scored = Scored("reward_parts" in estimator.algorithm.advantage_needs)
    ours = {SCALED: scored.scaled, DEVIATIONS: scored.deviations}
    ours[FACTORY] = lambda stock: partial(_limited, estimator)
    places = []
    for module in modules:
        for name, function in ours.items():
            if hasattr(module, name):
                places.append((module, name, function))
        if module.__name__ == QUEUED:
            places.append((module, PARTS, _with_outcomes))
    with versions.replace_attributes(
        *((m, name, our(getattr(m, name))) for m, name, our in places)
    ):
        yield


def _limited(estimator: Estimator, master_config: Any) -> Estimator:
    """The estimator, which knows what this config's trainer will do to its advantages."""
    estimator.limits = Limits.of(master_config.grpo)
    return estimator


@contextmanager
def previous_logprobs_skipped() -> Iterator[None]:
    """Within, grpo_train and async_grpo_train ask for no previous log-probs."""
    from nemo_rl.algorithms import opd

    with versions.replace_attributes((opd, "_skip_prev_logprobs", lambda master_config: True)):
        yield


def shut_down(workers: Iterable[Any], *environments: dict[str, Any]) -> None:
    """End the environments' actors, then the workers; one that fails is told, and the rest end."""
    stop = getattr(grpo, "shutdown_environments", None)  # not in v0.7.0, where Ray's end ends them
    ends = [partial(stop, *environments)] if stop else []
    for end in [*ends, *(group.shutdown for group in workers)]:
        try:
            end()
        except Exception as error:  # whatever it raises: the run's own error is the one to see
            echo(f"warning: {end} failed: {type(error).__name__}: {error}", err=True)


class Scored:
    """The batch whose rewards a trainer scales, shapes, and then takes deviations of.

    parts: whether a group is flat only where every part of its reward is.
    """

    def __init__(self, parts: bool) -> None:
        self.parts = parts
        self.batch: Any = {}

    def scaled(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        """NeMo-RL's scaling, which comes first, of a batch that keeps its OUTCOMES."""

        def scale(batch: Any, *args: Any, **kwargs: Any) -> Any:
            batch[OUTCOMES] = batch["total_reward"].clone()
            self.batch = stock(batch, *args, **kwargs)
            return self.batch

        return scale

    def deviations(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        """NeMo-RL's baselines, and deviations [B] that are 0 in flat groups and nowhere else.

        Dynamic sampling drops rows by them. NeMo-RL's own are 0 for the only right response of a
        group (others are left in), in groups of equal rewards some are not 0 by rounding, and over
        the data plane they are of shaped rewards.
        """

        def compute(prompts: Tensor, rewards: PerSequence, *args: Any, **kwargs: Any) -> Any:
            baseline, std = stock(prompts, rewards, *args, **kwargs)
            groups = Groups.of(row_hash(prompts))
            judged = self._judged(rewards, kwargs.get("std_rewards"))
            columns = [column.to(rewards.device).double() for column in judged]
            spread = [groups.std(c, dof=1).where(~groups.flat(c), 0.0) for c in columns]
            return baseline, torch.stack(spread).amax(0)[groups.index].to(std)

        return compute

    def _judged(self, rewards: PerSequence, unshaped: Tensor | None) -> list[Tensor]:
        """The rewards [B] before their shaping, which grpo_train passes; or their parts."""
        if self.parts:
            rewards_by_part = [*reward_parts(self.batch).values()]
            if rewards_by_part:
                return rewards_by_part
        kept: Tensor = self.batch.get("unshaped_total_reward", rewards)
        return [kept if unshaped is None else unshaped]


def _with_outcomes(stock: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """The columns that grpo_train_sync hands to the estimator: the parts of the reward."""
    return lambda batch: [*stock(batch), *({OUTCOMES, UNPENALIZED} & {*batch})]
