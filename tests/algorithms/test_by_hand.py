"""A number of each method by hand, as its page in docs/methods tells it."""

from dataclasses import replace
from math import exp, isclose, log, sqrt, tanh

import torch

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core import groups, surrogate
from nemo_algos.algorithms.core.dual import kl_radius, solve
from nemo_algos.algorithms.core.groups import Groups
from nemo_algos.algorithms.core.power_mean import log_power_mean
from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.loss import policy_loss
from nemo_algos.algorithms.rollouts import Rollouts


def test_etr():
    """One right of four: the macro term is 0.1 x 3/4."""

    def radius(right, of):
        """The radii of a right and of a wrong response."""
        rewards = torch.tensor([1.0] * right + [0.0] * (of - right))
        mask = torch.ones(of, 1, dtype=torch.bool)
        rollouts = Rollouts(torch.zeros(of, dtype=torch.long), rewards, mask, torch.zeros(of, 1))
        high = build("etr").signals(rollouts).high
        return float(high[0]), float(high[-1])

    right, wrong = radius(1, of=4)
    assert isclose(right, 0.2 + 0.1 * tanh(1.5) + 0.075, abs_tol=1e-6)  # .3655
    assert isclose(wrong, 0.2 - 0.1 * tanh(0.5) + 0.075, abs_tol=1e-6)  # .2288
    by_right = [radius(c, of=8) for c in range(1, 8)]
    assert [round(r, 3) for r, _ in by_right] == [0.342, 0.367, 0.377, 0.373, 0.356, 0.324, 0.278]
    assert [round(w, 3) for _, w in by_right] == [0.21, 0.226, 0.232, 0.227, 0.21, 0.183, 0.145]


def test_quatro():
    """One right of two, and a radius whose best policy is 3/4 and 1/4; figure 2 of the paper."""

    def advantages(right, of, delta):
        """A of a right and of a wrong response, and lambda."""
        rewards = torch.tensor([1.0] * right + [0.0] * (of - right), dtype=torch.float64)
        group = Groups.of(torch.zeros(of, dtype=torch.long))
        A, lam = solve(rewards, group, kl_radius(rewards, group, delta, 0.95))
        return float(A[0]), float(A[-1]), float(lam)

    delta = 0.75 * log(0.75 / 0.5) + 0.25 * log(0.25 / 0.5)
    right, wrong, lam = advantages(1, 2, delta)
    assert isclose(right, log(3 / 2)) and isclose(wrong, log(1 / 2)) and isclose(lam, 1 / log(3))
    right = {d: [advantages(c, 8, d)[0] for c in range(1, 8)] for d in (0.001, 0.01, 0.1)}
    assert [round(A, 3) for A in right[0.001]] == [0.114, 0.075, 0.056, 0.044, 0.034, 0.025, 0.016]
    assert [round(A, 3) for A in right[0.01]] == [0.332, 0.224, 0.169, 0.132, 0.103, 0.076, 0.049]
    assert [round(A, 3) for A in right[0.1]] == [0.855, 0.603, 0.464, 0.364, 0.283, 0.207, 0.125]
    for d, values in right.items():
        wrong = [-advantages(c, 8, d)[1] for c in range(1, 8)]
        assert values == sorted(values, reverse=True) and wrong == sorted(wrong)
        whole = [(c * right[d][c - 1] + (8 - c) * wrong[c - 1]) / 8 for c in range(1, 8)]
        assert max(whole) not in (whole[0], whole[-1])
    assert all(a < b < c for a, b, c in zip(*right.values(), strict=True))


def test_erpo():
    """One right response of 1 token, one wrong of 3."""
    mask = torch.tensor([[True, False, False], [True, True, True]])
    old = torch.tensor([[-0.5, 0.0, 0.0], [-0.1, -1.0, -0.7]]).double()
    entropy = torch.tensor([[0.9, 0.0, 0.0], [0.1, 1.5, 0.3]]).double()
    group, rewards = torch.tensor([0, 0]), torch.tensor([1.0, 0.0])
    at_start = Rollouts(group, rewards, mask, old, ref_logprobs=old, entropy=entropy)
    later = replace(at_start, ref_logprobs=old - torch.tensor([[0.3, 0.0, 0.0], [0.1, 0.9, -0.4]]))

    def advantages(rollouts, **params):
        return build({"name": "erpo", "buckets": 1, **params}).signals(rollouts).advantages[mask]

    by_hand = torch.tensor([sqrt(3), *[-1 / sqrt(3)] * 3]).double()
    assert torch.allclose(advantages(at_start), by_hand, atol=1e-5)  # old = reference
    assert torch.allclose(advantages(later, process_weight=0.0), by_hand, atol=1e-5)  # eta = 0
    A = advantages(later)
    assert not torch.allclose(A, by_hand, atol=0.05)
    assert torch.allclose(advantages(later, progress_scale=7.0), A, atol=1e-4)
    assert torch.allclose(advantages(later, process_weight=0.4, target_std=0.5), A)
    assert abs(float(A.sum())) < 1e-9 and abs(float(A.var(correction=0)) - 1) < 1e-5  # eq. 16


def test_apmpo():
    """Ratios 1 and 1.21 at p = 1/2; p and the upper bound by the mean of 0/1 rewards."""
    u, p = (torch.tensor([x], dtype=torch.float64) for x in ([1.0, 1.21], [0.5]))
    mean = log_power_mean(u.log(), torch.ones(1, 2).bool(), p).exp()
    weights = (mean / u) ** (1 - p)
    assert abs(float(mean) - 1.1025) < 1e-12
    assert torch.allclose(weights, torch.tensor([[1.05, 1.05 / 1.1]], dtype=torch.float64))
    assert abs(float((weights * u).mean() - mean)) < 1e-12  # as a surrogate

    def of(right, **params):
        """p and eps_ada of a batch of ten responses, `right` of them right."""
        rewards, mask = torch.tensor([1.0] * right + [0.0] * (10 - right)), torch.ones(10, 1).bool()
        rollouts = Rollouts(torch.arange(10) // 5, rewards, mask, torch.zeros(10, 1))
        metrics = build({"name": "apmpo", **params}).signals(rollouts).metrics
        return round(metrics["apmpo/exponent"], 3), round(metrics["apmpo/eps_ada"], 3)

    assert [of(right)[0] for right in (1, 3, 5, 7, 9)] == [0.923, 0.787, 0.67, 0.571, 0.487]
    assert [of(right)[1] for right in (1, 3, 5, 7, 9)] == [0.264, 0.315, 0.352, 0.382, 0.399]
    assert of(0) == (1.0, 0.2) and of(10) == (0.449, 0.4)
    assert of(5, gamma=0) == (1.0, 0.352) and of(5, clip_max=0.2) == (0.67, 0.2)  # +FAC, +PMPO


def test_grpo():
    """Rewards 1, 0, 0, 0, and a ratio of 1.5."""
    rewards, group = torch.tensor([1.0, 0.0, 0.0, 0.0]).double(), torch.zeros(4).long()
    A = groups.advantages(rewards, groups.Groups.of(group))

    def gain(ratio, *bounds):
        """What a token of the right response gives, and of a wrong one."""
        log_ratio = torch.full((4,), log(ratio)).double()
        return [round(float(x), 4) for x in surrogate.clipped_surrogate(log_ratio, A, *bounds)[:2]]

    assert [round(float(x), 4) for x in A] == [1.5, -0.5, -0.5, -0.5]
    assert gain(1.5, 0.2, 0.2) == [1.8, -0.75]
    assert gain(1.5, 0.2, 0.28) == [1.92, -0.75]  # Clip-High
    assert gain(6.0, 0.2, 0.2) == [1.8, -3.0] and gain(6.0, 0.2, 0.2, 3.0) == [
        1.8,
        -1.5,
    ]  # dual clip


def test_gspo():
    """Token ratios 1.2, 1.2, 1.2 and 0.6 have the geometric mean 1.0091."""
    mask = torch.ones(2, 4, dtype=torch.bool)
    rollouts = Rollouts(torch.tensor([7, 7]), torch.tensor([1.0, 0.0]), mask, torch.zeros(2, 4))
    log_ratio = torch.tensor([[log(1.2)] * 3 + [log(0.6)]] * 2, dtype=torch.float64)
    gspo = build("gspo")
    shaped = gspo.transform(log_ratio, mask, gspo.signals(rollouts))
    assert abs(float(shaped.log_ratio[0].exp()) - (1.2**3 * 0.6) ** 0.25) < 1e-12
    assert round(float(shaped.log_ratio[0].exp()), 4) == 1.0091


def test_gmpo():
    """Ratios 2 and 1: the first is cut at exp(0.4) where A > 0."""
    mask = torch.ones(2, 2, dtype=torch.bool)
    rollouts = Rollouts(torch.tensor([7, 7]), torch.tensor([1.0, 0.0]), mask, torch.zeros(2, 2))
    log_ratio = torch.tensor([[log(2.0), 0.0]] * 2, dtype=torch.float64)
    gmpo = build("gmpo")
    shaped = gmpo.transform(log_ratio, mask, gmpo.signals(rollouts))
    want = torch.tensor([[exp(0.2)], [sqrt(2)]], dtype=torch.float64)
    assert torch.allclose(shaped.log_ratio.exp(), want)


def test_gpg():
    """The gradient by a token's log-prob is A over the number of tokens."""
    mask = torch.ones(4, 2, dtype=torch.bool)
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0])
    rollouts = Rollouts(torch.zeros(4, dtype=torch.long), rewards, mask, torch.zeros(4, 2) - 2)
    logprobs = torch.full((4, 2), -1.0, dtype=torch.float64, requires_grad=True)
    gpg = build("gpg")
    policy_loss(gpg, logprobs, rollouts, gpg.signals(rollouts), Counts.of(mask)).value.backward()
    want = torch.tensor([[-0.75], [0.25], [0.25], [0.25]], dtype=torch.float64) / 8
    assert torch.allclose(logprobs.grad, want.expand(4, 2))


def test_cispo():
    """A ratio of 2 has the weight 1.2, a ratio of 0.5 the weight 0.8."""
    mask = torch.ones(2, 2, dtype=torch.bool)
    rollouts = Rollouts(torch.tensor([7, 7]), torch.tensor([1.0, 0.0]), mask, torch.zeros(2, 2))
    log_ratio = torch.tensor([[log(2.0), log(0.5)]] * 2, dtype=torch.float64)
    cispo = build({"name": "cispo", "advantage_std": "none"})
    shaped = cispo.transform(log_ratio, mask, cispo.signals(rollouts))
    want = torch.tensor([[0.6, 0.4], [-0.6, -0.4]], dtype=torch.float64)  # A = 1/2 and -1/2
    assert torch.allclose(shaped.advantages, want)
