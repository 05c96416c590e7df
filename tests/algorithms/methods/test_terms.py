"""Terms beside the surrogate: numbers and gradients by hand, their own counts."""

import textwrap
from dataclasses import replace

import pytest
import torch
from batches import KL, Batch, close, make, off_mask
from says import Says

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.extensions.loss_config import LossConfig
from nemo_algos.algorithms.extensions.terms import TERMS
from nemo_algos.algorithms.loss import batch_loss, policy_loss
from nemo_algos.algorithms.rollouts import Rollouts
from nemo_algos.findings import ConfigError, Section

ALL = {"entropy": {"coef": 0.3}, "nll": {"coef": 0.2}}
BLOCKS = [
    {"name": "etr", "terms": ALL},
    {"name": "grpo", "terms": {"entropy": {"coef": 0.3, "aggregation": "sequence"}}},
    {"name": "gspo", "terms": {"nll": {"aggregation": "sequence"}}},
    {"name": "gpg", "terms": {"adaptive_entropy": {"target": 9.0, "start": 0.004}}},
]
every_block = pytest.mark.parametrize("block", BLOCKS, ids=str)


def entropies(batch, seed=0):
    """[B,S] with gradient, garbage off the mask."""
    rng = torch.Generator().manual_seed(seed)
    values = torch.rand(batch.logprobs.shape, generator=rng, dtype=torch.float64)
    return off_mask(values, batch.rollouts.mask).requires_grad_()


def run(block, batch, entropy, signals=None, counts=None, config=KL, batch_size=None):
    """The loss of a batch, its gradients by log-probs and by entropies, and the statistics."""
    algorithm = build(block)
    signals = signals or algorithm.signals(batch.rollouts, {}, batch_size)
    counts = counts or Counts.of(batch.rollouts.mask)
    leaves = [x.detach().clone().requires_grad_() for x in (batch.logprobs, entropy)]
    loss = policy_loss(algorithm, leaves[0], batch.rollouts, signals, counts, config, leaves[1])
    loss.value.backward()
    zeros = torch.zeros_like(leaves[1])
    grads = [leaf.grad if leaf.grad is not None else zeros for leaf in leaves]
    return loss.value.detach(), *grads, loss.stats.summary()


def without_terms(block):
    return {k: v for k, v in block.items() if k != "terms"}


# ---- numbers


def test_numbers_by_hand():
    """Two sequences of 2 and 1 tokens; the first succeeds: its NLL is over 2 tokens, H over 3."""
    rollouts = Rollouts([0, 0], [1, 0], [[True, True], [True, False]], torch.zeros(2, 2))
    logprobs = torch.tensor([[-1.0, -2.0], [-4.0, 0.0]], dtype=torch.float64).requires_grad_()
    entropy = torch.tensor([[0.5, 0.7], [0.9, 9.0]], dtype=torch.float64).requires_grad_()
    block = {"name": "grpo", "terms": {"entropy": {"coef": 0.3}, "nll": {"coef": 0.2}}}
    loss, metrics = batch_loss(block, logprobs, rollouts, entropy=entropy)
    bare, _ = batch_loss("grpo", logprobs, rollouts)
    assert metrics["terms/entropy"] == pytest.approx(-0.3 * (0.5 + 0.7 + 0.9) / 3)
    assert metrics["terms/nll"] == pytest.approx(0.2 * (1 + 2) / 2)
    assert (loss - bare).item() == pytest.approx(-0.21 + 0.3)
    assert metrics["loss"] == pytest.approx(loss.item())
    (by_entropy,) = torch.autograd.grad(loss, entropy, retain_graph=True)
    close(by_entropy, torch.tensor([[-0.1, -0.1], [-0.1, 0.0]]), 1e-7)
    (by_logprobs,) = torch.autograd.grad(loss - bare, logprobs)
    close(by_logprobs, torch.tensor([[-0.1, -0.1], [0.0, 0.0]]), 1e-7)


def test_adaptive_entropy_holds_its_target():
    """c rises below the target, falls above it, within [0, largest]; no bonus above."""
    params = {"target": 0.5, "start": 0.002, "delta": 0.001, "largest": 0.003}
    algorithm = build({"name": "grpo", "terms": {"adaptive_entropy": params}})
    rollouts, memory = make(large=False).rollouts, {}
    seen, kept = [], []
    for entropy in (0.4, 0.4, 0.4, 0.9, 0.5, 0.9, 0.9, 0.9, 0.4):
        filled = torch.full_like(rollouts.old_logprobs, entropy)
        signals = algorithm.signals(replace(rollouts, entropy=filled), memory)
        memory = signals.memory
        seen.append(signals.metrics["adaptive_entropy/coef"])
        kept.append(memory["term_adaptive_entropy"]["c"])
        weights = signals.extras["term_adaptive_entropy"][:, 0]
        counted = (weights * rollouts.lengths).sum()
        assert float(counted) == pytest.approx(seen[-1])  # coef: mean of ones
    assert seen == pytest.approx([0.002, 0.003, 0.003, 0, 0.002, 0, 0, 0, 0])
    assert kept == pytest.approx([0.003, 0.003, 0.003, 0.002, 0.002, 0.001, 0, 0, 0.001])


# ---- what it may not depend on


@every_block
@pytest.mark.parametrize("batch_size", [None, 8])
@pytest.mark.parametrize("cuts", [[8, 8], [1, 7, 3, 5], "ranks"], ids=str)
def test_micro_batches_and_ranks(block, cuts, batch_size):
    """Pieces of each optimizer batch add up to it, however they are cut or dealt out."""
    batch = make()
    entropy, algorithm, every = entropies(batch), build(block), torch.arange(16)
    signals = algorithm.signals(batch.rollouts, {}, batch_size)
    for rows in every.split(batch_size or 16):
        counts = Counts.of(batch.rollouts.mask[rows])
        whole = run(block, batch.rows(rows), entropy[rows], signals[rows], counts)
        inside = [p[torch.isin(p, rows)] for p in every.split(cuts if cuts != "ranks" else 1)]
        pieces = (
            [rows[i::3] for i in range(3)] if cuts == "ranks" else [p for p in inside if len(p)]
        )
        parts = [run(block, batch.rows(p), entropy[p], signals[p], counts) for p in pieces]
        close(sum(p[0] for p in parts), whole[0])
        for name in block["terms"]:
            total = sum(p[3][f"terms/{name}"] for p in parts)
            assert total == pytest.approx(whole[3][f"terms/{name}"], rel=1e-12)
        for k in (1, 2):
            close(torch.cat([p[k] for p in parts]), whole[k][torch.cat(pieces) - rows[0]])


def test_an_optimizer_batch_has_counts_of_its_own():
    """With 2 optimizer batches each is as if it were alone; the rows are taken in order."""
    batch = make(rewards=((0.0, 1.0, 0.3, 1.0),) * 4, seed=5)
    algorithm = build({"name": "gpg", "advantage_std": "none", "terms": {"nll": {}}})
    signals = algorithm.signals(batch.rollouts, batch_size=8)
    for rows in (slice(0, 8), slice(8, 16)):
        alone = algorithm.signals(batch.rollouts[rows])
        close(signals[rows].extras["term_nll"], alone.extras["term_nll"])
    whole = algorithm.signals(batch.rollouts)
    assert not torch.equal(whole.extras["term_nll"], signals.extras["term_nll"])


@every_block
def test_terms_leave_everything_else_as_it_was(block):
    batch = make()
    whole, bare = build(block), build(without_terms(block))
    signals, without = whole.signals(batch.rollouts, {}), bare.signals(batch.rollouts)
    assert torch.equal(signals.advantages, without.advantages)
    assert whole.mean == bare.mean and whole.needs - bare.needs <= {
        "entropy", "entropy_gradient", "memory"
    }  # fmt: skip
    entropy = entropies(batch)
    with_terms, plain = run(block, batch, entropy), run(without_terms(block), batch, entropy)
    added = sum(v for k, v in with_terms[3].items() if k.startswith("terms/"))
    close(with_terms[0], plain[0] + added)
    assert {k: v for k, v in with_terms[3].items() if k in plain[3] and k != "loss"} == {
        k: v for k, v in plain[3].items() if k != "loss"
    }


def test_rows_with_a_term_are_not_inert():
    batch = make()
    algorithm = build({"name": "etr", "terms": {"nll": {}}})
    signals = algorithm.signals(batch.rollouts)
    inert = algorithm.inert_rows(signals)
    zero = build("etr").inert_rows(build("etr").signals(batch.rollouts))
    won = (batch.rollouts.rewards > 0) & (batch.rollouts.lengths > 0)
    assert torch.equal(inert, zero & ~won) and (zero & won).any()


def test_bad_tokens_are_dropped_from_terms_too():
    batch = make()
    entropy = entropies(batch)
    bad = (3, int(batch.rollouts.mask[3].nonzero()[0]))
    logprobs = batch.logprobs.clone()
    logprobs[bad] = float("nan")
    report = LossConfig(on_nonfinite="report")
    value, *grads, summary = run(BLOCKS[0], Batch(batch.rollouts, logprobs), entropy, config=report)
    assert value.isfinite() and summary["nonfinite_tokens"] == 1
    assert all(grad.isfinite().all() and grad[bad] == 0 for grad in grads)


# ---- config


def refusals(block):
    with pytest.raises(ConfigError) as error:
        build(block)
    return [str(problem) for problem in error.value.findings]


@pytest.mark.parametrize(
    ("terms", "wanted"),
    [
        (3, ["method.terms: sections 3"]),
        ({"entrpy": {}}, ["method.terms.entrpy: 'entrpy' entropy"]),
        ({"nll": 0.1}, ["method.terms.nll: section 0.1"]),
        (
            {"nll": {"coeff": 1}, "entropy": {"coef": -1}},
            ["method.terms.nll.coeff: coef", "method.terms.entropy.coef: 0 -1"],
        ),
        ({"entropy": {}, "adaptive_entropy": {}}, ["method.terms.adaptive_entropy: entropy"]),
        (
            {"adaptive_entropy": {"start": 1.0}},
            ["method.terms.adaptive_entropy: start 1.0 largest 0.005"],
        ),
        ({"mine": {"name": "nll"}}, ["method.terms.mine.name: nll method.terms.nll"]),
        (
            {"mine": {"name": "no.such:TERM"}},
            ["method.terms.mine.name: 'no.such:TERM' ModuleNotFoundError 'no'"],
        ),
    ],
    ids=str,
)
def test_refused_with_the_reason(terms, wanted):
    assert refusals({"name": "etr", "terms": terms}) == [Says(words) for words in wanted]


def test_every_mistake_of_a_block_at_once():
    block = {"name": "ert", "bounds": {"name": "etr", "mikro": 1}, "terms": {"nll": {"x": 1}}}
    assert [line.split(":")[0] for line in refusals(block)] == [
        "method.terms.nll.x", "method.name", "method.bounds.mikro",
    ]  # fmt: skip


def test_terms_are_of_the_method_and_not_of_a_component():
    found = refusals({"name": "grpo", "bounds": {"name": "etr", "terms": {}}})
    assert found[0].startswith("method.bounds.terms: ")


OWN = """
    from nemo_algos import (LossTerm, TermParams)

    class Params(TermParams):
        power: int = 2

    def values(inputs, signals, params):
        return inputs.logprobs ** params.power

    def failures(rollouts, params):
        return rollouts.rewards < 1

    MINE = LossTerm("square", "-", Params, values, rows=failures)
    TAKEN = LossTerm("nll", "-", Params, values)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_terms.py").write_text(textwrap.dedent(OWN))
    monkeypatch.syspath_prepend(tmp_path)


def test_a_term_of_ones_own(own):
    batch = make(large=False)
    block = {"name": "grpo", "terms": {"square": {"name": "own_terms:MINE", "coef": 2.0}}}
    _, grad, _, summary = run(block, batch, entropies(batch))
    assert grad.isfinite().all() and not grad[~batch.rollouts.mask].any()
    inside = batch.rollouts.mask & (batch.rollouts.rewards < 1)[:, None]
    want = 2 * float(batch.logprobs[inside].square().mean())
    assert summary["terms/square"] == pytest.approx(want)
    assert build(block).name == "grpo+square"
    cubed = {"name": "own_terms:MINE", "power": 3.5}
    assert refusals({"name": "grpo", "terms": {"square": cubed}}) == [
        Says("method.terms.square.power: integer 3.5")
    ]
    assert refusals({"name": "grpo", "terms": {"nll": {"name": "own_terms:TAKEN"}}}) == [
        Says("method.terms.nll.name: 'own_terms:TAKEN' nll")
    ]
    assert refusals({"name": "grpo", "terms": {"Params": {"name": "own_terms:Params"}}}) == [
        Says("method.terms.Params.name: 'own_terms:Params' LossTerm")
    ]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"params": int}, "TermParams"),
        ({"params": Section}, "aggregation"),
        ({"needs": frozenset({"entropie"})}, "entropie"),
    ],
)
def test_a_wrong_record_is_refused(change, word):
    with pytest.raises(ValueError, match=f"nll: .*{word}"):
        replace(TERMS["nll"], **change)


def test_missing_entropies_are_named():
    batch = make()
    algorithm = build(BLOCKS[0])
    signals, counts = algorithm.signals(batch.rollouts), Counts.of(batch.rollouts.mask)
    logprobs = batch.logprobs.clone().requires_grad_()
    wanted = r"^etr\+entropy\+nll .*gradient.*\bpolicy_loss\b"
    for entropy in (None, torch.zeros_like(logprobs)):
        with pytest.raises(ValueError, match=wanted):
            policy_loss(algorithm, logprobs, batch.rollouts, signals, counts, KL, entropy)
    with torch.no_grad():
        zeros = torch.zeros_like(logprobs)
        policy_loss(algorithm, batch.logprobs, batch.rollouts, signals, counts, KL, zeros)
