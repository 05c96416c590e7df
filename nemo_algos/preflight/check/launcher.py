"""What `nemo-algos check` judges, over the installed NeMo-RL and as its launcher takes it."""

from collections.abc import Sequence
from contextlib import redirect_stdout
from copy import deepcopy
from io import StringIO
from math import isclose, isnan, nan
from pathlib import Path
from typing import Any

import nemo_rl  # pyright: ignore
import torch
from nemo_rl.algorithms.grpo import (  # pyright: ignore
    MasterConfig,
    RewardScalingConfig,
    scale_rewards,
)
from nemo_rl.algorithms.reward_functions import (  # pyright: ignore
    RewardShapingConfig,
    apply_reward_shaping,
)
from nemo_rl.distributed.batched_data_dict import BatchedDataDict  # pyright: ignore
from omegaconf import DictConfig

from nemo_algos.algorithms.extensions.loss_config import MismatchConfig
from nemo_algos.engines.nemo import versions
from nemo_algos.engines.nemo.derived_config import EPOCHS, OURS, TRACE, TRACED, base_of
from nemo_algos.engines.nemo.launch import Launch
from nemo_algos.engines.nemo.patches import estimator_name
from nemo_algos.engines.nemo.trace import Traced
from nemo_algos.findings import ConfigError, Finding, validate
from nemo_algos.preflight.check.judge import judge, refuse
from nemo_algos.preflight.check.layout import SINGLE_CONTROLLER as SECTION
from nemo_algos.preflight.check.release import read
from nemo_algos.preflight.check.rule import Preflight
from nemo_algos.preflight.forecast import rewards
from nemo_algos.preflight.forecast.this_run import forecast_of, lines
from nemo_algos.secrets import as_written


def compose(written: DictConfig) -> Launch:
    """The run to launch. Raises ConfigError with every error.

    written: the file's keys: `engine`, `method`, `mismatch`, `nemo_rl.config` (a file below
    NeMo-RL's examples/configs), and NeMo-RL's.
    """
    versions.check()
    judgement, findings = judge(written, read(Path(nemo_rl.__path__[0]).parent))
    stated = as_written(deepcopy(judgement.plain))
    plain = {}
    for key, value in judgement.plain.items():
        if key not in OURS:
            plain[key] = value
    remarks = refuse(findings)
    epochs = _take(plain, EPOCHS)
    period = _take(plain, TRACE)
    prompts = _take(plain, TRACED)
    plain["grpo"]["adv_estimator"]["name"] = estimator_name()
    mismatch = MismatchConfig(**(judgement["mismatch"] or {}))
    assert judgement.algorithm is not None
    forecast = forecast_of(judgement)
    return Launch(
        _typed(plain),
        judgement.algorithm,
        mismatch,
        remarks=remarks,
        foretold=(*lines(judgement, forecast, drawn=False), *differing(judgement)),
        update_epochs=epochs or 1,
        traced=Traced(period or 0, prompts or 2),
        self_test=base_of(judgement.plain).self_test,
        stated=stated,
    )


def differing(run: Preflight) -> list[str]:
    """What this NeMo-RL pays for canonical responses, where that was not foretold."""
    outcomes = rewards.canonical(run)
    foretold = [rewards.trained(run, outcome) for outcome in outcomes]
    try:
        paid = _paid(run, outcomes)
    except LookupError:  # this NeMo-RL reads more of a batch than is known here
        return []
    said = []
    for outcome, expected, found in zip(outcomes, foretold, paid, strict=True):
        if not isclose(expected, found, rel_tol=1e-5, abs_tol=1e-6) and not isnan(expected):
            said.append(
                f"  NeMo-RL itself pays {found:g}, not {expected:g}, for a reward of "
                f"{outcome.reward:g} and {outcome.tokens} tokens."
            )
    return said


def _paid(run: Preflight, outcomes: Sequence[rewards.Outcome]) -> list[float]:
    """The rewards of NeMo-RL's own functions, NaN where they raise."""
    batch = BatchedDataDict(
        total_reward=torch.tensor([outcome.reward for outcome in outcomes]),
        response_token_lengths=torch.tensor([outcome.tokens for outcome in outcomes]),
        truncated=torch.tensor([outcome.cut for outcome in outcomes]),
    )
    printed = redirect_stdout(StringIO())  # NeMo-RL tells of each batch
    try:
        with printed:
            if rewards.reads(run, rewards.SCALING):
                batch = scale_rewards(batch, RewardScalingConfig(**run[rewards.SCALING]))
            if rewards.reads(run, rewards.SHAPING):
                batch = apply_reward_shaping(batch, RewardShapingConfig(**run[rewards.SHAPING]))
    except (AssertionError, ValueError, ZeroDivisionError):
        return [nan] * len(outcomes)
    return batch["total_reward"].tolist()


def _take(plain: dict[str, Any], path: str) -> Any:
    section, _, key = path.partition(".")
    return plain[section].pop(key, None)


def _typed(plain: dict[str, Any]) -> Any:
    """NeMo-RL's own config; the single controller has a type and a validator of its own."""
    if plain.get(SECTION) is None:
        return validate(MasterConfig, plain)
    from nemo_rl.algorithms.single_controller_utils import config  # pyright: ignore

    master = validate(config.MasterConfig, plain)
    try:
        config.validate_single_controller_config(master)  # else it is first asked by the setup
    except ValueError as problem:
        raise ConfigError([Finding(SECTION, str(problem))]) from None
    if master.async_rl.sampler.name == "custom":
        from nemo_algos.engines.nemo.single_controller import sampler_faults

        refuse(sampler_faults(master.async_rl.sampler))
    return master
