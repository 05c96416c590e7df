"""Responses with one token replaced: which, by what, and what follows."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from test_local_sampler import PROBLEMS, asked, run, sampler  # noqa: F401  (run: a fixture)

from nemo_algos.engines.data import countdown
from nemo_algos.engines.local.experience import Experience
from nemo_algos.lab.evals.local_sampler import perturb
from nemo_algos.lab.evals.schema import LocalModel, Perturbation

END, GOES_ON = 0, 77
PROMPT = [50, 51]


class Scripted:
    """Goes on from every prompt with 77 and the end; remembers what it was asked."""

    ends, words = {END}, [1, 2, 3, 4, 5]

    def __init__(self):
        self.prompts = []

    def generate(self, prompts, group_size, generator):
        self.prompts += prompts
        assert group_size == 1
        assert len({len(prompt) for prompt in prompts}) == 1  # countdown's model needs it
        return SimpleNamespace(responses=lambda: [[GOES_ON, END] for _ in prompts])


def drawn(rows, entropies):
    tokens = torch.tensor(rows)
    zero = torch.zeros(tokens.shape)
    prompts = torch.tensor([PROMPT])
    group = torch.zeros(len(rows), dtype=torch.long)
    shown, mask = prompts > 0, tokens >= 0
    return Experience(prompts, shown, group, tokens, mask, zero, torch.tensor(entropies), zero)


def perturbed(rows, entropies, limit=99, seed=0, **which):
    policy, generator = Scripted(), torch.Generator().manual_seed(seed)
    which = Perturbation(**which)
    return perturb(policy, PROMPT, drawn(rows, entropies), which, limit, generator), policy


ENTROPY = [0.2, 0.9, 0.1, 0.3, 5.0]  # the end token's is the highest, and does not count


@pytest.mark.parametrize(
    ("tokens", "share", "places"),
    [
        ("high_entropy", 0.25, {1}),
        ("high_entropy", 0.26, {1, 3}),  # ceil(0.26 x 4) = 2
        ("low_entropy", 0.05, {2}),
        ("low_entropy", 0.5, {0, 2}),
        ("any", 0.05, {0, 1, 2, 3}),
    ],
)
def test_one_of_the_marked_tokens_is_replaced_and_the_rest_sampled_anew(tokens, share, places):
    row, seen = [1, 2, 3, 4, END], Counter()
    for seed in range(60):
        found, policy = perturbed([row], [ENTROPY], seed=seed, tokens=tokens, share=share)
        *begun, last = found[0][:-2]
        place = len(begun)
        assert begun == row[:place]
        assert last in {1, 2, 3, 4, 5} - {row[place]}
        assert found[0][-2:] == [GOES_ON, END]
        assert policy.prompts == [[*PROMPT, *begun, last]]
        seen[place] += 1
    assert set(seen) == places
    assert min(seen.values()) >= 60 / len(places) / 3


def test_equal_entropies_are_marked_by_chance_and_lengths_are_kept_apart():
    found, policy = perturbed([[1, 2, 3, 4]] * 20, [[0.0] * 4] * 20, tokens="low_entropy")
    assert {len(tokens) for tokens in found} == {3, 4, 5, 6}
    assert len(policy.prompts) == 20


def test_a_response_is_cut_at_the_limit_and_an_end_alone_stays():
    rows, entropies = [[1, 2, 3], [END, -1, -1]], [[0.0, 0.0, 9.0], [9.0, 0.0, 0.0]]
    found, _ = perturbed(rows, entropies, limit=3, tokens="high_entropy")
    assert found[0][:2] == [1, 2]
    assert (len(found[0]), found[1]) == (3, [END])


def test_the_countdown_model_is_perturbed_alike_every_time_and_ends_within_its_limit(run):  # noqa: F811
    def responses(**more):
        of = sampler(LocalModel(run=run), max_tokens=9, **more)
        return [(g.response, g.tokens) for g in asked(of, [(PROBLEMS[0], [0, 1, 2, 3])])]

    which = Perturbation(tokens="high_entropy")
    assert responses(perturbation=which) == responses(perturbation=which)
    for (before, _), (after, length) in zip(
        responses(), responses(perturbation=which), strict=True
    ):
        assert before != after
        assert length <= 9
        assert all(word in countdown.TOKEN for word in after.split())
