"""The guard's numbers against direct formulas in float64; a changed NeMo-RL is refused by name."""

import functools
import inspect
import linecache
import math
import textwrap
import time
from contextlib import nullcontext

import pytest
import torch
from nemo_rl.algorithms import grpo as nemo_grpo
from nemo_rl.algorithms import grpo_sync
from nemo_rl.algorithms.loss import loss_functions

from nemo_algos import config as strict
from nemo_algos.algorithms.methods import STUDIED
from nemo_algos.engines.nemo import estimator, policy, self_test, trial, versions
from nemo_algos.preflight.check import launcher

OLD = trial.OLD[:, 1:].double()
REF = trial.REFERENCE[:, 1:].double()
NEW = trial.CURRENT[:, 1:].double()
H = trial.ENTROPIES[:, 1:].double()
ROWS = (slice(0, 3), slice(0, 2))  # the tokens of the two responses
OUTCOME = torch.tensor([1.0, -1.0], dtype=torch.float64) * 0.5
SAMPLE, POPULATION = OUTCOME / (math.sqrt(0.5) + 1e-6), OUTCOME / (0.5 + 1e-6)


def clipped(ratio, advantage, low=0.2, high=0.2):
    return torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def grpo(ratio, i):
    return clipped(ratio, SAMPLE[i]).mean()


def gspo(ratio, i):
    return clipped(ratio.log().mean().exp(), SAMPLE[i])


def gmpo(ratio, i):
    sign = (1, -1)[i]
    return SAMPLE[i] * (sign * (sign * ratio.log()).clamp(max=0.4)).mean().exp()


def etr(ratio, i):
    radius = 0.2 + 0.1 * math.tanh(SAMPLE[i]) + 0.1 * 4 * 0.5 * 0.5
    return clipped(ratio, SAMPLE[i], radius, radius).mean()


def quatro(ratio, i):
    """Two rewards 0 and 1: the KL of the tilted distribution from uniform is delta at lambda."""
    low, high = 1e-3, 1e3
    for _ in range(200):
        lam = math.sqrt(low * high)
        q = 1 / (1 + math.exp(-1 / lam))
        kl = q * math.log(2 * q) + (1 - q) * math.log(2 * (1 - q)) if q < 1 else 1.0
        low, high = (lam, high) if kl > 0.01 else (low, lam)
    advantage = (1 - i) / lam - math.log((math.exp(1 / lam) + 1) / 2)
    s = ratio.log().sum().exp()
    return s * (advantage - s.detach().log())


def apmpo(ratio, i):
    p, fss = math.exp(-0.8 * 0.5), 0.5 / (0.5 + 1e-6)
    high = 0.2 + 0.2 * math.tanh(fss)
    u = clipped(ratio, POPULATION[i], 0.2, high).abs()
    return (1, -1)[i] * u.pow(p).mean().pow(1 / p)


def gpg(ratio, i):
    return OUTCOME[i] * (OLD[i, ROWS[i]] + ratio.log())


def cispo(ratio, i):
    return ratio.detach().clamp(0.8, 1.2) * SAMPLE[i] * (OLD[i, ROWS[i]] + ratio.log())


def erpo(ratio, i):
    return clipped(ratio, erpo_advantages()[i])


def erpo_advantages():
    """Buckets hold tokens j K // |o|: 0, 3, 6 of the first response, 0 and 5 of the second, K = 10.

    So only the two first tokens are compared, with z-scores of +-1.
    """
    entropy = torch.cat([H[0], H[1, :2]])
    gate = 1 / (1 + (-5 * (entropy - entropy.mean()) / entropy.std(correction=0)).exp())
    gap = 0.1 * (OLD - REF)[:, 0]
    z = (gap - gap.mean()) / (gap.std(correction=0) + 1e-6)
    psi = torch.zeros(5, dtype=torch.float64)
    psi[0], psi[3] = gate[0] * z[0], -gate[3] * z[1]
    values = SAMPLE.repeat_interleave(torch.tensor([3, 2])) + 0.2 * psi / (
        psi.std(correction=0) + 1e-6
    )
    values = (values - values.mean()) / (values.std(correction=0) + 1e-6)
    return values[:3], values[3:]


TERMS = {
    "grpo": grpo,
    "gspo": gspo,
    "gmpo": gmpo,
    "etr": etr,
    "quatro": quatro,
    "apmpo": apmpo,
    "erpo": erpo,
    "gpg": gpg,
    "cispo": cispo,
}


def direct(name):
    """-J + 0.5 KL; NeMo-RL's k3 has the gradient of its sampling probability, too."""
    new = NEW.clone().requires_grad_()
    by_token = name in ("erpo", "gpg", "cispo")
    total = torch.zeros((), dtype=torch.float64)
    for i, row in enumerate(ROWS):
        logprobs = new[i, row]
        gap = REF[i, row] - logprobs
        kl = (logprobs - logprobs.detach()).exp() * (gap.exp() - gap - 1)
        terms = 0.5 * kl - TERMS[name]((logprobs - OLD[i, row]).exp(), i)
        total = total + (terms.sum() / 5 if by_token else terms.mean() / 2)
    (gradient,) = torch.autograd.grad(total, new)
    return float(total), float((gradient * trial.DIRECTION).sum())


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
    from nemo_algos.engines.nemo import single_controller

    written = strict.read(strict.find("single_controller.yaml"))
    master_config = launcher.compose(written).master_config
    return functools.partial(single_controller.trial_step, master_config)


@pytest.mark.parametrize("name", STUDIED)
def test_numbers_are_the_formulas(name, step):
    assert self_test.ANSWERS[name] == pytest.approx(direct(name), rel=1e-6)
    assert self_test.answer(name, step) == pytest.approx(direct(name), rel=1e-5)


def test_this_nemo_rl_is_known(step):
    versions.check()
    self_test.check("its trainer", step)


class Wrapped:
    """What an estimator of a later contract may return."""

    def __init__(self, advantages):
        self.values = advantages


def test_a_trainer_that_takes_what_estimators_do_not_return_is_refused(monkeypatch, step):
    monkeypatch.setattr(estimator, "result_type", lambda: Wrapped)
    with pytest.raises(ImportError, match=r"its trainer: .*Wrapped"):
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


LOSS = loss_functions.ClippedPGLossFn


def refusal(name="grpo_train", module=nemo_grpo):
    """Why a trainer is refused, "" where it is not."""
    try:
        self_test.check(name, functools.partial(trial.step, getattr(module, name)))
    except ImportError as error:
        return str(error)
    return ""


def test_a_renamed_key_of_the_batch_is_refused(monkeypatch):
    changed(monkeypatch, LOSS, ["__call__"], "curr_logprobs_unfiltered", "curr_logprobs_raw")
    said = refusal()
    assert "with quatro has loss" in said and "instead of loss -0.1771" in said
    assert "with grpo" not in said


def test_a_renamed_attribute_is_refused(monkeypatch):
    names = ["__call__", "__init__"]
    changed(monkeypatch, LOSS, names, "self.ratio_clip_min", "self.ratio_clip_low")
    assert "a step of grpo_train: TypeError" in refusal()


def test_another_formula_under_the_same_names_is_refused(monkeypatch):
    changed(monkeypatch, LOSS, ["__call__"], "loss2 = -advantages", "loss2 = -1.1 * advantages")
    assert "with grpo has loss" in refusal()


def test_a_loss_that_divides_by_the_sampler_is_refused(monkeypatch):
    old, new = 'data["prev_logprobs"]', 'data["generation_logprobs"]'
    changed(monkeypatch, LOSS, ["__call__"], old, new)
    said = refusal()
    assert "with grpo has loss" in said and "instead of loss -0.0033" in said


def test_a_renamed_key_of_its_config_is_refused(monkeypatch):
    fields = dict(loss_functions.ClippedPGLossConfig.model_fields)
    fields["clip_low"] = fields.pop("ratio_clip_min")
    renamed = type("Config", (), {"model_fields": fields})
    monkeypatch.setattr(self_test, "ClippedPGLossConfig", renamed)
    assert "ClippedPGLossConfig has no ratio_clip_min" in refusal()


def test_a_loss_that_raises_is_refused_once(monkeypatch):
    changed(monkeypatch, LOSS, ["__call__"], 'data["sample_mask"]', 'data["row_mask"]')
    assert refusal().count("a step of grpo_train: KeyError: 'row_mask'") == 1


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
    with pytest.raises(ImportError, match="setup returns no checkpointer"):
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
    with pytest.raises(ImportError, match="GRPO estimator raises AttributeError: no std_mode"):
        estimator.result_type.__wrapped__()
