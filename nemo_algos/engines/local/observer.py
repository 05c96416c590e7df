"""What is seen of a step before its updates: metrics, the sampler's distance, probes, traces."""

from functools import partial
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nemo_algos.algorithms.core.groups import succeeded
from nemo_algos.algorithms.kernel import Signals
from nemo_algos.algorithms.rollouts import TURN_PART, Rollouts
from nemo_algos.engines import trace
from nemo_algos.engines.dumps.watch import Watch, checksums
from nemo_algos.engines.local.experience import Experience, Policy
from nemo_algos.engines.local.updates import Updates
from nemo_algos.engines.rewards import Verdict
from nemo_algos.engines.rewards.weighted import parts

PROBED = 16  # responses


class Observer:
    """Measures a run's mismatch, probes and token traces; steps count from 1.

    sampler: the policy, or the model that generates in its place.
    """

    def __init__(self, updates: Updates, sampler: Policy) -> None:
        self.updates = updates
        self.sampler = sampler
        self.policy = updates.policy
        self.config = updates.config
        self.watch = Watch(self.config.mismatch, precision=self.config.policy.precision)
        self.probe: Experience | None = None  # the first batch, of which some is asked again

    def mismatch(self, step: int, experience: Experience) -> tuple[dict[str, float], str]:
        """The distance of trainer and sampler as metrics, and a warning or "".

        {} where the trainer has no log-probs of its own.
        """
        if self.updates.algorithm.correction.bypass_mode:
            return {}, ""
        ask = partial(self._ask, step, experience)
        return self.watch.of(step, columns(step, experience), ask)

    def probed(self, step: int, experience: Experience) -> tuple[dict[str, float], str]:
        """How far each side has moved since the first probe, and a sentence where that is news."""
        if not self.watch.due(step):
            return {}, ""
        asked, sums = self._ask(step, experience)
        return self.watch.probed(step, asked, sums)

    @torch.no_grad()
    def _ask(self, step: int, experience: Experience) -> tuple[dict[str, Tensor], dict[str, float]]:
        """A probe: some of the first responses, each twice, which shows rounding; checksums."""
        self.probe = self.probe or experience
        rows = torch.arange(min(PROBED, len(self.probe.group))).repeat(2)
        asked = {}
        for name, column in columns(step, self.probe).items():
            asked[name] = column[rows] if column.dim() else column
        for name, policy in (("sampler_logprobs", self.sampler), ("trainer_logprobs", self.policy)):
            found = policy.logprobs(self.probe, rows).where(self.probe.mask[rows], 0.0).cpu()
            asked[name] = F.pad(found, (self.probe.prompts.shape[1], 0))
        apart = self.sampler is not self.policy
        return asked, checksums(self.sampler.model) if apart else {}

    def traces(
        self, step: int, experience: Experience, rollouts: Rollouts, signals: Signals
    ) -> list[dict[str, Any]]:
        """Lines of trace.jsonl, [] where the step has none."""
        settings = self.config.logger
        if not trace.due(step, settings.trace_period, self.config.grpo.max_num_steps):
            return []
        rows = trace.traced_rows(experience.group, settings.traced_prompts)
        after = self.updates.logprobs(self.policy.logprobs, experience, rows)[rows]
        part = rollouts[rows]
        tokens = trace.tokens_of(
            self.updates.algorithm,
            part.mask,
            part.old_logprobs,
            signals=signals[rows],
            logprobs=after,
        )
        lines = list[dict[str, Any]]()
        for i, row in enumerate(rows.tolist()):
            about = self._about(step, row, experience, rollouts)
            values = {name: x[i] for name, x in tokens.items()}
            lines.append(trace.line(about, experience.mask[row], experience.entropy[row], values))
        return lines

    def _about(
        self, step: int, row: int, experience: Experience, rollouts: Rollouts
    ) -> dict[str, Any]:
        text = self.policy.decode
        group = int(experience.group[row])
        prompt = experience.prompts[group][experience.prompt_mask[group]]
        return {
            "step": step,
            "group": group,
            "prompt": text(prompt.tolist()),
            "tokens": [text([t]) for t in experience.tokens[row][experience.mask[row]].tolist()],
            "reward": float(rollouts.rewards[row]),
        }


def columns(step: int, experience: Experience) -> dict[str, Tensor]:
    """As a `Dump` has them, behind their prompts; the sampler has the trainer's weights."""
    version = torch.tensor(step - 1)  # step n samples with the weights after n - 1 steps
    prompts = experience.prompts[experience.group]
    of_tokens = {
        "mask": experience.mask,
        "sampler_logprobs": experience.gen_logprobs,
        "trainer_logprobs": experience.logprobs,
        "entropy": experience.entropy,
    }
    return {
        **{name: F.pad(values, (prompts.shape[1], 0)) for name, values in of_tokens.items()},
        "tokens": torch.cat((prompts, experience.tokens), 1),
        "prompt_length": experience.prompt_mask.sum(1)[experience.group],
        "weights_version": version,
        "step": version,
    }


def reward_parts(verdicts: list[Verdict]) -> dict[str, Tensor]:
    """[B] float64 by name: the parts that the rewards are made of.

    A part is 0 in a response that was not judged, and a turn's in one that ended before. Raises
    ValueError where another part is missing.
    """
    out = dict[str, Tensor]()
    for name in parts(verdicts):
        rewards = list[float]()
        for number, verdict in enumerate(verdicts):
            part = verdict.parts.get(name)
            if part is None and verdict.status == "ok" and not TURN_PART.fullmatch(name):
                raise ValueError(
                    f"the reward of response {number} has no part {name!r}, but another response's "
                    "has. The method reads the parts: give each response a value for each name."
                )
            rewards.append(part.reward if part else 0.0)
        out[name] = torch.tensor(rewards, dtype=torch.float64)
    return out


def cut_share(experience: Experience, ends: set[int]) -> float:
    """Of the responses, those that the limit of their length has cut."""
    return fmean(bool(row) and row[-1] not in ends for row in experience.responses())


def reward_metrics(verdicts: list[Verdict]) -> dict[str, float]:
    """Responses that could not be judged; each named reward's mean, unweighted, and its own."""
    out: dict[str, float] = {"reward/unverified": sum(v.status != "ok" for v in verdicts)}
    for name, judged in parts(verdicts).items():
        out[f"reward/{name}"] = fmean(part.reward for part in judged)
        out[f"unverified/{name}"] = sum(part.status != "ok" for part in judged)
    return out


def rollout_metrics(rollouts: Rollouts, signals: Signals) -> dict[str, float]:
    """A rollout batch's statistics before any update; entropy in nats, lengths in tokens."""
    groups = rollouts.groups
    rewards = rollouts.rewards
    lengths = rollouts.lengths.double()
    spread = signals.advantages.double().expand_as(rollouts.mask)[rollouts.mask]
    out = {
        "reward/mean": float(rewards.mean()),
        "reward/positive_share": float(succeeded(rewards).double().mean()),
        "groups/flat_share": float(groups.flat(rewards).double().mean()),
        "length/mean": float(lengths.mean()),
        "length/max": float(lengths.max()),
        "length/empty_share": float((lengths == 0).double().mean()),
        "advantage/mean": float(spread.mean()),
        "advantage/std": float(spread.std(correction=0)),
        "advantage/max": float(spread.abs().max()),
    }
    if rollouts.entropy is not None:
        out["entropy/exact"] = float(rollouts.entropy[rollouts.mask].mean())
    return out
