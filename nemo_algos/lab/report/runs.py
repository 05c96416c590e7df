"""What is compared: training runs of any trainer, and evaluations, read from their folders."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from nemo_algos.engines.local.logs import StepMetrics
from nemo_algos.jsonl import JsonObject, read_lines, read_object, refuse_links_out
from nemo_algos.lab.evals.records import Measured, RunManifest, RunSummary, TraceLine
from nemo_algos.lab.report import dumps
from nemo_algos.lab.report.trainers import (
    STATE,
    Series,
    our_name,
    read_trl,
    read_verl,
    trl_state,
    verl_logs,
)
from nemo_algos.style import COLORS

EVENTS = "events.out.tfevents*"  # NeMo-RL's TensorBoard files, of one writer each
TRACE = "trace.jsonl"
RECORD = "nemo_algos.json"  # the config that NeMo-RL's launch and TRL's adapter leave beside logs


@dataclass(frozen=True)
class LoadedRun:
    """A run as it is read; what its folder has not is empty.

    label: its name in every figure. manifest: with each evaluation's under `eval`. metrics: by
    name, over steps. evals: measure()'s result by benchmark, in eval_folders of the same key.
    """

    label: str
    folder: Path
    manifest: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Series] = field(default_factory=dict)
    traces: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    evals: dict[str, dict[str, Any]] = field(default_factory=dict)
    eval_folders: dict[str, Path] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        """Empty where it is not recorded."""
        return self.manifest.get("config", {})


def read_runs(folders: Sequence[Path], left_out: list[str] | None = None) -> list[LoadedRun]:
    """The runs with labels that differ.

    left_out: is given a sentence on each folder that cannot be read, while another one can. Raises
    ValueError that says what is wrong with a folder: without left_out, or with the last one.
    """
    found: dict[Path, LoadedRun] = {}
    distinct = list(dict.fromkeys(folder.resolve() for folder in folders))
    for folder in distinct:
        try:
            found[folder] = read_run(folder)
        except (ValueError, OSError) as error:
            if left_out is None or (folder == distinct[-1] and not found):
                raise
            left_out.append(f"Left out: {error}")
    named = labels([path.with_suffix("") if path.is_file() else path for path in found])
    return [replace(r, label=label) for r, label in zip(found.values(), named, strict=True)]


def read_run(folder: Path) -> LoadedRun:
    """A training run's folder, an evaluation's, NeMo-RL's logs, TRL's output folder, verl's log."""
    if folder.is_file():
        return _read_verl(folder, folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder. Name a run folder.")
    ours = any((folder / name).exists() for name in ("metrics.jsonl", "metrics.json"))
    ours = ours or any(folder.glob("*/metrics.json"))
    for pattern in ("*",) if ours else (EVENTS, RECORD, TRACE, STATE, *dumps.KINDS):
        refuse_links_out(folder, pattern)
    logs = verl_logs(folder)
    if logs:
        if len(logs) > 1:
            names = ", ".join(path.name for path in logs)
            raise ValueError(f"{folder} contains runs ({names}). Name them, such as {logs[0]}.")
        return _read_verl(folder, logs[0])
    if (folder / "metrics.jsonl").exists():
        return _training(folder)
    evals = evaluations(folder)
    if evals:
        return _read_evaluations(LoadedRun("", folder), evals)
    below = {p.parent for p in folder.glob("*/**/metrics.jsonl")}  # at any depth
    below |= {p.parents[1] for p in folder.glob(f"*/**/tensorboard/{EVENTS}")}
    state = trl_state(folder)
    if state:
        return _read_trl(folder, state)
    below |= {p.parents[1] for p in folder.glob(f"*/**/checkpoint-*/{STATE}")}
    within = sorted(below)
    if within:
        names = ", ".join(str(p.relative_to(folder)) for p in within)
        raise ValueError(f"{folder} contains runs ({names}). Name them, such as {within[0]}.")
    metrics = read_events(folder)
    if metrics:
        return replace(read_nemo_run(folder), metrics=metrics)
    found = dumps.files(folder)
    if found:
        return LoadedRun("", folder, traces=[line for path in found for line in dumps.lines(path)])
    if (folder / "generations.jsonl").exists():
        raise ValueError(f"{folder} has no metrics.json yet. Let `nemo-algos eval` finish.")
    raise ValueError(
        f"{folder} is not a run: it has no metrics.jsonl (training), metrics.json (evaluation), "
        "trainer_state.json (TRL), TensorBoard events (NeMo-RL), a log of verl's file logger, or "
        "log-prob dumps (step_*.npz, .pt or .jsonl)"
    )


def read_events(folder: Path) -> dict[str, Series]:
    """NeMo-RL's scalars; of a step logged twice (a resumed run) the last counts."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    values: dict[str, dict[int, tuple[float, float]]] = {}
    for place in sorted({p.parent for p in folder.rglob(EVENTS)}):
        events = EventAccumulator(str(place), size_guidance={"scalars": 0}).Reload()
        tags: list[str] = events.Tags()["scalars"]  # pyright: ignore
        for tag in tags:
            steps = values.setdefault(our_name(tag), {})
            for event in events.Scalars(tag):
                if event.wall_time >= steps.get(event.step, (0.0, 0.0))[0]:
                    steps[event.step] = event.wall_time, event.value
    return {
        name: ([float(s) for s in sorted(steps)], [steps[s][1] for s in sorted(steps)])
        for name, steps in values.items()
    }


def read_nemo_run(folder: Path) -> LoadedRun:
    """Of a NeMo-RL log folder the config and the traces, of each step the last ones written."""
    records = sorted(folder.rglob(RECORD))
    manifest = read_object(records[-1], RunManifest) if records else {}
    by_step: dict[int, list[dict[str, Any]]] = {}
    for path in sorted(folder.rglob(TRACE)):
        lines = list(read_lines(path, TraceLine))
        by_step |= {step: [x for x in lines if x["step"] == step] for step in _steps(lines)}
    return LoadedRun("", folder, manifest, traces=[x for s in sorted(by_step) for x in by_step[s]])


def _steps(lines: Sequence[dict[str, Any]]) -> set[int]:
    return {line["step"] for line in lines}


def _read_trl(folder: Path, state: Path) -> LoadedRun:
    metrics = read_trl(state)
    if not metrics:
        raise ValueError(f"{state} does not contain a logged step yet. Train first.")
    traces = [line for path in dumps.files(folder) for line in dumps.lines(path)]
    return LoadedRun("", folder, _if_there(folder / RECORD, RunManifest), metrics, traces)


def _read_verl(place: Path, log: Path) -> LoadedRun:
    metrics = read_verl(log)
    if not metrics:
        raise ValueError(f"{log} does not contain a step of verl's file logger.")
    return LoadedRun("", place, metrics=metrics)


def _training(folder: Path) -> LoadedRun:
    rows = list(read_lines(folder / "metrics.jsonl", StepMetrics))
    if not rows:
        raise ValueError(f"{folder}/metrics.jsonl does not contain a step yet. Train first.")
    metrics: dict[str, Series] = {}
    for row in rows:
        for name, value in row.items():
            steps, values = metrics.setdefault(name, ([], []))
            steps.append(row["step"])
            values.append(float("nan") if value is None else float(value))
    del metrics["step"]
    manifest = _if_there(folder / "manifest.json", RunManifest)
    summary = _if_there(folder / "summary.json", RunSummary)
    traces = list(read_lines(folder / TRACE, TraceLine))
    run = LoadedRun("", folder, manifest, metrics, traces, summary)
    return _read_evaluations(run, evaluations(folder / "eval"))


def _read_evaluations(run: LoadedRun, folders: dict[str, Path]) -> LoadedRun:
    evals = {name: read_object(path / "metrics.json", Measured) for name, path in folders.items()}
    recorded = {
        name: {**_if_there(folder / "manifest.json"), "metrics": evals[name]["settings"]}
        for name, folder in folders.items()
    }
    manifest = {**run.manifest, "eval": recorded} if recorded else run.manifest
    return replace(run, manifest=manifest, evals=evals, eval_folders=folders)


def evaluations(folder: Path) -> dict[str, Path]:
    """Folders of finished evaluations by benchmark: this one, or those in it."""
    found = [folder] if (folder / "metrics.json").exists() else []
    found += sorted(path.parent for path in folder.glob("*/metrics.json"))
    named = [(read_object(path / "metrics.json").get("benchmark"), path) for path in found]
    return {str(name): path for name, path in named if name}  # no name: someone else's file


def _if_there(path: Path, shape: type[JsonObject] = JsonObject) -> dict[str, Any]:
    return read_object(path, shape) if path.exists() else {}


def labels(folders: Sequence[Path]) -> list[str]:
    """What differs between the paths: grpo, etr of runs/grpo/exp_001, runs/etr/exp_001."""
    if len(folders) == 1:
        return [_short(folders[0].parts[-2:])]
    parts = [folder.parts for folder in folders]
    ahead = _common(parts)
    behind = _common([p[ahead:][::-1] for p in parts])
    while ahead > 1 and any((*p, "exp_")[ahead].startswith("exp_") for p in parts):
        ahead -= 1  # exp_001 alone says little, and nothing less: begin one folder above
    named = [p[ahead : len(p) - behind] for p in parts]
    unnumbered = [tuple(x for x in n if not x.startswith("exp_")) for n in named]
    distinct = all(unnumbered) and len(set(unnumbered)) == len(folders)
    return [_short(n) for n in (unnumbered if distinct else named)]


def _common(parts: Sequence[Sequence[str]]) -> int:
    """How many first elements all have."""
    return sum(1 for _ in takewhile(lambda same: len({*same}) == 1, zip(*parts, strict=False)))


def _short(parts: Sequence[str]) -> str:
    return "/".join(parts).encode("utf-8", "replace").decode()


class Group(NamedTuple):
    """Seeds of one config, and how they are drawn in every figure."""

    label: str
    color: str
    dashed: bool
    runs: tuple[LoadedRun, ...]


def groups(runs: Sequence[LoadedRun]) -> list[Group]:
    """In the order of the runs; a run without a recorded config is its own group."""
    found: dict[tuple[str, int], list[LoadedRun]] = {}
    seen: Counter[tuple[str, Any]] = Counter()
    for run in runs:
        plain = {key: value for key, value in run.config.items() if key != "logger"}
        grpo = dict(plain.get("grpo", {}))
        seed = grpo.pop("seed", None)
        recorded = "grpo" in run.config
        config = json.dumps(plain | {"grpo": grpo}, sort_keys=True) if recorded else run.label
        found.setdefault((config, seen[config, seed]), []).append(run)
        seen[config, seed] += 1  # the same seed again is no other seed
    made = []
    for i, same in enumerate(found.values()):
        label = same[0].label + (f" ({len(same)} seeds)" if len(same) > 1 else "")
        made.append(Group(label, COLORS[i % len(COLORS)], i >= len(COLORS), tuple(same)))
    return made
