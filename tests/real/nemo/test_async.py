"""NeMo-RL's own async_grpo_train: a replay buffer and a collector that generates one step ahead.

Both are NeMo-RL's own classes in this process instead of Ray actors (the collector in its own
threads); generation is cpu_generation's asynchronous interface, workers are cpu_policy's.
Importance-sampling correction is on, as the trainer demands where the sampler is not the old
policy: responses are of the weights before the last update.
"""

import contextlib
import functools
from pathlib import Path
from typing import Any

import cpu_run
import pytest
from launched import launched
from nemo_rl.algorithms import async_utils, grpo
from no_ray import Actor, Done
from plugged import METHODS, STEPS, Plugged, rollouts_of, scored
from test_remarks import assert_told, rewards_end

from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.extensions.loss_config import LossConfig
from nemo_algos.algorithms.loss import policy_loss
from nemo_algos.engines.nemo.patches import previous_logprobs_skipped

pytestmark = pytest.mark.usefixtures("in_process")
OVERRIDES = [
    "loss_fn.use_importance_sampling_correction=true",
    "grpo.async_grpo.enabled=true",
    "grpo.async_grpo.max_trajectory_age_steps=1",
    "policy.generation.colocated.enabled=false",
    "policy.generation.colocated.resources.num_nodes=1",
    "policy.generation.colocated.resources.gpus_per_node=1",
    "cluster.gpus_per_node=2",
    "policy.generation.vllm_cfg.async_engine=true",
]
ONE_UPDATE = ["policy.train_global_batch_size=16"]


def in_this_process(actor: Any) -> Any:
    """A Ray actor class as one that lives here: `.options(...).remote(...)`."""
    inner = actor.__ray_metadata__.modified_class

    class Here:
        options = staticmethod(lambda **_: Here)
        remote = staticmethod(lambda *args, **kwargs: Actor(inner(*args, **kwargs)))

    return Here


def awaited(done: Done) -> Any:
    """The collector awaits Ray's futures; these are finished."""
    yield from ()
    return done.value


def stop(actor: Actor) -> None:
    """For ray.kill: the collector's threads end before Ray's stand-ins do."""
    target = actor._target
    if not hasattr(target, "collection_thread"):
        return
    target.running = False
    for event in ("_manual_pause_cleared", "_refit_pause_cleared", "_generation_limit_cleared"):
        if hasattr(target, event):
            getattr(target, event).set()
    for thread in (target.collection_thread, *target._inflight_threads):
        thread.join(300)
        assert not thread.is_alive()


def without_actors(patch: pytest.MonkeyPatch) -> None:
    """The buffer and the collector live in this process."""
    patch.setattr(Done, "__await__", awaited, raising=False)
    for actor in ("ReplayBuffer", "AsyncTrajectoryCollector"):
        patch.setattr(async_utils, actor, in_this_process(getattr(async_utils, actor)))
    patch.setattr(grpo, "get_actor_python_env", lambda _: "/usr/bin/python3")
    patch.setattr(grpo.ray, "kill", stop)


def trained(
    path: Path,
    name: str,
    mode: str,
    patch: pytest.MonkeyPatch,
    overrides: list[str],
    correction: dict[str, Any] | None = None,
) -> Plugged:
    without_actors(patch)
    plugged = Plugged(path, METHODS[name], [*OVERRIDES, *overrides], correction, mode=mode)
    with previous_logprobs_skipped() if correction else contextlib.nullcontext():
        return plugged.train(trainer=grpo.async_grpo_train)


@pytest.mark.parametrize(
    ("name", "mode", "bypass"),
    [("etr", "unpacked", False), ("erpo", "fused", False), ("etr", "unpacked", True)],
)
def test_trains_off_policy_with_our_signals(
    name: str, mode: str, bypass: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bypass: clipped against their own sampler, whose ratio is no 1 but in the first batch."""
    overrides = [f"loss_fn.use_importance_sampling_correction={str(not bypass).lower()}"]
    correction = {"bypass_mode": True} if bypass else None
    overrides += ONE_UPDATE
    plugged = trained(tmp_path, name, mode, monkeypatch, overrides, correction)
    assert len(plugged.series("train", "loss")) == STEPS == len(plugged.estimator.calls)
    moved = []
    for step, call in enumerate(plugged.estimator.calls):
        batch = plugged.proxy.batches[step]
        given = rollouts_of(batch, call, gen_logprobs=batch["generation_logprobs"])
        rollouts, _ = plugged.algorithm.correct(given)
        loss = policy_loss(
            plugged.algorithm,
            scored(plugged.proxy.models[step], batch["input_ids"])[0],
            rollouts,
            plugged.algorithm.signals(rollouts, {}),
            Counts.of(rollouts.mask),
            LossConfig(use_importance_sampling_correction=not bypass),
        )
        logged = plugged.run.logger.kept["train"][step + 1]
        assert logged["loss"] == pytest.approx(float(loss.value), rel=1e-4, abs=2e-6)
        for metric, value in call["metrics"].items():
            assert logged[metric] == pytest.approx(value)
        if bypass:
            moved.append(abs(logged["kl/old"]))
            continue
        gap = (batch["prev_logprobs"] - batch["generation_logprobs"])[rollouts.mask].abs().max()
        assert gap < 1e-4 if step == 0 else gap > 0.01  # the first batch alone is on policy
    if bypass:  # a slow sampler has the newest weights for one of the others, which load decides
        assert moved[0] < 1e-6 < max(moved[1:])


def test_bounds_clip_within_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four updates a batch."""
    plugged = trained(tmp_path, "apmpo", "packed", monkeypatch, [])
    assert min(plugged.series("train", "clip/fraction")) > 0.005
    assert plugged.series("train", "apmpo/eps_ada") == [
        call["metrics"]["apmpo/eps_ada"] for call in plugged.estimator.calls
    ]


def test_rewards_that_end_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_actors(monkeypatch)
    rewards_end(monkeypatch)
    monkeypatch.setattr(
        cpu_run, "Prompts", functools.partial(cpu_run.Prompts, 48)
    )  # it reads ahead
    launched(tmp_path, monkeypatch, steps=6, mode="unpacked", overrides=OVERRIDES + ONE_UPDATE)
    assert_told(capsys.readouterr().out)
