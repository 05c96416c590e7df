"""NeMo-RL's own grpo_train with our loss, estimator and policy proxy: 3 steps of each method.

16 responses a step, 2 data-parallel ranks, 4 optimizer steps a step, bounds that really clip. The
workers are cpu_policy's; everything else is NeMo-RL's. `embedded` trains the same batch with our
own engine's loss.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from cpu_run import MODES, Run
from nemo_rl.algorithms import grpo
from nemo_rl.algorithms.advantage_estimator import GRPOAdvantageEstimator
from plugged import (
    COMMON,
    CORRECTIONS,
    METHODS,
    OTHERS,
    SHAPED,
    STEPS,
    UPDATES,
    Plugged,
    assert_embedded,
    embedded,
    off,
    rollouts_of,
    scored,
)
from rounding import rounding

from nemo_algos.algorithms.core.metrics import Stats
from nemo_algos.engines.nemo import versions
from nemo_algos.engines.nemo.estimator import OUTCOMES, result_type, tensor_of
from nemo_algos.engines.nemo.patches import FACTORY, previous_logprobs_skipped
from nemo_algos.engines.nemo.trace import Traced
from nemo_algos.jsonl import read_lines
from nemo_algos.lab.evals.records import TraceLine

pytestmark = pytest.mark.usefixtures("in_process")
CLIPPING = [name for name in METHODS if name != "quatro"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Plugged]:
    """The trained run of a method in a mode, made once."""
    runs: dict[tuple[str, str], Plugged] = {}

    def get(name: str, mode: str = "unpacked") -> Plugged:
        if (name, mode) not in runs:
            path = tmp_path_factory.mktemp(f"{name}-{mode}")
            runs[name, mode] = Plugged(path, METHODS[name], [], mode=mode).train()
        return runs[name, mode]

    return get


@pytest.mark.parametrize("name", METHODS)
def test_trains_with_bounds_that_clip(name: str, trained: Callable[..., Plugged]) -> None:
    plugged = trained(name)
    assert len(plugged.series("train", "loss")) == STEPS == len(plugged.estimator.calls)
    assert torch.isfinite(plugged.weights()).all()
    start = torch.nn.utils.parameters_to_vector(plugged.proxy.models[0].parameters())
    assert (plugged.weights() - start).abs().max() > 0.01
    for call in plugged.estimator.calls:
        assert 0 < call["rewards"].mean() < 1
    if name in CLIPPING:
        assert min(plugged.series("train", "clip/fraction")) > 0.005
    else:
        assert plugged.series("train", "clip/fraction") == [0.0] * STEPS
        assert min(plugged.series("train", "probs_ratio_max")) > 1.05


def differing(plugged: Plugged, other: Plugged) -> set[str]:
    """What of two runs is further apart than rounding puts it."""
    found = set()
    for metric in ("loss", "reward", "clip/fraction", "ratio/mean", "kl/old", "grad_norm"):
        pairs = zip(*(p.series("train", metric) for p in (plugged, other)), strict=True)
        for step, (ours, theirs) in enumerate(pairs, start=1):
            near = rounding(step * UPDATES)
            if metric == "grad_norm":  # a sum of gradients that nearly cancel
                near *= 10
            if ours != pytest.approx(theirs, rel=near, abs=near):
                found.add(metric)
    if (plugged.weights() - other.weights()).abs().max() > rounding(STEPS * UPDATES):
        found.add("weights")
    return found


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "unpacked"])
@pytest.mark.parametrize("name", METHODS)
def test_packing_changes_nothing(name: str, mode: str, trained: Callable[..., Plugged]) -> None:
    plugged, other = trained(name, mode), trained(name)
    assert plugged.run.policy.use_sequence_packing and not other.run.policy.use_sequence_packing
    assert not differing(plugged, other)


def test_a_thousandth_of_one_advantage_is_more_than_rounding(
    tmp_path: Path, trained: Callable[..., Plugged]
) -> None:
    plugged = Plugged(tmp_path, METHODS["etr"], [], mode="fused")
    compute = plugged.estimator.compute_advantage

    def off(**inputs: Any) -> Any:
        result = compute(**inputs)
        advantages = tensor_of(result)
        advantages[advantages.abs().sum(1).argmax()] *= 1.001
        return result

    plugged.estimator.compute_advantage = off
    assert "grad_norm" in differing(plugged.train(), trained("etr"))


@pytest.mark.parametrize("name", METHODS)
def test_the_first_step_is_the_embedded_engines(name: str, trained: Callable[..., Plugged]) -> None:
    """Loss, gradient norm, weights and metrics of four updates, three of them off-policy."""
    plugged = trained(name)
    metrics = ("loss", "clip/fraction", "ratio/mean", "kl/old", "kl/old_sequence")
    summaries = assert_embedded(plugged, *metrics)
    if name in CLIPPING:
        clipped = [s["clip/fraction"] for s in summaries]
        assert clipped[0] == 0 and max(clipped) > 0.02  # the first update is on policy


@pytest.mark.parametrize("name", METHODS)
def test_a_name_means_the_same_in_both_engines(name: str, trained: Callable[..., Plugged]) -> None:
    """All that both log of a step of four updates, and the embedded engine's sums are of all."""
    plugged = trained(name)
    stats, norms, _ = embedded(plugged, 0)
    ours = sum(stats, Stats.empty()).summary(updates=UPDATES)
    theirs = plugged.run.logger.kept["train"][1]
    both = sorted({*ours} & {*theirs})
    assert {"loss", "clip/fraction", "ratio/mean", "kl/old", "kl/old_sequence"} <= {*both}
    near = rounding(UPDATES)
    assert theirs["loss"] == pytest.approx(ours["loss"], rel=near, abs=near)
    for metric in both:  # NeMo-RL averages the updates' shares, whose tokens are not as many
        assert theirs[metric] == pytest.approx(ours[metric], rel=0.25, abs=0.02), metric
    # documented: NeMo-RL logs the last update's, the embedded engine the mean
    assert theirs["grad_norm"] == pytest.approx(norms[-1], rel=10 * near)


@pytest.mark.parametrize(("name", "mode"), [("etr", "packed"), ("quatro", "fused")])
def test_a_second_pass_is_over_the_same_batch(name: str, mode: str, tmp_path: Path) -> None:
    """Eight updates to the same old log-probs, advantages and bounds, by one call of the policy."""
    overrides = ["grpo.max_num_steps=1"]
    plugged = Plugged(tmp_path, METHODS[name], overrides, mode=mode, epochs=2).train()
    (call,) = plugged.estimator.calls
    assert len(call["rewards"]) == 16 == len(plugged.proxy.batches[0]["advantages"])
    stats, norms, weights = embedded(plugged, 0, epochs=2)
    once = embedded(plugged, 0)[2]
    near = rounding(2 * UPDATES)
    assert (weights - once).abs().max() > 100 * near
    torch.testing.assert_close(plugged.weights(), weights, rtol=0, atol=near)
    (norm,), (loss,) = (plugged.series("train", key) for key in ("grad_norm", "loss"))
    steep = 30 * near  # both grow with what the updates before have put apart
    assert norm == pytest.approx(norms[-1], rel=steep)
    assert loss == pytest.approx(sum(s.summary()["loss"] for s in stats) / 8, rel=steep, abs=near)


@pytest.mark.parametrize("name", ["etr", "quatro", "erpo", "apmpo"])
@pytest.mark.parametrize("mode", MODES)
def test_the_methods_metrics_are_logged(
    name: str, mode: str, trained: Callable[..., Plugged]
) -> None:
    plugged = trained(name, mode)
    names = {key for call in plugged.estimator.calls for key in call["metrics"]}
    assert names and all(
        key.startswith((f"{name}/", "rollouts/", "entropy/", "groups/")) for key in names
    )
    for step, call in enumerate(plugged.estimator.calls, start=1):
        kept = plugged.run.logger.kept["train"][step]
        assert {k: v for k, v in kept.items() if k in names} == call["metrics"]


@pytest.mark.parametrize("mode", MODES)
def test_entropies_are_those_of_the_models_logits(
    mode: str, trained: Callable[..., Plugged]
) -> None:
    plugged = trained("erpo", mode)
    for batch, model, call in zip(
        plugged.proxy.batches, plugged.proxy.models, plugged.estimator.calls, strict=True
    ):
        dense = scored(model, batch["input_ids"])[1].detach()
        columns = torch.arange(dense.shape[1])
        valid = (columns < batch["input_lengths"][:, None]) & (columns > 0)
        assert valid.sum() > 100 and dense[valid].std() > 0.05
        torch.testing.assert_close(call["entropy"][valid].float(), dense[valid], rtol=0, atol=2e-5)
        assert (call["entropy"][:, 0] == 0).all()
        # ERPO's reference is the first model, its old policy the one that sampled
        reference = plugged.proxy.models[0]
        for key, of in (("logprobs_policy", model), ("logprobs_reference", reference)):
            wanted = scored(of, batch["input_ids"])[0].detach()
            torch.testing.assert_close(call[key][valid], wanted[valid], rtol=0, atol=2e-5)


class Replayed:
    """An estimator that gives recorded advantages."""

    def __init__(self, calls: list[dict[str, Any]]) -> None:
        self.calls = iter(calls)

    def compute_advantage(self, **_: Any) -> Any:
        return result_type()(next(self.calls)["advantages"])


@pytest.mark.parametrize("mode", MODES)
def test_grpo_is_bit_equal_to_stock(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: Callable[..., Plugged]
) -> None:
    """Stock loss, stock policy, and a factory that returns the advantages that ours computed."""
    plugged = trained("grpo", mode)
    overrides = [
        "loss_fn.token_level_loss=false",  # what method grpo decides
        "grpo.adv_estimator.normalize_rewards=true",
        "grpo.adv_estimator.use_leave_one_out_baseline=false",
    ]
    stock = Run(tmp_path, [*COMMON, *overrides], mode=mode, lr=OTHERS)
    theirs = versions.get(stock.config.grpo, "adv_estimator")
    assert versions.get(theirs, "name") == "grpo"
    replayed = Replayed(plugged.estimator.calls)
    monkeypatch.setattr(grpo, FACTORY, lambda _config: replayed)
    stock.train()
    assert torch.equal(stock.weights(), plugged.weights())
    for metric in ("loss", "grad_norm", "probs_ratio_clamped", "reward", "advantages/mean"):
        ours = plugged.series("train", metric)
        assert stock.logger.series("train", metric) == ours, metric
    # and those advantages are NeMo-RL's own formula's
    formula = GRPOAdvantageEstimator(theirs, stock.config.loss_fn)
    for call in plugged.estimator.calls:
        keys = ("prompt_ids", "rewards", "mask", "repeated_batch")
        wanted = tensor_of(formula.compute_advantage(**{k: call[k] for k in keys}))
        torch.testing.assert_close(call["advantages"], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["etr", "erpo"])
def test_resumes_from_nemo_rls_checkpoint(
    name: str, tmp_path: Path, trained: Callable[..., Plugged]
) -> None:
    """Two steps, then a third in a new run over the same checkpoints."""
    whole = trained(name, "fused")
    first = Plugged(tmp_path, METHODS[name], ["grpo.max_num_steps=2"], mode="fused").train()
    second = Plugged(tmp_path, METHODS[name], [], mode="fused")
    assert torch.equal(second.weights(), first.weights())
    second.train()
    assert len(second.estimator.calls) == 1
    assert torch.equal(second.weights(), whole.weights())
    for metric in ("loss", "clip/fraction", *whole.estimator.calls[-1]["metrics"]):
        assert second.series("train", metric) == [whole.run.logger.kept["train"][3][metric]]


@pytest.mark.parametrize("leave_one_out", [True, False])
def test_dynamic_sampling_trains_whole_groups(leave_one_out: bool, tmp_path: Path) -> None:
    """Also those with one right response, or one wrong one: NeMo-RL's own deviations drop it."""
    overrides = ["grpo.use_dynamic_sampling=true", "grpo.dynamic_sampling_max_gen_batches=20"]
    plugged = Plugged(tmp_path, METHODS["etr"], overrides)
    section = plugged.run.config.grpo  # a dictionary in v0.7.0
    changed = {**dict(section), "use_leave_one_out_baseline": leave_one_out}
    plugged.run.config.grpo = type(section)(**changed)
    plugged.estimator.group_size = 4
    plugged.train()
    rare = 0
    for call in plugged.estimator.calls:
        groups: dict[tuple[int, ...], list[float]] = {}
        for prompt, reward in zip(call["prompt_ids"].tolist(), call["rewards"], strict=True):
            groups.setdefault(tuple(prompt), []).append(float(reward))
        assert {len(rewards) % 4 for rewards in groups.values()} == {0}
        assert all(len(set(rewards)) > 1 for rewards in groups.values())
        rare += sum(sum(rewards) in (1, 3) for rewards in groups.values() if len(rewards) == 4)
    assert rare > 0


def test_the_samplers_logprobs_reach_a_method_that_needs_them(tmp_path: Path) -> None:
    """grpo_train passes none to the advantages: they are read of its messages."""
    plugged = Plugged(tmp_path, {"name": "opsm"}, ["grpo.max_num_steps=1"]).train()
    (call,), (batch,) = plugged.estimator.calls, plugged.proxy.batches
    assert call.get("generation_logprobs") is None
    gap = batch["generation_logprobs"] - batch["prev_logprobs"]
    mask = batch["token_mask"] * batch["sample_mask"][:, None]
    want = (gap * mask).sum(1) / mask.sum(1).clamp(min=1)
    got = call["signals"].extras["gap"][:, 0]
    assert want.abs().max() > 1e-8
    torch.testing.assert_close(got.float(), want.float(), rtol=1e-4, atol=1e-7)


def test_a_method_without_a_ratio_needs_no_old_logprobs(tmp_path: Path) -> None:
    one = ["policy.train_global_batch_size=16"]
    forced = ["loss_fn.force_on_policy_ratio=true", *one]
    spared = Plugged(tmp_path / "spared", {"name": "gpg"}, forced)
    spared.proxy._compares = not spared.loss.on_policy
    spared.run.policy.get_logprobs = lambda *_, **__: pytest.fail("a forward for nothing")
    whole = Plugged(tmp_path / "whole", {"name": "gpg"}, one).train()
    assert not differing(spared.train(), whole)
    assert "mismatch/mean" in whole.run.logger.kept["train"][1]
    assert "mismatch/mean" not in spared.run.logger.kept["train"][1]


@pytest.mark.parametrize(
    ("name", "mode"),
    [("etr", "packed"), ("erpo", "fused"), ("quatro", "unpacked"), ("apmpo", "fused")],
)
def test_tokens_are_traced(name: str, mode: str, tmp_path: Path) -> None:
    """Tokens, rewards, advantages and ratios are those of the batch, before and after training."""
    plugged = Plugged(tmp_path, METHODS[name], [], mode=mode, traced=Traced(2, 2, 3, str)).train()
    rows = list(read_lines(tmp_path / "traces/trace.jsonl", TraceLine))
    assert [row["step"] for row in rows] == [1] * 8 + [2] * 8 + [3] * 8
    steps = zip(plugged.proxy.batches, plugged.proxy.models, plugged.estimator.calls, strict=True)
    last = plugged.run.policy.workers.model.model
    after = [*plugged.proxy.models[1:], last]
    for step, (batch, _, call) in enumerate(steps):
        new = scored(after[step], batch["input_ids"])[0].detach()
        seen = dict.fromkeys(tuple(p) for p in call["prompt_ids"].tolist())
        first = [*seen][:2]
        shown = [
            i for p in first for i, q in enumerate(call["prompt_ids"].tolist()) if tuple(q) == p
        ]
        for row, i in zip(rows[8 * step :], shown, strict=False):
            mask = batch["token_mask"][i].bool()
            assert row["tokens"] == [str([t]) for t in batch["input_ids"][i][mask].tolist()]
            assert row["reward"] == call["rewards"][i]
            near = {"rel": 1e-3, "abs": 1e-4}
            assert row["advantage"] == pytest.approx(call["advantages"][i][mask].tolist(), **near)
            ratio = (new[i] - batch["prev_logprobs"][i])[mask]
            judged = ratio.sum().expand(len(ratio)) if name == "quatro" else ratio
            assert row["ratio"] == pytest.approx(judged.exp().tolist(), **near)
            if name == "erpo":
                assert row["entropy"] == pytest.approx(call["entropy"][i][mask].tolist(), **near)
            else:
                assert row["entropy"] is None
            assert (row["high"] is None) == (name == "quatro")
    assert any(True in row["cut"] for row in rows) == (name != "quatro")
    assert any(abs(r - 1) > 0.05 for row in rows for r in row["ratio"])


def test_tracing_changes_no_bit(tmp_path: Path, trained: Callable[..., Plugged]) -> None:
    traced = Plugged(tmp_path, METHODS["etr"], [], traced=Traced(1, 2, 3, str)).train()
    assert torch.equal(trained("etr").weights(), traced.weights())


@pytest.mark.parametrize("bypass", [False, True], ids=CORRECTIONS)
def test_a_corrected_step_is_the_embedded_engines(bypass: bool, tmp_path: Path) -> None:
    """The sampler says e^-o times the probability that it draws with, o by the row."""
    made = Plugged(tmp_path, METHODS["etr"], [], [*CORRECTIONS.values()][bypass])
    made.run.generation.generate = off(made.run.generation.generate)
    workers = made.run.policy.workers
    workers.get_logprobs = mock.Mock(wraps=workers.get_logprobs)
    with previous_logprobs_skipped() if bypass else nullcontext():
        made.train()
    forwards = [
        call for call in workers.get_logprobs.call_args_list if call.args[1:] in ((), (None,))
    ]
    assert len(forwards) == (0 if bypass else STEPS)  # the others are of the reference
    summaries = assert_embedded(made, "loss")
    logged = made.run.logger.kept["train"][1]
    if bypass:
        share = sum(s["correction/rejected_tokens"] for s in summaries) / len(summaries)
        near = rounding(UPDATES)
        assert logged["correction/rejected_tokens"] == pytest.approx(share, abs=near) != 0
        assert not [name for name in logged if name.startswith("mismatch/")]
    else:
        assert logged["correction/rejected_sequences"] == 0.25
        assert logged["correction/weight_max"] == pytest.approx(2.718, rel=1e-3)
        assert logged["mismatch/max"] == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("name", ["etr", "apmpo", "topr", "maxrl"])
def test_successes_are_told_before_nemo_rl_scales_and_shapes(name: str, tmp_path: Path) -> None:
    plugged = Plugged(tmp_path, {"name": name}, SHAPED).train()
    for call, batch in zip(plugged.estimator.calls, plugged.proxy.batches, strict=True):
        outcomes, shaped = call["repeated_batch"][OUTCOMES], call["rewards"]
        assert set(outcomes.tolist()) == {0.0, 1.0}
        assert torch.all(shaped <= 4 * outcomes - 1) and (shaped < 4 * outcomes - 1).any()
        rollouts = rollouts_of(batch, call, outcomes=outcomes)
        want, got = plugged.algorithm.signals(rollouts), call["signals"]
        exactly = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-7, check_dtype=False)
        exactly(got.advantages, want.advantages)
        exactly((got.low, got.extras), (want.low, want.extras))
