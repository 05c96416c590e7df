"""What `nemo-algos check` judges, over the installed NeMo-RL and as its launcher takes it."""

from typing import Any

from nemo_rl.algorithms.grpo import MasterConfig  # pyright: ignore
from omegaconf import DictConfig

from nemo_algos.algorithms.riders.loss_config import MismatchConfig
from nemo_algos.config import validate
from nemo_algos.engines.nemo import versions
from nemo_algos.engines.nemo.decided import EPOCHS, OURS
from nemo_algos.engines.nemo.installed import installed
from nemo_algos.engines.nemo.launch import Launch
from nemo_algos.engines.nemo.trainers import estimator_name
from nemo_algos.preflight.check.judge import judge, refuse


def compose(written: DictConfig) -> Launch:
    """The run to launch. Raises ConfigError with every error.

    written: the file's keys: `engine`, `method`, `mismatch`, `nemo_rl.config` (a file below
    NeMo-RL's examples/configs), and NeMo-RL's.
    """
    versions.check()
    judgement, findings = judge(written, installed())
    plain = {key: value for key, value in judgement.plain.items() if key not in OURS}
    remarks = refuse(findings)
    epochs = plain["grpo"].pop(EPOCHS.rpartition(".")[2], None) or 1
    plain["grpo"]["adv_estimator"]["name"] = estimator_name()
    mismatch = MismatchConfig(**(judgement["mismatch"] or {}))
    assert judgement.algorithm is not None
    return Launch(validate(_type(plain), plain), judgement.algorithm, mismatch, remarks, epochs)


def _type(plain: dict[str, Any]) -> type:
    """NeMo-RL's type of the config: the single controller has its own."""
    if plain.get("async_rl") is None:
        return MasterConfig
    from nemo_rl.algorithms.single_controller_utils import config  # pyright: ignore

    return config.MasterConfig
