"""The driver half behind NeMo-RL's protocol, the patch of its factories, and the hand-over to the
loss."""

from types import SimpleNamespace

import batches
import nemo_batch
import pytest
import torch
from nemo_rl.algorithms import grpo
from nemo_rl.algorithms.advantage_estimator import GRPOAdvantageEstimator
from nemo_rl.distributed.batched_data_dict import BatchedDataDict

from nemo_algos.methods import METHODS
from nemo_algos.methods.build import build
from nemo_algos.nemo import versions
from nemo_algos.nemo.estimator import CREATORS, FACTORY, Estimator, in_place, row_hash
from nemo_algos.nemo.policy import PolicyProxy


def master(name):
    """What a factory reads of a MasterConfig, in both versions' styles."""
    section = {"name": name, "normalize_rewards": True, "use_leave_one_out_baseline": True}
    both = type("Section", (dict,), {"__getattr__": dict.__getitem__})
    return SimpleNamespace(grpo=both(adv_estimator=both(section)), loss_fn=nemo_batch.config())


def computed(name="etr"):
    rollouts, _ = batches.make(seed=1, large=False)
    estimator = Estimator(build(name))
    estimator.entropy = rollouts.entropy
    advantages = estimator.compute_advantage(
        prompt_ids=rollouts.group[:, None],
        rewards=rollouts.rewards,
        mask=rollouts.mask.float(),
        repeated_batch={},
        logprobs_policy=rollouts.old_logprobs,
        logprobs_reference=rollouts.ref_logprobs,
        teacher_logprobs=None,
    )
    return estimator, advantages, rollouts


@pytest.mark.parametrize("name", METHODS)
def test_advantages_are_the_methods_own(name):
    estimator, advantages, rollouts = computed(name)
    wanted = build(name).signals(rollouts)
    columns = wanted.columns(rollouts.mask, torch.float32).advantages
    assert advantages.dtype == torch.float32 and advantages.shape == rollouts.mask.shape
    torch.testing.assert_close(advantages, columns.expand(rollouts.mask.shape))
    assert estimator.last_metrics == dict(wanted.metrics)


@pytest.mark.parametrize("name", METHODS)
def test_signals_are_the_shapes_that_nemo_rl_carries_and_are_named_beforehand(name):
    estimator, advantages, rollouts = computed(name)
    signals = estimator.signals_for(advantages)
    assert tuple(signals) == Estimator(build(name)).field_names()
    for value in signals.values():
        assert value.dtype == torch.float32
        assert value.shape in (rollouts.mask.shape, rollouts.mask.shape[:1])


def test_signals_are_handed_over_once():
    estimator, advantages, _ = computed()
    estimator.signals_for(advantages)
    with pytest.raises(ValueError, match="twice on one set of advantages"):
        estimator.signals_for(advantages)


@pytest.mark.parametrize("change", [lambda a: a.flip(0), lambda a: a.clamp(max=0.5)])
def test_reordered_or_clipped_advantages_are_refused(change):
    estimator, advantages, _ = computed()
    with pytest.raises(ValueError, match="reordered or changed"):
        estimator.signals_for(change(advantages))


def test_skipped_logprobs_are_refused():
    with pytest.raises(ValueError, match="force_on_policy_ratio: false"):
        Estimator(build("etr")).compute_advantage(
            torch.zeros(2, 1), torch.zeros(2), torch.ones(2, 3)
        )


def test_entropy_of_another_batch_is_refused():
    estimator = Estimator(build("erpo"))
    estimator.entropy = torch.zeros(3, 4)
    zeros = torch.zeros(2, 4)
    with pytest.raises(ValueError, match=r"entropy has shape \[3, 4\]"):
        estimator.compute_advantage(zeros, zeros[:, 0], zeros, {}, zeros, zeros)


def test_row_hash_is_equal_for_equal_rows_only():
    rows = torch.cartesian_prod(*[torch.arange(6)] * 5)  # 7776 different rows
    assert len(row_hash(rows).unique()) == len(rows)
    assert torch.equal(row_hash(rows.repeat(2, 1)), row_hash(rows).repeat(2))


@pytest.mark.parametrize("module", [m for m in CREATORS if versions.present(m)])
def test_every_factory_is_replaced_and_restored(module):
    from importlib import import_module

    place = import_module(module)
    stock, estimator = getattr(place, FACTORY), Estimator(build("etr"))
    with in_place(estimator):
        create = getattr(place, FACTORY)
        assert create(master("nemo_algos")) is estimator
        assert isinstance(create(master("grpo")), GRPOAdvantageEstimator)
    assert getattr(place, FACTORY) is stock


def test_an_unpatched_trainer_refuses_the_name():
    with pytest.raises(ValueError, match="nemo_algos"):
        grpo._create_advantage_estimator(master("nemo_algos"))


def test_the_proxy_adds_signals_logs_metrics_and_forwards_the_rest():
    estimator, advantages, _ = computed()
    seen = {}

    class Policy:
        flag = 1

        def train(self, data, loss_fn, timer=None):
            seen.update(data)
            return {"all_mb_metrics": {"loss": [1.0]}}

    policy = Policy()
    proxy = PolicyProxy(policy, estimator)
    zeros, rows = torch.zeros_like(advantages), torch.ones(len(advantages))
    logprobs = {"prev_logprobs": zeros, "generation_logprobs": zeros - 0.25}
    masks = {"token_mask": zeros + 1, "sample_mask": rows}
    data = BatchedDataDict({"advantages": advantages, **logprobs, **masks})
    results = proxy.train(data, None, timer=None)
    proxy.flag = 2
    assert policy.flag == proxy.flag == 2
    assert {"nemo_algos_row_low", "nemo_algos_row_high"} <= seen.keys()
    assert "nemo_algos_row_low" not in data
    assert results["all_mb_metrics"]["etr/radius_positive"] == [
        estimator.last_metrics["etr/radius_positive"]
    ]
    assert results["all_mb_metrics"]["mismatch/mean"] == [0.25]


def test_the_version_guard_names_what_changed(monkeypatch):
    versions.check()
    monkeypatch.setattr(versions, "BOUND", (("nemo_rl.algorithms.grpo", "grpo_train", ("nope",)),))
    with pytest.raises(ImportError, match=r"grpo_train has no parameter nope"):
        versions.check()
    monkeypatch.setattr(versions, "BOUND", (("nemo_rl.algorithms.grpo", "gone", ()),))
    with pytest.raises(ImportError, match="gone"):
        versions.check()
