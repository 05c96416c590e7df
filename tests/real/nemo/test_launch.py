"""From our YAML to NeMo-RL's MasterConfig: what is set, what is refused, which trainer."""

import functools
import io
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import checkout
import pytest
from launched import launched
from mistakes import MISTAKES, SHARED
from omegaconf import OmegaConf
from rich.console import Console
from shipped_run import SHIPPED, compose

from nemo_algos import config as strict
from nemo_algos.algorithms.extensions.loss_config import MismatchConfig
from nemo_algos.algorithms.methods import STUDIED
from nemo_algos.engines.nemo import launch, run_script, versions, worker_env
from nemo_algos.engines.nemo.loss import AlgorithmLoss
from nemo_algos.findings import ConfigError
from nemo_algos.preflight.check import launcher
from nemo_algos.preflight.check.judge import check
from nemo_algos.preflight.check.rules.fp8 import FP8

DYNAMIC = "grpo.use_dynamic_sampling=true"
DISK = SimpleNamespace(free=2**40)
PREFLIGHT = Path(__file__).parents[2] / "preflight" / "check"


ASYNC = [
    "grpo.async_grpo.enabled=true",
    "loss_fn.use_importance_sampling_correction=true",
    "policy.generation.vllm_cfg.async_engine=true",
    "policy.generation.colocated.enabled=false",
    "policy.generation.colocated.resources.gpus_per_node=1",
    "cluster.gpus_per_node=2",
]


@pytest.mark.parametrize("name", STUDIED)
def test_every_studied_method_composes_with_what_it_decides(name):
    master, algorithm = compose(f"method.name={name}")
    loss = master.loss_fn
    assert algorithm.name == name
    assert loss.token_level_loss == (name in ("erpo", "gpg", "cispo"))
    assert loss.sequence_level_importance_ratios == (name in ("gspo", "gmpo", "quatro"))
    assert loss.disable_ppo_ratio == (name in ("gpg", "cispo"))
    assert loss.reference_policy_kl_penalty == 0.001
    section = versions.get(master.grpo, "adv_estimator")
    assert versions.get(section, "name") == "nemo_algos.engines.nemo.patches.given"
    assert master.policy["train_global_batch_size"] == 128
    assert master.policy["model_name"] == "Qwen/Qwen2.5-1.5B"  # NeMo-RL's own


def test_interpolations_reach_into_nemo_rls_own_config():
    master, _ = compose("logger.log_dir=logs/${policy.model_name}")
    assert master.logger["log_dir"] == "logs/Qwen/Qwen2.5-1.5B"


def test_bounds_of_the_method_are_nemo_rls():
    loss = compose("method.name=grpo", "method.clip_high=0.28", "method.dual_clip=3")[0].loss_fn
    assert (loss.ratio_clip_min, loss.ratio_clip_max, loss.ratio_clip_c) == (0.2, 0.28, 3)


def test_erpo_gets_a_reference_without_a_penalty():
    master, _ = compose("method.name=erpo", "loss_fn.reference_policy_kl_penalty=0")
    loss = master.loss_fn
    assert 0 < loss.reference_policy_kl_penalty < 1e-6 and loss.use_kl_in_reward
    assert versions.get(master.grpo, "skip_reference_policy_logprobs_calculation") is False


@pytest.mark.parametrize(
    "overrides",
    [
        ["method={name: grpo, bounds: apmpo}", "grpo.reward_shaping.enabled=true"],
        ["grpo.reward_scaling.enabled=true", "data_plane.enabled=true"],
        ["method.name=gdpo", "nemo_rl.config=gdpo_math_1B.yaml", DYNAMIC],
        ["nemo_rl.config=vlm_grpo_3B.yaml"],
        [
            "method.name=gpg",
            "loss_fn.force_on_policy_ratio=true",
            "policy.train_global_batch_size=512",
        ],
        ["method={name: grpo, bounds: {name: apmpo, statistics: group}}", DYNAMIC],
        ["policy.sequence_packing.fuse_loss=true"],
        ["policy.generation.vllm_cfg.enable_prefix_caching=false"],
        ["grpo.normalize_rewards=true"],
        ["grpo.advantage_clip_low=-1", "grpo.advantage_clip_high=1"],
        ["method.name=quatro", "policy.generation.top_p=0.9"],
        ["policy.optimizer.kwargs.fused=true", "env.mine.reward=1", "data.default.env_name=mine"],
        ["policy.sequence_packing.enabled=false", f"{FP8}.fp8_recipe=bogus"],
    ],
)
def test_what_only_looks_like_a_contradiction_is_not_refused(overrides):
    compose(*overrides)


def test_dynamic_sampling_filters_whole_groups():
    assert versions.get(compose(DYNAMIC)[0].grpo, "use_leave_one_out_baseline") is False


SOME = [*MISTAKES[::30], *SHARED[::5]]  # tests/preflight/check judges them all


@pytest.mark.parametrize("mistake", SOME, ids=lambda m: f"{m[0]}-{m[4]}")
def test_the_launcher_finds_what_check_finds(mistake, ref, monkeypatch, tmp_path):
    """Errors stop it, all of them at once; warnings and notes are its remarks."""
    _, config, overrides, *_ = mistake
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: DISK)  # others write to this one
    path = PREFLIGHT / config if (PREFLIGHT / config).exists() else SHIPPED
    found = check(str(path), overrides, checkout.release())
    errors = [f for f in found if f.severity == "error"]
    written = strict.apply_overrides(strict.read(path), overrides)
    if errors:
        with pytest.raises(ConfigError) as error:
            launcher.compose(written)
        assert error.value.findings == errors
    else:
        assert launcher.compose(written).remarks == found


def test_the_trainer_is_the_configs():
    from nemo_rl.algorithms import grpo
    from nemo_rl.algorithms.grpo_sync import grpo_train_sync

    def trainer(*overrides):
        return launch.trainer(compose(*overrides)[0])

    assert trainer() is grpo.grpo_train
    assert trainer("data_plane.enabled=true") is grpo_train_sync
    asynchronous = trainer(*ASYNC)
    assert getattr(asynchronous, "func", None) is grpo.async_grpo_train


@pytest.mark.parametrize(("section", "controlled"), [([], True), (["async_rl=null"], False)])
def test_a_config_with_async_rl_is_the_single_controllers(ref, section, controlled):
    if ref == "v0.7.0":  # which has neither its base config nor the section
        return
    written = strict.apply_overrides(strict.read(strict.find("single_controller.yaml")), section)
    composed = launcher.compose(written).master_config
    assert launch.uses_single_controller(composed) == controlled
    assert type(composed).__module__.endswith("single_controller_utils.config") == controlled


@pytest.mark.parametrize(
    ("asked", "worker"),
    [
        ("method.name=erpo", "EntropyWorker"),
        ("method.terms.entropy.coef=0.1", "GradientWorker"),
        ("method.terms.adaptive_entropy.target=0.1", "EntropyWorker"),
    ],
)
def test_what_reads_entropies_needs_our_workers(asked, worker, monkeypatch, tmp_path):
    monkeypatch.setenv("NEMO_RL_VENV_DIR", str(tmp_path))
    assert launch.policy_factory(*compose()) is None
    factory = launch.policy_factory(*compose(asked))
    assert factory is not None
    name = factory.keywords["worker_extension_cls_fqn"]
    assert name == f"nemo_algos.engines.nemo.dtensor_worker.{worker}"


def test_images_prebuilt_environment_is_used_where_it_exists(monkeypatch, tmp_path):
    from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY

    stock = worker_env.STOCK["megatron_worker"]
    monkeypatch.setenv("NEMO_RL_VENV_DIR", str(tmp_path))
    name = worker_env.register_worker("megatron_worker")
    assert ACTOR_ENVIRONMENT_REGISTRY[name] == ACTOR_ENVIRONMENT_REGISTRY[stock]
    python = tmp_path / stock / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    worker_env.register_worker("megatron_worker")
    assert ACTOR_ENVIRONMENT_REGISTRY[name] == str(python)


def test_the_package_goes_on_pythonpath_once(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/other")
    worker_env.export()
    worker_env.export()
    assert os.environ["PYTHONPATH"] == f"{worker_env.ROOT}:/other"


def test_an_installed_package_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(worker_env, "ROOT", tmp_path / "site-packages")
    with pytest.raises(ValueError, match="checkout"):
        worker_env.export()


def test_written_is_not_changed():
    written = strict.read(SHIPPED)
    before = OmegaConf.to_yaml(written)
    launcher.compose(written)
    assert OmegaConf.to_yaml(written) == before
    assert SimpleNamespace(**OmegaConf.to_container(written)).engine == "nemo_rl"  # pyright: ignore


class Part:
    """A worker, environment or checkpointer that notes its end."""

    def __init__(self, name, ended):
        self.name, self.ended = name, ended

    def shutdown(self, *_):
        self.ended.append(self.name)


@pytest.mark.parametrize("asynchronous_saves", [True, False])
def test_after_an_error_saves_end_before_the_workers(monkeypatch, asynchronous_saves):
    master, algorithm = compose()
    ended, error = [], FloatingPointError("stopped")
    saves = Part("saves", ended) if asynchronous_saves else object()  # v0.7.0's has no shutdown
    workers = (Part("policy", ended), Part("generation", ended))
    made = (*workers, *[None] * 5, mock.Mock(), saves, None, master)
    setup = functools.wraps(launch.grpo.setup)(lambda *_, **__: made)
    monkeypatch.setattr(launch, "get_tokenizer", mock.Mock())
    monkeypatch.setattr(launch, "configure_generation_config", lambda config, *_, **__: config)
    monkeypatch.setattr(launch, "setup_response_data", lambda *_, **__: (None, None, {}, {}))
    monkeypatch.setattr(launch.grpo, "setup", setup)
    trained = mock.create_autospec(launch.grpo.grpo_train, side_effect=error)
    monkeypatch.setattr(launch.grpo, "grpo_train", trained)
    with pytest.raises(FloatingPointError):
        launch.train(master, algorithm, AlgorithmLoss(master.loss_fn, algorithm), MismatchConfig())
    assert ended == ["saves", "generation", "policy"][not asynchronous_saves :]


@pytest.mark.usefixtures("in_process")
def test_the_launcher_trains_with_nemo_rls_own_trainer(monkeypatch, tmp_path):
    run = launched(tmp_path, monkeypatch)
    assert len(run.logger.series("train", "loss")) == 2
    assert min(run.logger.series("train", "etr/radius_positive")) > 0.2


# what a newer NeMo-RL may ask of a launcher between its config and its trainer
LATER: dict[str, tuple[str, object]] = {
    "generation": ("configure_generation_config", lambda config, tokenizer, engine: config),
    "data": ("setup_response_data", lambda tokenizer, data, env, seed, is_vlm=False: None),
    "setup": ("grpo.setup", lambda config, tokenizer, data, val, seed, **_: None),
}


@pytest.mark.parametrize("step", LATER)
def test_what_would_die_after_ray_is_refused_before(monkeypatch, step):
    path, function = LATER[step]
    owner, name = (launch.grpo, "setup") if path == "grpo.setup" else (launch, path)
    function.__annotations__ = dict(getattr(getattr(owner, name), "__annotations__", {}))
    monkeypatch.setattr(owner, name, function)
    with pytest.raises(
        ConfigError,
        match=r"before training, with a small tokenizer: TypeError.*\n.*self_test: false",
    ):
        launch.check(*compose())


def as_models(section):
    """A section whose own sections are models, as NVIDIA-NeMo/RL#3197 has them."""
    return SimpleNamespace(
        **{k: as_models(v) if isinstance(v, dict) else v for k, v in section.items()}
    )


@pytest.mark.parametrize("key", ["draft", "megatron_cfg", "dtensor_cfg"])
def test_sections_may_be_models(key):
    master, algorithm = compose("method.name=erpo")
    if key not in master.policy:  # v0.7.0's base config has no draft
        return
    master.policy[key] = as_models(master.policy[key])
    launch.rehearse(master, algorithm)
    assert launch.fused_logprobs(master) == {}


def test_a_run_without_the_test_says_so(monkeypatch, tmp_path):
    written = strict.apply_overrides(strict.read(SHIPPED), ["nemo_rl.self_test=false"])
    judged = launcher.compose(written)
    monkeypatch.setattr(launch, "check", lambda *_: pytest.fail("it is tested"))
    judged.master_config.logger["log_dir"] = str(tmp_path / "logs")
    monkeypatch.setenv("PYTHONPATH", "")
    said = io.StringIO()
    launch.ready(judged, Console(file=said, width=200))
    assert "warning: nemo_rl.self_test: it is false" in said.getvalue()


SCRIPTS = ("run_grpo.py", "run_vlm_grpo.py", "nemo_gym/run_grpo_nemo_gym.py")


def test_the_steps_of_nemo_rls_scripts_are_known(ref):
    names = SCRIPTS if ref == "v0.7.0" else (*SCRIPTS, "run_grpo_single_controller.py")
    for name in names:
        assert run_script.news(versions.EXAMPLES / name) == []


@pytest.mark.parametrize("after", ["pprint.pprint(config)", "init_ray()"])
def test_a_new_step_of_a_script_is_named(tmp_path, after):
    text = (versions.EXAMPLES / "run_grpo.py").read_text()
    lines = text.splitlines()
    last = len(lines) - 1 - next(n for n, line in enumerate(lines[::-1]) if after in line)
    pad = " " * (len(lines[last]) - len(lines[last].lstrip()))
    new = ["configure_engine_env(config)", "setup(config, tokenizer, teachers=2)", "teacher.stop()"]
    lines[last + 1 : last + 1] = [pad + line for line in new]
    script = tmp_path / "run_grpo.py"
    script.write_text("\n".join(lines))
    (found,) = run_script.news(script)
    assert found.severity == "warning"
    assert "configure_engine_env, " in found.message and "teacher.stop" in found.message
    assert "setup(teachers=)" in found.message and "init_ray" not in found.message


def test_a_script_that_is_not_there_is_a_note(tmp_path):
    assert [f.severity for f in run_script.news(tmp_path / "none.py")] == ["note"]
