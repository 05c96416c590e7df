"""Parameters of sampling are solved for, against the whole vocabulary's softmax."""

from functools import cache

import numpy as np
import peaked_llama as small
import pytest
import torch
from matrix import some_of

from nemo_algos.lab.mismatch.examination import drawn
from nemo_algos.lab.mismatch.hypotheses import records, sampling
from nemo_algos.lab.mismatch.hypotheses.records import Record
from nemo_algos.lab.mismatch.network import Network, recompute
from nemo_algos.lab.mismatch.responses import gather
from nemo_algos.lab.mismatch.search import Side, State

MODEL = small.model()


def top_p(mass):
    def change(z):
        probs, order = z.softmax(-1).sort(-1, descending=True)
        dropped = probs.cumsum(-1) - probs >= mass
        return z.masked_fill(torch.zeros_like(dropped).scatter(-1, order, dropped), -1e9)

    return change


def top_k(count):
    return lambda z: z.masked_fill(z < z.topk(count, -1).values[..., -1:], -1e9)


def min_p(share):
    return lambda z: z.masked_fill(z < z.amax(-1, keepdim=True) + np.log(share), -1e9)


def biased(ids, bias):
    return lambda z: z.index_add(-1, torch.tensor(ids), torch.full((*z.shape[:-1], len(ids)), bias))


CHANGES = {
    "none": lambda z: z,
    "temperature": lambda z: z / 0.6,
    "top_p": top_p(0.9),
    "top_k": top_k(4),
    "min_p": min_p(0.1),
    "greedy": lambda z: z * 1e4,
}
SOLVED = {"temperature": 0.6, "top_p": 0.9, "top_k": 4, "min_p": 0.1}
SOLVERS = dict(zip(SOLVED, sampling.HYPOTHESES, strict=False))


def recorded(change):
    """Logits, and the record of a sampler that draws from softmax(change(logits))."""
    rollouts = small.sampled(MODEL, 0, change)
    values = small.values(MODEL, rollouts, change)
    responses = gather([small.dump(rollouts, values, values)], 64)
    logits = recompute(Network(MODEL, None), responses)
    value = responses.column("sampler")
    scale = np.full(len(value), 1e-3)
    place = np.concatenate([np.arange(len(r.at)) for r in responses.each])
    return responses, logits, Record(value, scale, responses.row, place, responses.column("tokens"))


@cache
def changed(name):
    return recorded(CHANGES[name])


@pytest.mark.parametrize("name", some_of(SOLVED, 2))
def test_the_parameter_is_found_and_gives_the_record(name):
    _, logits, record = changed(name)
    found = SOLVERS[name].solve(record, logits)
    assert found[name][name] == pytest.approx(SOLVED[name], abs=0.01, rel=0.01)
    np.testing.assert_allclose(SOLVERS[name].logprobs(logits, found), record.value, atol=0.01)


@pytest.mark.parametrize("bias, name", [(1.5, "logit_bias"), (-30.0, "banned_tokens")])
def test_tokens_with_a_bias_are_named(bias, name):
    free = changed("none")[1]
    common = np.bincount(free.ids.ravel(), free.probs.ravel()).argsort()[::-1][:3]
    _, logits, record = recorded(biased(common.tolist(), bias))
    found = sampling.HYPOTHESES[7].solve(record, logits)
    assert found[name]["ids"] == sorted(common)
    assert bias < -5 or found[name]["bias"] == pytest.approx(bias, abs=0.02)


@pytest.mark.parametrize("name", sampling.PENALTIES)
def test_a_penalty_of_what_stood_before_is_found(name):
    rollouts = small.sampled(MODEL)
    rows = []
    for p, r, z in zip(
        rollouts.prompts, rollouts.responses, small.logits(MODEL, rollouts), strict=True
    ):
        z = z.clone()
        for t in range(len(r)):
            for i in set((p.tolist() if name == "repetition_penalty" else []) + r[:t].tolist()):
                if name == "repetition_penalty":
                    z[t, i] = z[t, i] / 1.2 if z[t, i] > 0 else z[t, i] * 1.2
                else:
                    times = r[:t].tolist().count(i) if name == "frequency_penalty" else 1
                    z[t, i] -= 0.4 * times
        rows.append(z)
    values = small.logprobs(rows, rollouts)
    responses = gather([small.dump(rollouts, values, values)], 64)
    logits = recompute(Network(MODEL, None), responses)
    value = responses.column("sampler")
    record = Record(value, np.full(len(value), 1e-3), responses.row, value, value)
    solver = sampling.HYPOTHESES[4 + list(sampling.PENALTIES).index(name)]
    want = 1.2 if name == "repetition_penalty" else 0.4
    assert solver.solve(record, logits)[name]["penalty"] == pytest.approx(want, abs=0.005)


@pytest.mark.parametrize("name, error", [("temperature", 0.08), ("top_p", 0.03), ("top_k", 0)])
def test_tokens_drawn_otherwise_than_recorded(name, error):
    responses, logits, _ = changed(name)
    found = drawn(logits, responses)["recorded_before"]
    assert found[name] == pytest.approx(SOLVED[name], abs=error)


@pytest.mark.parametrize("name, found", [("none", {}), ("greedy", {"greedy": {}})])
def test_tokens_drawn_as_recorded_or_the_likeliest(name, found):
    responses, logits, _ = changed(name)
    assert drawn(logits, responses) == found


def test_bookkeeping_behind_a_parameter_does_not_solve_for_it_again():
    _, logits, record = changed("temperature")
    (solve, logprobs), calls = sampling.HYPOTHESES[0], []
    counted = sampling.Sampling(lambda *of: calls.append(of) or solve(*of), logprobs)
    side = Side(record, logits)
    for tried in (None, *records.HYPOTHESES):
        side.reached(State(sampling=counted, bookkeeping=tried), logits)
    assert len(calls) == 1
