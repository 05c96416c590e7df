"""What is asked of a rehearsal, as the command hands it to the rehearsal's environment."""

import json
from pathlib import Path
from typing import NamedTuple

from omegaconf import DictConfig, OmegaConf

STAGES = ("judge", "folders", "data", "stack")  # of --only; data: tokenizer and rewards too
FILE = "request.json"


class Request(NamedTuple):
    """config: the run's YAML with its overrides, interpolations as written; nemo_rl: its checkout.

    model: a folder in place of policy.model_name, or ""; rows: a file of rows for data sets that
    are not at hand, or ""; only: of STAGES, empty for all.
    """

    config: str
    nemo_rl: str
    ranks: int
    steps: int
    model: str = ""
    rows: str = ""
    only: tuple[str, ...] = ()

    def wants(self, *stages: str) -> bool:
        """Whether any of these stages is asked for."""
        return not self.only or bool({*stages} & {*self.only})

    def written(self) -> DictConfig:
        """The config, to be judged."""
        config = OmegaConf.create(self.config)
        assert isinstance(config, DictConfig)
        return config

    def write(self, folder: Path) -> None:
        """As FILE in the folder."""
        (folder / FILE).write_text(json.dumps(self._asdict()))

    @classmethod
    def read(cls, folder: Path) -> "Request":
        """From the folder."""
        values = json.loads((folder / FILE).read_text())
        return cls(**values | {"only": tuple(values["only"])})
