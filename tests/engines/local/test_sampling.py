"""sampling: frequencies, filters, the ends of the random numbers, where a response ends."""

import math

import pytest
import torch

from nemo_algos.engines.local.sampling import decode, sample
from nemo_algos.engines.local.schema import GenerationSection

V, END, PAD = 5, 4, 3
LOGITS = torch.tensor([1.0, 0.0, -1.0, -0.5, 0.5])


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def sampling(steps, **settings):
    return GenerationSection(max_new_tokens=steps, **settings)


def own(logits):
    """Each sequence has its row of the model."""
    return logits, torch.arange(len(logits))


def draw(logits, steps=1, seed=0, temperature=1.0, ends=(END,)):
    """Decode with a model that has the same logits at every step."""
    settings = sampling(steps, temperature=temperature)
    return decode(own(logits), lambda tokens: own(logits), ends, PAD, settings, rng(seed))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_are_the_softmax_at_the_temperature(temperature):
    n = 100_000
    tokens = draw(LOGITS.expand(n, V), temperature=temperature).tokens[:, 0]
    p = (LOGITS.double() / temperature).softmax(0)
    seen = tokens.bincount(minlength=V).double()
    chi_square = ((seen - n * p).square() / (n * p)).sum().item()
    assert chi_square < 18.5  # 4 degrees of freedom: exceeded once in a thousand


def test_later_tokens_are_drawn_from_the_model_that_saw_the_earlier_ones():
    n = 20_000
    table = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]])
    start = torch.zeros(n, 3)
    out = decode(own(start), lambda t: own(table[t]), {9}, PAD, sampling(2), rng())
    stays = out.tokens[:, 0] == out.tokens[:, 1]
    want = math.e**2 / (math.e**2 + 2)
    assert stays.double().mean().item() == pytest.approx(want, abs=0.012)  # 4 sd
    assert out.logprobs[stays][:, 1].tolist() == pytest.approx([math.log(want)] * int(stays.sum()))


def test_logprob_and_entropy_by_hand():
    # p = (1/2, 1/4, 1/4) at temperature 1, (2/3, 1/6, 1/6) at 1/2
    logits = torch.tensor([[math.log(2.0), 0.0, 0.0]]).expand(64, 3)
    for temperature, p in ((1.0, (1 / 2, 1 / 4)), (0.5, (2 / 3, 1 / 6))):
        out = draw(logits, temperature=temperature)
        entropy = -p[0] * math.log(p[0]) - 2 * p[1] * math.log(p[1])
        assert out.entropy.flatten().tolist() == pytest.approx([entropy] * 64, abs=1e-6)
        want = [math.log(p[min(t, 1)]) for t in out.tokens.flatten().tolist()]
        assert out.logprobs.flatten().tolist() == pytest.approx(want, abs=1e-6)


def scripted(*columns):
    """Decode with a model that says exactly these tokens; also what it was given."""
    given = []

    def certain(column):
        return 100.0 * torch.nn.functional.one_hot(torch.tensor(column), V).float()

    def next_rows(tokens):
        given.append(tokens.tolist())
        return own(certain(columns[len(given)]))

    first = own(certain(columns[0]))
    out = decode(first, next_rows, {END, 0}, PAD, sampling(len(columns)), rng())
    return out, given


def test_a_response_ends_with_its_end_token_and_pads_follow():
    out, given = scripted([1, 1, END, 0], [2, END, 1, 1], [1, 2, 2, 2])
    assert out.tokens.tolist() == [[1, 2, 1], [1, END, PAD], [END, PAD, PAD], [0, PAD, PAD]]
    assert out.mask.tolist() == [[True] * 3, [True, True, False], *[[True, False, False]] * 2]
    assert given == [[1, 1, END, 0], [2, END, PAD, PAD]]
    for values in (out.logprobs, out.entropy):
        assert values[~out.mask].tolist() == [0.0] * 5
        assert values.shape == out.mask.shape


def test_an_impossible_token_is_never_drawn_and_entropy_stays_finite():
    inf = math.inf
    logits = torch.tensor([-inf, 0.0, -inf, 0.0, -inf, -inf]).expand(50_000, 6)
    tokens, logprob, entropy, drawn_from, kept = sample(*own(logits), rng())
    assert tokens.unique().tolist() == [1, 3] and kept is None and torch.equal(drawn_from, logprob)
    assert logprob.unique().tolist() == pytest.approx([-math.log(2)])
    assert entropy.unique().tolist() == pytest.approx([math.log(2)])


@pytest.mark.parametrize("edge", [0.0, 1.0 - 2**-24])
def test_the_ends_of_the_random_numbers_draw_possible_tokens(monkeypatch, edge):
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.full(shape, edge))
    logits = torch.full((3, 40_000), -200.0)  # exp underflows to 0
    logits[:, [7, 20_000, 39_990]] = torch.tensor([0.0, 1.0, 0.3])
    tokens, logprob, *_ = sample(*own(logits), rng())
    assert tokens.tolist() == [7 if edge else 39_990] * 3 and logprob.min() > -2


def test_a_sum_rounded_below_one_does_not_lead_past_the_last_possible_token(monkeypatch):
    logits = 3 * torch.randn(400, 3000, generator=rng())
    logits[:, -1] = -math.inf
    assert (logits.softmax(-1).cumsum(-1)[:, -1] < 1).sum() > 10
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.zeros(shape))
    assert sample(*own(logits), rng())[1].isfinite().all()


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.3, [0]), (0.5, [0, 4]), (0.62, [0, 4]), (0.99, [0, 1, 2, 3, 4])]
)
def test_top_p_keeps_the_fewest_likeliest_tokens(top_p, kept):
    # softmax(LOGITS) = .456 .168 .062 .102 .277 -> sorted .456, .733, .900, .938 + ... by hand
    n = 50_000
    out = decode(own(LOGITS.expand(n, V)), lambda t: t, {END}, PAD, sampling(1, top_p=top_p), rng())
    p = LOGITS.double().softmax(0)
    seen = out.tokens[:, 0].bincount(minlength=V).double() / n
    assert seen.nonzero().flatten().tolist() == kept
    want = torch.zeros(V, dtype=torch.float64)
    want[kept] = p[kept] / p[kept].sum()
    torch.testing.assert_close(seen, want, rtol=0, atol=0.01)
    torch.testing.assert_close(out.logprobs[:, 0].double(), p[out.tokens[:, 0]].log())
    torch.testing.assert_close(out.gen_logprobs[:, 0].double(), want[out.tokens[:, 0]].log())
    assert out.support.shape == (n, 1, 0)
