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
from dropped import DROP
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
MISSING = (
    (Layout(tp=2), "norms over tensor ranks"),
    (Layout(tp=2, sp=True), "norms over tensor ranks"),
    (Layout(tp=2, pp=2), "norms over tensor ranks"),
    (Layout(pp=2), "tied embedding over stages"),
    (Layout(pp=4), "tied embedding over stages"),
    (Layout(tp=2, pp=2), "tied embedding over stages"),
    (Layout(dp=2), "gradients over data ranks"),
    (Layout(cp=2), "gradients over data ranks"),
)


def errors(
    layout: Layout, oracle: Oracle, dropped: str | None = None, run: type[Parallel] = Parallel
) -> dict[str, float]:
    """The worst rank's, by log-probs, entropy and method/parameter."""

    def work() -> dict[str, float]:
        if dropped:
            setattr(*DROP[dropped])
        return run(layout, oracle).errors()

    found: dict[str, float] = {}
    for rank in ranks.run(layout.world, work):
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


@pytest.mark.parametrize(("layout", "dropped"), MISSING, ids=str)
def test_the_oracle_sees_a_missing_collective(layout: Layout, dropped: str, oracle: Oracle) -> None:
    found = errors(layout, oracle, dropped)
    for method in METHODS:
        assert worst(found, method) > 100 * GRADIENT, method


@pytest.mark.parametrize("sp", [False, True])
def test_the_oracle_sees_a_gradient_of_hidden_that_is_not_summed(sp: bool, oracle: Oracle) -> None:
    found = errors(
        Layout(tp=2, sp=sp), oracle, "hidden's gradient over tensor ranks", run=FromHidden
    )
    for method in METHODS:
        assert worst(found, method) > 100 * GRADIENT, method


def test_methods_of_whole_sequences_need_them_gathered(oracle: Oracle) -> None:
    """QUATRO's ratio and APMPO's power mean do; a ratio of one token needs no other."""
    found = errors(Layout(cp=2), oracle, "sequences over context ranks")
    assert found["logprobs"] > 1
    for method, needs in {"quatro": True, "apmpo": True, "etr": False, "erpo": False}.items():
        assert (worst(found, method) > 100 * GRADIENT) == needs, method


def test_without_the_vocabularys_collective_nothing_is_finite(oracle: Oracle) -> None:
    """A rank finds half of the tokens outside its own shard, and the loss refuses."""
    with pytest.raises(pytest.fail.Exception, match="non-finite"):
        errors(Layout(tp=2), oracle, "vocabulary over tensor ranks")


def test_the_oracle_sees_padding_counted_as_vocabulary(oracle: Oracle) -> None:
    found = errors(Layout(tp=2), oracle, "padding of the vocabulary")
    assert found["logprobs"] > 0.01 and found["entropy"] > 0.01
