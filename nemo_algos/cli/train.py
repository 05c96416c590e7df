"""The command `nemo-algos train`; examples/run_grpo_math.py is the same."""

import traceback
from concurrent.futures import BrokenExecutor
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from omegaconf import DictConfig, OmegaConf

from nemo_algos import config as configs
from nemo_algos.algorithms.methods import METHODS
from nemo_algos.cli.arguments import SHAPE, complete_config, load_config, once, show
from nemo_algos.config import method_name, run_name
from nemo_algos.engines.local import manifest
from nemo_algos.extras import require
from nemo_algos.findings import ConfigError, Finding, did_you_mean
from nemo_algos.preflight.check.local.judge import Judged, judge
from nemo_algos.terminal import Console, echo, sentence

NO_NEMO_RL = (
    "nemo_rl is not installed. Run inside the NGC image nvcr.io/nvidia/nemo-rl:v0.7.0, "
    "or from a checkout of github.com/NVIDIA-NeMo/RL with `uv run` (docs/nemo_rl.md)."
)
COMPARED = "runs/compare"  # a folder of runs for each config
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
    methods: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="compare these methods: a run each, then the report"),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="so many runs of each, from `grpo.seed` on"),
    ] = None,
) -> None:
    """Train a policy with one of the methods, or compare several over seeds."""
    overrides = once(words) or []
    if config is None and overrides and "=" not in overrides[0]:
        config, *overrides = overrides
    if resume and resume.exists() and not resume.is_dir():
        raise _error(f"--resume {resume} is a file. Name a run folder.")
    if methods is not None or seeds is not None:
        return _compare(config, overrides, methods, seeds or 1, resume)
    if config is None:
        merged = configs.apply_overrides(_resume(resume, overrides), overrides)
    else:
        merged = _with_run_name(load_config(config, overrides, "train"), config)
    launch = _nemo_rl if configs.select(merged, "engine") == "nemo_rl" else _local
    return launch(merged, resume)


def _with_run_name(merged: DictConfig, config: str) -> DictConfig:
    """The folder of its runs has the config's name, where nothing else is set."""
    if _usual_folder(merged):
        before = configs.select(configs.read(configs.find(config)), "method")
        after = configs.select(merged, "method")
        merged["logger"]["log_dir"] = f"runs/{run_name(config, before, after)}"
    return merged


def _usual_folder(merged: DictConfig) -> bool:
    """Whether the config says nothing of where its runs are."""
    section = configs.select(merged, "logger")
    plain: Any = OmegaConf.to_container(section) if isinstance(section, DictConfig) else {}
    return plain.get("log_dir") == USUAL


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


def _compare(
    config: str | None, overrides: list[str], methods: str | None, seeds: int, resume: Path | None
) -> None:
    """A run for each method and seed, those that have begun continued, then the report of them."""
    if resume:
        raise _error("--resume continues one run; --methods and --seeds find theirs. Remove it.")
    if config is None:
        raise _error(NO_CONFIG)
    merged = load_config(config, overrides, "train")
    if configs.select(merged, "engine") == "nemo_rl":
        raise _error(
            "--methods and --seeds need the embedded engine, and this config trains in NeMo-RL. "
            f"Submit a sweep: nemo-algos slurm {config} --sweep grpo.seed=1,2,3",
            "engine",
        )
    require("engine")
    require("lab")
    runs = _runs(merged, config, methods, seeds)
    from nemo_algos.cli.report import report
    from nemo_algos.engines.local.run import run  # as in _local

    trained = []
    for i, (folder, judged) in enumerate(runs.items()):
        echo(f"run {i + 1} of {len(runs)}: {folder}")
        try:
            run(judged.config, judged.algorithm, folder, Console(highlight=False))
            trained.append(folder)
        except (FloatingPointError, BrokenExecutor) as error:
            sentence(
                f"{folder} failed, and the report leaves it out: {error}", color="red", err=True
            )
        except SystemExit:
            echo("The same command continues the comparison.", err=True)
            raise
    if trained:
        report(trained, trained[0].parent / "report")
    if len(trained) < len(runs):
        raise typer.Exit(1)


def _runs(merged: DictConfig, config: str, methods: str | None, seeds: int) -> dict[Path, Judged]:
    """A comparison's runs by folder, all judged before the first. Raises ValueError."""
    place = Path(COMPARED) / run_name(config, "", "")
    if not _usual_folder(merged):
        place = Path(configs.select(merged, "logger.log_dir"))
    runs = dict[Path, Judged]()
    findings: list[Finding] = []
    for name, block in _blocks(merged, methods).items():
        one = deepcopy(merged)
        one["method"] = block
        OmegaConf.update(one, "logger.log_dir", str(place / name))
        try:
            first = judge(configs.resolve(one)).config.grpo.seed
            for seed in range(first, first + seeds):
                OmegaConf.update(one, "grpo.seed", seed)
                runs[place / f"{name}-{seed}"] = judge(configs.resolve(one))
        except ConfigError as error:
            findings += error.findings
    if findings:
        raise ConfigError(list(dict.fromkeys(findings)))
    warnings: list[Finding] = []
    for folder, judged in runs.items():
        warnings += judged.warnings
        if (folder / "metrics.jsonl").exists() and (folder / "manifest.json").exists():
            manifest.changes(folder, judged.config)
    show(warnings, err=True)
    return runs


def _blocks(merged: DictConfig, methods: str | None) -> dict[str, Any]:
    """The `method` of each name; the config's own where it is named. Raises ConfigError."""
    own = configs.select(merged, "method")
    own_name = method_name(own)
    if methods is None:
        return {own_name: own}
    blocks: dict[str, Any] = {}
    unknown = []
    for word in methods.split(","):
        name = word.strip()
        block = own if method_name(name) == own_name else configs.shipped_method(name)
        if name in METHODS or ":" in name:
            block = block or {"name": name}
        if block:
            blocks[method_name(name)] = block
        else:
            near = did_you_mean(name, [*METHODS])
            unknown.append(Finding("--methods", f"unknown method {name!r}{near}"))
    if unknown:
        raise ConfigError(unknown)
    return blocks


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
