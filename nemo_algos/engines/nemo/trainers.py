"""What NeMo-RL's trainers create and compute by our functions, in place of theirs."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from nemo_rl.algorithms import advantage_estimator, opd
from torch import Tensor

from nemo_algos.algorithms.core.groups import Groups
from nemo_algos.engines.nemo import versions
from nemo_algos.engines.nemo.decided import ESTIMATOR
from nemo_algos.engines.nemo.estimator import Estimator, row_hash

# with the patch of docs/upstream.md NeMo-RL makes our estimator itself, by its class path
CLASS_PATHS = hasattr(advantage_estimator, "AdvantageEstimator")
FACTORY = "_create_advantage_estimator"
DEVIATIONS = "calculate_baseline_and_std_per_prompt"
CREATORS = (
    "nemo_rl.algorithms.grpo",
    "nemo_rl.algorithms.grpo_sync",
    "nemo_rl.algorithms.single_controller_utils.setup",
)


def given(*configs: Any) -> Estimator:
    """What the class path ESTIMATOR names: within `in_place` its estimator."""
    raise LookupError(f"{ESTIMATOR} is the estimator of a run that nemo_algos starts, and none is")


@contextmanager
def in_place(estimator: Estimator) -> Iterator[None]:
    """Within, NeMo-RL's trainers create this estimator for its name, and sample whole groups."""
    modules = [import_module(name) for name in CREATORS if versions.present(name)]
    ours = {DEVIATIONS: _whole_group_deviations} | ({} if CLASS_PATHS else {FACTORY: _by_path})
    places = [(m, name) for m in modules for name in ours if hasattr(m, name)]
    path = (sys.modules[__name__], given.__name__, lambda *configs: estimator)
    with versions.replaced(path, *((m, name, ours[name](getattr(m, name))) for m, name in places)):
        yield


@contextmanager
def previous_logprobs_skipped() -> Iterator[None]:
    """Within, grpo_train and async_grpo_train ask for no previous log-probs."""
    with versions.replaced((opd, "_skip_prev_logprobs", lambda master_config: True)):
        yield


def _whole_group_deviations(stock: Callable[..., Any]) -> Callable[..., Any]:
    """NeMo-RL's baselines, and deviations [B] that are 0 in flat groups and nowhere else.

    Dynamic sampling drops rows by them. NeMo-RL's own are 0 for the only right response of a group
    (others are left in), and in groups of equal rewards some are not 0 by rounding.
    """

    def compute(prompts: Tensor, rewards: Tensor, *args: Any, **kwargs: Any) -> Any:
        baseline, std = stock(prompts, rewards, *args, **kwargs)
        judged = kwargs.get("std_rewards")
        judged = (rewards if judged is None else judged).double()
        groups = Groups.of(row_hash(prompts))
        deviation = groups.std(judged, dof=1).where(~groups.flat(judged), 0.0)
        return baseline, deviation[groups.index].to(std)

    return compute


def _by_path(stock: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """NeMo-RL's factory, which takes our class path as well."""

    def create(master_config: Any) -> Any:
        section = versions.get(master_config.grpo, "adv_estimator", {})
        return given() if versions.get(section, "name") == ESTIMATOR else stock(master_config)

    return create
