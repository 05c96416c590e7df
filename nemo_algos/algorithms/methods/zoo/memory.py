"""Methods whose baseline remembers earlier batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from nemo_algos.algorithms import core
from nemo_algos.algorithms.kernel import DriverOutput, Memory, Method
from nemo_algos.algorithms.record import ClipParams, Need, OfAdvantages, Std

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_algos.algorithms.rollouts import Rollouts


class SPOParams(ClipParams):
    """How fast a prompt's past answers are forgotten, and what is believed of a new prompt."""

    forgetting: OfAdvantages[Literal["kl", "constant"]] = "kl"
    """Forget by the policy's movement, or always with rho = rho_max."""
    half_life: OfAdvantages[float] = Field(default=0.06, gt=0)
    """Nats of movement after which an answer counts half (D_half)."""
    rho_min: OfAdvantages[float] = Field(default=0.875, gt=0, le=1)
    """The smallest rho; 0.875 remembers 8 answers."""
    rho_max: OfAdvantages[float] = Field(default=0.96, gt=0, le=1)
    """The largest rho; 0.96 remembers 25 answers."""
    prior: OfAdvantages[float] = Field(default=0.5, gt=0)
    """alpha and beta of a new prompt."""

    @property
    def needs(self) -> frozenset[Need]:
        """The policy's moves, unless nothing depends on them."""
        if self.forgetting == "kl":
            return frozenset({"drift"})
        return frozenset()

    @model_validator(mode="after")
    def _in_order(self) -> SPOParams:
        if self.rho_min > self.rho_max:
            raise ValueError(f"rho_min={self.rho_min} exceeds rho_max={self.rho_max}. Lower it.")
        return self


def spo_advantages(rollouts: Rollouts, params: SPOParams, memory: Memory) -> DriverOutput:
    """SPO, single-stream: a prompt's success rate is tracked over all its visits, not over a group.

        v(x)   = alpha / (alpha + beta)                           before the batch: the baseline
        A_i    = (a_i - mean(a)) / (std(a) + 1e-6)                of the batch; a_i = R_i - v(x_i)
        rho(x) = clip(2^(-D(x) / D_half), rho_min, rho_max)
        alpha <- rho alpha + sum R_i                              over the prompt's responses
        beta  <- rho beta + sum (1 - R_i)

    Why: a group spends n responses on one baseline, learns nothing when they agree, and waits for
    its slowest. A success rate remembered per prompt is a baseline for single responses.

    Then GRPO's clipped surrogate. D(x) is how far the policy has moved since it last answered x:
    the sum of the moves of the batches between (`Rollouts.drift`), where verl's recipe scores the
    last answer again. A prompt that is new has alpha = beta = prior; the paper first estimates them
    offline.

    Returns A_i, [B]; it remembers `way`, the sum of all moves, and alpha, beta and `way` by prompt.
    """
    rewards = rollouts.rewards
    kept = rollouts.kept
    assert rollouts.prompt is not None
    prompts = core.groups.Groups.of(rollouts.prompt)
    keys = [str(key) for key in rollouts.prompt.unique().tolist()]
    way = memory.get("way", 0.0)
    if rollouts.drift is not None:
        way += float(rollouts.drift[:1].sum())
    past = memory.get("prompts", {})

    tracked = [past.get(key, [params.prior, params.prior, way]) for key in keys]
    alpha, beta, way_then = rewards.new_tensor(tracked).view(-1, 3).unbind(1)
    value = alpha / (alpha + beta)
    rho = _share_remembered(way - way_then, params)
    won = prompts.sum(rewards.where(kept, 0.0))
    answers = prompts.sum(kept)
    alpha = rho * alpha + won
    beta = rho * beta + answers - won

    seen = dict(past)
    for key, a, b in zip(keys, alpha.tolist(), beta.tolist(), strict=True):
        seen[key] = [a, b, way]
    metrics = {"spo/known_prompts": sum(key in past for key in keys) / max(len(keys), 1)}
    if keys:
        metrics["spo/value"] = float(value.mean())
        metrics["spo/rho"] = float(rho.mean())
    raw = rewards - value[prompts.index]
    standard = core.groups.standardized(raw, kept, params.advantage_std)
    return DriverOutput(standard, metrics, memory={"way": way, "prompts": seen})


def _share_remembered(moved: Tensor, params: SPOParams) -> Tensor:
    """What remains of alpha and beta (rho) after the policy has moved by so many nats."""
    if params.forgetting == "constant":
        return moved.new_full(moved.shape, params.rho_max)
    return (-moved / params.half_life).exp2().clamp(params.rho_min, params.rho_max)


SPO = Method(
    name="spo",
    paper="SPO, arXiv 2509.13232",
    params=SPOParams,
    advantages=spo_advantages,
    flat_group_is_inert=False,
    needs=frozenset({"unit_rewards", "memory", "prompt"}),
)


class EMABaselineParams(ClipParams):
    """The baseline's memory, and a division that REINFORCE has not."""

    advantage_std: OfAdvantages[Std] = "none"
    """A division by the batch's deviation."""
    decay: OfAdvantages[float] = Field(default=0.9, ge=0, lt=1)
    """Share of the old baseline that a rollout batch keeps."""


def ema_baseline_advantages(
    rollouts: Rollouts, params: EMABaselineParams, memory: Memory
) -> DriverOutput:
    """REINFORCE with a running baseline, a moving average of the batches' mean rewards.

        A_i = R_i - b
        b <- decay b + (1 - decay) mean(R)          after each batch; before the first, its own mean

    Why: any baseline that ignores the response leaves the gradient unbiased and lowers its
    variance. A running mean needs neither groups nor a critic.

    Then GRPO's clipped surrogate. `advantage_std` divides by the batch's deviation (masked rows
    aside), and not at all where all rewards are equal.

    Returns A_i, [B]; it remembers b.
    """
    rewards = rollouts.rewards
    kept = rollouts.kept
    if not kept.any():
        return DriverOutput(rewards.new_zeros(rewards.shape), memory=memory)
    mean = float(rewards[kept].mean())
    baseline = memory.get("baseline", mean)
    scale = core.groups.deviation(rewards, kept, params.advantage_std)
    after = params.decay * baseline + (1 - params.decay) * mean
    metrics = {"ema_baseline/baseline": baseline}
    return DriverOutput((rewards - baseline) / scale, metrics, memory={"baseline": after})


EMA_BASELINE = Method(
    name="ema_baseline",
    paper="REINFORCE, Williams 1992",
    params=EMABaselineParams,
    advantages=ema_baseline_advantages,
    flat_group_is_inert=False,
    needs=frozenset({"memory"}),
)
