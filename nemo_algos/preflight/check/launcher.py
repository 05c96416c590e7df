"""What `nemo-algos check` judges, over the installed NeMo-RL and as its launcher takes it."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import nemo_rl  # pyright: ignore
from nemo_rl.algorithms.grpo import MasterConfig  # pyright: ignore
from omegaconf import DictConfig

from nemo_algos.algorithms.extensions.loss_config import MismatchConfig
from nemo_algos.config import ConfigError, Finding, as_written, validate
from nemo_algos.engines.nemo import versions
from nemo_algos.engines.nemo.derived_config import EPOCHS, OURS, TRACE, TRACED, base_of
from nemo_algos.engines.nemo.launch import Launch
from nemo_algos.engines.nemo.patches import estimator_name
from nemo_algos.engines.nemo.trace import Traced
from nemo_algos.preflight.check.judge import judge, refuse
from nemo_algos.preflight.check.layout import SINGLE_CONTROLLER as SECTION
from nemo_algos.preflight.check.release import read


def compose(written: DictConfig) -> Launch:
    """The run to launch. Raises ConfigError with every error.

    written: the file's keys: `engine`, `method`, `mismatch`, `nemo_rl.config` (a file below
    NeMo-RL's examples/configs), and NeMo-RL's.
    """
    versions.check()
    judgement, findings = judge(written, read(Path(nemo_rl.__path__[0]).parent))
    stated = as_written(deepcopy(judgement.plain))
    plain = {key: value for key, value in judgement.plain.items() if key not in OURS}
    remarks = refuse(findings)
    epochs, period, prompts = (_take(plain, key) for key in (EPOCHS, TRACE, TRACED))
    plain["grpo"]["adv_estimator"]["name"] = estimator_name()
    mismatch = MismatchConfig(**(judgement["mismatch"] or {}))
    assert judgement.algorithm is not None
    return Launch(
        _typed(plain),
        judgement.algorithm,
        mismatch,
        remarks=remarks,
        update_epochs=epochs or 1,
        traced=Traced(period or 0, prompts or 2),
        self_test=base_of(judgement.plain).self_test,
        stated=stated,
    )


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
