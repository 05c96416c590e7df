"""Methods of many turns against plain loops, their methods of one turn, and exact expectations."""

import itertools
import math
import random
import statistics

import pytest
import torch
from batches import close
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.loss import batch_loss
from nemo_algos.algorithms.rollouts import Rollouts

METHODS = [{"name": "turn_rloo"}, {"name": "turn_etr"}, {"name": "turn_quatro"}]
METHODS += [{"name": "turn_quatro", "ratio": "geometric_mean", "delta": 0.5}]
each_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: m.get("ratio", m["name"]))


def response(rng: random.Random, turns: int) -> Tensor:
    """The turn of each position: 1 to 4 tokens a turn; -1: 1 or 2 of the environment between."""
    turn = [-1] * rng.randint(1, 2)
    for k in range(turns):
        turn += [k] * rng.randint(1, 4) + [-1] * rng.randint(1, 2)
    return torch.tensor(turn)


def case(seed: int, most_turns: int = 4) -> tuple[dict, Tensor]:
    """The keywords of `Rollouts` and log pi_theta, of groups of 1 to 5 in mixed order.

    One response of the group of 3 is empty. Even seeds: rewards of 0 and 1, with ties. From seed
    3: |sum l| beyond 20 in a turn. Seeds 2 and 5: what turns after the second earned is not told.
    """
    rng = random.Random(seed)
    group = [7] * 1 + [-2] * 2 + [40] * 3 + [3] * 4 + [11] * 5
    rng.shuffle(group)
    turns = [rng.randint(1, most_turns) for _ in group]
    turns[group.index(40)] = 0
    turn = pad_sequence([response(rng, n) for n in turns], batch_first=True, padding_value=-1)
    mask = turn >= 0
    generator = torch.Generator().manual_seed(seed)
    earned = 0.3 + torch.randn(len(group), 6, generator=generator, dtype=torch.float64)
    if seed % 2 == 0:
        earned = (earned > 0).double()
    log_ratio = 0.3 * torch.randn(mask.shape, generator=generator, dtype=torch.float64)
    if seed >= 3:
        for i in rng.sample(range(len(group)), 6):
            log_ratio[i] += rng.choice([-9, 9])
    old = torch.full_like(log_ratio, -20.0)
    given = {"group": group, "rewards": earned[:, 5], "mask": mask, "old_logprobs": old}
    given["turn"] = turn.where(mask, 9)  # off the mask, any number
    given["turn_rewards"] = earned[:, : 2 if seed % 3 == 2 else 5]
    return given, old + log_ratio


def tokens_by_turn(given: dict, i: int) -> dict[int, list[int]]:
    """The positions of response i's tokens, by turn."""
    found = dict[int, list[int]]()
    for t, k in enumerate(given["turn"][i].tolist()):
        if given["mask"][i, t]:
            found.setdefault(k, []).append(t)
    return found


def values_to_go(given: dict, i: int, k: int) -> list[float]:
    """V_ik, then V_jk of the others of i's group: all earned from turn k, or the last one, on."""
    group = given["group"]
    others = [j for j in range(len(group)) if group[j] == group[i] and j != i]
    values = []
    for j in [i, *others]:
        last = max(tokens_by_turn(given, j), default=0)
        earned = given["turn_rewards"][j, : min(k, last)].tolist()
        values.append(float(given["rewards"][j]) - math.fsum(earned))
    return values


def clipped(log_ratio: Tensor, advantage: float, radius: float) -> Tensor:
    r = log_ratio.clamp(-20, 20).exp()
    return torch.minimum(r * advantage, r.clamp(1 - radius, 1 + radius) * advantage)


def rloo(values: list[float]) -> float:
    return values[0] - math.fsum(values[1:]) / (len(values) - 1) if len(values) > 1 else 0.0


def etr(values: list[float]) -> tuple[float, float]:
    """The first one's standardised advantage and clip radius."""
    z = 0.0
    if max(values) > min(values):
        z = (values[0] - statistics.fmean(values)) / (statistics.stdev(values) + 1e-6)
    p = sum(v > 0 for v in values) / len(values)
    return z, 0.2 + 0.1 * math.tanh(z) + 0.1 * 4 * p * (1 - p)


def tilted_kl(values: list[float], inverse: float) -> float:
    """KL of the weights exp(V / lambda) from the uniform ones; all V are at most 0."""
    mean = statistics.fmean(math.exp(v * inverse) for v in values)
    moment = statistics.fmean(v * math.exp(v * inverse) for v in values)
    return inverse * moment / mean - math.log(mean)


def quatro(values: list[float], delta: float) -> float:
    """The first one's V / lambda less the log-mean-exp; 1 / lambda by bisection on the KL."""
    below = [v - max(values) for v in values]
    if min(below) == 0:
        return 0.0
    radius = min(delta, -0.95 * math.log(below.count(0.0) / len(below)))
    low = 1e-6
    high = 1e6
    for _ in range(200):
        middle = math.sqrt(low * high)
        if tilted_kl(below, middle) < radius:
            low = middle
        else:
            high = middle
    return below[0] * high - math.log(statistics.fmean(math.exp(v * high) for v in below))


def terms(method: dict, values: list[float], log_ratio: Tensor) -> Tensor:
    """What a turn adds to its response's terms: one a token, or one (QUATRO)."""
    if method["name"] == "turn_rloo":
        return clipped(log_ratio, rloo(values), 0.2)
    if method["name"] == "turn_etr":
        z, radius = etr(values)
        return clipped(log_ratio, z, radius)
    log_s = log_ratio.mean() if "ratio" in method else log_ratio.sum().clamp(-20, 20)
    return (log_s.exp() * (quatro(values, method.get("delta", 0.01)) - log_s.detach()))[None]


def objective(method: dict, given: dict, logprobs: Tensor) -> Tensor:
    """J, which the methods maximise."""
    log_ratio = logprobs - given["old_logprobs"]
    responses = []
    for i in range(len(log_ratio)):
        of_turns = tokens_by_turn(given, i).items()
        added = [terms(method, values_to_go(given, i, k), log_ratio[i, at]) for k, at in of_turns]
        if added:
            responses.append(torch.cat(added))
    if method["name"] == "turn_rloo":
        return torch.cat(responses).mean()
    of_terms = torch.mean if method["name"] == "turn_etr" else torch.sum
    return torch.stack([of_terms(each) for each in responses]).mean()


def differentiated(f, logprobs: Tensor) -> tuple[Tensor, Tensor]:
    leaf = logprobs.clone().requires_grad_()
    value = f(leaf)
    value.backward()
    return value.detach(), leaf.grad


def product(method: dict, given: dict, logprobs: Tensor) -> tuple[Tensor, Tensor]:
    return differentiated(lambda x: batch_loss(method, x, Rollouts(**given))[0], logprobs)


@pytest.mark.parametrize("seed", range(6))
@each_method
def test_loss_and_gradient_are_the_formulas(method, seed):
    given, logprobs = case(seed)
    want_loss, want_gradient = differentiated(lambda x: -objective(method, given, x), logprobs)
    assert want_gradient.abs().max() > 1e-3
    if method["name"] != "turn_quatro" or (seed >= 3 and "ratio" not in method):
        assert (want_gradient[given["mask"]] == 0).any()  # beyond a bound
    for turn in (given["turn"], None):
        loss, gradient = product(method, given | {"turn": turn}, logprobs)
        assert abs(loss / want_loss - 1) <= 1e-9
        close(gradient, want_gradient, 1e-9)


def test_advantages_by_hand():
    """Three turns that earn 1/2, 1/4 and 1/4, against one turn that earns 1/2."""
    rollouts = Rollouts(
        group=[4, 4],
        rewards=[1.0, 0.5],
        mask=[[True, True, True, True], [True, True, False, False]],
        old_logprobs=torch.zeros(2, 4),
        turn=[[0, 1, 1, 2], [0, 0, 0, 0]],
        turn_rewards=[[0.5, 0.25, 0.25], [0.5, 0.0, 0.0]],
    )
    got = build("turn_rloo").signals(rollouts).advantages
    assert got[0].tolist() == [0.5, 0.0, 0.0, -0.25]
    assert got[1, :2].tolist() == [-0.5, -0.5]
    swapped = build("turn_rloo").signals(rollouts[torch.tensor([1, 0])]).advantages
    assert torch.equal(swapped, got.flip(0))


@pytest.mark.parametrize("seed", [0, 1, 4, 5])
@each_method
def test_one_turn_is_the_method_of_one_turn(method, seed):
    given, logprobs = case(seed, most_turns=1)
    usual = method | {"name": method["name"].removeprefix("turn_")}
    want_loss, want_gradient = product(usual, given, logprobs)
    loss, gradient = product(method, given, logprobs)
    close(loss, want_loss)
    close(gradient, want_gradient)


@pytest.mark.parametrize("seed", range(4))
def test_reward_at_the_end_is_rloo_at_every_token(seed):
    rollouts = Rollouts(**case(seed)[0] | {"turn_rewards": torch.zeros(15, 4)})
    got = build("turn_rloo").signals(rollouts).advantages
    want = build("rloo").signals(rollouts).advantages.expand_as(got)
    close(got[rollouts.mask], want[rollouts.mask])


class World:
    """15 trajectories of up to 3 turns, [15, 3]: log pi(a), r, and whether the turn exists.

    Each turn takes "s" (stop), "A" or "B"; logits and rewards are of the history of turns.
    """

    def __init__(self, seed: int) -> None:
        histories = ["", "A", "B", "AA", "AB", "BA", "BB"]
        paths = [h + "s" for h in histories] + [h + a for h in histories[3:] for a in "AB"]
        generator = torch.Generator().manual_seed(seed)
        self.logits = torch.randn(7, 3, generator=generator, dtype=torch.float64).requires_grad_()
        rewards = torch.randn(7, 3, generator=generator, dtype=torch.float64)
        self.log_pi = torch.zeros(15, 3, dtype=torch.float64)
        self.r = torch.zeros(15, 3, dtype=torch.float64)
        for i, path in enumerate(paths):
            for k, letter in enumerate(path):
                at = histories.index(path[:k]), "sAB".index(letter)
                self.log_pi[i, k] = self.logits.log_softmax(1)[at]
                self.r[i, k] = rewards[at]
        self.exists = self.log_pi.detach() < 0
        self.probability = self.log_pi.detach().sum(1).exp()

    def gradient(self, expectation: Tensor) -> Tensor:
        return torch.autograd.grad(expectation, self.logits, retain_graph=True)[0]

    def gradient_of_mean(self, values: Tensor) -> Tensor:
        """The true one, of E[values] over trajectories, [15]."""
        return self.gradient(self.log_pi.sum(1).exp() @ values)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size", [2, 3])
def test_turn_rloo_is_unbiased(size, seed):
    """The expectation over all groups of `size` trajectories is the gradient of E[R]."""
    w = World(seed)
    groups = torch.tensor(list(itertools.product(range(15), repeat=size)))
    rows = groups.flatten()
    mask = torch.zeros(len(rows), 5, dtype=torch.bool)
    mask[:, ::2] = w.exists[rows]  # a token a turn, and the environment's between
    rollouts = Rollouts(
        group=torch.arange(len(groups)).repeat_interleave(size),
        rewards=w.r.sum(1)[rows],
        mask=mask,
        old_logprobs=torch.zeros(mask.shape),
        turn_rewards=w.r[rows],
    )
    got = build("turn_rloo").signals(rollouts).advantages
    advantages = got[:, ::2].where(w.exists[rows], 0.0)
    estimates = (advantages * w.log_pi[rows]).sum(1).view(-1, size).mean(1)
    expected = w.gradient(w.probability[groups].prod(1) @ estimates)
    close(expected, w.gradient_of_mean(w.r.sum(1)), 1e-10)
    assert expected.norm() > 0.1


@pytest.mark.parametrize("seed", range(3))
def test_a_baseline_of_each_turn_that_exists_is_biased(seed):
    """The usual estimator, r_m - E[r_m | turn m exists] summed over the turns to come.

    verl#7244: it is off by -d/dtheta E[sum_m<=L b_m] at constant b, as if each turn cost b_m.
    """
    w = World(seed)
    b = (w.probability @ w.r) / (w.probability @ w.exists.double())
    left = (w.r - b).where(w.exists, 0.0)
    advantages = left.flip(1).cumsum(1).flip(1)
    expected = w.gradient(w.probability @ (advantages * w.log_pi).sum(1))
    cost = w.gradient_of_mean((w.exists * b).sum(1))
    close(expected - w.gradient_of_mean(w.r.sum(1)), -cost, 1e-10)
    assert cost.norm() > 0.05


def test_a_turns_success_is_its_return_whatever_the_whole_outcome_was():
    """Returns of 1 and -1 from the second turn on, so p = 1/2 there; all outcomes are successes."""
    given = {"group": [0, 0], "mask": [[True] * 2] * 2, "old_logprobs": [[-1.0] * 2] * 2}
    rollouts = Rollouts(
        **given,
        rewards=torch.tensor([2.0, 2.0]),
        outcomes=torch.tensor([2.0, 2.0]),
        turn=[[0, 1]] * 2,
        turn_rewards=[[1.0], [3.0]],
    )
    radius = build({"name": "turn_etr", "micro": 0}).signals(rollouts).low
    close(radius, torch.tensor([[0.2, 0.3], [0.2, 0.3]], dtype=torch.float64))


@pytest.mark.parametrize("wrong", [None, [1.0] * 15, [[1.0]] * 14, [[math.nan]] * 15])
def test_turn_rewards_are_finite_numbers_by_response_and_turn(wrong):
    with pytest.raises(ValueError, match="turn_rewards"):
        build("turn_etr").signals(Rollouts(**case(0)[0] | {"turn_rewards": wrong}))


@pytest.mark.parametrize(
    "wrong", [[[-1, 0, 0]], [[0, 0, 3]], [[1, 0, 1]], [[0.0, 1.0, 1.0]], [[False, False, True]]]
)
def test_turns_are_whole_numbers_from_0_in_their_order(wrong):
    given = {"group": [0], "rewards": [1.0], "mask": [[True] * 3], "old_logprobs": [[-1.0] * 3]}
    with pytest.raises(ValueError, match=r"\bturn\b"):
        Rollouts(**given, turn=wrong, turn_rewards=[[0.5]])
    kept = Rollouts(**given, turn=[[0, 0, 2]], turn_rewards=[[0.5]])
    assert kept.turn.tolist() == [[0, 0, 2]]


def test_parts_of_the_reward_say_what_turns_have_earned():
    """By number and weight; a turn that no part names has earned nothing."""
    parts = {"turn_3": torch.tensor([4.0, 6.0]), "turn_1": torch.tensor([1.0, 2.0])}
    more = {"turn_0": parts["turn_1"], "brief": parts["turn_1"]}
    given = {"group": [0, 0], "rewards": [1, 0], "mask": torch.ones(2, 4).bool()}
    given["old_logprobs"] = torch.full((2, 4), -1.0)
    weights = {"turn_3": 0.5}
    found = Rollouts(**given, reward_parts=parts | more, reward_weights=weights).turn_rewards
    assert found is not None
    close(found, torch.tensor([[1.0, 0.0, 2.0], [2.0, 0.0, 3.0]], dtype=torch.float64))
    own = Rollouts(**given, reward_parts=parts, turn_rewards=[[5.0], [6.0]])
    assert own.turn_rewards.tolist() == [[5.0], [6.0]]  # written ones count
    assert Rollouts(**given, reward_parts=more).turn_rewards is None
