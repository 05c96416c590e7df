"""Several reward functions with weights: their sum is the reward, each is kept beside it.

In NeMo-RL a section of `env` names a verifier of ours.
"""

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from pkgutil import resolve_name
from typing import Any, NamedTuple

from pydantic import PositiveFloat, PositiveInt

from nemo_algos.engines.rewards.function import PAIR, RewardFunction, describe, number, path_of
from nemo_algos.engines.rewards.pool import Unjudged, Verdict, VerifierPool
from nemo_algos.findings import Section

Columns = Mapping[str, Sequence[Any]]  # of the responses, by the names in GIVEN


class VerifierConfig(Section):
    """A section of `env`: a verifier and an extractor (of cons@k), the pool's arguments."""

    verifier: str
    extractor: str = "boxed"
    workers: PositiveInt = 8
    deadline: PositiveFloat = 5.0
    memory_mb: PositiveInt = 2048
    max_chars: PositiveInt = 1_000_000


def sections(env: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Those that name a verifier, by the environment's name."""
    return {n: s for n, s in env.items() if isinstance(s, Mapping) and "verifier" in s}


class Reward(NamedTuple):
    """A function `package.module:NAME`, its weight, and whether killable processes run it."""

    function: str
    weight: float = 1.0
    pool: bool = True


class InProcess:
    """Runs a function in this process: nothing ends it, but it may keep what it has loaded.

    An async function is awaited for all responses at once.
    """

    def __init__(self, function: str) -> None:
        self.call = RewardFunction(resolve_name(path_of(function)))

    def score(self, columns: Columns) -> list[Verdict]:
        rows = []
        for row in zip(*columns.values(), strict=True):
            rows.append(dict(zip(columns, row, strict=True)))
        if not inspect.iscoroutinefunction(self.call.function):
            return [_verdict(self.call, row) for row in rows]
        return asyncio.run(self._all(rows))

    async def _all(self, rows: list[dict[str, Any]]) -> list[Verdict]:
        values = await asyncio.gather(*map(self.call, rows), return_exceptions=True)
        return [_verdict(lambda value: value, value) for value in values]

    def close(self) -> None:
        return


class InPool:
    """Runs a function in killable processes, which are told what it names."""

    def __init__(self, function: str, workers: int) -> None:
        self.names = RewardFunction(resolve_name(path_of(function))).names or PAIR
        self.pool = VerifierPool(function, workers)

    def score(self, columns: Columns) -> list[Verdict]:
        more = {}
        for name in self.names:
            if name not in PAIR:
                more[name] = columns[name]
        return self.pool.score(*(columns[name] for name in PAIR), **more)

    def close(self) -> None:
        self.pool.close()


def _verdict(function: Any, given: Any) -> Verdict:
    try:
        value = function(given)
        if isinstance(value, BaseException):
            raise value
        return Verdict(number(value), "ok")
    except Exception as error:
        return Verdict(0.0, "error", describe(error))


class Rewards:
    """Reward functions by name; of a single one without a name (""), the reward is its own."""

    def __init__(self, functions: Mapping[str, Reward], workers: int = 1) -> None:
        self.functions = functions
        self.judges = dict[str, InPool | InProcess]()
        for name, f in functions.items():
            self.judges[name] = InPool(f.function, workers) if f.pool else InProcess(f.function)

    def score(self, columns: Columns) -> list[Verdict]:
        """The weighted sums; the status of the first function that could not judge, else "ok".

        What could not be judged adds 0. Raises Unjudged where a function judged no response.
        """
        found = {name: judge.score(columns) for name, judge in self.judges.items()}
        for name, verdicts in found.items():
            refuse_unjudged(verdicts, name)
        if list(found) == [""]:
            return found[""]
        rows = zip(*found.values(), strict=True)
        return [self._sum(dict(zip(found, row, strict=True))) for row in rows]

    def _sum(self, parts: dict[str, Verdict]) -> Verdict:
        total = sum(self.functions[name].weight * part.reward for name, part in parts.items())
        failed = {n: p for n, p in parts.items() if p.status != "ok"}
        for name, part in failed.items():
            return Verdict(total, part.status, f"{name}: {part.detail}", parts)
        return Verdict(total, "ok", parts=parts)

    def close(self) -> None:
        for judge in self.judges.values():
            judge.close()


def parts(verdicts: Sequence[Verdict]) -> dict[str, list[Verdict]]:
    """Of rewards that are sums, each function's verdicts by its name."""
    found = dict[str, list[Verdict]]()
    for verdict in verdicts:
        for name, part in verdict.parts.items():
            found.setdefault(name, []).append(part)
    return found


def refuse_unjudged(verdicts: Sequence[Verdict], name: str = "") -> None:
    """Raises Unjudged where there are verdicts and none of them is "ok"."""
    if verdicts and all(verdict.status != "ok" for verdict in verdicts):
        last = verdicts[-1]
        which = f"the reward {name}".strip()
        reason = f"{last.status}, {last.detail}" if last.status != "error" else last.detail
        raise Unjudged(
            f"{which} could not judge any of {len(verdicts)} responses. The last error: {reason}"
        )
