"""The driver half behind NeMo-RL's protocol, and the hand-over to the loss."""

import math
from importlib import import_module
from types import SimpleNamespace

import batches
import nemo_batch
import pytest
import torch
from nemo_batch import METHODS
from nemo_rl.algorithms import grpo, grpo_sync
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from says import Says

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core import groups
from nemo_algos.algorithms.rollouts import Rollouts
from nemo_algos.engines.nemo import columns, versions
from nemo_algos.engines.nemo.derived_config import ESTIMATOR
from nemo_algos.engines.nemo.estimator import OUTCOMES, Estimator, Forward, row_hash, tensor_of
from nemo_algos.engines.nemo.loss import AlgorithmLoss
from nemo_algos.engines.nemo.patches import CREATORS, DEVIATIONS, FACTORY, in_place
from nemo_algos.engines.nemo.policy import PolicyProxy


def master(name):
    """What a factory reads of a MasterConfig, in both versions' styles."""
    section = {"name": name, "normalize_rewards": True, "use_leave_one_out_baseline": True}
    both = type("Section", (dict,), {"__getattr__": dict.__getitem__})
    return SimpleNamespace(grpo=both(adv_estimator=both(section)), loss_fn=nemo_batch.config())


def computed(name="etr", **own):
    rollouts, _ = batches.make(seed=1, large=False)
    estimator = Estimator(build(name), **own)
    estimator.forward = Forward(rollouts.entropy)
    advantages = nemo_batch.advantages_of(estimator, rollouts, teacher_logprobs=None)
    return estimator, advantages, rollouts


@pytest.mark.parametrize("name", METHODS)
def test_advantages_are_the_methods_own(name):
    estimator, advantages, rollouts = computed(name)
    wanted = build(name).signals(rollouts, {})
    assert advantages.dtype == torch.float32 and advantages.shape == rollouts.mask.shape
    torch.testing.assert_close(advantages, wanted.advantages.float().expand(rollouts.mask.shape))
    entropy = rollouts.entropy[rollouts.mask].mean().item()
    known = {"entropy/exact": pytest.approx(entropy), "groups/flat_share": 0.4}  # 2 of 5
    assert estimator.step.metrics == {**known, **wanted.metrics}
    signals = estimator.signals_for(advantages)
    assert tuple(signals) == tuple(columns.names(build(name)).values())
    for value in signals.values():  # in a shape that NeMo-RL carries
        assert value.dtype == torch.float32
        assert value.shape in (rollouts.mask.shape, rollouts.mask.shape[:1])


def test_signals_are_handed_over_once():
    """And a method without a memory keeps nothing in NeMo-RL's state."""
    kept = []
    estimator, advantages, _ = computed(keep=kept.append)
    assert not kept and not estimator.memory
    estimator.signals_for(advantages)
    with pytest.raises(ValueError, match="already trained"):
        estimator.signals_for(advantages)


def test_a_row_that_stands_in_for_a_response_is_of_no_group():
    """Its placeholder reward would be in the mean of the others."""
    group, rewards = (
        torch.tensor([[3], [3], [3], [5], [5], [5]]),
        torch.tensor([1.0, 0, 0, 0, 1, 9]),
    )
    valid = torch.tensor([1.0, 1, 1, 1, 1, 0])
    mask, old = torch.ones(6, 2), torch.zeros(6, 2)
    estimator = Estimator(build("grpo"), group_size=3)
    given = {"logprobs_policy": old, "sample_mask": valid}
    with_it = tensor_of(
        estimator.compute_advantage(group, rewards, mask, **given, valid_mask=valid)
    )
    pair = 0.5 / torch.tensor([0.0, 1.0]).std()
    assert torch.allclose(with_it[3:, 0], torch.tensor([-pair, pair, 0.0]), atol=1e-5)
    without = tensor_of(estimator.compute_advantage(group, rewards, mask, **given))
    assert torch.equal(with_it[:3], without[:3])
    assert not torch.allclose(with_it[3:5], without[3:5])


def some_arguments(**others):
    zeros = torch.zeros(2, 3)
    known = {"prompt_ids": zeros, "rewards": zeros[:, 0], "mask": zeros + 1, "repeated_batch": {}}
    return known | {"logprobs_policy": zeros} | others


def test_a_renamed_or_missing_argument_is_named():
    renamed = some_arguments(policy_logprobs=torch.zeros(2, 3))
    del renamed["logprobs_policy"]
    with pytest.raises(TypeError, match="policy_logprobs"):
        Estimator(build("etr")).compute_advantage(**renamed)
    del renamed["policy_logprobs"]
    with pytest.raises(TypeError, match="logprobs_policy"):
        Estimator(build("etr")).compute_advantage(**renamed)
    with pytest.raises(TypeError, match="temperature"):
        Estimator(build("etr")).compute_advantage(**some_arguments(temperature=0.5))


def of_groups(*labels, generations=4, name="etr", **others):
    """compute_advantage of rows with these prompts."""
    rows, rewards = len(labels), (torch.arange(len(labels)) % 3 == 0).float()
    ones = torch.ones(rows, 2)
    estimator = Estimator(build(name), generations)
    logprobs = ("logprobs_policy", "logprobs_reference", "generation_logprobs")
    arguments = {"mask": ones, **dict.fromkeys(logprobs, -ones), **others}
    prompts = torch.tensor(labels)[:, None]
    estimator.forward = Forward(ones)
    return estimator, tensor_of(
        estimator.compute_advantage(
            prompt_ids=prompts, rewards=rewards, repeated_batch={}, **arguments
        )
    )


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    ("labels", "size", "number"),
    [
        ([1, 1, 1, 2, 2, 2, 2], 3, 1),  # its one right response was dropped
        ([1, 1, 1, 1, 2, 2, 2, 2, 3], 1, 1),  # cut at the end of the batch
        ([1, 2, 1, 2, 1, 2], 3, 2),
        ([1] * 7, 7, 1),  # one prompt drawn twice, one of its groups cut
    ],
)
def test_an_incomplete_group_is_refused_with_its_size(name, labels, size, number):
    keys = "grpo.use_leave_one_out_baseline grpo.use_dynamic_sampling"
    wanted = Says(f"{size} {number} grpo.num_generations_per_prompt 4 {keys}")
    with pytest.raises(ValueError) as error:
        of_groups(*labels, name=name)
    assert str(error.value) == wanted


def test_an_incomplete_group_is_refused_beside_one_whose_responses_did_not_come():
    came = torch.tensor([1.0] * 4 + [1, 1, 0, 0])
    of_groups(*[1] * 4, *[2] * 4, valid_mask=came)
    with pytest.raises(ValueError) as error:
        of_groups(*[1] * 4, *[2] * 4, *[3] * 3, valid_mask=torch.cat([came, torch.ones(3)]))
    assert str(error.value) == Says("3 1 grpo.num_generations_per_prompt 4")


@pytest.mark.parametrize("labels", [[1, 2] * 4, [5] * 8, [3] * 4 + [4] * 8])
def test_prompts_that_were_drawn_twice_are_one_group(labels):
    _, advantages = of_groups(*labels)
    rewards = (torch.arange(len(labels)) % 3 == 0).double()
    want = groups.advantages(rewards, groups.Groups.of(torch.tensor(labels)))
    torch.testing.assert_close(advantages, want[:, None].expand(-1, 2).float())


@pytest.mark.parametrize("leave_one_out", [True, False])
@pytest.mark.parametrize("place", [grpo, grpo_sync])
def test_deviations_are_0_in_flat_groups_and_nowhere_else(place, leave_one_out):
    """By NeMo-RL's own, a part of a group is dropped or kept."""
    stock, in_part = getattr(place, DEVIATIONS), 0
    with in_place(Estimator(build("etr"))):
        ours = getattr(place, DEVIATIONS)
    assert getattr(place, DEVIATIONS) is stock
    for seed in range(40):
        rng = torch.Generator().manual_seed(seed)
        equal = torch.ones(5) + 1.2e-7 * torch.eye(5)[0]  # but for float32's rounding
        kinds = (torch.rand(1, generator=rng).expand(5), torch.eye(5)[0], equal)
        rewards = torch.cat([*kinds, torch.rand(5, generator=rng)])
        order = torch.randperm(20, generator=rng)
        prompts = torch.arange(4).repeat_interleave(5)[order, None].expand(20, 3)
        given = (prompts, rewards[order], torch.ones(20))
        baseline, std = ours(*given, leave_one_out_baseline=leave_one_out)
        theirs = stock(*given, leave_one_out_baseline=leave_one_out)
        assert torch.equal(baseline, theirs[0]) and std.dtype == theirs[1].dtype
        assert torch.equal(std != 0, (prompts[:, 0] == 1) | (prompts[:, 0] == 3))
        kept = torch.bincount(prompts[:, 0][theirs[1] != 0], minlength=4)
        in_part += bool(((kept > 0) & (kept < 5)).any())
    assert in_part > 5


# Of 4 rows: what NeMo-RL's token_mask and sample_mask were with the log-probs, and which rows its
# `mask` still has.
MASKED = {
    "nothing masked": ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1), (True,) * 4),
    "masked from the start": ((1, 1, 1, 1), (1, 1, 0, 1), (1, 1, 0, 1), (True, True, False, True)),
    "masked afterwards": ((1, 1, 1, 1), (1, 1, 1, 1), (0, 1, 1, 1), (False, True, True, True)),
    "an empty response": ((1, 0, 1, 1), (1, 1, 1, 1), (1, 0, 1, 1), (True,) * 4),
    "empty and masked": ((1, 0, 1, 1), (1, 0, 1, 1), (1, 0, 1, 1), (True, False, True, True)),
    "all masked": ((1, 1, 1, 1), (0, 0, 0, 0), (0, 0, 0, 0), (False,) * 4),
}


@pytest.mark.parametrize("case", MASKED)
@pytest.mark.parametrize("trainer", ["sync", "async"])
def test_masked_rows_take_no_part_in_batch_statistics(case, trainer):
    """APMPO's, by hand: p = exp(-.8 mean), of the rewards 1, 0, 0, 1."""
    token_rows, sample, rows, kept = MASKED[case]
    tokens = torch.tensor(token_rows)[:, None].expand(4, 2).float()
    mask = torch.tensor(rows)[:, None].expand(4, 2).float()
    final = torch.tensor(kept).float()
    estimator = Estimator(build("apmpo"))
    policy = SimpleNamespace(get_logprobs=lambda data: {"logprobs": tokens})
    PolicyProxy(policy, estimator).get_logprobs(
        {"token_mask": tokens, "sample_mask": torch.tensor(sample).float()}
    )
    advantages = tensor_of(
        estimator.compute_advantage(
            prompt_ids=torch.zeros(4, 1),
            rewards=torch.tensor([1.0, 0.0, 0.0, 1.0]),
            mask=mask,
            repeated_batch={},
            logprobs_policy=-tokens,
            **({"sample_mask": final} if trainer == "async" else {}),
        )
    )
    fields = estimator.signals_for(advantages)
    counted = [r for r, k in zip((1, 0, 0, 1), kept, strict=True) if k] or [1, 0, 0, 1]
    exponent = math.exp(-0.8 * sum(counted) / len(counted))
    torch.testing.assert_close(fields["nemo_algos_signal_exponent"], torch.full((4,), exponent))
    assert estimator.step.metrics["rollouts/masked_share"] == 1 - sum(kept) / 4
    assert advantages.isfinite().all()
    # in the group every reward counts, as in NeMo-RL's own estimator
    assert advantages[:, 0].tolist() == pytest.approx([1, -1, -1, 1], rel=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_prompts_that_were_cut_to_their_first_tokens_break_nothing(name):
    """Three such prompts of four responses each are one group, all masked; one prompt is whole."""
    labels, kept = torch.tensor([7] * 12 + [8] * 4), torch.arange(16) >= 12
    rng = torch.Generator().manual_seed(0)
    rewards = (torch.rand(16, generator=rng) < 0.5).float()
    tokens, old = torch.ones(16, 6), -torch.rand(16, 6, generator=rng)
    entropy, ref = torch.rand(16, 6, generator=rng), old - 0.1 * torch.rand(16, 6, generator=rng)

    whole = Rollouts(labels, rewards, tokens > 0, old, ref, entropy, gen_logprobs=old)

    def loss_of(rows):
        estimator = Estimator(build(name), 4)
        estimator.forward = Forward(entropy[rows], (tokens[rows], kept[rows]))
        sample, mask = kept[rows].float(), tokens[rows] * kept[rows, None]
        advantages = nemo_batch.advantages_of(estimator, whole[rows], mask=mask, repeated_batch={})
        logprobs = {"prev_logprobs": old[rows], "generation_logprobs": old[rows]}
        masks = {"token_mask": tokens[rows], "sample_mask": sample}
        data = {"advantages": advantages, **logprobs, **masks, **estimator.signals_for(advantages)}
        loss = AlgorithmLoss(nemo_batch.config(), build(name))
        return nemo_batch.loss_and_gradient(loss, old[rows][:, 1:] + 0.2, data)

    value, gradient, _ = loss_of(slice(None))
    alone, wanted, _ = loss_of(slice(12, None))
    assert value.isfinite() and (gradient[:12] == 0).all()
    torch.testing.assert_close(value, alone)
    torch.testing.assert_close(gradient[12:], wanted)


def test_entropy_of_another_batch_is_refused():
    estimator = Estimator(build("erpo"))
    estimator.forward = Forward(torch.zeros(3, 4))
    zeros = torch.zeros(2, 4)
    with pytest.raises(ValueError, match=r"entropy has shape \[3, 4\]"):
        estimator.compute_advantage(zeros, zeros[:, 0], zeros, {}, zeros, zeros)


def test_row_hash_is_equal_for_equal_rows_only():
    rows = torch.cartesian_prod(*[torch.arange(6)] * 5)  # 7776 different rows
    assert len(row_hash(rows).unique()) == len(rows)
    assert torch.equal(row_hash(rows.repeat(2, 1)), row_hash(rows).repeat(2))


def test_every_factory_is_replaced_and_restored():
    """By name: NeMo-RL's other modules import the one of grpo."""
    stock, estimator = getattr(grpo, FACTORY), Estimator(build("etr"))
    places = [import_module(name) for name in CREATORS if versions.present(name)]
    with in_place(estimator):
        for place in places:
            create = getattr(place, FACTORY)
            assert create(master(ESTIMATOR)) is create(master("grpo")) is estimator
    assert all(getattr(place, FACTORY) is stock for place in places)


def test_an_unpatched_trainer_refuses_the_name():
    """So that no path can run GRPO in a method's name."""
    with pytest.raises(ValueError, match=f"Invalid adv_estimator name: {ESTIMATOR}"):
        grpo._create_advantage_estimator(master(ESTIMATOR))


@pytest.mark.parametrize("bypass", [False, True])
def test_a_step_trains_on_its_own_log_probs(bypass):
    """log pi_old is what NeMo-RL computed in this step, and the sampler's only in bypass mode."""
    given, trained = [], []

    def train(batch, loss_fn):
        trained.append(batch["prev_logprobs"])
        return {"all_mb_metrics": {}}

    algorithm = build("etr", {"bypass_mode": bypass})
    proxy = PolicyProxy(SimpleNamespace(train=train), estimator := Estimator(algorithm))
    mask, rows = torch.ones(4, 3), torch.ones(4)
    for step in range(3):
        old, sampler = mask * -step, mask * -step - 0.25
        advantages = tensor_of(
            estimator.compute_advantage(
                prompt_ids=torch.zeros(4, 1),
                rewards=torch.tensor([1.0, 0.0, 0.0, 1.0]),
                mask=mask,
                logprobs_policy=old,
                generation_logprobs=sampler,
            )
        )
        data = {"advantages": advantages, "prev_logprobs": old, "generation_logprobs": sampler}
        proxy.train(BatchedDataDict({**data, "token_mask": mask, "sample_mask": rows}), None)
        given.append(sampler if bypass else old)
    torch.testing.assert_close(trained, given, rtol=0, atol=0)


@pytest.mark.parametrize("module", [grpo, grpo_sync])
@pytest.mark.parametrize(
    ("name", "kept"), [("grpo", [True, False, False]), ("gdpo", [True, True, False])]
)
def test_a_group_is_flat_by_its_outcomes_or_by_each_part(module, name, kept, ref):
    """Of three groups: one with sums that differ, one with parts that do, one without either."""
    prompts = torch.tensor([[1], [1], [2], [2], [3], [3]])
    first = torch.tensor([1.0, 0, 1, 0, 1, 1])
    second = torch.tensor([1.0, 1, 0, 1, 1, 1])
    names = ("reward1", "reward2") if ref == "v0.7.0" else ("reward/a", "reward/b")
    parts = dict(zip(names, (first, second), strict=True))
    batch = BatchedDataDict({"total_reward": first + second, **parts})
    with in_place(Estimator(build(name))):
        scaling = {"enabled": False}
        batch = module.scale_rewards(
            batch, SimpleNamespace(**scaling) if ref == "main" else scaling
        )
        batch["unshaped_total_reward"] = batch["total_reward"].clone()
        shaped = batch["total_reward"] - torch.arange(6) / 10  # no two are equal
        _, std = module.calculate_baseline_and_std_per_prompt(prompts, shaped, torch.ones(6))
    assert (std != 0).tolist() == [k for k in kept for _ in range(2)]


def test_the_data_plane_hands_on_what_tells_a_success():
    """Of a newer NeMo-RL with `grpo.length_penalty`, whose batch keeps env_reward."""
    batch = dict.fromkeys(("total_reward", "env_reward", OUTCOMES))
    with in_place(Estimator(build("etr"))):
        assert {*grpo_sync.get_gdpo_reward_component_keys(batch)} == {"env_reward", OUTCOMES}
