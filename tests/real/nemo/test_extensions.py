"""Loss terms, parts of the reward and a memory inside NeMo-RL, against the embedded engine."""

import functools
import json
from dataclasses import replace

import batches
import nemo_batch
import pytest
import torch
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from plugged import Plugged, assert_embedded

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.extensions.loss_config import LossConfig
from nemo_algos.algorithms.rollouts import prompt_key
from nemo_algos.engines.nemo import launch
from nemo_algos.engines.nemo.estimator import (
    MEMORY,
    prompt_keys,
    tensor_of,
)
from nemo_algos.engines.nemo.policy import PolicyProxy

NLL = {"terms": {"nll": {"coef": 0.5}}}
ADAPTIVE = {"adaptive_entropy": {"target": 9.0, "start": 0.2, "delta": 0.05, "largest": 1.0}}
PER_SEQUENCE = {"terms": {"nll": {"coef": 0.5, "aggregation": "sequence"}}}
EXTENDED = [
    {"name": "etr", **NLL},
    {"name": "grpo", **NLL},  # whose own loss is NeMo-RL's, untouched
    {"name": "gspo", **PER_SEQUENCE},
    {"name": "gpg", **NLL},
    {"name": "quatro", **PER_SEQUENCE},
    {"advantages": "gdpo", "bounds": "etr", **NLL},
]
DRIVERS = [
    {"name": "gdpo"},
    {"name": "gdpo", "reward_weights": {"reward2": 0.25}, "epsilon": 1e-4},
    {"name": "ema_baseline"},
    {"name": "spo", "forgetting": "constant"},
    {"name": "gspo", "advantages": {"name": "spo", "forgetting": "constant"}, "bounds": "etr"},
]
BY_TURN = ["turn_rloo", "turn_etr", "turn_quatro"]
DRIVERS += [{"name": name} for name in BY_TURN if nemo_batch.NAMED]


@pytest.mark.parametrize("block", EXTENDED, ids=str)
def test_a_loss_with_terms_is_the_embedded_one(block):
    batch = batches.make(seed=3, large=False)
    value, _, metrics, summary = nemo_batch.assert_embedded(block, batch)
    assert metrics["terms/nll"] == pytest.approx(summary["terms/nll"], rel=1e-6)
    assert metrics["loss"] == pytest.approx(float(value), rel=1e-6, abs=1e-7)
    bare = {k: v for k, v in block.items() if k != "terms"}
    without = batches.run(bare, batch, LossConfig()).value
    torch.testing.assert_close(without + metrics["terms/nll"], value, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("block", DRIVERS, ids=str)
def test_what_reads_parts_or_remembers_is_the_embedded_one(block):
    batch = batches.make(seed=3, large=False)
    parts = dict(zip(("reward1", "reward2"), batch.rollouts.reward_parts.values(), strict=True))
    nemo_batch.assert_embedded(block, batch, named=replace(batch.rollouts, reward_parts=parts))


def test_counts_are_of_the_global_batch_as_nemo_rl_cuts_it():
    """Its chunks are rows in order, dealt to the ranks; a term's counts are of each chunk."""
    algorithm = build(EXTENDED[0])
    rollouts, _ = batches.make(seed=2, large=False)
    data = nemo_batch.batch(algorithm, rollouts, batch_size=8)
    wide = {k: v for k, v in data.items() if torch.is_tensor(v)}
    shards = BatchedDataDict(wide).shard_by_batch_size(2, batch_size=8)
    (key,) = (k for k in data if k.endswith("term_nll"))
    for chunk in range(2):
        rows = [shard.get_batch(batch_idx=chunk, batch_size=4) for shard in shards]
        tokens = [r["token_mask"][:, 1:] * r["sample_mask"][:, None] for r in rows]
        weight = sum((t * r[key][:, None]).sum() for t, r in zip(tokens, rows, strict=True))
        assert float(weight) == pytest.approx(0.5)  # coef: each counted token 1 / their number


def test_without_terms_nothing_new_travels():
    rollouts, _ = batches.make(seed=2, large=False)
    keys = set(nemo_batch.batch(build("etr"), rollouts))
    with_terms = set(nemo_batch.batch(build(EXTENDED[0]), rollouts))
    assert {k.rpartition("_")[2] for k in with_terms - keys} == {"nll"} and not keys - with_terms


def test_a_term_leaves_out_what_has_no_weight_even_where_it_is_not_finite():
    rollouts, logprobs = batches.make(seed=5, large=False)
    failed = int((rollouts.rewards == 0).nonzero()[0])
    flat = replace(rollouts, rewards=rollouts.rewards.new_zeros(16), reward_parts=None)
    logprobs[failed, 0] = -torch.inf
    value, gradient, _ = nemo_batch.through(build({"name": "grpo", **NLL}), flat, logprobs)
    assert value == 0 and not gradient.any()


def test_named_parts_are_nemo_rls_components():
    algorithm = build({"name": "etr", "success_reward": "reward1"})
    rollouts, _ = batches.make(seed=4, large=False)
    data = nemo_batch.batch(algorithm, rollouts)
    named = replace(rollouts, reward_parts={"reward1": rollouts.column("right")})
    torch.testing.assert_close(
        data["nemo_algos_signal_low"], algorithm.signals(named).low[:, 0].float()
    )
    with pytest.raises(ValueError, match=r"'right'.* reward1, reward2"):
        nemo_batch.batch(build({"name": "etr", "success_reward": "right"}), rollouts)
    alone = replace(rollouts, reward_parts=None)
    with pytest.raises(ValueError, match=r"gdpo .*reward_parts"):
        nemo_batch.batch(build("gdpo"), alone)


def test_gdpo_and_nemo_rls_own_differ_by_the_baseline_and_by_epsilon_alone():
    """NeMo-RL's, its leave-one-out baseline off and all groups of several, is ours at epsilon 0."""
    estimator = pytest.importorskip("nemo_rl.algorithms.advantage_estimator").GDPOAdvantageEstimator
    section = type("Section", (dict,), {"__getattr__": dict.__getitem__})
    config = section(use_leave_one_out_baseline=False, normalize_rewards=True, reward_weights=None)
    rollouts = batches.make(seed=4, rewards=((0.0, 1.0, 0.3), (1.0, 0.0, 0.0, 1.0))).rollouts
    theirs = estimator(config, None).compute_advantage(
        prompt_ids=rollouts.group[:, None].float(),
        rewards=rollouts.rewards,
        mask=rollouts.mask,
        repeated_batch={k: v.float() for k, v in nemo_batch.components(rollouts).items()},
    )
    ours = build({"name": "gdpo", "epsilon": 1e-12}).signals(rollouts).advantages
    torch.testing.assert_close(ours, tensor_of(theirs)[:, :1].double(), rtol=1e-4, atol=1e-5)


# ---- the memory


def test_a_prompts_number_does_not_depend_on_the_padding_of_its_batch():
    narrow = prompt_keys(torch.tensor([[5, 6, 9], [7, 9, 9], [5, 6, 9]]), 9)
    wide = prompt_keys(torch.tensor([[7, 9, 9, 9, 9], [5, 6, 9, 9, 9]]), 9)
    assert narrow.tolist() == [prompt_key([5, 6]), prompt_key([7]), prompt_key([5, 6])]
    assert wide.tolist() == [prompt_key([7]), prompt_key([5, 6])]


# ---- NeMo-RL's own trainer

WHOLE = {"name": "spo", "forgetting": "constant", **NLL}


def plugged(path, method, *overrides, mode="fused"):
    """A run with the driver half as the launcher makes it."""
    made = Plugged(path, method, list(overrides), mode=mode)
    parts = {"checkpointer": made.run.checkpointer, "grpo_save_state": made.run.state}
    given = made.algorithm, made.run.config, made.run.tokenizer, parts
    made.estimator = launch.estimator_of(*given)
    made.proxy = PolicyProxy(made.run.policy, made.estimator)
    return made


@functools.cache
def trained(path):
    """Three steps of SPO with a term."""
    return plugged(path, WHOLE).train()


@pytest.fixture
def whole(in_process, tmp_path_factory):
    return trained(tmp_path_factory.getbasetemp() / "whole")


def test_a_run_resumed_by_nemo_rl_remembers_to_the_bit(whole, tmp_path):
    first = plugged(tmp_path, WHOLE, "grpo.max_num_steps=2").train()
    second = plugged(tmp_path, WHOLE)
    assert second.estimator.memory == first.estimator.memory != {}
    second.train()
    assert torch.equal(second.weights(), whole.weights())
    assert second.estimator.memory == whole.estimator.memory
    for metric in ("loss", "terms/nll", "spo/value", "spo/known_prompts"):
        assert second.series("train", metric) == [whole.run.logger.kept["train"][3][metric]]
    *_, info = sorted(tmp_path.glob("checkpoints/step_*/training_info.json"))
    assert MEMORY in json.loads(info.read_text())
    forgetful = plugged(tmp_path / "anew", WHOLE, "grpo.max_num_steps=1").train()
    assert forgetful.estimator.memory != whole.estimator.memory


@pytest.mark.parametrize(
    ("name", "mode"), [("etr", "unpacked"), ("gspo", "packed"), ("etr", "fused")]
)
@pytest.mark.usefixtures("in_process")
def test_an_entropy_bonus_is_the_embedded_engines(name, mode, tmp_path):
    """Four updates of NeMo-RL's own trainer, whose loss gets entropies by our workers' way."""
    made = Plugged(tmp_path, {"name": name, "terms": ADAPTIVE}, [], mode=mode).train()
    assert_embedded(made, "loss", "terms/adaptive_entropy")
    coefficients = made.series("train", "adaptive_entropy/coef")
    assert coefficients == pytest.approx([0.2, 0.25, 0.3])


def test_an_entropy_bonus_without_our_workers_is_refused():
    algorithm = build({"name": "etr", "terms": {"entropy": {}}})
    with pytest.raises(ValueError, match="entropy"):
        nemo_batch.through(algorithm, *batches.make(seed=3, large=False))


def test_packing_changes_nothing_of_a_term(whole, tmp_path):
    unpacked = plugged(tmp_path, WHOLE, mode="unpacked").train()
    torch.testing.assert_close(unpacked.weights(), whole.weights(), rtol=1e-4, atol=1e-6)
    want = pytest.approx(whole.series("train", "terms/nll"), rel=1e-4)
    assert unpacked.series("train", "terms/nll") == want
    assert all(x > 0 for x in want.expected)
