"""From the command line to an engine: config, overrides, run folder, and every error in one report. Loads no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console

from nemo_algos import config
from nemo_algos.config import ConfigError, Problem
from nemo_algos.local.schema import LocalConfig
from nemo_algos.methods.algorithm import Algorithm
from nemo_algos.methods.build import build


def find(name: str, shipped: Path) -> Path:
    """A config by path, else by name among the shipped ones."""
    path = Path(name)
    return path if path.exists() or path.parent != Path() else shipped / name


def check_local(plain: dict[str, Any]) -> tuple[LocalConfig, Algorithm]:
    """The typed config and its algorithm. Raises ConfigError with the problems of both."""
    problems: list[Problem] = []
    method = plain.get("method")
    try:
        algorithm = build(method) if isinstance(method, (dict, str)) else None
    except ConfigError as error:
        problems += error.problems
        algorithm = None
    typed = {**plain, "method": {"name": method}} if isinstance(method, str) else plain
    try:
        checked = config.validate(LocalConfig, typed)
    except ConfigError as error:
        raise ConfigError([*error.problems, *problems]) from None
    if problems:
        raise ConfigError(problems)
    assert algorithm is not None
    return checked, algorithm


def next_folder(log_dir: Path) -> Path:
    """log_dir/exp_001, exp_002, ... as NeMo-RL numbers them."""
    taken = [int(p.name[4:]) for p in log_dir.glob("exp_*") if p.name[4:].isdigit()]
    return log_dir / f"exp_{max(taken, default=0) + 1:03d}"


def launch(name: str | None, overrides: list[str], resume: Path | None, shipped: Path) -> int:
    """Run what the config says; the exit status (2: the config is wrong)."""
    console = Console(highlight=False)
    try:
        plain = _plain(name, overrides, resume, shipped)
        checked, algorithm = check_local(plain)
    except ConfigError as error:
        console.print(f"[red]{len(error.problems)} problem(s) in the config[/red]")
        for problem in error.problems:
            console.print(f"  {problem}", markup=False, soft_wrap=True)
        return 2
    from nemo_algos.local.run import run

    try:
        run(checked, algorithm, resume or next_folder(Path(checked.logger.log_dir)), console)
    except (ValueError, OSError, FloatingPointError) as error:
        console.print(f"error: {error}", markup=False, style="red", soft_wrap=True)
        return 2
    return 0


def _plain(
    name: str | None, overrides: list[str], resume: Path | None, shipped: Path
) -> dict[str, Any]:
    """The config file with overrides, or the config of the run to resume."""
    if name is not None:
        return config.load(find(name, shipped), overrides)
    manifest = resume / "manifest.json" if resume else None
    if manifest is None or not manifest.exists():
        hint = f"{resume} holds no run" if resume else "name a config"
        raise ConfigError([Problem("", f"{hint}: pass --config, e.g. --config etr.yaml")])
    try:
        written = OmegaConf.create(json.loads(manifest.read_text())["config"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"{manifest} is not a run's manifest ({type(error).__name__}: {error})"
        raise ConfigError([Problem("", f"{what}: resume another folder")]) from None
    return config.override(written, overrides)
