"""Our methods as NeMo-RL's loss: golden numbers, the embedded surrogate, its own loss untouched."""

import json
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import batches
import nemo_batch
import pytest
import torch
from nemo_batch import METHODS
from nemo_rl.algorithms.loss import ClippedPGLossFn
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.extensions.loss_config import LossConfig
from nemo_algos.algorithms.golden import verify
from nemo_algos.algorithms.kernel import DriverOutput, Method
from nemo_algos.algorithms.methods import STUDIED
from nemo_algos.algorithms.record import ClipParams
from nemo_algos.algorithms.rollouts import Rollouts
from nemo_algos.engines.nemo import columns, loss_metrics
from nemo_algos.engines.nemo.derived_config import UNWEIGHTED, method_keys, weighs
from nemo_algos.engines.nemo.loss import AlgorithmLoss

GOLDEN = Path(__file__).parents[2] / "golden" / "public.json.gz"
TIS = {
    "use_importance_sampling_correction": True,
    "truncated_importance_sampling_type": "tis",
    "truncated_importance_sampling_ratio": 1.1,
}
STOCK = ("grpo", "gspo")  # at their defaults NeMo-RL's own, which does not clamp log-ratios at 20:
UNCLAMPED = {"grpo-1-0", "grpo-1-3", "gspo-1-4", "grpo-2-1", "gspo-2-4", "gspo-2-5"}
# an advantage of 0 where the others have one
SPARSE = ("pass_at_k", "high_entropy", "m2po", "wapo")


def stock_of(algorithm: Algorithm, **values: Any) -> ClippedPGLossFn:
    """NeMo-RL's own loss with the config that the method decides."""
    return ClippedPGLossFn(nemo_batch.config(**values).model_copy(update=method_keys(algorithm)))


def golden_cases() -> list[dict[str, Any]]:
    return [c for c in verify.read(GOLDEN)["cases"] if not c["params"].get("kl_coef")]


def largest_log_ratio(case: dict[str, Any]) -> float:
    inputs = case["inputs"]
    gap = verify._float64(inputs["logprobs"]) - verify._float64(inputs["old_logprobs"])
    return float(gap[torch.tensor(inputs["mask"]).bool()].abs().max())


@pytest.mark.parametrize("case", golden_cases(), ids=lambda c: c["name"])
def test_golden_numbers_through_nemo_rl(case):
    params = {k: v for k, v in case["params"].items() if k != "kl_coef"}
    algorithm = build({"name": case["method"], **params})
    inputs = case["inputs"]
    labels = {label: i for i, label in enumerate(dict.fromkeys(inputs["group"]))}
    rollouts = Rollouts(
        torch.tensor([labels[label] for label in inputs["group"]]),
        torch.tensor(inputs["rewards"], dtype=torch.float64),
        torch.tensor(inputs["mask"]).bool(),
        **{k: verify._float64(inputs[k]) for k in verify.TOKEN_INPUTS},
    )
    logprobs = verify._float64(inputs["logprobs"])
    value, gradient, _ = nemo_batch.through(algorithm, rollouts, logprobs)
    expected = case["expected"]
    errors = (verify._error(value, expected["loss"]), verify._error(gradient, expected["grad"]))
    if case["name"] in UNCLAMPED:
        assert case["method"] in STOCK and largest_log_ratio(case) > 20
        assert max(errors) > 1e-5
    else:
        assert max(errors) < 1e-5, errors


# of a method's block and of loss_fn what is not at its default
CASES = [({"name": name}, config) for name in METHODS for config in ({}, TIS)]
CASES += [
    ({"name": n, "dual_clip": 1.5}, c) for n in batches.PLAIN if n in METHODS for c in ({}, TIS)
]


@pytest.mark.parametrize(("method", "config"), CASES, ids=str)
def test_agrees_with_the_embedded_surrogate(method, config):
    nemo_batch.assert_embedded(method, batches.make(seed=3, large=False), **config)


@pytest.mark.parametrize("name", METHODS)
def test_the_kl_penalty_has_the_same_value_and_another_gradient(name):
    batch, penalty = batches.make(seed=4, large=False), {"reference_policy_kl_penalty": 0.1}
    value, gradient, metrics = nemo_batch.through(build(name), *batch, **penalty)
    embedded = batches.run(name, batch, LossConfig(**penalty))
    torch.testing.assert_close(value, embedded.value, rtol=1e-6, atol=1e-7)
    assert metrics["kl_penalty"] > 0 and (gradient - embedded.grad).abs().max() > 1e-4


PENALTY = {"reference_policy_kl_penalty": 0.05}


@pytest.mark.parametrize("jump", [0, 30])
@pytest.mark.parametrize(
    ("name", "extra"),
    [*product(STOCK, ({}, PENALTY)), ("grpo", TIS)],  # gspo's weights are ours
    ids=str,
)
def test_grpo_and_gspo_are_bit_equal_to_nemo_rl(name, extra, jump):
    """Also at |l| up to 30: NeMo-RL's loss clamps no ratio, and our metrics say so."""
    algorithm = build(name)
    rollouts, logprobs = batches.make(seed=5, large=False, dtype=torch.float32)
    logprobs = torch.where(rollouts.mask.cumsum(1) == 1, logprobs + jump, logprobs)
    data = nemo_batch.batch(algorithm, rollouts)
    stock = nemo_batch.loss_and_gradient(stock_of(algorithm, **extra), logprobs, data)
    value, gradient, metrics = nemo_batch.through(algorithm, rollouts, logprobs, **extra)
    assert torch.equal(stock[0], value) and torch.equal(stock[1], gradient)
    assert stock[2].items() <= metrics.items()
    assert metrics["ratio/mean"] == pytest.approx(stock[2]["probs_ratio"], rel=1e-6)
    assert metrics["ratio/clamped_tokens"] == metrics["ratio/clamped_sequences"] == 0
    if jump:
        assert metrics["kl/old"] > 1e8 and 0 < metrics["kl/old_sequence"] < 1e11


@pytest.mark.parametrize("name", [*METHODS, {"name": "etr", "terms": {"nll": {}}}], ids=str)
def test_loss_and_metrics_add_up_over_micro_batches(name):
    """Clips by sign are shares of that sign's tokens, as in the embedded engine."""
    algorithm = build(name)
    rollouts, logprobs = batches.make(seed=7, large=False)
    data = nemo_batch.batch(algorithm, rollouts)
    loss = AlgorithmLoss(nemo_batch.config(), algorithm)
    value, _, metrics = nemo_batch.loss_and_gradient(loss, logprobs, data)
    counts = nemo_batch.counts(data)
    logprobs = logprobs.where(rollouts.mask, 0.0)
    parts = [loss(logprobs[i : i + 1], data.slice(i, i + 1), *counts) for i in range(len(logprobs))]
    torch.testing.assert_close(sum(p[0] for p in parts), value, rtol=1e-6, atol=1e-8)
    extrema = {k for k in metrics if "_min" in k or "_max" in k}
    assert extrema <= {
        f"probs_ratio{c}_{e}" for c in ("", "_clamped") for e in ("min", "max")
    }  # the names that NeMo-RL does not add up
    # of sequence ratios NeMo-RL multiplies weights [B,1] by a mask [B], and gets [B,B]
    theirs = {"sampling_importance_ratio"} if algorithm.base.method.ratio == "sequence" else set()
    for key in metrics.keys() - extrema - theirs:
        assert sum(p[1][key] for p in parts) == pytest.approx(metrics[key], rel=1e-5, abs=1e-6), key
    collected = {key: [part[1][key] for part in parts] for key in parts[0][1]}  # as by the driver
    got = {key: sum(values) for key, values in loss_metrics.by_sign(collected).items()}
    want = batches.run(name, batches.Batch(rollouts, logprobs), LossConfig()).stats.summary()
    names = {k for k in want if k.startswith(("clip/", "kl/old", "ratio/mean"))}
    assert len(names) == 8 or name not in STUDIED  # some have no A < 0
    assert names == {k for k in got if k.startswith(("clip/", "kl/old", "ratio/mean"))}
    assert {k: got[k] for k in names} == pytest.approx(
        {k: want[k] for k in names}, rel=1e-5, abs=1e-9
    )
    if name in ("grpo", "etr", "apmpo"):
        assert want["clip/positive_above"] > 0.05  # the bounds really clip here


def test_approximate_entropy_is_of_the_true_logprobs():
    rollouts, logprobs = batches.make(seed=8, large=False)
    _, _, metrics = nemo_batch.through(build("quatro"), rollouts, logprobs)
    assert rollouts.gen_logprobs is not None
    lp, gen = (x[rollouts.mask] for x in (logprobs, rollouts.gen_logprobs))
    assert metrics["approx_entropy"] == pytest.approx(float(-((lp - gen).exp() * lp).mean()), 1e-6)


@pytest.mark.parametrize("name", [m for m in METHODS if m != "gpg"])
def test_max_log_ratio_acts_and_its_metrics_say_what_acted(name):
    method = {"name": name, "max_log_ratio": 0.5}
    batch = batches.make(seed=3, large=False, spread=1.5)
    *_, metrics, summary = nemo_batch.assert_embedded(method, batch)
    for metric in ("ratio/mean", "ratio/clamped_tokens", "ratio/clamped_sequences", "kl/old"):
        assert metrics[metric] == pytest.approx(summary[metric], rel=1e-6), metric
    assert metrics["ratio/clamped_tokens"] > 0.3
    assert metrics["probs_ratio"] == pytest.approx(summary["ratio/mean"], rel=1e-6)


FAR = {  # a token's log pi and log pi_old: log-ratios that overflow, or are no numbers
    "100": (-1.0, -101.0),
    "-100": (-101.0, -1.0),
    "1e30": (-1.0, -1e30),
    "inf": (float("inf"), -1.0),
    "-inf": (float("-inf"), -1.0),
    "old -inf": (-1.0, float("-inf")),
    "nan": (float("nan"), -1.0),
    "old nan": (-1.0, float("nan")),
}


def two_groups(far: tuple[float, float], rows: slice) -> batches.Batch:
    """A flat group, then one with a signal; far: log pi and log pi_old of a token of these rows."""
    rng = torch.Generator().manual_seed(0)
    old = -torch.rand(8, 5, generator=rng) - 0.5
    logprobs = old + 0.3 * torch.randn(8, 5, generator=rng)
    logprobs[rows, 2], old[rows, 2] = far
    rollouts = Rollouts(
        group=torch.arange(8) // 4,
        rewards=torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0]),
        mask=torch.ones(8, 5, dtype=torch.bool),
        old_logprobs=old,
        ref_logprobs=torch.full((8, 5), -1.0),
        entropy=torch.rand(8, 5, generator=rng),
        gen_logprobs=torch.full((8, 5), -1.0),
    )
    return batches.Batch(rollouts, logprobs)


def through_nemo(loss: ClippedPGLossFn, name: str, batch: batches.Batch) -> Any:
    """A loss of rollouts that the driver saw without what is far, which ERPO refuses there."""
    data = nemo_batch.batch(build(name), two_groups((-1.0, -1.0), slice(0)).rollouts)
    data["prev_logprobs"] = nemo_batch.shifted(batch.rollouts.old_logprobs)
    return nemo_batch.loss_and_gradient(loss, batch.logprobs, data)


@pytest.mark.parametrize(
    ("far", "kl"),  # NeMo-RL's penalty is of log pi, whatever the advantage
    [*((far, 0.0) for far in FAR), *((far, 0.1) for far in FAR if abs(FAR[far][0]) < 1e3)],
)
@pytest.mark.parametrize("name", [m for m in METHODS if build(m).base.flat_group_is_inert])
def test_a_flat_group_is_0_at_any_log_ratio(name, far, kl):
    """Also beyond float32's exp: value and gradient, and the other group is as it was."""
    flat = slice(0, 4)
    config = nemo_batch.config(reference_policy_kl_penalty=kl, **TIS)
    loss = AlgorithmLoss(config, build(name))
    value, gradient, _ = through_nemo(loss, name, two_groups(FAR[far], flat))
    plain = two_groups((FAR[far][0], FAR[far][0]), flat)
    plain.logprobs.nan_to_num_(0.0, 0.0, 0.0)
    plain.rollouts.old_logprobs.nan_to_num_(0.0, 0.0, 0.0)
    wanted, wanted_gradient, _ = through_nemo(loss, name, plain)
    assert value == wanted and torch.equal(gradient, wanted_gradient)
    assert bool((gradient[flat] == 0).all()) == (kl == 0) and (gradient[4:] != 0).any()


@pytest.mark.parametrize("far", [f for f in FAR if f not in ("100", "-100", "1e30")])
@pytest.mark.parametrize("rows", [slice(4, 5), slice(5, 6)], ids=["A<0", "A>0"])
@pytest.mark.parametrize("name", [m for m in METHODS if m not in SPARSE])
def test_elsewhere_what_is_not_finite_shows(name, rows, far):
    """The clamp would make 20 of an infinite log-ratio. GRPO and GSPO are NeMo-RL's own."""
    batch, algorithm = two_groups(FAR[far], rows), build(name)
    value, gradient, _ = through_nemo(AlgorithmLoss(nemo_batch.config(), algorithm), name, batch)
    if name not in STOCK:
        assert value.isnan() and gradient[rows].isnan().any()
        return
    theirs = through_nemo(stock_of(algorithm), name, batch)
    torch.testing.assert_close((value, gradient), theirs[:2], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", METHODS)
def test_without_positions_the_loss_is_0(name):
    """S = 1: nothing is predicted."""
    algorithm = build(name)
    rollouts, _ = batches.make(seed=3, large=False)
    data = nemo_batch.batch(algorithm, rollouts)
    one = BatchedDataDict({k: v[:, :1] if v.dim() == 2 else v for k, v in data.items()})
    leaf = torch.zeros(len(rollouts), 0, dtype=torch.float64, requires_grad=True)
    loss = AlgorithmLoss(nemo_batch.config(), algorithm)
    value, metrics = loss(leaf, one, *nemo_batch.counts(data))
    value.backward()
    assert value == 0 and leaf.grad is not None
    assert metrics["ratio/mean"] == 0 and not any(v != v for v in metrics.values())


# ---- what makes a program wait for its device: reads of a value, shapes that depend on one

READS = {"_local_scalar_dense", "nonzero", "masked_select", "unique_dim", "_unique2", "bincount"}


class Waits(TorchDispatchMode):
    """Counts, within: what a device has to be waited for.

    Reads of a value (.item(), bool(), float() and the like), boolean indexing, repeats without a
    size, and copies to the host that are waited for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        sized = kwargs.get("output_size") is not None
        boolean = name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        if name in READS or boolean or (name == "repeat_interleave" and not sized):
            self.counts[name] += 1
        return func(*args, **kwargs)


class HostReads(TorchFunctionMode):
    """Within, `counts`: reads that no dispatched operation shows on a CPU."""

    METHODS = (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.cpu, torch.Tensor.__array__)

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.METHODS:
            self.counts[func.__name__] += 1
        return func(*args, **(kwargs or {}))


def waits(loss: Any, data: Any, logprobs: torch.Tensor) -> tuple[Waits, HostReads]:
    """Of a call, up to where its result is there and the backward can be queued."""
    device, host = Waits(), HostReads()
    leaf = logprobs.clone().requires_grad_()
    counts = nemo_batch.counts(data)
    with device, host:
        value, _ = loss(leaf, data, *counts)
    value.backward()
    return device, host


@pytest.mark.parametrize("extra", [{}, TIS, {"reference_policy_kl_penalty": 0.05}], ids=str)
@pytest.mark.parametrize("method", [*METHODS, {"advantages": "erpo", "bounds": "etr"}], ids=str)
def test_our_part_waits_for_the_device_nowhere(method, extra):
    """The one read of ours is of numbers that were sent before NeMo-RL's own reads waited."""
    algorithm = build(method)
    rollouts, logprobs = batches.make(seed=5, large=False, dtype=torch.float32)
    data = nemo_batch.batch(algorithm, rollouts)
    logprobs = logprobs.where(rollouts.mask, 0.0)
    loss = AlgorithmLoss(nemo_batch.config(**extra), algorithm)
    own = waits(loss, data, logprobs)
    theirs = UNWEIGHTED if weighs(algorithm) else {}  # the weights are ours, and wait for nothing
    stock = waits(stock_of(algorithm, **extra | theirs), data, logprobs)
    assert own[0].counts == stock[0].counts
    assert stock[0].counts["_local_scalar_dense"] > 10
    assert own[1].counts - stock[1].counts == {"tolist": 1}


COLUMNS = {
    "etr": {"low", "high"},
    "apmpo": {"low", "high", "exponent"},
    '{"name": "apmpo", "symmetric": true}': {"low", "high", "exponent"},
    '{"name": "grpo", "bounds": "apmpo"}': {"low", "high"},
    '{"advantages": "erpo", "bounds": "etr"}': {"low", "high"},
    **{name: set() for name in ("grpo", "gspo", "quatro", "erpo", "gmpo", "gpg", "cispo")},
}


@pytest.mark.parametrize("method", COLUMNS)
def test_a_signal_travels_once_and_a_number_not_at_all(method):
    algorithm = build(json.loads(method) if method[0] == "{" else method)
    rollouts, _ = batches.make(seed=5, large=False)
    data = nemo_batch.batch(algorithm, rollouts)
    own = {k.removeprefix(columns.PREFIX) for k in data if k.startswith("nemo_algos_")}
    assert own == COLUMNS[method]
    got = columns.read(data, algorithm)
    want = algorithm.signals(rollouts, {})
    for name in ("low", "high"):
        pair = (torch.as_tensor(getattr(x, name)).double() for x in (got, want))
        torch.testing.assert_close(*pair, rtol=1e-6, atol=0)
    assert got.extras.keys() == want.extras.keys()


def own_method(bounds: Any, *per_token: str) -> Method:
    return Method("own", "-", ClipParams, bounds=bounds, per_token=frozenset(per_token))


def test_bounds_of_each_token_clip_in_nemo_rl():
    """A third party's, [B,S]."""

    def bounds(rollouts: Rollouts, params: ClipParams) -> DriverOutput:
        wide = torch.arange(rollouts.mask.shape[1], device=rollouts.mask.device) % 2
        return DriverOutput((0.2, (0.1 + wide).expand(rollouts.mask.shape)))

    method = own_method(bounds, "bounds")
    algorithm = build(method)
    batch = batches.make(seed=3, large=False)
    value, gradient, _ = nemo_batch.through(algorithm, *batch)
    # NeMo-RL's batch has a position in front
    high = nemo_batch.batch(algorithm, batch.rollouts)["nemo_algos_signal_high"][:, 1:].double()
    signals = replace(algorithm.signals(batch.rollouts, {}), high=high)
    wanted = batches.run(method, batch, LossConfig(), signals)
    torch.testing.assert_close(value, wanted.value, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(gradient, wanted.grad, rtol=1e-5, atol=1e-7)


def test_numbers_that_depend_on_the_batch_travel():
    def bounds(rollouts: Rollouts, params: ClipParams) -> DriverOutput:
        return DriverOutput((0.2, 0.1 + float(rollouts.rewards.mean())))

    rollouts, _ = batches.make(seed=3, large=False)
    algorithm = build(own_method(bounds))
    got = columns.read(nemo_batch.batch(algorithm, rollouts), algorithm)
    want = torch.full((len(rollouts), 1), 0.1 + float(rollouts.rewards.mean()))
    torch.testing.assert_close(got.high, want)


def test_a_share_of_no_tokens_is_left_out():
    shares = {"loss": [1.0], "clip/positive_above": [0.0, 0.0], "clip/positive": [0.0, 0.0]}
    assert loss_metrics.by_sign(shares) == {"loss": [1.0]}
