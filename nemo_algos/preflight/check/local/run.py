"""A run of the embedded engine as its rules see it."""

from dataclasses import dataclass
from functools import reduce
from typing import Any

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.engines.local.schema import LocalConfig
from nemo_algos.engines.rewards.weighted import Reward
from nemo_algos.preflight.check.rule import WrongKey


@dataclass(frozen=True)
class LocalRun:
    """A typed config before it starts; algorithm: None where unknown.

    wrong: keys whose values are wrong by themselves, in whose place `config` has the usual ones.
    """

    config: LocalConfig
    algorithm: Algorithm | None
    wrong: frozenset[str]

    def __getitem__(self, path: str) -> Any:
        """The value of a key, or the typed section. Raises WrongKey."""
        if any(_above(path, wrong) or _above(wrong, path) for wrong in self.wrong):
            raise WrongKey(path)
        return reduce(getattr, path.split("."), self.config)

    def changed(self, path: str) -> bool:
        """Whether a key has another value than its default."""
        section, _, key = path.rpartition(".")
        usual = type(reduce(getattr, section.split("."), self.config)).model_fields[key].default
        return self[path] != usual

    @property
    def model(self) -> str:
        """The model's name."""
        return self["policy.model_name"]

    @property
    def functions(self) -> dict[str, Reward]:
        """The reward functions by name."""
        _ = self["data.rewards"], self["data.verifier"]
        return self.config.data.functions


def _above(key: str, other: str) -> bool:
    """Whether a key is the other, or a section that it is in."""
    return f"{other}.".startswith(f"{key}.")
