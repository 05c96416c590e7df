"""evaluation: means over problems and chunks, and training left as it was."""

from types import SimpleNamespace

import pytest
import torch

from nemo_algos.engines.data.schema import DataSection
from nemo_algos.engines.data.tasks import Puzzles
from nemo_algos.engines.local import evaluation
from nemo_algos.engines.local.evaluation import measure, names, sample
from nemo_algos.engines.local.schema import GenerationSection, Shape
from nemo_algos.engines.local.tiny import Tiny
from nemo_algos.engines.local.tiny_policy import TinyPolicy
from nemo_algos.engines.rewards import Verdict

UP_TO_12 = GenerationSection(max_new_tokens=12)


def evaluate(*asked, **more):
    return measure(sample(*asked, **more))


class Scripted:
    """A task and a policy of 40 problems whose responses are found or not by plan."""

    turns = 0

    def __init__(self, plan):
        self.plan, self.asked = plan, []
        self.model = torch.nn.Linear(1, 1)

    def held_out(self, number):
        return list(range(len(self.plan)))[:number]

    def prompt(self, example):
        return str(example)

    def prefix(self, example):
        return ""

    def encode(self, prompt, prefix):
        return [int(prompt)]

    def generate(self, prompts, group_size, generator):
        self.asked.append((len(prompts), group_size, generator.initial_seed()))
        rows = [[p, i] for (p,) in prompts for i in range(group_size)]
        group = torch.arange(len(prompts)).repeat_interleave(group_size)
        said = {"responses": lambda: rows, "check_finite": lambda: None}
        return SimpleNamespace(**said, group=group, mask=torch.ones(len(rows), 2))

    def text(self, tokens):
        example, place = tokens
        return str(self.plan[example][place])

    def verify(self, examples, responses):
        return [Verdict(float(r != "None"), "ok") for r in responses]

    def solution(self, example, response):
        assert response in map(str, self.plan[example])
        return response


def test_the_mean_over_problems_and_chunks():
    plan = [["a", "a", "b", None]] * 30 + [[None] * 4] * 10
    scripted = Scripted(plan)
    out = evaluate(scripted, scripted, 128, 4, seed=5)
    assert out == pytest.approx(
        {"accuracy": 0.75 * 0.75, "pass@1": 0.75 * 0.75, "pass@4": 0.75, "distinct": 2 * 0.75}
    )
    assert scripted.asked == [(evaluation.CHUNK, 4, 5), (8, 4, 5)]


def test_k_up_to_the_samples_and_as_many_problems_as_asked_for():
    scripted = Scripted([[*"abcde", *[None] * 11]] * 40)
    expected = ["accuracy", "pass@1", "pass@4", "pass@16", "distinct"]
    assert list(evaluate(scripted, scripted, 3, 16, 0)) == expected == names(16)
    assert scripted.asked == [(3, 16, 0)]


def test_samples_by_problem():
    scripted = Scripted([["a", None], ["b", "c"]] * 20)
    found = sample(scripted, scripted, 35, 2, 0)
    assert found.solutions == [["a", None], ["b", "c"]] * 17 + [["a", None]]
    assert found.lengths == [[2.0, 2.0]] * 35


@pytest.mark.parametrize(("problems", "samples"), [([], 4), ([[None]], 0)])
def test_nothing_held_out_gives_nothing(problems, samples):
    scripted = Scripted(problems)
    assert evaluate(scripted, scripted, 8, samples, 0) == {} and scripted.asked == []


def test_an_evaluation_is_repeatable_and_moves_no_random_state_and_no_weights():
    torch.manual_seed(0)
    policy, task = TinyPolicy(Tiny(Shape()), UP_TO_12), Puzzles(DataSection(), seed=0)
    generator = torch.Generator().manual_seed(1)
    weights = {k: v.clone() for k, v in policy.model.state_dict().items()}
    states = torch.get_rng_state(), generator.get_state()
    before = task.examples(3, 5)
    one = evaluate(policy, task, 4, 4, seed=7)
    assert one == evaluate(policy, task, 4, 4, seed=7)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert torch.equal(generator.get_state(), states[1])
    assert task.examples(3, 5) == before
    for name, value in policy.model.state_dict().items():
        assert torch.equal(value, weights[name])
    assert all(p.grad is None for p in policy.model.parameters())
