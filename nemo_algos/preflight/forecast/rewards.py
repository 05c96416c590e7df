"""The reward that the trainer sees of a response: NeMo-RL scales it, then shapes it by its length.

Canonical outcomes have the rewards 1 (right) and 0 (wrong) of a verifier.
"""

from collections.abc import Iterator, Mapping
from math import isfinite, nan
from typing import Any, NamedTuple

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.findings import Finding, at
from nemo_algos.preflight.forecast.planned import (
    InNeMoRL,
    Planned,
    blamed,
    error,
    warning,
    written_of,
)

SCALING = "grpo.reward_scaling"
SHAPING = "grpo.reward_shaping"
UNSCALED = {"source_min": 0.0, "source_max": 1.0, "target_min": 0.0, "target_max": 1.0}
OVERLONG = ("overlong_buffer_length", "overlong_buffer_penalty", "max_response_length")
COEFFICIENT = "stop_properly_penalty_coef"
RIGHT = 1.0
WRONG = 0.0
REWARD_MODEL = "reward_model"  # the environment whose rewards are a model's scores


class Outcome(NamedTuple):
    """A response: its reward from the verifier, its tokens, and whether a limit cut it."""

    reward: float
    tokens: int
    cut: bool


class Rewards(NamedTuple):
    """The trainer's rewards of right and wrong responses: short, nearly too long, cut."""

    short: tuple[float, float]
    long: tuple[float, float]
    cut: tuple[float, float]


def rewards_of(run: Planned) -> Rewards:
    """The rewards that the run trains on. NaN where NeMo-RL computes 0/0, or would raise."""
    paid = [trained(run, outcome) for outcome in canonical(run)]
    return Rewards((paid[0], paid[1]), (paid[2], paid[3]), (paid[4], paid[5]))


def canonical(run: Planned) -> list[Outcome]:
    """Right and wrong responses that are short, of nearly the most tokens, and cut there."""
    longest = limit(run)
    found = []
    for tokens, cut in ((longest // 8, False), (longest - 1, False), (longest, True)):
        found += [Outcome(reward, tokens, cut) for reward in (RIGHT, WRONG)]
    return found


def limit(run: Planned) -> int:
    """The most tokens that a response may have."""
    sequence = run["policy.max_total_sequence_length"] or 1024
    return min(run["policy.generation.max_new_tokens"] or sequence, sequence)


def reads(run: Planned, section: str) -> bool:
    """Whether the section is on, and the run's trainer knows it."""
    if run["grpo.async_grpo.enabled"] and not run.controlled:
        return False
    unknown = run.controlled and not run.nemo_rl.facts[f"the single controller reads {section}"]
    return bool(run[f"{section}.enabled"]) and not unknown


def trained(run: Planned, outcome: Outcome) -> float:
    """The reward that the run trains on. NaN where NeMo-RL computes 0/0, or would raise."""
    reward = outcome.reward
    if reads(run, SCALING):
        reward = scaled(reward, run[SCALING])
    if reads(run, SHAPING):
        try:
            reward = shaped(outcome._replace(reward=reward), run[SHAPING])
        except (ValueError, ZeroDivisionError):
            return nan
    return reward


def scaled(reward: float, section: Mapping[str, Any]) -> float:
    """A reward as NeMo-RL's `scale_rewards` maps it: cut to the source, moved to the target."""
    given = {**UNSCALED, **{k: v for k, v in section.items() if v is not None}}
    low, high, least, most = (float(given[key]) for key in UNSCALED)
    inside = min(max(reward, low), high)  # as torch.clamp: the maximum where they cross
    if low == high:
        return nan
    return least + (inside - low) / (high - low) * (most - least)


def shaped(outcome: Outcome, section: Mapping[str, Any]) -> float:
    """A reward as NeMo-RL's `apply_reward_shaping` makes it.

    Raises ValueError or ZeroDivisionError where NeMo-RL would.
    """
    coefficient = section.get(COEFFICIENT)
    if coefficient is not None:
        if not 0 <= coefficient <= 1:
            raise ValueError(f"must be from 0 to 1, got {coefficient:g}")
        if outcome.cut:
            return outcome.reward * coefficient
        return outcome.reward
    missing = [key for key in OVERLONG if section.get(key) is None]
    if missing:
        raise ValueError(f"it needs {' and '.join(missing)} as well")
    buffer, penalty, longest = (section[key] for key in OVERLONG)
    if penalty < 0:
        raise ValueError(f"must be 0 or more, got {penalty:g}")
    exceeding = outcome.tokens - (longest - buffer)
    return outcome.reward + min(-exceeding / buffer * penalty, 0)


def scaling(run: InNeMoRL) -> Iterator[Finding]:
    """A right answer earns more than a wrong one, and only it is a success."""
    if not reads(run, SCALING):
        return
    values = {**UNSCALED, **run[SCALING]}

    def pair(section: Mapping[str, Any]) -> tuple[float, float]:
        return scaled(RIGHT, section), scaled(WRONG, section)

    unbounded = [data for _, data in run.data_sets if data.get("env_name") == REWARD_MODEL]
    own = at(run.written, f"{SCALING}.source_min") is not None
    if unbounded and not own:
        low, high = (f"{values[key]:g}" for key in ("source_min", "source_max"))
        yield warning(
            f"{SCALING}.source_min",
            f"the scores of a reward model have no bounds, and all those below {low} become equal, "
            f"as do those above {high}. Set it and source_max to the range of its scores.",
        )
    right, wrong = pair(values)
    earned = f"a right answer (1) then earns {right:g}, and a wrong one (0) {wrong:g}"
    if not right > wrong or not isfinite(right):
        key = blamed(SCALING, values, UNSCALED, lambda v: not pair(v)[0] > pair(v)[1])
        why = "nothing can be learned" if right == wrong else "wrong answers are reinforced"
        why = why if isfinite(right) else "NeMo-RL divides by 0, and every reward is NaN"
        yield error(key, f"{earned}: {why}. Map 0 and 1 to a lower and a higher reward.")
        return
    readers = _success_readers(run.algorithm)
    if readers and (wrong > 0 or right <= 0):
        key = blamed(SCALING, values, UNSCALED, lambda v: not pair(v)[0] > 0 >= pair(v)[1])
        yield error(
            key,
            f"{earned}, but {readers} takes every reward above 0 for a success. Let wrong answers "
            "earn 0 or less, and right ones more.",
        )


def _success_readers(algorithm: Algorithm | None) -> str:
    if algorithm:
        return " and ".join(algorithm.success_readers)
    return ""


def shaping(run: Planned) -> Iterator[Finding]:
    """Only what is too long is punished, it is punished, and never below what is wrong."""
    if not reads(run, SHAPING):
        return
    section = run[SHAPING]
    longest = limit(run)
    try:
        shaped(Outcome(RIGHT, longest, cut=True), section)
    except ZeroDivisionError:
        yield error(
            f"{SHAPING}.overlong_buffer_length", "it must be above 0: NeMo-RL divides by it."
        )
        return
    except ValueError as problem:
        yield error(_wrong_key(section), f"{problem}: NeMo-RL would stop at the first rewards.")
        return
    paid = rewards_of(run)
    if section.get(COEFFICIENT) is not None:
        yield from _stopping(paid, section)
        for key in OVERLONG:
            if at(run.written, f"{SHAPING}.{key}") is not None:
                said = f"no effect beside {COEFFICIENT}. Set that to null, or remove this."
                yield warning(f"{SHAPING}.{key}", said)
        return
    if paid.short[0] < _unshaped(run, RIGHT):
        first = section["max_response_length"] - section["overlong_buffer_length"]
        yield error(
            written_of(run, f"{SHAPING}.overlong_buffer_length", f"{SHAPING}.max_response_length"),
            f"responses are punished from {max(first, 0)} tokens on, though they may have "
            f"{longest}: a right one of {longest // 8} then earns {paid.short[0]:g}. Let "
            f"`max_response_length` be {longest}, and the buffer a part of it.",
        )
    elif paid.cut[1] == _unshaped(run, WRONG):
        yield warning(
            f"{SHAPING}.max_response_length",
            f"responses end at {longest} tokens, before any is punished. Set it to {longest}.",
        )
    elif paid.long[0] < paid.short[1]:
        yield warning(
            f"{SHAPING}.overlong_buffer_penalty",
            f"a right response of {longest - 1} tokens earns {paid.long[0]:g}, less than a wrong "
            f"short one ({paid.short[1]:g}). Lower it, or raise `max_response_length`.",
        )


def _unshaped(run: Planned, reward: float) -> float:
    if reads(run, SCALING):
        return scaled(reward, run[SCALING])
    return reward


def _wrong_key(section: Mapping[str, Any]) -> str:
    if section.get(COEFFICIENT) is not None:
        return f"{SHAPING}.{COEFFICIENT}"
    missing = [key for key in OVERLONG if section.get(key) is None]
    return f"{SHAPING}.{missing[0] if missing else 'overlong_buffer_penalty'}"


def _stopping(paid: Rewards, section: Mapping[str, Any]) -> Iterator[Finding]:
    path = f"{SHAPING}.{COEFFICIENT}"
    if section[COEFFICIENT] == 1:
        yield warning(path, "1 leaves the reward of a response that was cut as it is. Set e.g. 0.")
    elif paid.cut[1] > paid.short[1]:
        yield error(
            path,
            f"it multiplies the reward of what was cut, so a wrong response earns {paid.cut[1]:g} "
            f"when it is cut, and {paid.short[1]:g} when it ends. It needs rewards of 0 and more.",
        )


# NeMo-RL keys that overwrite advantages; what they may be, and what else would be reinforced
PUNISHING = {
    "grpo.invalid_tool_call_advantage": "invalid tool calls",
    "grpo.malformed_thinking_advantage": "malformed thinking",
}


def punishments(run: Planned) -> Iterator[Finding]:
    """What is meant to punish lowers an advantage, and is known to the trainer."""
    gym = run["env.should_use_nemo_gym"]
    for key, value in (run["reward_penalties"] or {}).items():
        if value is True and not gym:
            yield error(
                f"reward_penalties.{key}",
                "NeMo-RL only knows it with NeMo Gym, and stops at its setup. Set it to false.",
            )
    for path, what in PUNISHING.items():
        value = run[path]
        if value is not None and value >= 0:
            yield error(path, f"{value:g} would reinforce {what}, or keep it. Set e.g. -5.0.")


def advantages(run: Planned) -> Iterator[Finding]:
    """Clipped advantages still tell right from wrong."""
    low = run["grpo.advantage_clip_low"]
    high = run["grpo.advantage_clip_high"]
    if low is not None and high is not None and low >= high:
        yield error("grpo.advantage_clip_low", f"{low:g} is not below the upper limit {high:g}.")
    elif low is not None and low >= 0:
        yield error(
            "grpo.advantage_clip_low",
            f"every advantage is then at least {low:g}, so that of a wrong response, too: nothing "
            "is discouraged. Set a negative limit such as -5.0.",
        )
    elif high is not None and high <= 0:
        yield error(
            "grpo.advantage_clip_high",
            f"every advantage is then at most {high:g}, so that of a right response, too: nothing "
            "is reinforced. Set e.g. 5.0.",
        )
