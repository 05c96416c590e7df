"""The guard's numbers against direct formulas in float64; a changed NeMo-RL is refused by name."""

import inspect
import linecache
import math
import textwrap

import pytest
import torch
from nemo_rl.algorithms.loss import loss_functions

from nemo_algos.algorithms.methods import STUDIED
from nemo_algos.engines.nemo import advantage_call, estimator, launch, self_test, versions

OLD, REF, NEW, H = (
    x[:, 1:].double()
    for x in (
        self_test.OLD,
        self_test.REFERENCE,
        self_test.CURRENT,
        self_test.ENTROPY,
    )
)
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
    return float(total), float((gradient * self_test.DIRECTION).sum())


@pytest.mark.parametrize("name", STUDIED)
def test_numbers_are_the_formulas(name):
    assert self_test.ANSWERS[name] == pytest.approx(direct(name), rel=1e-6)
    call = advantage_call.of(launch.grpo.grpo_train)
    assert self_test.answer(name, call) == pytest.approx(direct(name), rel=1e-5)


def trainers():
    """All that call an estimator; the last is the single controller's stage, not in v0.7.0."""
    from nemo_rl.algorithms.grpo_sync import grpo_train_sync

    yield from (launch.grpo.grpo_train, launch.grpo.async_grpo_train, grpo_train_sync)
    if versions.present(versions.CONTROLLER):
        yield controller()._advantage_stage


def controller():
    from nemo_rl.algorithms import single_controller

    return single_controller.SingleControllerActor.__ray_metadata__.modified_class


def test_this_nemo_rl_is_known():
    versions.check()
    for trainer in trainers():
        self_test.check(trainer)
        if trainer.__name__ != "_advantage_stage":
            versions.check_trainer(trainer)


class Wrapped:
    """What an estimator of a later contract may return."""

    def __init__(self, advantages):
        self.values = advantages


@pytest.mark.parametrize("number", range(4))
def test_a_trainer_that_takes_what_estimators_do_not_return_is_refused(monkeypatch, number, ref):
    """Its own lines are run on what they return."""
    if number == 3 and ref == "v0.7.0":
        number = 0
    trainer = [*trainers()][number]
    module = inspect.getmodule(trainer)
    owner = controller() if trainer.__name__ == "_advantage_stage" else module
    name, call = trainer.__name__, advantage_call.of(trainer)
    assert torch.equal(call.taken(estimator.result_type()(self_test.OLD)), self_test.OLD)
    monkeypatch.setattr(self_test, "result_type", lambda: Wrapped)
    monkeypatch.setattr(estimator, "result_type", lambda: Wrapped)
    with pytest.raises(ImportError, match=rf"{name}.*estimators"):
        self_test.check(getattr(owner, name))


def changed(monkeypatch, owner, names, old, new):
    """These functions of NeMo-RL with other source text."""
    module = inspect.getmodule(owner)
    for name in names:
        function = getattr(owner, name)
        text = textwrap.dedent(inspect.getsource(function)).replace(old, new)
        file = f"<{name}: {new}>"
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        space = dict(vars(module))
        exec(compile(text, file, "exec"), space)
        monkeypatch.setattr(owner, name, space[name])


LOSS = loss_functions.ClippedPGLossFn


def test_a_renamed_key_is_refused_by_name(monkeypatch):
    changed(monkeypatch, LOSS, ["__call__"], "curr_logprobs_unfiltered", "curr_logprobs_raw")
    with pytest.raises(ImportError, match=r"__call__ does not know curr_logprobs_unfiltered$"):
        versions.check()
    with pytest.raises(ImportError, match=r"quatro has loss .* instead of loss -0.1771") as error:
        self_test.check(launch.grpo.grpo_train)
    assert "grpo has" not in str(error.value)


def test_a_renamed_attribute_is_refused_by_name(monkeypatch):
    names = ["__call__", "__init__"]
    changed(monkeypatch, LOSS, names, "self.ratio_clip_min", "self.ratio_clip_low")
    with pytest.raises(ImportError, match=r"does not know ratio_clip_min$"):
        versions.check()
    with pytest.raises(ImportError, match="the loss of etr raises TypeError"):
        self_test.check(launch.grpo.grpo_train)


def test_another_formula_under_the_same_names_is_refused(monkeypatch):
    changed(monkeypatch, LOSS, ["__call__"], "loss2 = -advantages", "loss2 = -1.1 * advantages")
    versions.check()
    with pytest.raises(ImportError, match="grpo has loss"):
        self_test.check(launch.grpo.grpo_train)


def test_a_loss_that_divides_by_the_sampler_is_refused(monkeypatch):
    old, new = 'data["prev_logprobs"]', 'data["generation_logprobs"]'
    changed(monkeypatch, LOSS, ["__call__"], old, new)
    with pytest.raises(ImportError, match=r"grpo has loss .* instead of loss -0.0033"):
        self_test.check(launch.grpo.grpo_train)


def test_a_renamed_key_of_its_config_is_refused(monkeypatch):
    fields = dict(loss_functions.ClippedPGLossConfig.model_fields)
    fields["clip_low"] = fields.pop("ratio_clip_min")
    renamed = type("Config", (), {"model_fields": fields})
    monkeypatch.setattr(self_test, "ClippedPGLossConfig", renamed)
    with pytest.raises(ImportError, match="ClippedPGLossConfig has no ratio_clip_min"):
        self_test.check(launch.grpo.grpo_train)


def test_a_loss_that_raises_is_refused(monkeypatch):
    changed(monkeypatch, LOSS, ["__call__"], 'data["sample_mask"]', 'data["row_mask"]')
    with pytest.raises(ImportError, match="the loss of gspo raises KeyError: 'row_mask'"):
        self_test.check(launch.grpo.grpo_train)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rewards=rewards,\n", "rewards=rewards,\n    lengths=rewards,\n", "lengths"),
        ("adv_estimator.compute_advantage(", "adv_estimator.advantages_of(", "compute_advantage"),
    ],
)
def test_a_trainer_with_another_call_of_the_estimator_is_refused(monkeypatch, old, new, message):
    changed(monkeypatch, launch.grpo, ["grpo_train"], old, new)
    with pytest.raises(ImportError, match=message):
        self_test.check(launch.grpo.grpo_train)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("logprobs_policy=", "old_logprobs=", "grpo_train does not know logprobs_policy"),
        ("mask=mask", "response_mask=mask", "grpo_train does not know mask"),
        ("policy.get_logprobs(", "policy.logprobs(", "does not know policy.get_logprobs"),
        ("policy.train(", "policy.step(", "does not know policy.train"),
        ("val_dataloader", "validation", "grpo_train has no parameter val_dataloader"),
        (
            "tokenizer: TokenizerType,",
            "tokenizer: TokenizerType, clock: Any,",
            "grpo_train asks for clock",
        ),
    ],
)
def test_a_trainer_with_other_arguments_is_refused(monkeypatch, old, new, message):
    changed(monkeypatch, launch.grpo, ["grpo_train"], old, new)
    with pytest.raises(ImportError, match=message):
        versions.check_trainer(launch.grpo.grpo_train)


def test_a_setup_that_returns_something_else_is_refused(monkeypatch):
    changed(monkeypatch, launch.grpo, ["setup"], "    CheckpointManager,\n", "")
    with pytest.raises(ImportError, match="setup returns no checkpointer"):
        versions.check()


def test_setups_values_are_found_by_their_types(monkeypatch):
    swapped = ("    Logger,\n    CheckpointManager,", "    CheckpointManager,\n    Logger,")
    changed(monkeypatch, launch.grpo, ["setup"], *swapped)
    annotation = launch.grpo.setup.__annotations__["return"]

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
    }


@pytest.mark.parametrize("broken", ["__init__", "compute_advantage"])
def test_an_estimator_of_grpo_that_cannot_be_asked_is_a_sentence(monkeypatch, broken):
    stock = estimator.advantage_estimator.GRPOAdvantageEstimator

    def fail(*_, **__):
        raise AttributeError("no std_mode")

    monkeypatch.setattr(stock, broken, fail)
    with pytest.raises(ImportError, match="GRPO estimator raises AttributeError: no std_mode"):
        estimator.result_type.__wrapped__()
