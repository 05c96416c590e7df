"""What is compared: training runs of any trainer, and evaluations, read from their folders."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from nemo_algos.config import method_name
from nemo_algos.engines.local.logs import StepMetrics
from nemo_algos.jsonl import JsonObject, read_lines, read_object, refuse_links_out
from nemo_algos.lab.evals.records import Measured, RunManifest, RunSummary, TraceLine
from nemo_algos.lab.report import dumps
from nemo_algos.lab.report.trainers import (
    STATE,
    Series,
    in_order,
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

    @property
    def seed(self) -> Any:
        """None where it is not recorded."""
        return self.config.get("grpo", {}).get("seed")


def read_runs(folders: Sequence[Path], left_out: list[str] | None = None) -> list[LoadedRun]:
    """The runs with labels that differ.

    left_out: is given a sentence on each folder that cannot be read, while another one can. Raises
    ValueError that says what is wrong with a folder: without left_out, or with the last one.
    """
    paths: list[Path] = []
    runs: list[LoadedRun] = []
    distinct = list(dict.fromkeys(folder.resolve() for folder in folders))
    for folder in distinct:
        try:
            runs.append(read_run(folder))
        except (ValueError, OSError) as error:
            if left_out is None or (folder == distinct[-1] and not runs):
                raise
            left_out.append(f"Left out: {error}")
            continue
        if folder.is_file():
            paths.append(folder.with_suffix(""))
        else:
            paths.append(folder)
    named = labels(paths)
    return [replace(run, label=label) for run, label in zip(runs, named, strict=True)]


def read_run(folder: Path) -> LoadedRun:
    """A training run's folder, an evaluation's, NeMo-RL's logs, TRL's output folder, verl's log."""
    if folder.is_file():
        return _read_verl(folder, folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder. Name a run folder.")
    _refuse_links(folder)
    run = _read_marked(folder)
    if run:
        return run
    within = _runs_within(folder)
    if within:
        raise _several(folder, [str(path.relative_to(folder)) for path in within], within[0])
    run = _read_unmarked(folder)
    if run:
        return run
    if (folder / "generations.jsonl").exists():
        raise ValueError(f"{folder} has no metrics.json yet. Let `nemo-algos eval` finish.")
    raise ValueError(
        f"{folder} is not a run: it has no metrics.jsonl (training), metrics.json (evaluation), "
        "trainer_state.json (TRL), TensorBoard events (NeMo-RL), a log of verl's file logger, or "
        "log-prob dumps (step_*.npz, .pt or .jsonl)"
    )


def _refuse_links(folder: Path) -> None:
    """Raise ValueError if a file that would be read is a link out of the folder."""
    ours = any((folder / name).exists() for name in ("metrics.jsonl", "metrics.json"))
    ours = ours or any(folder.glob("*/metrics.json"))
    patterns = (EVENTS, RECORD, TRACE, STATE, *dumps.KINDS)
    if ours:
        patterns = ("*",)
    for pattern in patterns:
        refuse_links_out(folder, pattern)


def _read_marked(folder: Path) -> LoadedRun | None:
    """The run of a folder with a file that says whose it is; None without one."""
    logs = verl_logs(folder)
    if len(logs) > 1:
        raise _several(folder, [path.name for path in logs], logs[0])
    if logs:
        return _read_verl(folder, logs[0])
    if (folder / "metrics.jsonl").exists():
        return _training(folder)
    evals = evaluations(folder)
    if evals:
        return _read_evaluations(LoadedRun("", folder), evals)
    state = trl_state(folder)
    if state:
        return _read_trl(folder, state)
    return None


def _runs_within(folder: Path) -> list[Path]:
    """Folders of training runs at any depth below this one."""
    below = set[Path]()
    for metrics in folder.glob("*/**/metrics.jsonl"):
        below.add(metrics.parent)
    for inside in (f"tensorboard/{EVENTS}", f"checkpoint-*/{STATE}"):
        for file in folder.glob(f"*/**/{inside}"):
            below.add(file.parents[1])
    return sorted(below)


def _several(folder: Path, names: Sequence[str], first: Path) -> ValueError:
    return ValueError(f"{folder} contains runs ({', '.join(names)}). Name them, such as {first}.")


def _read_unmarked(folder: Path) -> LoadedRun | None:
    """NeMo-RL's logs, or else log-prob dumps; None where there are neither."""
    metrics = read_events(folder)
    if metrics:
        return replace(read_nemo_run(folder), metrics=metrics)
    if dumps.files(folder):
        return LoadedRun("", folder, traces=_dumped(folder))
    return None


def _dumped(folder: Path) -> list[dict[str, Any]]:
    """The lines of all log-prob dumps in the folder."""
    lines = []
    for path in dumps.files(folder):
        lines += dumps.lines(path)
    return lines


def read_events(folder: Path) -> dict[str, Series]:
    """NeMo-RL's scalars; of a step logged twice (a resumed run) the last counts."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    times: dict[tuple[str, int], float] = {}
    values: dict[str, dict[int, float]] = {}
    for place in sorted({p.parent for p in folder.rglob(EVENTS)}):
        events = EventAccumulator(str(place), size_guidance={"scalars": 0}).Reload()
        tags: list[str] = events.Tags()["scalars"]  # pyright: ignore
        for tag in tags:
            name = our_name(tag)
            by_step = values.setdefault(name, {})
            for event in events.Scalars(tag):
                if event.wall_time >= times.get((name, event.step), 0.0):
                    times[name, event.step] = event.wall_time
                    by_step[event.step] = event.value
    return {name: in_order(by_step) for name, by_step in values.items()}


def read_nemo_run(folder: Path) -> LoadedRun:
    """Of a NeMo-RL log folder the config and the traces, of each step the last ones written."""
    records = sorted(folder.rglob(RECORD))
    manifest = read_object(records[-1], RunManifest) if records else {}
    by_step: dict[int, list[dict[str, Any]]] = {}
    for path in sorted(folder.rglob(TRACE)):
        of_file: dict[int, list[dict[str, Any]]] = {}
        for line in read_lines(path, TraceLine):
            of_file.setdefault(line["step"], []).append(line)
        by_step |= of_file
    traces = []
    for step in sorted(by_step):
        traces += by_step[step]
    return LoadedRun("", folder, manifest, traces=traces)


def _read_trl(folder: Path, state: Path) -> LoadedRun:
    metrics = read_trl(state)
    if not metrics:
        raise ValueError(f"{state} does not contain a logged step yet. Train first.")
    manifest = _if_there(folder / RECORD, RunManifest)
    return LoadedRun("", folder, manifest, metrics, _dumped(folder))


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
    evals = {}
    recorded = {}
    for name, folder in folders.items():
        evals[name] = read_object(folder / "metrics.json", Measured)
        manifest = _if_there(folder / "manifest.json")
        recorded[name] = {**manifest, "metrics": evals[name]["settings"]}
    if recorded:
        run = replace(run, manifest={**run.manifest, "eval": recorded})
    return replace(run, evals=evals, eval_folders=folders)


def evaluations(folder: Path) -> dict[str, Path]:
    """Folders of finished evaluations by benchmark: this one, or those in it."""
    files = sorted(folder.glob("*/metrics.json"))
    if (folder / "metrics.json").exists():
        files.insert(0, folder / "metrics.json")
    by_benchmark = {}
    for file in files:
        name = read_object(file).get("benchmark")
        if name:  # without one it is someone else's file
            by_benchmark[str(name)] = file.parent
    return by_benchmark


def _if_there(path: Path, shape: type[JsonObject] = JsonObject) -> dict[str, Any]:
    if path.exists():
        return read_object(path, shape)
    return {}


def labels(folders: Sequence[Path]) -> list[str]:
    """What differs between the paths: grpo, etr of runs/grpo/exp_001, runs/etr/exp_001."""
    if len(folders) == 1:
        return [_short(folders[0].parts[-2:])]
    parts = [folder.parts for folder in folders]
    ahead = _common(parts)
    behind = _common([path[ahead:][::-1] for path in parts])
    while ahead > 1 and any((*path, "exp_")[ahead].startswith("exp_") for path in parts):
        ahead -= 1  # exp_001 alone says little, and nothing less: begin one folder above
    differing = [path[ahead : len(path) - behind] for path in parts]
    unnumbered = [_unnumbered(path) for path in differing]
    if all(unnumbered) and len(set(unnumbered)) == len(folders):
        differing = unnumbered
    return [_short(path) for path in differing]


def _unnumbered(parts: Sequence[str]) -> tuple[str, ...]:
    return tuple(part for part in parts if not part.startswith("exp_"))


def _common(parts: Sequence[Sequence[str]]) -> int:
    """How many first elements all have."""
    return sum(1 for _ in takewhile(lambda same: len({*same}) == 1, zip(*parts, strict=False)))


def _short(parts: Sequence[str]) -> str:
    return "/".join(parts).encode("utf-8", "replace").decode()


class Group(NamedTuple):
    """Seeds of one config, and how they are drawn in every figure; no two of them alike."""

    label: str
    color: str
    dashed: bool
    runs: tuple[LoadedRun, ...]


def groups(runs: Sequence[LoadedRun]) -> list[Group]:
    """In the order of the runs; a run without a recorded config is its own group.

    Seeds have the name of their method, unless others with other parameters have it too.
    """
    alike: dict[tuple[str, int], list[LoadedRun]] = {}
    seen: Counter[tuple[str, Any]] = Counter()
    for run in runs:
        plain = {key: value for key, value in run.config.items() if key != "logger"}
        grpo = dict(plain.get("grpo", {}))
        grpo.pop("seed", None)
        config = run.label
        if "grpo" in run.config:
            config = json.dumps(plain | {"grpo": grpo}, sort_keys=True)
        alike.setdefault((config, seen[config, run.seed]), []).append(run)
        seen[config, run.seed] += 1  # the same seed again is no other seed
    methods = Counter(method_name(members[0].config.get("method")) for members in alike.values())
    drawn = []
    for i, members in enumerate(alike.values()):
        label = members[0].label
        if len(members) > 1:
            method = method_name(members[0].config.get("method"))
            if methods[method] > 1:
                method = label.removesuffix(f"-{members[0].seed}")  # as `train --methods` names it
            label = f"{method} ({len(members)} seeds)"
        drawn.append(Group(label, COLORS[i % len(COLORS)], i >= len(COLORS), tuple(members)))
    return drawn
