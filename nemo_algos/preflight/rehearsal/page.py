"""A rehearsal as one HTML page: verdicts, what was changed, samples, lengths, metrics."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_algos import page
from nemo_algos.preflight.rehearsal.report import MARKS
from nemo_algos.preflight.rehearsal.verdict import Verdict


def write(path: Path, config: str, found: Sequence[Verdict], folder: Path) -> None:
    """The page of these verdicts."""
    details: dict[str, Any] = {k: v for verdict in found for k, v in verdict.details.items()}
    counts, read = Counter(v.outcome for v in found), rows(folder)
    values = {
        "config": config,
        "counts": [(name, counts[name]) for name in MARKS if counts[name]],
        "verdicts": [v._asdict() for v in found],
        "prompt": read.get("first_prompt", ""),
        "lengths": bars(read.get("prompt_tokens", {}).get("histogram", [])),
        "traces": heat(details.get("traces", [])),
        "samples": [*map(sample, details.get("samples", []))],
        "changes": details.get("changes", []),
        "metrics": metric_rows(details.get("metrics", {})),
        "folder": str(folder),
    }
    page.write(path, "rehearsal.html", values)


def rows(folder: Path) -> dict[str, Any]:
    """What was read of the training data; nothing where it was not."""
    path = folder / "rows.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    return found.get("train", {})


def bars(histogram: Sequence[Sequence[Any]]) -> list[tuple[str, int, float]]:
    """Label, count, and its width in percent."""
    most = max((count for _, count in histogram), default=1) or 1
    return [(str(label), count, 100 * count / most) for label, count in histogram if count]


def sample(logged: Mapping[str, Any]) -> dict[str, Any]:
    """The text and the reward of a response that NeMo-RL logged, each in lists of one."""
    return {"text": _inner(logged.get("content")), "reward": _inner(logged.get("rewards"))}


def heat(traces: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rewards and tokens of responses: text, whether it is cut, numbers, colour and its percent.

    The colour is the advantage's sign, the percent its size, at most 55: text stays readable.
    """
    finite = [abs(a) for row in traces for a in row["advantage"] if math.isfinite(a)]
    largest = max(finite, default=0.0) or 1.0
    return [{"reward": row["reward"], "tokens": [*_tokens(row, 55 / largest)]} for row in traces]


def _tokens(row: Mapping[str, Any], scale: float) -> Iterator[dict[str, Any]]:
    for text, cut, advantage, ratio in zip(
        row["tokens"], row["cut"], row["advantage"], row["ratio"], strict=True
    ):
        yield {
            "text": text.replace("\n", "⏎") or "∅",
            "cut": cut,
            "numbers": f"advantage {advantage:.3g}, ratio {ratio:.4g}",
            "color": "--high" if advantage > 0 else "--low",
            "percent": round(abs(advantage) * scale) if math.isfinite(advantage) else 0,
        }


def _inner(value: Any) -> Any:
    while isinstance(value, list):
        value = value[0] if len(value) == 1 else "".join(map(str, value))
    return value


def metric_rows(metrics: Mapping[str, float]) -> list[tuple[str, float]]:
    """Those of training and validation, by name."""
    kept = ("train/", "validation/")
    return [(k, v) for k, v in sorted(metrics.items()) if k.startswith(kept) and math.isfinite(v)]
