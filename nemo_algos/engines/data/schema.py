"""The section `data` of a run's config: what is asked, and by what rewards it is judged."""

import re
from typing import Any

from pydantic import Field, field_validator

from nemo_algos.engines.data.countdown import Rules
from nemo_algos.engines.data.prompts import PromptSection, TrainedPrompt
from nemo_algos.engines.data.puzzles import FAMILIES
from nemo_algos.engines.rewards.weighted import Reward
from nemo_algos.findings import Section, did_you_mean

TASKS = (*FAMILIES, "math")
VERIFIER = "math"
NAME = re.compile("[a-z][a-z0-9_]*")
TAKEN = ("mean", "positive_share", "unverified")  # reward/NAME of a step's metrics


class Split(Section):
    """A file of rows, or a data set."""

    data_path: str
    """A file (.jsonl, .json, .csv, each also as .gz; .parquet), or a data set's folder or hub name.
    """
    subset: str | None = None
    """Of a data set."""
    split: str | None = None
    """Of a data set."""
    input_key: str = "problem"
    """Key of the problem in a row: a text or a conversation."""
    output_key: str = "answer"
    """The key of the gold answer."""


class RewardSection(Section):
    """A reward function."""

    function: str
    """`package.module:function`."""
    weight: float = 1.0
    pool: bool = True
    """true: run in separate processes with a time limit; false: in the trainer."""


class DataSection(PromptSection):
    """Problems and rewards."""

    task: str = "countdown"
    """A family of puzzles (countdown, sums), math (problems from files), or a Task
    `package.module:NAME`.
    """
    numbers: int = Field(default=3, ge=2, le=26)
    """Numbers of a countdown puzzle (2 to 6) or of a sum (2 to 26)."""
    use_all: bool = True
    """Whether a countdown solution must use every number."""
    train: Split | None = None
    validation: Split | None = None
    max_input_seq_length: int | None = Field(default=None, gt=0, le=10**9)
    """Prompts with more tokens are dropped."""
    verifier: str = VERIFIER
    """The only reward function: `package.module:function`, or a verifier's name."""
    rewards: dict[str, RewardSection] | None = None
    """Reward functions by name. The reward is their weighted sum."""
    verifier_workers: int = Field(default=1, gt=0, le=1024)
    """Processes of each reward function."""

    @property
    def rules(self) -> Rules:
        family = self.task if self.task in FAMILIES else "countdown"
        return Rules(self.numbers, self.use_all, family)

    @property
    def functions(self) -> dict[str, Reward]:
        """The reward functions by name; the verifier without one."""
        if self.rewards is None:
            return {"": Reward(self.verifier)}
        return {name: Reward(r.function, r.weight, r.pool) for name, r in self.rewards.items()}

    @property
    def trained(self) -> TrainedPrompt:
        """What an evaluation needs to ask the same."""
        own = self.model_dump(include={*PromptSection.model_fields})
        keys = self.train.model_dump(include={"input_key", "output_key"}) if self.train else {}
        rewards = [reward.function for reward in self.functions.values()]
        return TrainedPrompt(**own, **keys, rewards=rewards)

    @field_validator("rewards")
    @classmethod
    def _have_names(cls, rewards: dict[str, Any] | None) -> dict[str, Any] | None:
        wrong = [n for n in rewards or {} if not NAME.fullmatch(n) or n in TAKEN]
        if wrong or rewards == {}:
            what = f"{wrong[0]!r} is not a valid reward name" if wrong else "no reward is named"
            raise ValueError(f"{what}. Use a-z, 0-9 and _, but not {', '.join(TAKEN)}.")
        return rewards

    @field_validator("task")
    @classmethod
    def _is_known_or_named(cls, task: str) -> str:
        if task not in TASKS and ":" not in task:
            hint = did_you_mean(task, [*TASKS, "package.module:NAME"])
            raise ValueError(f"unknown task {task!r}{hint}")
        return task
