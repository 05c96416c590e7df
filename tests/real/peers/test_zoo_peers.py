"""The zoo's methods that verl, TRL or ms-swift have too, against their own code.

Loss and gradient to 1e-10 in float64. Where the paper's gradient has no loss of our form (a penalty
beside the surrogate) the gradient alone is compared. Numbers of every method are in tests/golden.
NEMO_ALGOS_PARITY=file.csv writes the largest differences found, from which docs/methods/zoo.md is
generated (scripts/method_index.py).
"""

import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import peer_cases
import pytest
import torch
import trl_peer
import verl_peer
from frameworks_by_source import SWIFT_TRAINER, Off, swift_advantages, swift_function
from peer_cases import SEEDS, Batch, Result, differentiate, ours, rows_per_response
from peer_cases import batch as made
from torch import Tensor
from trl.trainer import grpo_trainer

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.rollouts import Rollouts

TOLERANCE = 1e-10
VERL, TRL, SWIFT = "verl 0.9.1", "TRL 1.16", "ms-swift 4.6"


class Case(NamedTuple):
    """Our `method:` block; the loss to be compared with, from a batch; what it is.

    gradient_only: its value is not ours; rewards: "binary", "rounded" (with ties) or "normal".
    """

    method: dict[str, Any]
    against: str
    loss: Callable[[Batch, Tensor], Tensor]
    gradient_only: bool = False
    rewards: str = "binary"
    holes: bool = True
    on_policy: bool = False


def batch(seed: int, case: Case) -> Batch:
    """peer_cases' with the sampler's log-probs, and 0 or 1 as the reward of most."""
    rollouts, logprobs = made(seed)
    random = torch.Generator().manual_seed(seed + 100)
    shape, normal = rollouts.mask.shape, partial(torch.randn, generator=random, dtype=torch.float64)
    mask = rollouts.mask
    if not case.holes:
        mask = torch.arange(shape[1]) < mask.sum(1, keepdim=True)
    rewards = rollouts.rewards
    if case.rewards == "binary":
        rewards = (rewards > 0.3).double().where(rewards < 1.2, 0.7)
        rewards[rollouts.group == 0] = 1.0
    if case.rewards == "rounded":
        rewards = (2 * rewards).round() / 2
    gen = rollouts.old_logprobs + 0.4 * normal(shape)
    logprobs = rollouts.old_logprobs.clone() if case.on_policy else logprobs.clamp(max=-1e-3)
    changes = {"gen_logprobs": gen, "rewards": rewards, "mask": mask}
    return Batch(replace(rollouts, **changes), logprobs)


# ---- what several losses are made of


def group_of(data: Batch) -> list[int]:
    return data.rollouts.group.tolist()


def per_group(data: Batch, f: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """[B]: f(rewards, rows) of each group, put together."""
    out = torch.zeros(len(data.rollouts), dtype=torch.float64)
    for label in data.rollouts.group.unique():
        rows = (data.rollouts.group == label).nonzero()[:, 0]
        out[rows] = f(data.rollouts.rewards[rows], rows)
    return out


def normalised(data: Batch) -> Tensor:
    """GRPO's advantages, [B]."""

    def of(rewards: Tensor, rows: Tensor) -> Tensor:
        return (rewards - rewards.mean()) / (rewards.std() + 1e-6)

    return per_group(data, of)


def clipped(data: Batch, logprobs: Tensor, A: Tensor, low: float, high: float) -> Tensor:
    """PPO's terms, [B,S], to be maximised."""
    ratio = (logprobs - data.rollouts.old_logprobs).exp()
    return torch.minimum(ratio * A, ratio.clamp(1 - low, 1 + high) * A)


def token_mean(data: Batch, terms: Tensor) -> Tensor:
    """The loss whose terms [B,S] are to be maximised."""
    return -terms[data.rollouts.mask].sum() / data.rollouts.mask.sum()


def sequence_mean(data: Batch, terms: Tensor) -> Tensor:
    rows = [row[own].mean() for row, own in zip(terms, data.rollouts.mask, strict=True)]
    return -torch.stack([r for r in rows if not r.isnan()]).mean()


# ---- losses of the peers


def by_verl(data: Batch, logprobs: Tensor, *, estimator: str, **algorithm: Any) -> Tensor:
    """verl's advantages in its PPO loss."""
    rollouts = data.rollouts
    A = verl_peer.advantages(
        estimator, rollouts.rewards, rollouts.mask, group_of(data), **algorithm
    )
    return verl_peer.loss("vanilla", rollouts.old_logprobs, logprobs, A, rollouts.mask)


def verl_loss(data: Batch, logprobs: Tensor, *, name: str, **settings: Any) -> Tensor:
    """A registered loss of verl's, with GRPO's advantages by verl."""
    rollouts = data.rollouts
    A = verl_peer.advantages_grpo(rollouts.rewards, rollouts.mask, group_of(data))
    return verl_peer.loss(name, rollouts.old_logprobs, logprobs, A, rollouts.mask, **settings)


def trl_loss(
    data: Batch,
    logprobs: Tensor,
    *,
    loss_type: Any,
    rows: bool = False,
    centred: bool = False,
    entropies: bool = False,
    sampled: bool = False,
    **settings: Any,
) -> Tensor:
    """TRL's loss; rows: it divides by all of them; centred: advantages without the std."""
    r = data.rollouts
    A = per_group(data, lambda x, _: x - x.mean()) if centred else normalised(data)
    value = trl_peer.loss(
        r.old_logprobs,
        logprobs,
        A,
        r.mask,
        loss_type=loss_type,
        entropies=r.entropy if entropies else None,
        sampled=r.gen_logprobs if sampled else None,
        **settings,
    )
    return value * rows_per_response(r.mask) if rows else value


def by_swift(data: Batch, logprobs: Tensor, *, estimator: str) -> Tensor:
    A = swift_advantages(estimator, data.rollouts.rewards, group_of(data), "none")
    return token_mean(data, clipped(data, logprobs, A[:, None], 0.2, 0.2))


def swift_fipo(data: Batch, logprobs: Tensor) -> Tensor:
    """The influence weight of loss_type=fipo, with its defaults."""
    r, A = data.rollouts, normalised(data)[:, None]
    settings = SimpleNamespace(
        args=Off(),
        fipo_gamma=2 ** (-1 / 32),
        fipo_clip_range=0.2,
        fipo_clip_high_only=True,
        fipo_safety_threshold=4.0,
    )
    weigh = swift_function(SWIFT_TRAINER, "_compute_fipo_influence")
    gap = (logprobs - r.old_logprobs).detach()
    weight = weigh(settings, gap, gap.exp(), A, r.mask)[0]
    return token_mean(data, weight * clipped(data, logprobs, A, 0.2, 0.28))


def swift_opsm(data: Batch, logprobs: Tensor) -> Tensor:
    r, A = data.rollouts, normalised(data)
    keep = swift_function(SWIFT_TRAINER, "_compute_off_policy_sequence_mask")
    settings = Off(off_policy_sequence_mask_delta=0.1)
    kept = keep(settings, logprobs.detach(), r.gen_logprobs, r.mask, A)
    assert 0 < kept.sum() < len(kept)
    return sequence_mean(data, kept[:, None] * clipped(data, logprobs, A[:, None], 0.2, 0.2))


def cases() -> Iterator[Case]:
    def verl(name: str, setting: str, against: str = "", **keys: Any) -> Case:
        loss = partial(by_verl, estimator=setting, **keys)
        return Case({"name": name}, f"{VERL} adv_estimator={setting}{against}", loss)

    for name in ("rloo", "opo"):
        yield verl(name, name)
        yield verl(name, name)._replace(rewards="normal")
    best = verl("pass_at_k", "grpo_passk", "", norm_adv_by_std_in_grpo=False)
    yield best._replace(rewards="rounded")
    stock = {"name": "pass_at_k", "advantage_std": "sample"}
    for kind in ("rounded", "normal"):
        best = verl("pass_at_k", "grpo_passk", " (its default)")
        yield best._replace(method=stock, rewards=kind)
    yield verl("reinforce_pp", "reinforce_plus_plus")
    yield verl("reinforce_pp_baseline", "reinforce_plus_plus_baseline")
    swift = partial(by_swift, estimator="rloo")
    yield Case({"name": "rloo"}, f"{SWIFT} advantage_estimator=rloo", swift)
    trl = partial(trl_loss, loss_type="dr_grpo", rows=True, centred=True, max_completion_length=50)
    yield Case({"name": "dr_grpo", "max_tokens": 50}, f"{TRL} loss_type=dr_grpo", trl)

    trl = partial(trl_loss, loss_type="dapo", epsilon_high=0.28, entropies=True)
    top = partial(trl, top_entropy_quantile=0.2)
    yield Case({"name": "high_entropy"}, f"{TRL} top_entropy_quantile=0.2", top)
    method = {"name": "clip_cov", "share": 1.0, "lower": 0.5, "upper": 2.0}
    keys = {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.5, "clip_cov_ub": 2.0}
    loss = partial(verl_loss, name="clip_cov", **keys)
    yield Case(
        method, f"{VERL} loss_mode=clip_cov, at pi_old, every candidate", loss, on_policy=True
    )
    method = {"name": "kl_cov", "share": 1.0, "kl_coef": 0.1}
    loss = partial(verl_loss, name="kl_cov", kl_cov_ratio=1.0)
    yield Case(method, f"{VERL} loss_mode=kl_cov, every token", loss, gradient_only=True)

    yield Case({"name": "sapo"}, f"{VERL} loss_mode=sapo", partial(verl_loss, name="sapo"))
    trl = partial(trl_loss, loss_type="sapo", rows=True)
    as_float32 = {"name": "sapo", "tau_negative": float(torch.tensor(1.05))}  # TRL's temperature is
    yield Case(as_float32, f"{TRL} loss_type=sapo", trl)
    yield Case({"name": "fipo"}, f"{SWIFT} loss_type=fipo", swift_fipo, holes=False)
    trl = partial(trl_loss, loss_type="grpo", rows=True, sampled=True)
    trl = partial(trl, off_policy_mask_threshold=0.1)
    yield Case({"name": "opsm"}, f"{TRL} off_policy_mask_threshold", trl)
    yield Case({"name": "opsm"}, f"{SWIFT} off_policy_sequence_mask_delta", swift_opsm)

    trl = partial(trl_loss, loss_type="luspo", importance_sampling_level="sequence", rows=True)
    trl = partial(trl, epsilon=2e-3, epsilon_high=2.5e-3)
    yield Case({"name": "luspo"}, f"{TRL} loss_type=luspo", trl)
    trl = partial(trl_loss, loss_type="vespo")
    yield Case({"name": "vespo"}, f"{TRL} loss_type=vespo", trl)

    for kind, delta in (("tv", 0.2), ("kl", 0.05)):
        bounds = {"clip_low": delta, "clip_high": delta}
        loss = partial(verl_loss, name=f"dppo_{kind}", dual_clip=20.0, **bounds)
        yield Case({"name": f"dppo_{kind}"}, f"{VERL} loss_mode=dppo_{kind}, cap 20", loss)
        loss = partial(verl_loss, name=f"dppo_{kind}", dual_clip=1.5, clip_low=0.01, clip_high=0.02)
        method = {"name": f"dppo_{kind}", "low": 0.01, "high": 0.02, "cap": 1.5}
        yield Case(method, f"{VERL} loss_mode=dppo_{kind}, tight", loss)
    method = {"name": "dro", "advantage_std": "sample", "beta": 0.3}
    loss = partial(verl_loss, name="dro", dro_beta=0.3)
    yield Case(method, f"{VERL} loss_mode=dro", loss, gradient_only=True)


CASES = list(cases())


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.method['name']}/{c.against}")
def test_loss_and_gradient(case: Case) -> None:
    for seed in SEEDS:
        data = batch(seed, case)
        got, _ = ours(case.method, data, 0.0)
        want = differentiate(lambda x, data=data: case.loss(data, x), data.logprobs)
        assert want.grad.abs().max() > 1e-4
        errors = difference(got, want)
        found = (None if case.gradient_only else errors[0], errors[1])
        peer_cases.record(case.method["name"], case.against, *found)
        assert max(error for error in found if error is not None) < TOLERANCE, (seed, errors)


def difference(got: Result, want: Result) -> tuple[float, float]:
    return float((got.loss - want.loss).abs()), float((got.grad - want.grad).abs().max())


# ---- what the trainers do where nothing is set


@pytest.mark.parametrize("seed", SEEDS)
def test_verls_own_defaults(seed: int) -> None:
    """GRPO's advantages, PPO's clip with its dual clip of 3, a token mean."""
    data = batch(seed, CASES[0])
    method = {"name": "grpo", "aggregation": "token", "dual_clip": 3.0}
    r = data.rollouts
    A = verl_peer.advantages_grpo(r.rewards, r.mask, group_of(data))
    want = differentiate(
        lambda x: verl_peer.own_defaults(r.old_logprobs, x, A, r.mask), data.logprobs
    )
    assert max(difference(ours(method, data, 0.0)[0], want)) < 1e-12


@pytest.mark.parametrize("seed", SEEDS)
def test_trls_own_defaults(seed: int) -> None:
    """DAPO's token mean at .2/.2; its advantages are ours but for std + 1e-4 where we add 1e-6."""
    data = batch(seed, CASES[0])

    def trls(rewards: Tensor, rows: Tensor) -> Tensor:
        return (rewards - rewards.mean()) / (rewards.std() + 1e-4)

    def factor(rewards: Tensor, rows: Tensor) -> Tensor:
        return ((rewards.std() + 1e-6) / (rewards.std() + 1e-4)).expand(len(rewards))

    A, r = per_group(data, trls), data.rollouts
    own = build("grpo").signals(r).advantages[:, 0]
    torch.testing.assert_close(own * per_group(data, factor), A, rtol=0, atol=1e-12)
    config = trl_peer.config()
    settings = {k: getattr(config, k) for k in ("loss_type", "epsilon", "beta")}
    assert settings == {"loss_type": "dapo", "epsilon": 0.2, "beta": 0.0}
    args = (r.old_logprobs, own, r.mask)
    want = differentiate(
        lambda x: trl_peer.loss(args[0], x, *args[1:], loss_type="dapo"), data.logprobs
    )
    method = {"name": "grpo", "aggregation": "token"}
    assert max(difference(ours(method, data, 0.0)[0], want)) < 1e-12


# ---- GDPO: the lines of TRL's normalize_then_sum, taken out of its trainer as they stand

BRANCH = 'elif self.multi_objective_aggregation == "normalize_then_sum":'


def trls(parts, weights):
    """The lines of the branch, on rewards [B,K] of groups of 4."""
    source = inspect.getsource(grpo_trainer.GRPOTrainer._generate_and_score_completions)
    body = source.split(f"{BRANCH}\n", 1)[1].split("\n        else:\n", 1)[0]
    trainer = SimpleNamespace(reward_funcs=[None] * parts.shape[1], reward_weights=weights)
    names = {**vars(grpo_trainer), "self": trainer, "device": "cpu", "num_generations": 4}
    names |= {"rewards_per_func": parts, "unscorable_mask": torch.zeros(len(parts)).bool()}
    # TRL divides counts, which are integers, in the default dtype: in float32 it is off by 4e-8
    torch.set_default_dtype(torch.float64)
    try:
        exec(textwrap.dedent(body), names)
    finally:
        torch.set_default_dtype(torch.float32)
    return names["advantages"]


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.3, 2.0)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_gdpo_is_trls_normalize_then_sum(weights, seed):
    rng = torch.Generator().manual_seed(seed)
    parts = torch.rand(16, 2, generator=rng, dtype=torch.float64).round(decimals=1)
    parts[:4, 0] = 1.0  # a group without a spread
    named = dict(zip(("right", "brief"), weights, strict=True))
    rollouts = Rollouts(
        torch.arange(4).repeat_interleave(4),
        parts.sum(1),
        torch.ones(16, 1).bool(),
        torch.zeros(16, 1),
        reward_parts=dict(zip(named, parts.T, strict=True)),
        reward_weights=named,
    )
    got = build({"name": "gdpo", "epsilon": 1e-4}).signals(rollouts).advantages[:, 0]
    want = trls(parts, torch.tensor(weights, dtype=torch.float64))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
    assert got.abs().max() > 0.5
