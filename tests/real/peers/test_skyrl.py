"""SkyRL 0.4.0's code, as it stands: losses to the sampler, log-probs of kept sets.

Their exp is in float32; in the cases "float64" it is in float64, and nothing else is changed.
"""

from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from frameworks_by_source import Off
from peer_cases import SEEDS, Batch, Result, batch, differentiate, ours
from sources import NEWER, take
from torch import Tensor

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.entropy import token_logprobs_and_entropy
from nemo_algos.engines.local.sampling import support

FOLDER = "skyrl/backends/skyrl_train/utils"
LOSSES = "compute_policy_loss_cispo rollout_is_policy_loss dppo_policy_loss reduce_loss"
CORRECTION = "apply_off_policy_correction compute_off_policy_correction"
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-6}


class Case(NamedTuple):
    """Our `method:` and `rollout_correction:` blocks, SkyRL's loss and config."""

    method: dict[str, Any]
    loss: str
    config: dict[str, Any]
    correction: dict[str, Any] | None = None
    value: bool = True


def cispo(low: float, high: float) -> Case:
    method = {"name": "cispo", "clip_low": low, "clip_high": high}
    own = Off(cispo_eps_clip_low=low, cispo_eps_clip_high=high, cispo_anchor="rollout")
    return Case(method, "compute_policy_loss_cispo", {"cispo": own})


def dppo(kind: str, threshold: float) -> Case:
    """Theirs has no cap of the ratio but exp(20), and the ratio's own value."""
    method = {"name": f"dppo_{kind}", "low": threshold, "high": threshold, "cap": 1e9}
    own = Off(dppo_type=f"binary_{kind}", delta_low=threshold, delta_high=threshold)
    return Case(method, "dppo_policy_loss", {"dppo": own}, value=False)


CASES = {
    "cispo": cispo(0.1, 0.3),
    "cispo, SkyRL's defaults": cispo(1.0, 4.0),
    "rollout_is": Case(
        {"name": "gpg", "advantages": "grpo"},
        "rollout_is_policy_loss",
        {"eps_clip_low": 0.2, "eps_clip_high": 0.3},
        {"loss_type": "reinforce", "rollout_is": "token", "rollout_is_threshold": "0.8_1.3"},
    ),
    "dppo, tv": dppo("tv", 0.1),
    "dppo, kl": dppo("kl", 0.05),
}


@cache
def source(exponent: torch.dtype) -> dict[str, Any]:
    of = SimpleNamespace(**vars(torch) | {"float32": exponent})
    names = {"torch": of, "off_policy_correction_enabled": lambda _: False}
    load = partial(take, scope=names, wheels=NEWER)
    load(f"{FOLDER}/torch_utils.py", "masked_mean safe_exp_delta")
    load(f"{FOLDER}/off_policy_correction_utils.py", CORRECTION)
    driver = "apply_loss_reduction_to_advantages_minibatch"
    return load(f"{FOLDER}/ppo_utils.py", f"{LOSSES} {driver}")


def made(seed: int) -> Batch:
    """peer_cases', with a sampler that is far from both policies of the trainer."""
    rollouts, logprobs = batch(seed)
    random = torch.Generator().manual_seed(seed + 50)
    gap = torch.randn(logprobs.shape, generator=random, dtype=torch.float64)
    gap[0, 3], gap[1, 3] = 3.0, -3.0
    old = rollouts.old_logprobs.clamp(max=-0.5)
    sampler = (old + 0.4 * gap).clamp(max=-1e-3)
    changed = replace(rollouts, old_logprobs=old, gen_logprobs=sampler)
    return Batch(changed, logprobs.clamp(max=-1e-3))


def theirs(case: Case, data: Batch, advantages: Tensor, exponent: torch.dtype) -> Result:
    r, skyrl = data.rollouts, source(exponent)
    scale = skyrl["apply_loss_reduction_to_advantages_minibatch"]
    A = scale(advantages.expand_as(r.mask), r.mask, "token_mean", 1, 0)
    config = Off(off_policy_correction=Off(), **case.config)
    loss = partial(skyrl[case.loss], config=config, loss_mask=r.mask)
    return differentiate(
        lambda x: loss(x, r.old_logprobs, A, rollout_logprobs=r.gen_logprobs)[0], data.logprobs
    )


def close(got: Tensor, want: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance * float(want.abs().max()))


@pytest.mark.parametrize("exponent", TOLERANCE, ids=["float64", "float32"])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_loss_and_gradient(case: Case, seed: int, exponent: torch.dtype) -> None:
    data = made(seed)
    correction = {"bypass_mode": True, **(case.correction or {})}
    algorithm = build(case.method, correction)
    got, _ = ours(case.method, data, correction=correction)
    advantages = algorithm.signals(algorithm.correct(data.rollouts)[0]).advantages
    want = theirs(case, data, advantages, exponent)
    close(got.grad, want.grad, TOLERANCE[exponent])
    if case.value:
        close(got.loss, want.loss, TOLERANCE[exponent])
    assert want.grad.abs().max() > 1e-3


# ---- log-probs over the sets that a filter kept

FILTERS = {
    "top_p": {"top_p": 0.9},
    "top_k": {"top_k": 4},
    "min_p": {"min_p": 0.2},
    "all": {"top_p": 0.8, "top_k": 9, "min_p": 0.01},
}


def skyrls(logits, tokens, kept):
    """kept as SkyRL has it: ids, -1 after the last."""
    rows = [row.nonzero()[:, 0].int() for row in kept.flatten(0, 1)]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
    names = {"torch": torch, "SampleSupportScores": SimpleNamespace}
    names["SAMPLE_SUPPORT_TORCH_DTYPE"] = torch.int32
    score = take(f"{FOLDER}/sample_support_replay.py", "sample_support_scores", names, NEWER)[
        "sample_support_scores"
    ]
    whole = {"vocab_start_index": 0, "vocab_end_index": logits.shape[-1], "tp_group": None}
    support_ids = ids.view(*tokens.shape, -1)
    return score(logits, tokens, support_ids, **whole).logprobs


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS)
def test_values_and_gradients_are_skyrls(filters, temperature):
    rng = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(6, 5, 40, generator=rng, dtype=torch.float64)).requires_grad_()
    sampler = logits.detach() + 0.5 * torch.randn(6, 5, 40, generator=rng, dtype=torch.float64)
    kept = support((sampler / temperature).softmax(-1), **filters)
    tokens = torch.multinomial(kept.flatten(0, 1).double(), 1, generator=rng).view(6, 5)
    weights = torch.randn(6, 5, generator=rng, dtype=torch.float64)
    theirs = skyrls(logits / temperature, tokens, kept)
    ours, _ = token_logprobs_and_entropy(logits, tokens, temperature, kept=kept)
    grads = [torch.autograd.grad((weights * x).sum(), logits)[0] for x in (theirs, ours)]
    assert kept.sum(-1).max() > 2 and ours.min() < -1
    for want, got in ((theirs, ours), grads):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
