"""From the command line to an engine: config, overrides, run folder, and every error in one report.
Loads no torch."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from nemo_algos import config
from nemo_algos.config import ConfigError, Finding
from nemo_algos.local import manifest
from nemo_algos.local.preflight import judged

NO_NEMO_RL = (
    "nemo_rl is not installed here: run inside the NGC image nvcr.io/nvidia/nemo-rl:v0.7.0, or "
    "from a "
    "checkout of github.com/NVIDIA-NeMo/RL with `uv run` (docs/nemo_rl.md)"
)


def next_folder(log_dir: Path) -> Path:
    """log_dir/exp_001, exp_002, ... as NeMo-RL numbers them."""
    taken = [int(p.name[4:]) for p in log_dir.glob("exp_*") if p.name[4:].isdigit()]
    return log_dir / f"exp_{max(taken, default=0) + 1:03d}"


def launch(name: str | None, overrides: list[str], resume: Path | None) -> int:
    """Run what the config says; the exit status: 2 where the config or its data is wrong, 1 where
    the run failed."""
    console = Console(highlight=False)
    try:
        merged = config.overridden(_written(name, resume, overrides), overrides)
        start = _nemo_rl(merged) if merged.get("engine") == "nemo_rl" else _local(merged, resume)
        start(console)
    except ConfigError as error:
        console.print(f"[red]{len(error.findings)} problem(s) in the config[/red]")
        for problem in error.findings:
            console.print(f"  {problem}", markup=False, soft_wrap=True)
        return 2
    except (ValueError, OSError, FloatingPointError) as error:
        console.print(f"error: {error}", markup=False, style="red", soft_wrap=True)
        return 2 if isinstance(error, ValueError) else 1
    return 0


def _written(name: str | None, resume: Path | None, overrides: list[str]) -> DictConfig:
    """The config file, or the config of the run to resume."""
    if name is not None:
        return config.read(config.find(name))
    path = resume / "manifest.json" if resume else None
    if path is None or not path.exists():
        hint = f"{resume} holds no run" if resume else "name a config"
        raise ConfigError([Finding("", f"{hint}: pass --config, e.g. --config etr.yaml")])
    try:
        plain = manifest.read(path)
    except (OSError, ValueError) as error:
        what = f"{path} is not a run's manifest ({error})"
        raise ConfigError([Finding("", f"{what}: resume another folder")]) from None
    given = {override.partition("=")[0].lstrip("+") for override in overrides}
    hint = "is code that the folder names, which may come from anyone: if you trust it, say so"
    foreign = [
        Finding(key, f"{code} {hint}: {key}={code}, or --config FILE")
        for key, code in manifest.foreign_code(plain).items()
        if key not in given
    ]
    if foreign:
        raise ConfigError(foreign)
    return OmegaConf.create({**plain, "engine": "local"})


def _local(merged: DictConfig, resume: Path | None) -> Callable[[Console], None]:
    checked, algorithm = judged(config.resolved(merged), resume)
    folder = resume or next_folder(Path(checked.logger.log_dir))

    def start(console: Console) -> None:
        from nemo_algos.local.run import run

        run(checked, algorithm, folder, console)

    return start


def _nemo_rl(merged: DictConfig) -> Callable[[Console], None]:
    if find_spec("nemo_rl") is None:
        raise ConfigError([Finding("engine", NO_NEMO_RL)])

    def start(console: Console) -> None:
        from nemo_algos.nemo.launch import run

        run(merged, console)

    return start
