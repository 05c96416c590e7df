"""The single controller's driver: what it checks before Ray, what ends with it, its metrics."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nemo_algos import config as strict
from nemo_algos.algorithms.extensions.loss_config import MismatchConfig
from nemo_algos.engines.nemo import launch, patches, versions
from nemo_algos.engines.nemo.loss import AlgorithmLoss
from nemo_algos.engines.nemo.trace import Traced
from nemo_algos.preflight.check import launcher

pytest.importorskip(versions.CONTROLLER, reason="NeMo-RL v0.7.0 has none")

from nemo_rl.algorithms.single_controller_utils import setup, utils

from nemo_algos.engines.nemo import single_controller as module


def run() -> Any:
    return launcher.compose(strict.read(strict.find("single_controller.yaml")))[:2]


@pytest.fixture(autouse=True)
def fresh() -> None:
    module.watch.cache_clear()


def test_this_controller_is_known() -> None:
    launch.check(run()[0])


NAMES = [(setup, name) for name in ("TQPolicy", "setup_single_controller", "ClippedPGLossFn")]
NAMES += [(utils, "squeeze_trailing_unit_dim"), (utils, "fields_for_put")]
NAMES += [(setup, "SingleControllerActorArgs"), (module.Stock, "_call_dp")]
NAMES += [(module.Stock, "_advantage_stage")]


@pytest.mark.parametrize(("owner", "name"), NAMES, ids=lambda x: getattr(x, "__name__", x))
def test_what_is_gone_is_named_before_ray(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    master = run()[0]
    for place in [owner] if owner is not module.Stock else [module.stock, module.Stock]:
        if name in vars(place):  # Ray's class has wrappers of the methods of NeMo-RL's
            monkeypatch.delattr(place, name)
    with pytest.raises(ImportError, match=name):
        launch.check(master)


@pytest.mark.parametrize("text", ["", "def _run_with_controller_liveness_watch(actor): ...", "1/0"])
def test_another_script_is_named_before_ray(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    script = tmp_path / "run_grpo_single_controller.py"
    script.write_text(text)
    monkeypatch.setattr(module, "SCRIPT", script)
    with pytest.raises(ImportError, match=r"run_grpo_single_controller\.py .*liveness_watch"):
        launch.check(run()[0])


class Part:
    """A worker or environment that notes its end, and then may fail."""

    def __init__(self, name: str, ended: list[str], fails: bool = False) -> None:
        self.name, self.ended, self.fails = name, ended, fails

    def shutdown(self) -> None:
        self.ended.append(self.name)
        if self.fails:
            raise RuntimeError(f"{self.name} does not end")


def test_all_workers_end_and_the_runs_own_error_stays(capsys: pytest.CaptureFixture[str]) -> None:
    ended: list[str] = []
    parts = [Part("generation", ended, fails=True), Part("policy", ended)]
    with pytest.raises(FloatingPointError):
        try:
            raise FloatingPointError("stopped")
        finally:
            patches.shut_down(parts, {}, {})
    assert ended == ["generation", "policy"]
    assert "generation does not end" in capsys.readouterr().err


@pytest.mark.parametrize("fails", ["actor", "state"])
def test_what_setup_made_ends_after_any_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: str
) -> None:
    ended: list[str] = []
    master, algorithm = run()
    args = SimpleNamespace(env_handles={}, save_state=SimpleNamespace(current_step=0))
    args.gen_handle, args.trainer_handle = Part("generation", ended), Part("policy", ended)
    if fails == "state":
        del args.save_state

    def remote(*_: Any, **__: Any) -> None:
        raise AttributeError("actor")

    monkeypatch.setattr(setup, "setup_single_controller", lambda *_: (args, None))
    monkeypatch.setattr(module, "Controller", SimpleNamespace(remote=remote))
    with pytest.raises(AttributeError):
        loss = AlgorithmLoss(master.loss_fn, algorithm)
        module.train(master, algorithm, loss, MismatchConfig(), None, None, Traced())
    assert ended == ["generation", "policy"]


def test_a_metric_of_one_chunk_is_not_halved_by_the_other() -> None:
    chunks = [{"reward": 0.5}, {"etr/radius_positive": 0.3, "reward": 1.0}]
    assert module.mean(chunks, [4, 4]) == {"reward": 0.75, "etr/radius_positive": 0.3}
    assert module.mean(chunks[::-1], [4, 12])["reward"] == 0.625
