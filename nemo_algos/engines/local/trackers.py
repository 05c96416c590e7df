"""Who else is told of a run's numbers: TensorBoard, W&B, MLflow, trackio, each by its library."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from nemo_algos.engines.local.schema import LoggerSection

Send = Callable[[dict[str, float], int], object]


class Told(NamedTuple):
    """A run: the steps that it has done, and an id that no other run has."""

    folder: Path
    config: dict[str, Any]
    id: str
    done: int


@contextmanager
def tensorboard(run: Told, settings: LoggerSection) -> Iterator[Send]:
    """Files in the run's folder; what a kill has left of later steps is hidden."""
    from torch.utils.tensorboard.writer import SummaryWriter

    with SummaryWriter(str(run.folder / "tensorboard"), purge_step=run.done + 1) as writer:
        yield lambda metrics, step: [writer.add_scalar(k, v, step) for k, v in metrics.items()]


@contextmanager
def wandb(run: Told, settings: LoggerSection) -> Iterator[Send]:
    """A resumed run goes on in its own. Its files, which link elsewhere, are beside the folder."""
    import wandb  # pyright: ignore[reportMissingImports]

    named = {"name": run.folder.name, **settings.wandb.model_dump(exclude_none=True)}
    options = {"dir": run.folder.parent, "id": run.id, "resume": "allow", "config": run.config}
    with wandb.init(**options, **named) as made:
        yield lambda metrics, step: made.log(metrics, step=step)


@contextmanager
def trackio(run: Told, settings: LoggerSection) -> Iterator[Send]:
    """As W&B. Its runs are told apart by their names alone, so the id is a part of the name."""
    import trackio  # pyright: ignore[reportMissingImports]

    section = settings.trackio
    name = f"{section.name} {run.id}" if section.name else run.id
    made = trackio.init(project=section.project, name=name, resume="allow", config=run.config)
    yield lambda metrics, step: made.log(metrics, step=step)
    made.finish()


@contextmanager
def mlflow(run: Told, settings: LoggerSection) -> Iterator[Send]:
    """A resumed run goes on in its own, which a tag tells. MLflow's names have no @."""
    import mlflow  # pyright: ignore[reportMissingImports]

    section, tag = settings.mlflow, "nemo_algos"
    if section.tracking_uri:
        mlflow.set_tracking_uri(section.tracking_uri)
    mlflow.set_experiment(section.experiment_name)
    there = mlflow.search_runs(filter_string=f"tags.{tag} = '{run.id}'", output_format="list")
    new = {"run_name": section.run_name or run.folder.name, "tags": {tag: run.id}}
    with mlflow.start_run(**({"run_id": there[0].info.run_id} if there else new)):
        mlflow.log_dict(run.config, "config.json")
        yield lambda metrics, step: mlflow.log_metrics(
            {name.replace("@", "_at_"): value for name, value in metrics.items()}, step
        )


TRACKERS: dict[str, Callable[[Told, LoggerSection], AbstractContextManager[Send]]] = {
    tracker.__name__: tracker for tracker in (tensorboard, wandb, mlflow, trackio)
}


def enabled_names(settings: LoggerSection) -> list[str]:
    """Their names."""
    return [name for name in TRACKERS if getattr(settings, f"{name}_enabled")]
