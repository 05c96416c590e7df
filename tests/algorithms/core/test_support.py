"""Kept sets: which tokens filters keep, packed, and log-probs renormalised over them."""

import math
from types import SimpleNamespace

import pytest
import torch

from nemo_algos.algorithms.core import entropy
from nemo_algos.algorithms.core.entropy import token_logprobs_and_entropy
from nemo_algos.engines.local.sampling import pack, support, unpack

P = torch.tensor([0.1, 0.5, 0.15, 0.05, 0.2])  # by rank: 1, 4, 2, 0, 3


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ({"top_p": 0.8}, [1, 2, 4]),  # .7 before the third, .85 before the fourth
        ({"top_p": 0.01}, [1]),
        ({"top_k": 2}, [1, 4]),
        ({"top_k": 9}, [0, 1, 2, 3, 4]),
        ({"min_p": 0.25}, [1, 2, 4]),  # at least .125
        ({"min_p": 0.25, "top_p": 0.8}, [1, 4]),  # .7 / .85 before the third
        ({"top_k": 3, "top_p": 0.95, "min_p": 0.35}, [1, 4]),
        ({"top_k": 1, "top_p": 0.95}, [1]),
    ],
)
def test_what_filters_keep_by_hand(filters, kept):
    two = torch.stack((P, P.flip(0)))
    assert support(two, **filters)[0].nonzero()[:, 0].tolist() == kept
    assert support(two, **filters)[1].nonzero()[:, 0].tolist() == sorted(4 - i for i in kept)


def test_of_equal_tokens_top_k_keeps_exactly_so_many():
    assert support(torch.full((3, 8), 0.125), top_k=3).sum(-1).tolist() == [3] * 3


def test_a_set_in_bytes_by_hand():
    kept = torch.tensor([True, False, True, *[False] * 5, True])
    assert pack(kept).tolist() == [5, 1]
    assert torch.equal(unpack(pack(kept), 9), kept)
    assert unpack(pack(kept), 20).nonzero()[:, 0].tolist() == [0, 2, 8]
    assert unpack(torch.zeros(1, 2, dtype=torch.uint8), 9).all()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_gradients_are_those_of_the_direct_formula(temperature):
    """log pi(a) - log sum_kept pi; nothing kept is left out of a set that holds everything."""
    torch.manual_seed(0)
    logits = (3 * torch.randn(7, 3, 11).double()).requires_grad_()
    kept = torch.rand(7, 3, 11) < 0.4
    kept[0] = True
    tokens, weights = torch.randint(11, (7, 3)), torch.randn(2, 7, 3).double()
    kept.scatter_(-1, tokens[..., None], True)
    logp = (logits / temperature).log_softmax(-1)
    mass = (logp.exp() * kept).sum(-1)
    direct = logp.gather(-1, tokens[..., None])[..., 0] - mass.log()
    want = direct, -(logp.exp() * logp).sum(-1)
    got = token_logprobs_and_entropy(logits, tokens, temperature, kept=kept)
    grads = [
        torch.autograd.grad((weights[0] * x + weights[1] * h).sum(), logits)[0]
        for x, h in (want, got)
    ]
    for x, y in zip((*want, grads[0]), (*got, grads[1]), strict=True):
        torch.testing.assert_close(y, x, rtol=1e-12, atol=1e-12)
    assert (mass < 0.9).sum() > 10


def test_a_shard_of_the_vocabulary_may_keep_nothing(monkeypatch):
    """Two ranks in turn, the collective played by a list; kept tokens are on the first."""
    logits, kept = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log(), torch.tensor([[True, True]])
    narrow = logits.where(torch.cat((kept, ~kept), 1), -torch.inf)
    shards = [entropy.Shard("group", start, 2) for start in (0, 2)]
    tokens, ranks = torch.tensor([1]), narrow.split(2, dim=1)
    own = [entropy.moments(x, tokens, 1.0, s) for x, s in zip(ranks, shards, strict=True)]

    def all_gather(parts, part, group):
        for out, moments in zip(parts, own, strict=True):
            out.copy_(torch.stack(moments))

    collectives = SimpleNamespace(get_world_size=lambda _: 2, all_gather=all_gather)
    monkeypatch.setattr(entropy, "dist", collectives)
    ones = torch.ones(1)
    for x, moments, shard, want in zip(
        ranks, own, shards, ([[-2 / 3, 2 / 3]], [[0, 0]]), strict=True
    ):
        result = entropy.over_vocabulary(moments, shard)
        assert result.logprobs.item() == pytest.approx(math.log(1 / 3))
        grad = entropy.logits_gradient(x, tokens, 1.0, shard, result, ones, None)
        torch.testing.assert_close(grad, torch.tensor(want).float())
