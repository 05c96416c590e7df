"""A task of one's own in one file: its problems, its prompt, its reward.

PYTHONPATH=examples uv run nemo-algos train grpo.yaml data.task=own_task:Adding
"""

import random

from nemo_algos.engines.data import countdown
from nemo_algos.engines.data.tasks import Task
from nemo_algos.engines.rewards import Verdict


class Adding(Task):
    """Countdown by addition alone: the model is to add, whatever it has been taught before.

    Of the reward 0.8 is for a right worked solution, 0.2 for one that uses no other sign than +.
    """

    def examples(self, step, number):
        """New problems for every step; a resumed run is given the same again."""
        return self._drawn(random.Random(f"{self.seed} {step}"), number)

    def held_out(self, number):
        """What is evaluated on before and after training."""
        return self._drawn(random.Random("held out"), number)

    def _drawn(self, rng, number):
        drawn = ([rng.randint(1, 10) for _ in range(3)] for _ in range(number))
        return [countdown.Puzzle(tuple(numbers), sum(numbers)) for numbers in drawn]

    def prompt(self, example):
        """Adding number first; countdown-tiny knows numbers, signs, `>` and `:` only."""
        numbers = sorted(example.numbers, reverse=True)
        return f"{' '.join(map(str, numbers))} > {example.target} :"

    def verify(self, examples, responses):
        """Parts are logged apart, as reward/right and reward/adds."""
        verdicts = []
        for example, response in zip(examples, responses, strict=True):
            right = countdown.verify(response, str(example))
            adds = float("-" not in response.split() and "*" not in response.split())
            parts = {"right": Verdict(right, "ok"), "adds": Verdict(adds, "ok")}
            verdicts.append(Verdict(0.8 * right + 0.2 * adds, "ok", parts=parts))
        return verdicts

    def solution(self, example, response):
        """What two right responses share that are the same solution."""
        return countdown.solution(example, countdown.tokens_of(response))
