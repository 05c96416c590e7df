"""The command `nemo-algos train`; examples/run_grpo_math.py is the same."""

import traceback
from concurrent.futures import BrokenExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from omegaconf import DictConfig, OmegaConf

from nemo_algos import config as configs
from nemo_algos.cli.arguments import SHAPE, complete_config, load_config, once, show
from nemo_algos.config import run_name
from nemo_algos.engines.local import manifest
from nemo_algos.extras import require
from nemo_algos.findings import ConfigError, Finding
from nemo_algos.preflight.check.local.judge import judge
from nemo_algos.terminal import Console, echo

NO_NEMO_RL = (
    "nemo_rl is not installed. Run inside the NGC image nvcr.io/nvidia/nemo-rl:v0.7.0, "
    "or from a checkout of github.com/NVIDIA-NeMo/RL with `uv run` (docs/nemo_rl.md)."
)
USUAL = "runs/${method_name:${oc.select:method,run}}"  # as configs/local.yaml has it
NO_CONFIG = "CONFIG is missing. Name one, such as: nemo-algos train etr.yaml"
# our own ends of a run, and what is wrong with the cluster
ENDS = (ConfigError, FloatingPointError, BrokenExecutor)
FOREIGN = "is code or a server that only the run folder names, and the folder may be a stranger's"


def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar=SHAPE, autocompletion=complete_config, help="a YAML file, or a shipped config"
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            metavar="CONFIG", help="same as CONFIG; all arguments are then key.path=value"
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="resume the run in this folder, or start it there"),
    ] = None,
) -> None:
    """Train a policy with one of the methods."""
    overrides = once(words) or []
    if config is None and overrides and "=" not in overrides[0]:
        config, *overrides = overrides
    if resume and resume.exists() and not resume.is_dir():
        raise _error(f"--resume {resume} is a file. Name a run folder.")
    if config is None:
        merged = configs.apply_overrides(_resume(resume, overrides), overrides)
    else:
        merged = _with_run_name(load_config(config, overrides, "train"), config)
    launch = _nemo_rl if configs.select(merged, "engine") == "nemo_rl" else _local
    launch(merged, resume)


def _with_run_name(merged: DictConfig, config: str) -> DictConfig:
    """The folder of its runs has the config's name, where nothing else is set."""
    section = configs.select(merged, "logger")
    plain: Any = OmegaConf.to_container(section) if isinstance(section, DictConfig) else {}
    if plain.get("log_dir") == USUAL:
        before = configs.select(configs.read(configs.find(config)), "method")
        after = configs.select(merged, "method")
        merged["logger"]["log_dir"] = f"runs/{run_name(config, before, after)}"
    return merged


def _local(merged: DictConfig, resume: Path | None) -> None:
    require("engine")
    try:
        checked, algorithm, warnings = judge(configs.resolve(merged), resume)
        show(warnings, err=True)
        from nemo_algos.engines.local.run import run  # transformers, after the config is judged
    except KeyboardInterrupt:
        echo("Stopped before the first step. Nothing was saved.", err=True)
        raise typer.Exit(130) from None
    run(checked, algorithm, resume, Console(highlight=False))


def _nemo_rl(merged: DictConfig, resume: Path | None) -> None:
    if resume:
        raise _error(
            "--resume: NeMo-RL resumes from `checkpointing.checkpoint_dir` automatically. Remove "
            "it."
        )
    if find_spec("nemo_rl") is None:
        raise _error(NO_NEMO_RL, "engine")
    # nemo_rl, which only its own environments have
    try:
        from nemo_algos.engines.nemo import launch
        from nemo_algos.preflight.check.launcher import compose
    except ImportError as error:
        raise _error(f"the installed NeMo-RL lacks what a run needs: {error}", "engine") from None
    judged = compose(merged)
    loss = launch.ready(judged, Console(highlight=False))
    try:
        launch.run(judged, loss)
    except Exception as error:
        if type(error) in ENDS:
            raise
        traceback.print_exc()  # no wrong input any more
        raise typer.Exit(1) from None


def _resume(resume: Path | None, overrides: list[str]) -> DictConfig:
    """The config of the run to resume, code and servers only where an override names them again."""
    if resume is None:
        raise _error(NO_CONFIG)
    path = resume / "manifest.json"
    if not path.exists():
        raise _error(f"{resume} does not contain a run. Name a config too, to start one there.")
    try:
        plain = manifest.read(path)
    except (OSError, ValueError) as error:
        raise _error(f"{path} is not a run manifest ({error}). Resume another folder.") from None
    given = {override.partition("=")[0].lstrip("+") for override in overrides}
    unasked = []
    for key, value in manifest.foreign(plain).items():
        if key not in given:
            unasked.append(
                Finding(
                    key, f"{value} {FOREIGN}. If you trust it, add {key}={value}, or --config FILE."
                )
            )
    if unasked:
        raise ConfigError(unasked)
    return OmegaConf.create({**plain, "engine": "local"})


def _error(message: str, path: str = "") -> ConfigError:
    return ConfigError([Finding(path, message)])
