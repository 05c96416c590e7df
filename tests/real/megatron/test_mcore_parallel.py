"""Four methods under megatron-core's parallel layouts equal one process's plain log-softmax.

Log-probs, entropies and gradients.

A real GPTModel, its DDP, pipeline schedules and finalize_model_grads, over gloo. Substitutes, for
what megatron-core has in Transformer Engine alone: under sequence parallelism the norm
(substitutes.Norm), under context parallelism the attention (substitutes.Attention: RoPE, the
schedule and the gradients' sums are megatron's, ring attention is not run). Slicing sequences and
gathering log-probs into whole ones (substitutes.positions, .gather) stand for NeMo-RL's own.
"""

import pytest
import ranks
from model import Layout
from oracle import METHODS, Oracle
from parallel import FromHidden, Parallel

VALUE, GRADIENT = 2e-5, 1e-4
LAYOUTS = (
    Layout(),
    Layout(tp=2),
    Layout(pp=2),
    Layout(pp=4),
    Layout(dp=2),
    Layout(cp=2),
    Layout(tp=2, sp=True),
    Layout(tp=2, pp=2),
    Layout(tp=2, pp=2, sp=True),
    Layout(tp=2, cp=2),
    Layout(tp=2, dp=2),
    Layout(pp=2, dp=2),
)
OF_HIDDEN = (Layout(tp=2), Layout(tp=2, sp=True), Layout(tp=2, pp=2), Layout(tp=2, cp=2))


def errors(layout: Layout, oracle: Oracle, run: type[Parallel] = Parallel) -> dict[str, float]:
    """The worst rank's, by log-probs, entropy and method/parameter."""

    found: dict[str, float] = {}
    for rank in ranks.run(layout.world, lambda: run(layout, oracle).errors()):
        found |= {k: max(v, found.get(k, 0.0)) for k, v in rank.items()}
    return found


def worst(found: dict[str, float], method: str) -> float:
    return max(v for k, v in found.items() if k.startswith(f"{method}/"))


def test_the_bounds_of_the_batch_bind(oracle: Oracle) -> None:
    assert all(oracle.clipped[name] >= 4 for name in ("etr", "erpo", "apmpo"))  # quatro has none
    largest = [float(g.abs().max()) for grads in oracle.grads.values() for g in grads.values()]
    assert min(largest) > 1e-3


def check(found: dict[str, float], oracle: Oracle) -> None:
    gradients = {f"{m}/{name}" for m in METHODS for name in oracle.weights}
    assert set(found) == gradients | {"logprobs", "entropy"}
    assert found["logprobs"] < VALUE and found["entropy"] < VALUE
    for method in METHODS:
        assert worst(found, method) < GRADIENT, method


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_equals_one_process(layout: Layout, oracle: Oracle) -> None:
    check(errors(layout, oracle), oracle)


@pytest.mark.parametrize("layout", OF_HIDDEN, ids=str)
def test_from_hidden_states_too(layout: Layout, oracle: Oracle) -> None:
    check(errors(layout, oracle, run=FromHidden), oracle)
