"""NeMo Gym's part of the launcher, before, around and after NeMo-RL's setup, without a server."""

import contextlib
import functools
import signal
import time
from concurrent.futures import BrokenExecutor
from types import SimpleNamespace
from unittest import mock

import pytest
from ray.exceptions import GetTimeoutError, RayError
from shipped_run import compose

from nemo_algos.algorithms.extensions.loss_config import MismatchConfig
from nemo_algos.engines.nemo import gym, launch, versions
from nemo_algos.engines.nemo.loss import AlgorithmLoss
from nemo_algos.findings import ConfigError

NANO = (
    "nemo_rl.config=nemo_gym/grpo_nanov3.yaml",
    "grpo.adv_estimator=null",
    "loss_fn.reference_policy_kl_penalty=0",
)
APART = (
    "grpo.async_grpo.enabled=true",
    "loss_fn.use_importance_sampling_correction=true",
    "policy.generation.colocated.enabled=false",
    "policy.generation.colocated.resources={num_nodes: 16, gpus_per_node: 8}",
)
PENALTIES = [
    "grpo.invalid_tool_call_advantage=-5",
    "grpo.malformed_thinking_advantage=-2",
    "grpo.advantage_clip_low=-4",
]
ROWS = [0] * 7  # of validation


class Remote:
    """A method of an actor, whose answer `answer` gives; see `answered`."""

    def __init__(self, answer):
        self.remote = answer


def answered(monkeypatch):
    """Ray's get, of answers that are there; an error is raised."""

    def get(answer, **_):
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(gym.ray, "get", get)
    monkeypatch.setattr(gym, "PERIOD", 0.01)


@pytest.mark.parametrize("method", ["etr", "erpo", "grpo"])
def test_nemo_rls_own_gym_config_is_launched(method):
    master, algorithm = compose(*NANO, f"method.name={method}", *PENALTIES)
    assert algorithm.name == method
    vllm = master.policy["generation"]["vllm_cfg"]
    assert vllm["async_engine"] and vllm["expose_http_server"]
    launch.check(master, algorithm)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_servers_are_the_environment_of_training_and_validation(monkeypatch, asynchronous):
    master, algorithm = compose(*NANO, *(APART if asynchronous else ()))
    generation = master.policy["generation"]
    generation["vllm_cfg"] |= {"async_engine": False, "expose_http_server": False}
    generation["stop_token_ids"] = [2]  # as NeMo-RL fills in
    asked = {}

    def data_sets(reader, config, env_configs):
        asked.update(reader=reader, env_configs=env_configs)
        return "rows", ROWS

    def setup(config, tokenizer, dataset, val_dataset, **_):
        asked.update(env=dict(config.env["nemo_gym"]), dataset=dataset, val_dataset=val_dataset)
        asked["validated"] = versions.get(config.grpo, "max_val_samples")
        asked["at once"] = versions.get(config.grpo, "val_batch_size")
        return made

    servers = mock.Mock(spec=["shutdown"])
    worker = mock.Mock()
    made = (worker, worker, servers, *[None] * 4, mock.Mock(), mock.Mock(), None, master)
    tokenizer = mock.Mock()
    monkeypatch.setattr(launch, "get_tokenizer", lambda *_, **__: tokenizer)
    monkeypatch.setattr(launch, "configure_generation_config", lambda config, *_, **__: config)
    monkeypatch.setattr(gym, "setup_response_data", data_sets)
    monkeypatch.setattr(launch.grpo, "setup", functools.wraps(launch.grpo.setup)(setup))
    name = "async_grpo_train" if asynchronous else "grpo_train"
    trained = mock.create_autospec(getattr(launch.grpo, name))
    monkeypatch.setattr(launch.grpo, name, trained)
    monkeypatch.setattr(
        launch, "shut_down", lambda workers, *environments: asked.update(ended=environments)
    )
    launch.train(master, algorithm, AlgorithmLoss(master.loss_fn, algorithm), MismatchConfig())
    given = trained.call_args.kwargs
    assert given["task_to_env"] == given["val_task_to_env"] == {"nemo_gym": servers}
    assert asked["ended"] == ({"nemo_gym": servers}, {"nemo_gym": servers})
    assert (asked["reader"], asked["env_configs"]) == (tokenizer, None)
    assert (asked["dataset"], asked["val_dataset"]) == ("rows", ROWS)
    assert asked["validated"] == asked["at once"] == len(ROWS)
    assert "is_trajectory_collection" not in asked["env"] and asked["env"]["config_paths"]
    vllm = generation["vllm_cfg"]
    assert vllm["async_engine"] and vllm["expose_http_server"]
    assert generation["stop_token_ids"] is None


def test_a_setup_that_starts_no_servers_is_refused_for_gym_alone(monkeypatch):
    """As NeMo-RL was before: its script started them."""

    def setup(
        master_config, tokenizer, dataset, val_dataset, processor=None, policy_factory=None
    ): ...

    types = [t for t in _parts(launch.grpo.setup) if "EnvironmentInterface" not in str(t)]
    setup.__annotations__["return"] = tuple[tuple(types)]
    monkeypatch.setattr(launch.grpo, "setup", setup)
    versions.check()
    with pytest.raises(ConfigError, match="returns no nemo_gym"):
        versions.check_gym()


def _parts(setup):
    return versions.get_args(versions.get_type_hints(setup)["return"])


WRAPPED = RayError("ray::NemoGym.health_check() (pid=1)")
WRAPPED.cause = RuntimeError("Process `office` finished")  # pyright: ignore
ENDS = {  # what the actor answers, one call after the other, and what is said in the end
    "a server ends": ([RayError("Process `office` finished unexpectedly!")], "Process `office`"),
    "a busy actor is asked again": ([*[GetTimeoutError("busy")] * 3, RayError("ended")], "ended"),
    "without what Ray says around it": ([WRAPPED], "more rollouts: Process `office` finished"),
}


@pytest.mark.parametrize(("answers", "said"), ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("dropped", [False, True])
def test_a_server_that_ends_is_named(monkeypatch, answers, said, dropped):
    """dropped: as by an event loop, which logs what is raised in one of its callbacks."""
    answered(monkeypatch)
    left = [*answers]
    health = Remote(lambda: left.pop(0) if len(left) > 1 else left[0])
    with (
        pytest.raises(BrokenExecutor, match=said),
        gym.watched(SimpleNamespace(health_check=health)),
    ):
        with contextlib.suppress(gym._Ended) if dropped else contextlib.nullcontext():
            time.sleep(30)
        time.sleep(30)
    assert len(left) == 1


@pytest.mark.parametrize("actor", [None, SimpleNamespace(), "well"])
def test_ctrl_c_and_errors_of_the_run_stay_what_they_are(monkeypatch, actor):
    answered(monkeypatch)
    before = signal.getsignal(gym.SIGNAL)
    actor = SimpleNamespace(health_check=Remote(lambda: None)) if actor == "well" else actor
    for error in (KeyboardInterrupt, FloatingPointError):
        with pytest.raises(error), gym.watched(actor):
            time.sleep(0.05)
            raise error
    assert signal.getsignal(gym.SIGNAL) == before
