"""What goes wrong in a run, read off the metrics of its steps: alike in both engines.

A sign is what a step of a run that learns does not show: all, or none, of something. It is told
where it lasts, whatever the step, once; and again where it returns.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import inf, isfinite
from statistics import fmean
from typing import NamedTuple

Row = Mapping[str, float]  # a step's metrics by the names of docs/local_engine.md
HELD_OUT = "validation/accuracy"
NUMBERS = ("reward/mean", "loss", "grad_norm")  # that must be finite
WEIGHTS = ("correction/weight_mean", "correction/ess")
FAINT = 0.5  # of a mean weight, or of the share of tokens that count
NEARLY_ALL = 0.9
SETTLED = 3  # steps in a row; signs that begin within so many are one event
LONG = 10  # steps of the best mean reward, and steps in a row that are far below it
CHANCE = 1e-5  # of a row of steps, from the share of such steps before it: of 400 steps 0.004
SHOWN = 5  # sentences at the end


# of NeMo-RL's metrics of training, those that have another name there
NEMO_RL = {
    "reward": "reward/mean",
    "approx_entropy": "entropy/approximate",
    "mean_gen_tokens_per_sample": "length/mean",
    "truncation_rate": "length/cut_share",
    "probs_ratio": "ratio/mean",
    "probs_ratio_max": "ratio/max",
}


class Sign(NamedTuple):
    """there, text: of a step's row, and of what the run was before; least: steps in a row."""

    there: Callable[[Row, "Remarks"], bool]
    text: Callable[[Row, "Remarks"], str]
    least: int = SETTLED


def listed(row: Row, names: Sequence[str]) -> str:
    """Those that there are, with their values."""
    return ", ".join(f"{name}={row[name]:.2g}" for name in names if name in row)


# causes before what they cause
SIGNS = (
    Sign(
        lambda row, run: row.get("length/cut_share", 0) >= NEARLY_ALL,
        lambda row, run: (
            f"{row['length/cut_share']:.0%} of the responses are cut at "
            f"policy.generation.max_new_tokens={run.limit}, with a mean reward of "
            f"{row['reward/mean']:.3g}. Raise it; or, where the policy no longer ends what it "
            "writes, go back to an earlier checkpoint"
        ),
        least=1,
    ),
    Sign(
        lambda row, run: row.get("length/mean") == 0,
        lambda row, run: "all responses are empty. Look at the prompts and at the end tokens",
        least=1,
    ),
    Sign(
        lambda row, run: not all(isfinite(row.get(name, 0)) for name in NUMBERS),
        lambda row, run: (
            f"not all are finite of {listed(row, NUMBERS)}. Go back to an earlier checkpoint, with "
            "a lower learning rate"
        ),
        least=1,
    ),
    Sign(
        lambda row, run: row["reward/mean"] == 0 < run.largest,
        lambda row, run: (
            f"the mean reward is 0, and it was up to {run.largest:.3g}: the policy, or what judges "
            "it, is broken. Look at some responses, and go back to an earlier checkpoint"
        ),
    ),
    Sign(
        lambda row, run: (
            row.get("groups/flat_share") == 1 < run.group
            and row.get("advantage/max", row.get("advantages/max", 0)) == 0
        ),
        lambda row, run: (
            "in every group all responses have the same reward (the mean is "
            f"{row['reward/mean']:.3g}), so nothing can be learned. Look at some responses, at the "
            "reward function, and whether the prompts are far too easy or too hard"
        ),
    ),
    Sign(
        lambda row, run: row.get("grad_norm") == 0,
        lambda row, run: (
            "the gradient is 0, so nothing is learned. Look at the advantages, at the share of "
            "clipped tokens, and at what is masked"
        ),
    ),
    Sign(
        lambda row, run: any(row.get(name, 1) < FAINT for name in WEIGHTS),
        lambda row, run: (
            f"{listed(row, WEIGHTS)}: the correction for the sampler removes most of the gradient. "
            "Look at mismatch/mean. If that is small, weigh tokens or their geometric mean "
            "(rollout_correction.rollout_is: token or geometric) in place of a product"
        ),
        least=1,
    ),
    Sign(  # below 1 / n nats a response: of n less than one is not the likeliest
        lambda row, run: row["entropy/exact"] * row.get("length/mean", inf) * run.alike < 1,
        lambda row, run: (
            f"the entropy is {row['entropy/exact']:.2g} nats per token: the responses to a prompt "
            "are all the same, and nothing new is tried. Go back to an earlier checkpoint, with a "
            "lower learning rate, a higher upper clip bound or an entropy term"
        ),
    ),
    Sign(
        lambda row, run: row.get("clip/fraction", 0) >= NEARLY_ALL,
        lambda row, run: (
            f"clipping cuts the gradient of {row['clip/fraction']:.0%} of the tokens. Lower the "
            "learning rate, or the updates per batch, and check the old log-probs"
        ),
    ),
    Sign(
        lambda row, run: run.least >= 0 and row["reward/mean"] < min(run.best / 2, run.least),
        lambda row, run: (
            f"the mean reward is {row['reward/mean']:.3g}, less than half of the best {LONG} "
            f"steps' ({run.best:.3g}). Go back to a checkpoint of these, with a lower learning rate"
        ),
        least=LONG,
    ),
)


class Remarks:
    """A run's signs. group, responses: to a prompt, of a step; limit: tokens of a response."""

    def __init__(self, group: int, responses: int, limit: int, planned: int = 0) -> None:
        self.planned = planned
        self.group = group
        self.responses = responses
        self.limit = limit
        self.alike = group if group > 1 else responses
        self.largest = 0.0  # mean reward of the steps before
        self.rewards = deque[float](maxlen=LONG)
        self.best = self.least = -inf  # of LONG steps: their mean, and the least of them
        self.failed = 0.0  # responses that could not be judged, when last told
        self.lasts = [0] * len(SIGNS)  # steps in a row with the sign,
        self.earlier = [0] * len(SIGNS)  # and those before
        self.begun = list[int]()  # where the signs began that were told
        self.steps = list[int]()
        self.said = list[str]()
        self.held_out = dict[int, float]()

    def of(self, step: int, row: Row, failure: str = "") -> list[str]:
        """Sentences on a step, from 1, by its metrics; of an evaluation's the last words are made.

        failure: of the last response that could not be judged.
        """
        row = {name: value for name, value in row.items() if value is not None}  # as JSON may
        if HELD_OUT in row:
            self.held_out[step] = row[HELD_OUT]
        if "reward/mean" not in row:
            return []
        row.setdefault("entropy/exact", row.get("entropy/approximate", inf))
        found = list[str]()
        failed = row.get("reward/unverified", 0)
        total = int(row.get("responses", self.responses))
        if failed >= max(2 * self.failed, 1):
            self.failed = failed
            last = f"; the last one: {failure}" if failure else ""
            found.append(f"{failed:.0f} of {total} responses could not be judged{last}")
            self.begun += [len(self.steps)] * (failed == total)  # this explains what begins now
        self.steps.append(step)
        for i, sign in enumerate(SIGNS):
            if not sign.there(row, self):
                self.earlier[i] += self.lasts[i]
                self.lasts[i] = 0
                continue
            self.lasts[i] += 1
            begin = len(self.steps) - self.lasts[i]
            share = self.earlier[i] / max(begin, 1)
            known = any(abs(begin - other) < SETTLED for other in self.begun)
            if self.lasts[i] >= sign.least and share ** self.lasts[i] < CHANCE and not known:
                self.begun.append(begin)
                since = f"since step {self.steps[begin]} " * (self.lasts[i] > 1)
                found.append(since + sign.text(row, self))
        self.largest = max(self.largest, row["reward/mean"])
        self.rewards.append(row["reward/mean"])
        if len(self.rewards) == LONG and fmean(self.rewards) > self.best:
            self.best = fmean(self.rewards)
            self.least = min(self.rewards)
        return self.note(step, found)

    def note(self, step: int, sentences: Sequence[str]) -> list[str]:
        """Those with their step, which the end repeats."""
        found = []
        for text in sentences:
            if text:
                found.append(f"step {step}: {text}")
        self.said += found
        return found

    def end(self, say: Callable[[str], object] = print) -> None:
        """Say what the run did, of a step or more, in a paragraph."""
        if not self.steps:
            return
        planned = f" of {self.planned:,} planned" if self.planned else ""
        ran = f"{self.steps[0]} to {self.steps[-1]}{planned}"
        parts = [f"This run trained {len(self.steps)} steps, {ran}."]
        known = {}
        for step, value in self.held_out.items():
            if isfinite(value):
                known[step] = value
        if known:
            best = max(known, key=lambda step: known[step])
            last = max(known)
            at_last = f"; the last one is {known[last]:.3f}, after step {last}."
            if best == last:
                at_last = ", the last one."
            parts.append(f"The best {HELD_OUT} is {known[best]:.3f}, after step {best}{at_last}")
        told = []
        for text in self.said[:SHOWN]:
            told.append(text.partition("; ")[0].partition(". ")[0])
        more = f" The first {SHOWN}:" * (len(self.said) > SHOWN)
        parts.append(f"Warnings: {len(self.said)}.{more}")
        say(" ".join([*parts, *(f"{text.rstrip('.')}." for text in told)]))
