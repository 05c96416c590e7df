"""Log-ratios of +-1e4, NaN and infinities: finite losses, or errors that say where."""

import pytest
import torch
from batches import Batch, change, close, every_method, make, off_mask, run
from matrix import some_of

from nemo_algos.algorithms.extensions.loss_config import LossConfig

REPORT = LossConfig(reference_policy_kl_penalty=0.01, on_nonfinite="report")


def extreme(dtype):
    """Every sequence has a token at +-1e4, a third of them only such tokens.

    The rest moves a little.
    """
    batch = make(large=False, dtype=dtype)
    rollouts, old = batch.rollouts, batch.rollouts.old_logprobs
    jump = torch.where(torch.arange(16) % 2 == 0, 1e4, -1e4).to(dtype)[:, None]
    far = rollouts.mask & (rollouts.mask.cumsum(1) == 1)
    far |= rollouts.mask & (torch.arange(16) % 3 == 0)[:, None]
    logprobs = torch.where(far, old + jump, batch.logprobs)
    return Batch(rollouts, off_mask(logprobs, rollouts.mask)), far


@every_method
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_finite_at_1e4(name, dtype):
    batch, far = extreme(dtype)
    result = run(name, batch)
    assert far.sum() > 30
    assert result.value.isfinite()
    assert result.grad.isfinite().all()
    assert (result.grad[~batch.rollouts.mask] == 0).all()
    assert all(abs(v) < float("inf") for v in result.stats.summary().values())


@pytest.mark.parametrize(
    ("name", "pull"), [("ipo", "kl_tau"), ("prime_rl", "kl_tau"), ("dro", "beta"), ("kimi", "beta")]
)
def test_pulls_to_the_old_policy_keep_their_gradient_there(name, pull):
    batch, far = extreme(torch.float64)
    grad = run({"name": name, pull: 0.1}, batch, LossConfig()).grad
    assert (grad[far] != 0).all()


def poisoned(field, value):
    """The batch with one bad value at a response token, and where."""
    batch = make(large=False)
    row, position = (int(i) for i in batch.rollouts.mask.nonzero()[9])
    if field == "logprobs":
        logprobs = batch.logprobs.clone()
        logprobs[row, position] = value
        return Batch(batch.rollouts, logprobs), (row, position)
    values = getattr(batch.rollouts, field).clone()
    values[row, position] = value
    return change(batch, **{field: values}), (row, position)


@every_method
def test_a_bad_response_token_is_an_error_that_says_where(name):
    batch, (row, position) = poisoned("logprobs", float("-inf"))
    where = rf"^1 .*sequence {row}, position {position}\b.*loss_fn\.on_nonfinite: report"
    with pytest.raises(FloatingPointError, match=where):
        run(name, batch)


@pytest.mark.parametrize("field", ["old_logprobs", "ref_logprobs", "gen_logprobs"])
def test_bad_inputs_of_the_rollout_are_seen_too(field):
    batch, _ = poisoned(field, float("nan"))
    with pytest.raises(FloatingPointError, match=r"^1 .*loss_fn\.on_nonfinite"):
        run("grpo", batch)


@every_method
@pytest.mark.parametrize("value", some_of([float("nan"), float("inf"), float("-inf")], 1))
def test_report_drops_and_counts_bad_tokens(name, value):
    batch, where = poisoned("logprobs", value)
    result = run(name, batch, REPORT)
    assert result.stats.summary()["nonfinite_tokens"] == 1
    assert result.value.isfinite() and result.grad.isfinite().all()
    assert result.grad[where] == 0
    assert (result.grad != 0).any()


@pytest.mark.parametrize("name", ["etr", "erpo", "grpo", "cispo", "gpg"])
def test_report_leaves_other_tokens_as_they_were(name):
    """Token ratios: nothing but the dropped token changes; the denominators stay."""
    batch, where = poisoned("logprobs", float("nan"))
    want, got = run(name, make(large=False)).grad, run(name, batch, REPORT).grad
    want[where] = 0
    close(got, want)
