"""How the evaluated model was asked in training, so that it is asked the same again."""

from pathlib import Path

from nemo_algos.config import validate
from nemo_algos.engines.data.prompts import TrainedPrompt
from nemo_algos.engines.local import manifest
from nemo_algos.engines.local.schema import LocalConfig
from nemo_algos.lab.evals.schema import LocalModel


def config_of(run: str) -> LocalConfig:
    """A training run's config. Raises ValueError where the folder holds none."""
    path = Path(run) / "manifest.json"
    if not path.is_file():
        raise ValueError(f"model.run: {run} is no training run: no manifest.json")
    return validate(LocalConfig, manifest.read(path), "model.run: its config")


def prompt_of(model: object) -> TrainedPrompt | None:
    """The prompt of a run, or of the folder of its model; None where training had none of rows."""
    if not isinstance(model, LocalModel):
        return None
    if model.policy:
        return TrainedPrompt.read(Path(model.policy.model_name))
    data = config_of(model.run or "").data
    return data.trained if data.task == "math" else None
