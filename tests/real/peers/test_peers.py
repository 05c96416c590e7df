"""Our losses, gradients and advantages against verl's and TRL's own functions (see the adapters).

Both sides get the same float64 batch and the same advantages; verl's advantages are compared apart.
`make test-peers` runs this in an environment that has both peers.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import parity
import pytest
import torch
import trl_peer
import verl_peer
from peer_cases import SEEDS, batch, differentiate, ours, rows_per_response
from torch import Tensor

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.rollouts import Rollouts

KL = 0.1
PEERS = {"verl": "verl 0.9.1", "trl": "TRL 1.16"}
DUAL_CLIP = 1.5  # the ratio of every batch goes beyond it
CUT = ("positive_above", "negative_below")  # where the surrogate cuts the gradient
ABOVE = ("positive_above", "negative_above")
ANY_SIDE = (*CUT, "positive_below", "negative_above")  # CISPO bounds its weight for any A
exactly = partial(torch.testing.assert_close, rtol=0, atol=1e-12)  # found: 1e-16


def verl(function: Callable[..., Tensor], mean: str, **settings: Any) -> Callable[..., Tensor]:
    """verl's loss with its KL term, which has the loss's mean (and leaves empty rows out)."""

    def loss(rollouts: Rollouts, logprobs: Tensor, advantages: Tensor, kl_coef: float) -> Tensor:
        mask = rollouts.mask
        value = function(rollouts.old_logprobs, logprobs, advantages, mask, **settings)
        if function is verl_peer.gmpo:
            value = value * rows_per_response(mask)
        kl = verl_peer.k3_kl(logprobs, rollouts.ref_logprobs, mask, aggregation=mean)
        return value + kl_coef * kl

    return loss


def trl(function: Callable[..., Tensor], mean: str, **settings: Any) -> Callable[..., Tensor]:
    """TRL's loss; its `beta` is our kl_coef."""

    def loss(rollouts: Rollouts, logprobs: Tensor, advantages: Tensor, kl_coef: float) -> Tensor:
        old, mask, ref = rollouts.old_logprobs, rollouts.mask, rollouts.ref_logprobs
        settings_now = settings | {"beta": kl_coef, "ref_logprobs": ref}
        value = function(old, logprobs, advantages, mask, **settings_now)
        return value * rows_per_response(mask) if mean == "sequence" else value

    return loss


class Case(NamedTuple):
    """Our `method:` block, the peer's loss, and the sides on which the bounds must bite."""

    method: dict[str, Any]
    peer: Callable[..., Tensor]
    bites: tuple[str, ...] = CUT


def grpo(low: float, high: float, aggregation: str, dual_clip: float | None) -> dict:
    bounds = {"clip_low": low, "clip_high": high, "dual_clip": dual_clip}
    return {"name": "grpo", "aggregation": aggregation, **bounds}


def clip(low: float, high: float) -> dict[str, float]:
    return {"clip_low": low, "clip_high": high}


def cases() -> Iterator[tuple[str, Case]]:
    yield "gpg/verl", Case({"name": "gpg"}, verl(verl_peer.gpg, "token"), ())
    yield "erpo/verl", Case({"name": "erpo"}, verl(verl_peer.ppo, "token", aggregation="token"))
    for low, high in ((0.2, 0.2), (0.1, 0.3)):
        peer = verl(verl_peer.cispo, "token", **clip(low, high))
        yield f"cispo-{low}-{high}/verl", Case({"name": "cispo", **clip(low, high)}, peer, ANY_SIDE)
        peer = trl(trl_peer.cispo, "token", clip_high=high)
        unbounded_below = {"name": "cispo", **clip(1.0, high)}
        yield f"cispo-1-{high}/trl", Case(unbounded_below, peer, ABOVE)
    for low, high in ((0.4, 0.4), (0.3, 0.5)):
        bounds = {"log_clip_low": low, "log_clip_high": high}
        peer = verl(verl_peer.gmpo, "sequence", **bounds)
        yield f"gmpo-{low}-{high}/verl", Case({"name": "gmpo", **bounds}, peer)
    for low, high in ((0.2, 0.2), (0.1, 0.3), (3e-4, 4e-4)):
        method = {"name": "gspo", **clip(low, high)}
        for name, module, wrap in (("verl", verl_peer, verl), ("trl", trl_peer, trl)):
            peer = wrap(module.gspo, "sequence", **clip(low, high))
            yield f"gspo-{low}-{high}/{name}", Case(method, peer)
    yield from grpo_cases()


def grpo_cases() -> Iterator[tuple[str, Case]]:
    """GRPO .2/.2, Clip-High .2/.28 (sequence), DAPO .2/.28 (token), each with a dual clip too."""
    kinds = {"sequence": ("grpo",), "token": ("dapo", "bnpo")}  # TRL's loss types
    for (low, high), mean, dual in product(((0.2, 0.2), (0.2, 0.28)), kinds, (None, DUAL_CLIP)):
        method, bounds = grpo(low, high, mean, dual), clip(low, high)
        name = f"grpo-{low}-{high}-{mean}" + ("-dual" if dual else "")
        peer = verl(verl_peer.ppo, mean, aggregation=mean, dual_clip=dual, **bounds)
        yield f"{name}/verl", Case(method, peer)
        for kind in kinds[mean]:
            peer = trl(trl_peer.grpo, mean, loss_type=kind, delta=dual, **bounds)
            yield f"{name}/trl-{kind}", Case(method, peer)


CASES = dict(cases())


@pytest.mark.parametrize("kl_coef", [0.0, KL], ids=["", "kl"])
@pytest.mark.parametrize("seed", SEEDS)
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
    peer = PEERS[name.split("/")[1].split("-")[0]]
    errors = ((a - b).abs().max().item() for a, b in zip(got, want, strict=True))
    parity.record(case.method["name"], peer, *errors)
    exactly(got.loss, want.loss)
    exactly(got.grad, want.grad)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mean", ["sequence", "token"])
def test_dual_clip_bites(mean: str, seed: int) -> None:
    """The dual-clip cases above differ from those without it."""
    (with_dual, _), (without, _) = (
        ours(grpo(0.2, 0.2, mean, dual), batch(seed), 0.0) for dual in (DUAL_CLIP, None)
    )
    assert without.loss - with_dual.loss > 1e-4
    assert ((with_dual.grad == 0) & (without.grad != 0)).any()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mean", ["sequence", "token"])
def test_k3_is_in_the_loss(mean: str, seed: int) -> None:
    """Our KL term alone, as the difference that kl_coef makes, is verl's."""
    data = batch(seed)
    method = grpo(0.2, 0.2, mean, None)
    (with_kl, _), (without, _) = (ours(method, data, coef) for coef in (1.0, 0.0))
    want = differentiate(
        lambda x: verl_peer.k3_kl(
            x, data.rollouts.ref_logprobs, data.rollouts.mask, aggregation=mean
        ),
        data.logprobs,
    )
    assert want.loss > 0.01
    exactly(with_kl.loss - without.loss, want.loss)
    exactly(with_kl.grad - without.grad, want.grad)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("kind", "mean"), [("grpo", "sequence"), ("bnpo", "token")])
def test_unbiased_kl_is_trls(kind: str, mean: str, seed: int) -> None:
    """Our KL term alone is TRL's with use_bias_correction_kl."""
    data = batch(seed)
    method, peer = grpo(0.2, 0.2, mean, None), partial(trl_peer.loss, level="token")
    unbiased = {"reference_policy_kl_type": "unbiased"}
    (with_kl, _), (without, _) = (ours(method, data, coef, **unbiased) for coef in (1.0, 0.0))
    case = trl(peer, mean, loss_type=kind, use_bias_correction_kl=True)
    advantages = torch.zeros_like(data.rollouts.rewards)
    want = differentiate(lambda x: case(data.rollouts, x, advantages, 1.0), data.logprobs)
    assert want.loss > 0.01
    exactly(with_kl.loss - without.loss, want.loss)
    exactly(with_kl.grad - without.grad, want.grad)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mean", ["sequence", "token"])
def test_unbiased_kl_is_verls_where_every_ratio_is_1(mean: str, seed: int) -> None:
    """verl's `k3+` takes the sampler for the policy itself, so it lacks the ratio of the others."""
    data = batch(seed)
    method, kl = grpo(0.2, 0.2, mean, None), {"reference_policy_kl_type": "unbiased"}
    given = data.rollouts.ref_logprobs, data.rollouts.mask
    want = differentiate(
        lambda x: verl_peer.k3_kl(x, *given, aggregation=mean, kind="k3+"), data.logprobs
    )
    at_start = data._replace(rollouts=replace(data.rollouts, old_logprobs=data.logprobs))
    (with_kl, _), (without, _) = (ours(method, at_start, coef, **kl) for coef in (1.0, 0.0))
    assert want.loss > 0.01
    exactly(with_kl.loss - without.loss, want.loss)
    exactly(with_kl.grad - without.grad, want.grad)
    (with_kl, _), (without, _) = (ours(method, data, coef, **kl) for coef in (1.0, 0.0))
    ratio = (data.logprobs - data.rollouts.old_logprobs).exp()
    exactly((with_kl.grad - without.grad)[given[1]], (want.grad * ratio)[given[1]])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("std", ["sample", "none"])
def test_group_advantages_are_verls(std: str, seed: int) -> None:
    """No group of one: verl's A is then R. The flat group's mean is exact, so verl's A is 0 too."""
    rollouts = batch(seed).rollouts
    group = rollouts.group.tolist()
    got = build({"name": "grpo", "advantage_std": std}).signals(rollouts).advantages[:, 0]
    want = verl_peer.advantages_grpo(
        rollouts.rewards, rollouts.mask, group, normalise=std == "sample"
    )
    assert got.abs().max() > 1
    exactly(got[:, None].where(rollouts.mask, 0.0), want)


@pytest.mark.parametrize("seed", SEEDS)
def test_gpg_advantages_are_verls_without_its_factor(seed: int) -> None:
    """verl multiplies by B / (rewards that are not 0), in float32."""
    rollouts = batch(seed).rollouts
    group = rollouts.group.tolist()
    got = build("gpg").signals(rollouts).advantages.where(rollouts.mask, 0.0)
    factor = verl_peer.gpg_alpha(rollouts.rewards)
    assert factor > 1, "no reward is 0: verl's factor is not tested"
    want = verl_peer.advantages_gpg(rollouts.rewards, rollouts.mask, group) / factor
    torch.testing.assert_close(got, want, rtol=1e-7, atol=5e-8)
