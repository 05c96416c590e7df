"""The single controller's driver: what it checks before Ray, what ends with it, its metrics.

And what `nemo-algos check` says of it is what NeMo-RL's own validators say.
"""

import itertools
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import checkout
import pytest
import torch
from nemo_rl.algorithms.loss import ClippedPGLossConfig
from omegaconf import OmegaConf

from nemo_algos import config as strict
from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.extensions.loss_config import MismatchConfig
from nemo_algos.algorithms.extensions.old_policy import reconcile
from nemo_algos.algorithms.rollouts import prompt_key
from nemo_algos.engines.nemo import launch, patches, trial, versions
from nemo_algos.engines.nemo.derived_config import OURS, derive
from nemo_algos.engines.nemo.estimator import Estimator
from nemo_algos.engines.nemo.loss import AlgorithmLoss
from nemo_algos.engines.nemo.trace import Traced
from nemo_algos.findings import ConfigError
from nemo_algos.preflight.check import judge, launcher
from nemo_algos.preflight.check.compose import compose

pytest.importorskip(versions.CONTROLLER, reason="NeMo-RL v0.7.0 has none")

from nemo_rl.algorithms.async_utils import staleness_sampler
from nemo_rl.algorithms.single_controller_utils import config, setup, utils

from nemo_algos.engines.nemo import controller_trial
from nemo_algos.engines.nemo import single_controller as module


def run() -> Any:
    return launcher.compose(strict.read(strict.find("single_controller.yaml")))[:2]


@pytest.fixture(autouse=True)
def fresh() -> None:
    module.watch.cache_clear()


def test_this_controller_is_known() -> None:
    launch.check(*run())


NAMES = [(setup, name) for name in ("TQPolicy", "setup_single_controller", "ClippedPGLossFn")]
NAMES += [(utils, "squeeze_trailing_unit_dim"), (utils, "fields_for_put")]
NAMES += [(setup, "SingleControllerActorArgs"), (module.Stock, "_call_dp")]
NAMES += [(module.Stock, "_advantage_stage")]


@pytest.mark.parametrize(("owner", "name"), NAMES, ids=lambda x: getattr(x, "__name__", x))
def test_what_is_gone_is_named_before_ray(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    judged = run()
    for place in [owner] if owner is not module.Stock else [module.wrapped, module.Stock]:
        if name in vars(place):  # Ray's class has wrappers of the methods of NeMo-RL's
            monkeypatch.delattr(place, name)
    with pytest.raises(ConfigError, match=name):
        launch.check(*judged)


@pytest.mark.parametrize("text", ["", "def _run_with_controller_liveness_watch(actor): ...", "1/0"])
def test_another_script_is_named_before_ray(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    script = tmp_path / "run_grpo_single_controller.py"
    script.write_text(text)
    monkeypatch.setattr(module, "SCRIPT", script)
    with pytest.raises(ConfigError, match=r"run_grpo_single_controller\.py .*liveness_watch"):
        launch.check(*run())


@pytest.mark.parametrize("newer", [False, True])
def test_a_memory_knows_prompts_by_their_tokens(
    monkeypatch: pytest.MonkeyPatch, newer: bool
) -> None:
    """A newer controller tells the estimator the places of the groups in a batch, not prompts."""
    stock = Estimator.compute_advantage

    def of_places(estimator: Estimator, **given: Any) -> Any:
        if newer:
            given["prompt_ids"] = torch.zeros(2, 1).long()
        return stock(estimator, **given)

    monkeypatch.setattr(Estimator, "compute_advantage", of_places)
    memories = []
    for prompt in (4, 7):
        monkeypatch.setattr(trial, "PROMPT", [prompt])
        algorithm = build({"name": "spo", "forgetting": "constant"})
        estimator = Estimator(algorithm, group_size=2, batch_size=2, pad=module.PAD)
        loss = AlgorithmLoss(ClippedPGLossConfig(), algorithm)
        controller_trial.step(run()[0], estimator, loss)
        assert estimator.step is not None and estimator.step.rollouts.prompt is not None
        assert set(estimator.step.rollouts.prompt.tolist()) == {prompt_key([prompt])}
        memories.append(estimator.memory)
    assert memories[0] != memories[1]


def test_prompts_end_where_the_model_begins() -> None:
    """Two turns; an empty response; a prompt alone of a padded row."""
    ids = torch.tensor([[4, 5, 8, 9, 8], [4, 5, 6, 0, 0], [7, 8, 0, 0, 0]])
    mask = torch.tensor([[0, 0, 1, 0, 1], [0] * 5, [0, 1, 0, 0, 0]])
    found = module.prompts(ids, mask).tolist()
    assert found == [[4, 5, 0, 0, 0], [4, 5, 6, 0, 0], [7, 0, 0, 0, 0]]


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


# ---- what check says

WRITTEN = Path(__file__).parents[2] / "preflight" / "check" / "controller.yaml"
FAILURE = "async_rl.rollout_failure"
# runs over which each key is changed
STARTS: dict[str, dict[str, Any]] = {
    "in_order": {
        "checkpointing.enabled": True,
        f"{FAILURE}.native.env_timeout_s": 300,
        f"{FAILURE}.on_dropped_prompt": "replace",
    },
    "ready_first": {"old_policy": "trainer", "async_rl.sampler.name": "ready_first"}
    | {"loss_fn.use_importance_sampling_correction": True},
    "windowed": {"async_rl.sampler.name": "windowed"},
    "router": {"async_rl.sampler.name": "weight_fifo"}
    | {"async_rl.generation_router.enabled": True, f"{FAILURE}.nemo_gym.rollout_timeout_s": None},
}
BESIDE = (
    "grpo.num_prompts_per_step", "grpo.num_generations_per_prompt",
    "grpo.skip_reference_policy_logprobs_calculation", "policy.train_global_batch_size",
    "loss_fn.use_importance_sampling_correction", "loss_fn.force_on_policy_ratio",
    "loss_fn.reference_policy_kl_penalty",
)  # fmt: skip
VALUES = (None, True, -1, 0, 5, 1000, "x", "replace", "custom")
RANKED = [("checkpointing.metric_name", name) for name in ("val:accuracy", "train:loss")]
FEWER = (False, 1, 1000)  # of the starts but the first


def keys() -> list[str]:
    found = checkout.release().declared
    below = {path.rpartition(".")[0] for path in found}
    return [*sorted(p for p in found if p.startswith("async_rl.") and p not in below), *BESIDE]


def composed(changed: dict[str, Any]) -> Any:
    written = strict.read(WRITTEN)
    for path, value in changed.items():
        OmegaConf.update(written, path, value, force_add=True)
    return written


def refused_by_nemo_rl(written: Any) -> str:
    """What its types, or its validator, say of what would train."""
    plain = reconcile(compose(written, checkout.release()).plain)
    derive(plain, build(plain["method"], plain.get("rollout_correction")))
    try:
        with warnings.catch_warnings(action="ignore"):
            master = config.MasterConfig(**{k: v for k, v in plain.items() if k not in OURS})
            config.validate_single_controller_config(master)
    except (ValueError, TypeError, AttributeError) as error:
        return str(error) or "refused"
    return ""


@pytest.mark.parametrize("start", STARTS)
def test_what_nemo_rls_validator_refuses_check_refuses_by_key(start: str) -> None:
    assert not refused_by_nemo_rl(composed(STARTS[start])) and not errors(composed(STARTS[start]))
    values, refused, missed = FEWER if start in [*STARTS][1:] else VALUES, 0, []
    pairs = itertools.product(keys(), values)
    for key, value in [*((k, v) for k, v in pairs if v is not None or k not in BESIDE), *RANKED]:
        written = composed(STARTS[start] | {key: value})
        reason = refused_by_nemo_rl(written.copy())
        paths = errors(written) if reason else []
        refused += bool(reason)
        if reason and not [p for p in paths if p == key or p.rpartition(".")[2] in reason]:
            missed.append((key, value, reason, paths))
    assert not missed, "\n".join(map(str, missed))
    assert refused > 30


def errors(written: Any) -> list[str]:
    """The keys at which `check` refuses."""
    try:
        found = judge.judge(written, checkout.release())[1]
    except ConfigError as error:
        found = error.findings
    return [f.path for f in found if f.severity == "error"]


def test_the_launcher_asks_nemo_rls_own_validator(monkeypatch: pytest.MonkeyPatch) -> None:
    def newer(master: Any) -> None:
        raise ValueError("async_rl.diagnostics has a rule of its own")

    launcher.compose(composed({}))
    monkeypatch.setattr(config, "validate_single_controller_config", newer)
    with pytest.raises(ConfigError, match=r"async_rl: async_rl\.diagnostics has a rule"):
        launcher.compose(composed({}))


def own_sampler(name: str, **keys: Any) -> Any:
    """The controller's config with a sampler of this module, without the base config's keys."""
    section = {"name": "custom", "target": f"{__name__}:{name}", **keys}
    own = {"_override_": True, "min_groups_for_streaming_train": 32, "sampler": section}
    return OmegaConf.merge(strict.read(WRITTEN), {"async_rl": own})


class Own(staleness_sampler.WindowedSampler):
    def __init__(self, buffer: Any, window: int, *, fresh: bool = False) -> None:
        super().__init__(buffer, max_staleness_versions=window, sample_freshest_first=fresh)


class Partial:
    """A sampler that lacks most of its methods."""

    admit = None


def test_a_sampler_of_ones_own_is_given_its_keys() -> None:
    launched = launcher.compose(own_sampler("Own", window=3, fresh=True))
    made = staleness_sampler.create_sampler(None, launched.master_config.async_rl.sampler)
    assert type(made) is Own
    assert (made.max_staleness_versions, made.sample_freshest_first) == (3, True)


@pytest.mark.parametrize(
    ("name", "keys", "said"),
    [
        ("Own", {"window": 3, "windw": 1}, "async_rl.sampler: .*windw"),
        ("Own", {}, "async_rl.sampler: .*window"),
        ("Partial", {}, "async_rl.sampler.target: .*select, evict"),
        ("Nobody", {}, "async_rl.sampler.target: .*Nobody.*PYTHONPATH"),
    ],
)
def test_what_create_sampler_would_raise_is_refused(
    name: str, keys: dict[str, int], said: str
) -> None:
    section: Any = {"target": f"{__name__}:{name}", **keys}
    with pytest.raises((TypeError, AttributeError)):
        staleness_sampler.create_sampler(None, staleness_sampler.CustomSamplerConfig(**section))
    with pytest.raises(ConfigError, match=said):
        launcher.compose(own_sampler(name, **keys))
