"""The model that TRL's trainers train in these tests, and one thread to do it."""

import pytest
import torch
import trl_runs
from rich.console import Console

from nemo_algos import config
from nemo_algos.engines.local import tiny_policy
from nemo_algos.engines.local.build import policy_of
from nemo_algos.preflight.check.local.judge import parse


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    trl_runs.disable_progress_bar()
    yield
    torch.set_num_threads(threads)


def saved(folder, steps):
    """A countdown model of two numbers, taught so many steps, in Hugging Face's format."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEMO_ALGOS_CACHE", str(folder / "cache"))
        patch.setattr(tiny_policy, "WARM_STEPS", steps)
        checked, _ = parse(config.load(config.SHIPPED / "grpo.yaml", ["data.numbers=2"]))
        policy_of(checked.policy, trl_runs.RULES, Console(quiet=True)).save(str(folder))
    return folder
