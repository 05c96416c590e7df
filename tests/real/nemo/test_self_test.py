"""The guard's numbers are those of the papers' formulas; a changed NeMo-RL is refused by name."""

import functools
import importlib.util
import inspect
import linecache
import re
import sys
import textwrap
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from nemo_rl.algorithms import grpo as nemo_grpo
from nemo_rl.algorithms import grpo_sync
from nemo_rl.algorithms.loss import loss_functions

from nemo_algos import config as strict
from nemo_algos.algorithms.methods import STUDIED
from nemo_algos.engines.nemo import estimator, launch, policy, self_test, trial, versions
from nemo_algos.findings import ConfigError
from nemo_algos.preflight.check import launcher

FILE = Path(__file__).parents[1] / "stack" / "oracle.py"
SPEC = importlib.util.spec_from_file_location("oracle", FILE)
assert SPEC and SPEC.loader
oracle = importlib.util.module_from_spec(SPEC)
sys.modules["oracle"] = oracle
SPEC.loader.exec_module(oracle)


def direct(name, kl):
    """The papers' formula and a KL penalty on the trial's two responses, by independent code."""
    old, new, ref, entropy = (
        x[:, 1:].double() for x in (trial.OLD, trial.CURRENT, trial.REFERENCE, trial.ENTROPIES)
    )
    mask, both = trial.MASK[:, 1:].bool(), torch.zeros(2, dtype=torch.long)
    batch = oracle.Batch(
        both, trial.REWARDS.double(), mask, old, ref, old, entropy, torch.ones(2, dtype=torch.bool)
    )
    new = new.where(mask, 0.0).requires_grad_()
    signals = oracle.signals(name, batch)
    value = oracle.Setting(kl=kl).loss(name, new, entropy, batch, signals)
    (gradient,) = torch.autograd.grad(value, new)
    return float(value.detach()), float((gradient * trial.DIRECTION).sum())


TRAINERS = {
    "grpo_train": (nemo_grpo, "grpo_train"),
    "async_grpo_train": (nemo_grpo, "async_grpo_train"),
    "grpo_train_sync": (grpo_sync, "grpo_train_sync"),
}
# v0.7.0 has none
CONTROLLER = [pytest.param("controller")] if versions.present(versions.CONTROLLER) else []


@pytest.fixture(params=[*TRAINERS, *CONTROLLER])
def step(request):
    """A step of each of NeMo-RL's trainers, as they are when it is called."""
    if request.param != "controller":
        module, name = TRAINERS[request.param]
        return lambda *given: trial.step(getattr(module, name), *given)
    written = strict.read(strict.find("single_controller.yaml"))
    return launch.trial_of(launcher.compose(written).master_config)[1]


@pytest.mark.parametrize("kl", [0.0, 0.5])
@pytest.mark.parametrize("name", STUDIED)
def test_numbers_are_the_formulas(name, kl, step):
    want = direct(name, kl)
    assert self_test.known(name, kl > 0) == pytest.approx(want, rel=1e-6)
    assert self_test.answer(name, step, kl > 0) == pytest.approx(want, rel=1e-5)


def test_this_nemo_rl_is_known(step):
    versions.check()
    self_test.check("its trainer", step)


def test_another_kl_penalty_is_refused_for_runs_that_have_one(monkeypatch):
    """As NeMo-RL's before NVIDIA-NeMo/RL#2506, whose penalty has another gradient."""
    stock = loss_functions.calculate_kl

    def changed_kl(**given):
        given["importance_sampling_weights"] = None
        return stock(**given)

    monkeypatch.setattr(loss_functions, "calculate_kl", changed_kl)
    said = refusal()
    assert "with grpo and a KL penalty of 0.5 has" in said and "Only the KL penalty differs" in said
    self_test.check(
        "grpo_train", functools.partial(trial.step, nemo_grpo.grpo_train), penalty=False
    )


class Odd:
    """What a newer NeMo-RL may do with a stand-in: the exception that it then raises."""

    def missing(self):
        return trial.Workers().of_a_newer_one

    def broken(self):
        return trial.Workers().run_all_workers_sharded_data("train", data=None)

    def counted(self):
        return len(trial.Silent())

    def unpacked(self):
        return dict(**trial.Silent())

    def unwritten(self):
        policy = trial.plane_policy(trial.config_of(trial.DATA_PLANE))
        policy.prepare_step(num_samples=2, group_size=2)
        return policy.dp_client.get_samples(["0"], "train", select_fields=["new"])


@pytest.mark.parametrize("what", [name for name in vars(Odd) if not name.startswith("_")])
def test_an_exception_of_a_stand_in_is_said_to_be_one(what):
    def grpo_train(**_):
        getattr(Odd(), what)()

    said = refusal("grpo_train", SimpleNamespace(grpo_train=grpo_train))
    assert "stand-in of the test" in said and "`nemo_rl.self_test: false`" in said, said


def test_an_exception_of_nemo_rls_own_is_not(monkeypatch):
    old, new, _ = CALLS["no estimator"]
    changed(monkeypatch, nemo_grpo, ["grpo_train"], old, new)
    assert "stand-in" not in refusal() and "`nemo_rl.self_test: false`" in refusal()


class Wrapped:
    """What an estimator of a later contract may return."""

    def __init__(self, advantages):
        self.values = advantages


def test_a_trainer_that_takes_what_estimators_do_not_return_is_refused(monkeypatch, step):
    monkeypatch.setattr(estimator, "result_type", lambda: Wrapped)
    with pytest.raises(ConfigError, match=r"its trainer: .*Wrapped"):
        self_test.check("its trainer", step)


def changed(monkeypatch, owner, names, old, new):
    """These functions of NeMo-RL with other source text."""
    module = inspect.getmodule(owner)
    for name in names:
        function = getattr(owner, name)
        source = textwrap.dedent(inspect.getsource(function))
        text = source.replace(old, new)
        assert text != source, f"{name} has no {old}"
        file = f"<{name}: {new}>"
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        made = {}
        exec(compile(text, file, "exec"), vars(module), made)
        monkeypatch.setattr(owner, name, made[name])


def refusal(name="grpo_train", module=nemo_grpo):
    """Why a trainer is refused, "" where it is not."""
    try:
        self_test.check(name, functools.partial(trial.step, getattr(module, name)))
    except ConfigError as error:
        return str(error)
    return ""


# what NeMo-RL's loss reads by another name or computes otherwise, and what is said of it
PARTS = {
    "a renamed key of the batch": (
        "curr_logprobs_unfiltered",
        "curr_logprobs_raw",
        r"(?s)^(?!.*with grpo and).*with quatro and .* has loss .* instead of loss -0.1771",
    ),
    "a renamed attribute": (
        "self.ratio_clip_min",
        "self.ratio_clip_low",
        "a step of grpo_train: (TypeError|AttributeError)",
    ),
    "another formula": (
        "loss2 = -advantages",
        "loss2 = -1.1 * advantages",
        "with grpo and a KL penalty of 0.5 has loss",
    ),
    "another divisor": (
        'data["prev_logprobs"]',
        'data["generation_logprobs"]',
        "with grpo .* has loss .* instead of loss -0.0033",
    ),
    "a key that is gone": (
        'data["sample_mask"]',
        'data["row_mask"]',
        # once, not for each method
        r"^[^\n]*\n  a step of grpo_train: KeyError: 'row_mask'\n[^\n]*$",
    ),
}


@pytest.mark.parametrize(("old", "new", "said"), PARTS.values(), ids=PARTS)
def test_another_loss_is_refused(monkeypatch, old, new, said):
    names = ["__call__", "__init__"] if old.startswith("self.") else ["__call__"]
    changed(monkeypatch, loss_functions.ClippedPGLossFn, names, old, new)
    assert re.search(said, refusal()), refusal()


def test_a_renamed_key_of_its_config_is_refused(monkeypatch):
    fields = dict(loss_functions.ClippedPGLossConfig.model_fields)
    fields["clip_low"] = fields.pop("ratio_clip_min")
    renamed = type("Config", (), {"model_fields": fields})
    monkeypatch.setattr(self_test, "ClippedPGLossConfig", renamed)
    assert "ClippedPGLossConfig has no ratio_clip_min" in refusal()


# what a trainer calls by another name, adds or leaves out
CALLS = {
    "an argument more": ("rewards=rewards,\n", "rewards=rewards, lengths=rewards,\n", "lengths"),
    "no estimator": (".compute_advantage(", ".advantages_of(", "advantages_of"),
    "log pi_old": ("logprobs_policy=", "old_logprobs=", "old_logprobs"),
    "the mask": ("mask=mask", "response_mask=mask", "response_mask"),
    "the policy's log-probs": ("policy.get_logprobs(", "policy.logprobs(", "logprobs"),
    "the policy's training": ("policy.train(", "policy.learn(", "learn"),
    "a parameter": ("val_dataloader", "validation", "val_dataloader"),
    "a parameter more": ("tokenizer: TokenizerType,", "tokenizer: Any, clock: Any,", "clock"),
    "other advantages": ("= adv_estimator.compute", "= 0.9 * adv_estimator.compute", "changed"),
    "an early end": ("    total_steps =", "    return\n    total_steps =", "ends before"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_trainer_with_another_call_is_refused(monkeypatch, call):
    old, new, message = CALLS[call]
    changed(monkeypatch, nemo_grpo, ["grpo_train"], old, new)
    assert message in refusal()


def test_a_trainer_that_waits_for_ever_is_refused(monkeypatch):
    monkeypatch.setattr(trial.Replay, "size", lambda _: time.sleep(9))
    assert "it waits for what this step does not have" in refusal("async_grpo_train")


def test_a_helper_around_the_call_is_not_refused(monkeypatch):
    """As in NVIDIA-NeMo/RL#3757, where the call moved out of the trainer."""

    def helper(adv_estimator, **given):
        return adv_estimator.compute_advantage(**given)

    monkeypatch.setattr(nemo_grpo, "helper", helper, raising=False)
    old, new = "adv_estimator.compute_advantage(\n", "helper(\n adv_estimator,"
    changed(monkeypatch, nemo_grpo, ["grpo_train"], old, new)
    assert refusal() == ""


def test_columns_that_a_step_does_not_fetch_are_missed(monkeypatch):
    monkeypatch.setattr(trial, "columns_registered", lambda _: nullcontext())
    monkeypatch.setattr(policy, "fetched_fields", lambda *_: {})
    assert "KeyError: 'nemo_algos_signal_" in refusal("grpo_train_sync", grpo_sync)


def test_a_step_that_names_its_fields_fetches_the_columns_too(ref, monkeypatch):
    """As in NVIDIA-NeMo/RL#3742; v0.7.0's has no names, and fetches what is registered."""
    monkeypatch.setattr(trial, "columns_registered", lambda _: nullcontext())
    missed = "KeyError: 'nemo_algos_signal_" in refusal("grpo_train_sync", grpo_sync)
    assert missed == (ref == "v0.7.0")


def test_a_setup_that_returns_something_else_is_refused(monkeypatch):
    changed(monkeypatch, nemo_grpo, ["setup"], "    CheckpointManager,\n", "")
    with pytest.raises(ConfigError, match="setup returns no checkpointer"):
        versions.check()


def test_setups_values_are_found_by_their_types(monkeypatch):
    swapped = ("    Logger,\n    CheckpointManager,", "    CheckpointManager,\n    Logger,")
    changed(monkeypatch, nemo_grpo, ["setup"], *swapped)
    annotation = nemo_grpo.setup.__annotations__["return"]

    def setup() -> annotation:
        return tuple(range(13))

    assert versions.setup_result(setup) == {
        "policy": 0,
        "policy_generation": 1,
        "dataloader": 4,
        "val_dataloader": 5,
        "checkpointer": 7,
        "logger": 8,
        "grpo_save_state": 9,
        "master_config": 10,
        "nemo_gym": 2,
    }


@pytest.mark.parametrize("broken", ["__init__", "compute_advantage"])
def test_an_estimator_of_grpo_that_cannot_be_asked_is_a_sentence(monkeypatch, broken):
    stock = estimator.advantage_estimator.GRPOAdvantageEstimator

    def fail(*_, **__):
        raise AttributeError("no std_mode")

    monkeypatch.setattr(stock, broken, fail)
    with pytest.raises(ConfigError, match="GRPO estimator raises AttributeError: no std_mode"):
        estimator.result_type.__wrapped__()
