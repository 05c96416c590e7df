"""Our losses, gradients and advantages against verl's and TRL's own functions (see the adapters).

Both sides get the same float64 batch and the same advantages; verl's advantages are compared apart.
`make test-peers` runs this in an environment that has both peers.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import peer_cases
import pytest
import torch
import trl_peer
import verl_peer
from peer_cases import SEEDS, Batch, Result, batch, differentiate, ours, rows_per_response
from torch import Tensor

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.rollouts import Rollouts

KL = 0.1
DUAL_CLIP = 1.5  # the ratio of every batch goes beyond it
CUT = ("positive_above", "negative_below")  # where the surrogate cuts the gradient
ABOVE = ("positive_above", "negative_above")
ANY_SIDE = (*CUT, "positive_below", "negative_above")  # CISPO bounds its weight for any A
exactly = partial(torch.testing.assert_close, rtol=0, atol=1e-12)  # found: 1e-16
every_seed = pytest.mark.parametrize("seed", SEEDS)
every_mean = pytest.mark.parametrize("mean", ["sequence", "token"])
Loss = Callable[[Rollouts, Tensor, Tensor, float], Tensor]


def verl(name: str, mean: str, **settings: Any) -> Loss:
    """verl's loss with its KL term, which has the loss's mean (and leaves empty rows out)."""

    def loss(rollouts: Rollouts, logprobs: Tensor, advantages: Tensor, kl_coef: float) -> Tensor:
        mask, given = rollouts.mask, {"aggregation": mean, **settings}
        value = verl_peer.loss(name, rollouts.old_logprobs, logprobs, advantages, mask, **given)
        if name == "geo_mean":
            value = value * rows_per_response(mask)
        kl = verl_peer.kl(logprobs, rollouts.ref_logprobs, mask, aggregation=mean)
        return value + kl_coef * kl

    return loss


def trl(mean: str, **settings: Any) -> Loss:
    """TRL's loss; its `beta` is our kl_coef."""

    def loss(rollouts: Rollouts, logprobs: Tensor, advantages: Tensor, kl_coef: float) -> Tensor:
        given = {"ref_logprobs": rollouts.ref_logprobs, "beta": kl_coef, **settings}
        mask = rollouts.mask
        value = trl_peer.loss(rollouts.old_logprobs, logprobs, advantages, mask, **given)
        return value * rows_per_response(mask) if mean == "sequence" else value

    return loss


class Case(NamedTuple):
    """Our `method:` block, the peer's loss, and the sides on which the bounds must bite."""

    method: dict[str, Any]
    peer: Loss
    bites: tuple[str, ...] = CUT


def clip(low: float, high: float, prefix: str = "clip") -> dict[str, float]:
    return {f"{prefix}_low": low, f"{prefix}_high": high}


def cases() -> Iterator[tuple[str, Case]]:
    yield "gpg/verl", Case({"name": "gpg"}, verl("gpg", "token"), ())
    yield "erpo/verl", Case({"name": "erpo"}, verl("vanilla", "token"))
    for low, high in ((0.2, 0.2), (0.1, 0.3)):
        method = {"name": "cispo", **clip(low, high)}
        peer = verl("cispo", "token", **clip(low, high))
        yield f"cispo-{low}-{high}/verl", Case(method, peer, ANY_SIDE)
        peer = trl("token", loss_type="cispo", epsilon_high=1 + high)
        yield f"cispo-1-{high}/trl", Case({**method, "clip_low": 1.0}, peer, ABOVE)
    for low, high in ((0.4, 0.4), (0.3, 0.5)):
        method = {"name": "gmpo", **clip(low, high, "log_clip")}
        peer = verl("geo_mean", "sequence", **clip(low, high))
        yield f"gmpo-{low}-{high}/verl", Case(method, peer)
    level = {"loss_type": "grpo", "importance_sampling_level": "sequence"}
    for low, high in ((0.2, 0.2), (0.1, 0.3), (3e-4, 4e-4)):
        method = {"name": "gspo", **clip(low, high)}
        peer = verl("gspo", "sequence", **clip(low, high))
        yield f"gspo-{low}-{high}/verl", Case(method, peer)
        peer = trl("sequence", epsilon=low, epsilon_high=high, **level)
        yield f"gspo-{low}-{high}/trl", Case(method, peer)
    # GRPO .2/.2, Clip-High .2/.28 (sequence), DAPO .2/.28 (token), each with a dual clip too
    kinds = {"sequence": ("grpo",), "token": ("dapo", "bnpo")}  # TRL's loss types
    for high, mean, dual in product((0.2, 0.28), kinds, (None, DUAL_CLIP)):
        bounds = {**clip(0.2, high), "dual_clip": dual}
        method, name = {"name": "grpo", "aggregation": mean, **bounds}, f"grpo-{high}-{mean}-{dual}"
        yield f"{name}/verl", Case(method, verl("vanilla", mean, **bounds))
        for kind in kinds[mean]:
            peer = trl(mean, loss_type=kind, epsilon=0.2, epsilon_high=high, delta=dual)
            yield f"{name}/trl-{kind}", Case(method, peer)


CASES = dict(cases())


@pytest.mark.parametrize("kl_coef", [0.0, KL], ids=["", "kl"])
@every_seed
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient(name: str, seed: int, kl_coef: float) -> None:
    case = CASES[name]
    data = batch(seed)
    got, sums = ours(case.method, data, kl_coef)
    for side in case.bites:
        assert sums[side] > 0, f"no token is {side}: the bounds are not tested"
    advantages = build(case.method).signals(data.rollouts).advantages
    want = differentiate(lambda x: case.peer(data.rollouts, x, advantages, kl_coef), data.logprobs)
    assert want.grad.abs().max() > 1e-3
    peer = "verl 0.9.1" if name.endswith("/verl") else "TRL 1.16"
    errors = ((a - b).abs().max().item() for a, b in zip(got, want, strict=True))
    peer_cases.record(case.method["name"], peer, *errors)
    exactly(got.loss, want.loss)
    exactly(got.grad, want.grad)


def unbiased(mean: str, data: Batch) -> Result:
    """Our KL term alone, as the difference that its coefficient makes."""
    method = {"name": "grpo", "aggregation": mean}
    kl = {"reference_policy_kl_type": "unbiased"}
    (with_kl, _), (without, _) = (ours(method, data, coef, **kl) for coef in (1.0, 0.0))
    return Result(with_kl.loss - without.loss, with_kl.grad - without.grad)


@every_seed
@pytest.mark.parametrize(("kind", "mean"), [("grpo", "sequence"), ("bnpo", "token")])
def test_unbiased_kl_is_trls(kind: str, mean: str, seed: int) -> None:
    """With its use_bias_correction_kl."""
    data = batch(seed)
    case = trl(mean, loss_type=kind, use_bias_correction_kl=True)
    advantages = torch.zeros_like(data.rollouts.rewards)
    want = differentiate(lambda x: case(data.rollouts, x, advantages, 1.0), data.logprobs)
    assert want.loss > 0.01
    exactly(unbiased(mean, data), want)


@every_seed
@every_mean
def test_unbiased_kl_is_verls_where_every_ratio_is_1(mean: str, seed: int) -> None:
    """verl's `k3+` takes the sampler for the policy itself, so it lacks the ratio of the others."""
    data = batch(seed)
    given = data.rollouts.ref_logprobs, data.rollouts.mask
    want = differentiate(
        lambda x: verl_peer.kl(x, *given, aggregation=mean, kind="k3+"), data.logprobs
    )
    assert want.loss > 0.01
    at_start = data._replace(rollouts=replace(data.rollouts, old_logprobs=data.logprobs))
    exactly(unbiased(mean, at_start), want)
    ratio = (data.logprobs - data.rollouts.old_logprobs).exp()
    exactly(unbiased(mean, data).grad[given[1]], (want.grad * ratio)[given[1]])


@every_seed
@pytest.mark.parametrize("std", ["sample", "none"])
def test_group_advantages_are_verls(std: str, seed: int) -> None:
    """No group of one: verl's A is then R. The flat group's mean is exact, so verl's A is 0 too."""
    rollouts = batch(seed).rollouts
    got = build({"name": "grpo", "advantage_std": std}).signals(rollouts).advantages[:, 0]
    want = verl_peer.advantages_grpo(
        rollouts.rewards, rollouts.mask, rollouts.group.tolist(), normalise=std == "sample"
    )
    assert got.abs().max() > 1
    exactly(got[:, None].where(rollouts.mask, 0.0), want)


@every_seed
def test_gpg_advantages_are_verls_without_its_factor(seed: int) -> None:
    """verl multiplies by B / (rewards that are not 0), in float32."""
    rollouts = batch(seed).rollouts
    got = build("gpg").signals(rollouts).advantages.where(rollouts.mask, 0.0)
    factor = rollouts.rewards.numel() / int(torch.count_nonzero(rollouts.rewards))
    assert factor > 1, "no reward is 0: verl's factor is not tested"
    group = rollouts.group.tolist()
    want = verl_peer.advantages_gpg(rollouts.rewards, rollouts.mask, group) / factor
    torch.testing.assert_close(got, want, rtol=1e-7, atol=5e-8)
