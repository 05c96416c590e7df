"""policy_loss worked by hand: two sequences of one prompt, with advantages 1/2 and -1/2."""

import math
import warnings

import pytest
import torch
from batches import KL, close, make
from pydantic import ValidationError
from says import Says

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.extensions.loss_config import SET_BY_METHOD, LossConfig
from nemo_algos.algorithms.golden.verify import GoldenRollouts
from nemo_algos.algorithms.loss import batch_loss, policy_loss
from nemo_algos.algorithms.rollouts import Rollouts

NAN, INF = float("nan"), float("inf")
MASK = torch.tensor([[1, 1, 0], [1, 0, 0]]).bool()  # 3 tokens in 2 sequences; A = 1/2, -1/2
TOKEN = {"name": "grpo", "aggregation": "token"}
KL_OF = {"k1": -0.5, "k2": 0.125, "k3": math.exp(0.5) - 1.5}  # of ref - lp = 0.5
SLOPE = {"k1": 1.0, "k2": -0.5, "k3": 1 - math.exp(0.5)}  # of lp


def tensor(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def on(a, b, c, off=NAN, dtype=torch.float64):
    """A value at each token of MASK, and what stands elsewhere."""
    return tensor([[a, b, off], [c, off, off]], dtype)


def compute(method, ratios, config=None, counts=None, mask=MASK, dtype=torch.float64, **fields):
    """The loss, and d loss / d logprobs: old = -1 everywhere, logprobs = old + log ratio."""
    block = {"name": method} if isinstance(method, str) else method
    algorithm = build({"advantage_std": "none", **block})
    fields = {"old_logprobs": torch.full_like(ratios, -1.0).to(dtype), **fields}
    rollouts = GoldenRollouts(torch.tensor([4, 4]), torch.tensor([1, 0]), mask, **fields)
    logprobs = (ratios.log() - 1).to(dtype).requires_grad_()
    signals, config = algorithm.signals(rollouts), LossConfig(**(config or {}))
    loss = policy_loss(algorithm, logprobs, rollouts, signals, counts or Counts.of(mask), config)
    loss.value.backward()
    return loss, logprobs.grad


# ---- means and their denominators

RATIOS = on(
    1.1, 0.5, 1.5
)  # grpo: both of A > 0 inside, the third passes (A < 0); sums .55 .25 -.75


# ---- KL


@pytest.mark.parametrize("kind", KL_OF)
@pytest.mark.parametrize(
    ("method", "weights"), [("grpo", (1 / 4, 1 / 4, 1 / 2)), (TOKEN, [1 / 3] * 3)]
)
def test_kl_has_the_mean_of_the_method(method, weights, kind):
    """ref - lp = 0.5 at the second token alone: -J + 0.1 KL."""
    config = {"reference_policy_kl_penalty": 0.1, "reference_policy_kl_type": kind}
    ref = RATIOS.log() - 1 + on(0.0, 0.5, 0.0)
    plain, bare = compute(method, RATIOS)
    loss, grad = compute(method, RATIOS, config, ref_logprobs=ref)
    close(loss.value.detach() - plain.value.detach(), 0.1 * KL_OF[kind] * weights[1])
    base = {"k1": 1.0, "k2": 0.0, "k3": 0.0}[kind]  # the slope where ref = lp
    slopes = [0.1 * w * s for w, s in zip(weights, (base, SLOPE[kind], base), strict=True)]
    close(grad - bare, on(*slopes, off=0.0))
    close(loss.stats.sums["kl_loss"], 0.1 * KL_OF[kind] * weights[1])
    close(loss.stats.sums["kl_ref"], KL_OF["k3"])  # the metric is k3 whatever the penalty


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "unbiased"])
def test_a_penalty_whose_gradient_the_reference_does_not_change_is_warned_of(kind):
    config = LossConfig(reference_policy_kl_penalty=0.1, reference_policy_kl_type=kind)
    near, far = (RATIOS.log() - 1 + on(*[apart] * 3) for apart in (0.0, 0.5))
    slopes = [compute("grpo", RATIOS, vars(config), ref_logprobs=ref)[1] for ref in (near, far)]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        config.warn()
    assert bool(said) == torch.allclose(*slopes)
    if said:
        assert str(said[0].message) == Says("loss_fn.reference_policy_kl_type: reference k2")


# ---- dual clip


@pytest.mark.parametrize(
    ("c", "ratio", "cut", "slope"),
    [(3.0, 5.0, 3.0, 0.0), (3.0, 2.5, 2.5, 2.5), (None, 5.0, 5.0, 5.0), (3.0, 0.5, 0.8, 0.0)],
)
def test_dual_clip_cuts_the_negative_advantage_only(c, ratio, cut, slope):
    """The positive sequence is worth (0.6 + 0.5) / 2, whatever c."""
    loss, grad = compute({"name": "grpo", "dual_clip": c}, on(5.0, 1.0, ratio))
    close(loss.value.detach(), -(1.1 / 2 - cut / 2) / 2)
    close(grad, on(0.0, -0.125, slope / 4, off=0.0))


# ---- off-policy correction: w = 1/2 and 2 in the first sequence, 3 in the second

GEN = torch.full((2, 3), -1.0).double() - on(0.5, 2.0, 3.0).log()
USE = "use_importance_sampling_correction"
HIGH_LOW = ("truncated_importance_sampling_ratio", "truncated_importance_sampling_ratio_min")


def correction(kind=None, high=None, low=None):
    found = {"truncated_importance_sampling_type": kind, HIGH_LOW[0]: high, HIGH_LOW[1]: low}
    return {USE: True, **found}


@pytest.mark.parametrize(
    ("config", "w"),
    [
        (correction(), (0.5, 2.0, 3.0)),
        (correction("tis", 1.5), (0.5, 1.5, 1.5)),
        (correction("tis", 1.5, 0.8), (0.8, 1.5, 1.5)),
        (correction("icepop", 2.5, 0.8), (0.0, 2.0, 0.0)),
        (correction("seq-mask-tis", 1.5, 0.9), (0.5, 2.0, 0.0)),  # geometric means 1 and 3
        (correction("seq-mask-tis", 4.0, 2.0), (0.0, 0.0, 3.0)),
    ],
)
def test_weights_multiply_token_terms_and_not_the_kl(config, w):
    config["reference_policy_kl_penalty"] = 0.1
    loss, grad = compute(TOKEN, RATIOS, config, gen_logprobs=GEN, ref_logprobs=RATIOS.log() - 0.5)
    terms = [a * b / 3 for a, b in zip((0.55, 0.25, -0.75), w, strict=True)]
    close(loss.value.detach(), -sum(terms) + 0.1 * KL_OF["k3"])
    close(grad, on(*(-x + 0.1 * SLOPE["k3"] / 3 for x in terms), off=0.0))


# ---- non-finite numbers


@pytest.mark.parametrize("method", ["grpo", TOKEN, "gpg"])
@pytest.mark.parametrize("field", ["logprobs", "old_logprobs", "ref_logprobs", "gen_logprobs"])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_report_drops_the_token_and_keeps_the_denominators(method, field, bad):
    """The token has no gradient in J and KL, and its sequence keeps its length."""
    config = {"on_nonfinite": "report", "reference_policy_kl_penalty": 0.1}
    given = {"ref_logprobs": RATIOS.log() - 1 + on(0.2, 0.5, -0.1), "gen_logprobs": GEN.clone()}
    given["old_logprobs"] = torch.full_like(RATIOS, -1.0)
    ratios = RATIOS.clone()
    if field == "logprobs":
        ratios[0, 1] = math.exp(bad) if bad != -INF else 0.0
    else:
        given[field][0, 1] = bad
    loss, grad = compute(method, ratios, config, **given)
    kept, want = compute(method, RATIOS, config, Counts(2, 3), MASK & (RATIOS != 0.5), **given)
    scale = tensor([[0.5], [1.0]]) if method == "grpo" else 1.0  # 1 token of 2
    close(grad, want * scale)
    if method != "grpo":
        close(loss.value.detach(), kept.value.detach())
    assert loss.stats.summary()["nonfinite_tokens"] == 1


def test_error_counts_and_names_the_first():
    ratios = on(1.0, NAN, INF)
    with pytest.raises(FloatingPointError, match=r"^2 .*\bsequence 0, position 1\b"):
        compute("grpo", ratios)


# ---- precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("method", ["grpo", "gspo", "gpg"])
def test_half_precision_gives_a_float32_loss(dtype, method):
    """bfloat16 holds -1 +- 2^-6 exactly, but not exp(2^-6) to 1e-6."""
    step = 2**-6
    ratios = on(math.exp(step), math.exp(-step), math.exp(step))
    ref = (ratios.log() - 1 + step).to(dtype)
    config = {"reference_policy_kl_penalty": 0.1}
    loss, grad = compute(method, ratios, config, dtype=dtype, ref_logprobs=ref)
    want, slope = compute(method, ratios, config, ref_logprobs=ref.double())
    assert (loss.value.dtype, grad.dtype) == (torch.float32, dtype)
    close(loss.value.detach(), want.value.detach(), 1e-6)
    close(grad.double(), slope, 4e-3)


# ---- what is missing, and what is not a key of loss_fn


def test_missing_inputs_are_named():
    with pytest.raises(ValueError, match=r"reference_policy_kl_penalty .*\bref_logprobs\b"):
        compute("grpo", RATIOS, {"reference_policy_kl_penalty": 0.1})
    with pytest.raises(ValueError, match=r"correction .*\bgen_logprobs \[B, S\]"):
        compute("grpo", RATIOS, correction())


@pytest.mark.parametrize("key", SET_BY_METHOD)
def test_derived_keys_are_refused_with_the_name_to_use(key):
    with pytest.raises(ValidationError) as error:
        LossConfig(**{key: 0.2})
    assert f"`{key}`: {SET_BY_METHOD[key]}" in str(error.value)
    assert SET_BY_METHOD[key].count("method.") + SET_BY_METHOD[key].count("loss_fn.") == 1


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**correction("tis", 2.0), USE: False}, f"tis {USE}"),
        (correction("tis"), f"truncated_importance_sampling_type {HIGH_LOW[0]}"),
        (correction(None, 2.0), f"truncated_importance_sampling_type {HIGH_LOW[0]}"),
        (correction("icepop", 2.0), f"icepop {HIGH_LOW[1]}"),
        (correction("seq-mask-tis", 2.0), f"seq-mask-tis {HIGH_LOW[1]}"),
        (correction("tis", 2.0, 3.0), " ".join(HIGH_LOW)),
        (correction(None, None, 0.5), " ".join(HIGH_LOW)),
    ],
)
def test_half_a_correction_is_refused(config, words):
    with pytest.raises(ValidationError) as error:
        LossConfig(**config)
    assert [e["msg"] for e in error.value.errors()] == [Says(words)]


def test_statistics_are_float64_and_keep_no_graph():
    """They are added up over a step's micro-batches, whose activations would all stay."""
    batch = make(dtype=torch.float32)
    for block in ({"name": "etr", "terms": {"nll": {}}}, {"name": "gspo"}):
        algorithm = build(block)
        signals = algorithm.signals(batch.rollouts)
        leaf = batch.logprobs.clone().requires_grad_()
        counts = Counts.of(batch.rollouts.mask)
        loss = policy_loss(algorithm, leaf, batch.rollouts, signals, counts, KL)
        assert loss.value.requires_grad and loss.value.dtype == torch.float32
        kinds = {(value.dtype, value.requires_grad) for value in loss.stats.sums.values()}
        assert kinds == {(torch.float64, False)}


def test_the_loss_of_long_responses_is_exact_in_float32():
    """luspo: terms of 1e4, one a response, cancel to 1e-3."""
    rng = torch.Generator().manual_seed(0)
    rows, positions = 8, 16_384
    old = -torch.rand(rows, positions, generator=rng)
    rewards = torch.arange(rows) % 2
    mask = torch.ones(rows, positions).bool()
    logprobs = (old + 0.01 * torch.randn(rows, positions, generator=rng)).clamp(max=0)
    losses = list[float]()
    for dtype in (torch.float32, torch.float64):
        rollouts = Rollouts(torch.arange(rows) // 4, rewards, mask, old.to(dtype))
        leaf = logprobs.to(dtype).requires_grad_()
        losses.append(batch_loss("luspo", leaf, rollouts)[1]["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and abs(losses[1]) < 1
