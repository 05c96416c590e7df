"""What an evaluation prints."""

from __future__ import annotations

from typing import Any

from rich.table import Table

CURVES = ("pass@k", "maj@k", "ucc@k")


def table(results: list[dict[str, Any]]) -> Table:
    """A row per benchmark: the mean reward with its interval, and each curve at the largest k."""
    shown = Table("benchmark", "problems", "samples", "mean", "95 %", "boxed", *CURVES, "unjudged")
    for metrics in results:
        mean = metrics["scalars"]["mean"]
        boxed = metrics["scalars"].get("boxed")
        unjudged = sum(n for status, n in metrics["statuses"].items() if status != "ok")
        shown.add_row(
            metrics["benchmark"],
            str(metrics["problems"]),
            str(metrics["samples"]),
            f"{mean['value']:.3f}",
            f"{mean['low']:.3f} to {mean['high']:.3f}",
            f"{boxed['value']:.3f}" if boxed else "-",
            *(_last(metrics["curves"].get(name)) for name in CURVES),
            str(unjudged),
        )
    return shown


def _last(curve: dict[str, Any] | None) -> str:
    """The curve's value at its largest k."""
    return f"{curve['value'][-1]:.3f} (k {curve['k'][-1]})" if curve else "-"
