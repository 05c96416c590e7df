"""Seconds of a run's own steps, by part, as NeMo-RL prints them in its driver's log."""

import re
import statistics
from pathlib import Path

from nemo_algos.preflight.plan.layouts import Plan

TOTAL = "Total step time"
LINE = re.compile(r"• (\S[^:\n]*): (\d+(?:\.\d+)?)s\b")  # `  • policy_training: 28.10s (19.2%)`
PARTS = {  # of a plan: NeMo-RL's timers, of which a trainer has one
    "generation": ("generation", "exposed_generation"),
    "log-probs": ("policy_and_reference_logprobs",),
    "training": ("policy_training",),
    "refit": ("prepare_for_generation/transfer_and_update_weights", "weight_sync"),
}


def read(run: Path) -> dict[str, float]:
    """Median seconds by part, of `step` and of what is left, `rest`, of a driver's log.

    run: the log, or a folder of `nemo-algos slurm`, of which the newest is read. The first step
    compiles, so it counts only where it is alone. Raises ValueError for a log without steps.
    """
    logs = sorted(run.glob("logs/*-logs/ray-driver.log"), key=lambda path: path.stat().st_mtime)
    file = logs[-1] if logs else run
    if not file.is_file():
        raise ValueError(f"--measured {run}: no driver's log there. Name the log's file.")
    steps: list[dict[str, float]] = []
    for name, seconds in LINE.findall(file.read_text(errors="replace")):
        if name == TOTAL:
            steps.append({"step": float(seconds)})
        elif steps:
            steps[-1].setdefault(name, float(seconds))
    if not steps:
        reason = f"{file} has no line {TOTAL!r} of NeMo-RL's"
        raise ValueError(f"--measured: {reason}. Wait for the first step, or name another log.")
    counted = steps[1:] or steps
    found = {"step": statistics.median(step["step"] for step in counted)}
    for part, names in PARTS.items():
        found[part] = statistics.median(sum(step.get(n, 0) for n in names) for step in counted)
    found["rest"] = found["step"] - sum(found[part] for part in PARTS)
    return found


def planned(p: Plan) -> dict[str, float]:
    """The plan's seconds by the same parts; of generation beside training what is waited for."""
    rest = sum(p.phases.values()) - p.phases["generation"]
    parts = {
        "step": p.step_seconds,
        "generation": p.step_seconds - rest,
        "log-probs": p.phases["log-probs"] + p.phases["reference log-probs"],
        "training": p.phases["training"],
        "refit": p.phases["refit"],
    }
    return parts | {"rest": p.step_seconds - sum(parts[part] for part in PARTS)}
