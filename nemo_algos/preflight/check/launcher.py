"""What `nemo-algos check` judges, over the installed NeMo-RL and as its launcher takes it."""

from nemo_rl.algorithms.grpo import MasterConfig  # pyright: ignore
from omegaconf import DictConfig

from nemo_algos.algorithms.riders.loss_config import MismatchConfig
from nemo_algos.config import validate
from nemo_algos.engines.nemo import versions
from nemo_algos.engines.nemo.decided import OURS
from nemo_algos.engines.nemo.installed import installed
from nemo_algos.engines.nemo.launch import Launch
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
    mismatch = MismatchConfig(**(judgement["mismatch"] or {}))
    assert judgement.algorithm is not None
    return Launch(validate(MasterConfig, plain), judgement.algorithm, mismatch, remarks)
