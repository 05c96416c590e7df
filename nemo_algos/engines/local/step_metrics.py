"""The metrics of a rollout batch, before any update."""

from statistics import fmean

import torch
from torch import Tensor

from nemo_algos.algorithms.kernel import Signals
from nemo_algos.algorithms.rollouts import Rollouts
from nemo_algos.engines.rewards import Verdict
from nemo_algos.engines.rewards.weighted import parts


def reward_parts(verdicts: list[Verdict]) -> dict[str, Tensor]:
    """[B] float64 by name: the parts that every reward is made of."""
    whole = {k: v for k, v in parts(verdicts).items() if len(v) == len(verdicts)}
    rewards = {name: [verdict.reward for verdict in of] for name, of in whole.items()}
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in rewards.items()}


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
        "reward/positive_share": float((rewards > 0).double().mean()),
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
