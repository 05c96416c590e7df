"""The section `data` of a run's config: what is asked, and by what rewards it is judged."""

import re
from typing import Any

from pydantic import Field, field_validator

from nemo_algos.config import Section, did_you_mean
from nemo_algos.engines.data.countdown import Rules
from nemo_algos.engines.data.prompts import PromptSection, TrainedPrompt
from nemo_algos.engines.rewards.weighted import Reward

TASKS = ("countdown", "math")
VERIFIER = "math"
NAME = re.compile("[a-z][a-z0-9_]*")
TAKEN = ("mean", "positive_share", "unverified")  # reward/NAME of a step's metrics


class Split(Section):
    """A file (.jsonl, .json, .csv, each also .gz; .parquet), or a data set: folder, or hub name.

    subset, split: of a data set. The keys of problem (text, or a conversation) and gold answer.
    """

    data_path: str
    subset: str | None = None
    split: str | None = None
    input_key: str = "problem"
    output_key: str = "answer"


class RewardSection(Section):
    """`package.module:function`; pool: in the killable processes, else in the trainer's own."""

    function: str
    weight: float = 1.0
    pool: bool = True


class DataSection(PromptSection):
    """What is asked: countdown, math (problems from files), or a Task `package.module:NAME`.

    numbers, use_all: see countdown.Rules. rewards: functions by name, whose weighted sum is the
    reward; verifier: one alone, `package.module:function`. verifier_workers: killable processes of
    each.
    """

    task: str = "countdown"
    numbers: int = Field(default=3, ge=2, le=6)
    use_all: bool = True
    train: Split | None = None
    validation: Split | None = None
    max_input_seq_length: int | None = Field(default=None, gt=0)
    verifier: str = VERIFIER
    rewards: dict[str, RewardSection] | None = None
    verifier_workers: int = Field(default=1, gt=0)

    @property
    def rules(self) -> Rules:
        return Rules(self.numbers, self.use_all)

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
            what = f"{wrong[0]!r} is no name for a reward" if wrong else "name at least one reward"
            raise ValueError(f"{what}: use a-z, 0-9 and _, and none of {', '.join(TAKEN)}")
        return rewards

    @field_validator("task")
    @classmethod
    def _is_known_or_named(cls, task: str) -> str:
        if task not in TASKS and ":" not in task:
            hint = did_you_mean(task, [*TASKS, "package.module:NAME"])
            raise ValueError(f"no task {task!r}{hint}")
        return task
