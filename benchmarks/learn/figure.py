"""Draw docs/study/learn.png from results.json, and write the table of README.md.

uv run benchmarks/learn/figure.py
"""

import json
from pathlib import Path
from typing import Any

from nemo_algos.style import COLORS, save

HERE = Path(__file__).resolve().parent
FIGURE = HERE.parents[1] / "docs/study/learn.png"
BEGIN, END = "<!-- table -->\n", "<!-- end -->"
ENGINES = {"nemo_rl": ("NeMo-RL", COLORS[0], "-"), "embedded": ("embedded engine", COLORS[1], "--")}
HELD_OUT = "validation/accuracy"
REWARD = {"nemo_rl": "train/reward", "embedded": "reward/mean"}
PROBLEMS = 256
Z = 1.96
SMOOTH = 3  # steps that a point of a reward curve is the mean of


def main() -> None:
    """A panel per method: rewards as lines, held-out pass@1 as points with 95 % intervals."""
    found = json.loads((HERE / "results.json").read_text())["figures"]
    methods = list(dict.fromkeys(name.split("/")[1][:-1] for name in found))
    with save(FIGURE, (2.9 * len(methods), 3.0), len(methods), squeeze=False, sharey=True) as drawn:
        figure, axes = drawn
        for axis, method in zip(axes[0], methods, strict=True):
            axis.set_title(method)
            axis.set_xlabel("step")
            for engine, (label, color, style) in ENGINES.items():
                runs = [run for name, run in found.items() if name[:-1] == f"{engine}/{method}"]
                for number, run in enumerate(runs):
                    shown = {
                        "color": color,
                        "linestyle": style,
                        "label": label if not number else None,
                    }
                    draw(axis, run, REWARD[engine], number, shown)
        axes[0, 0].set_ylabel("reward, pass@1 held out")
        axes[0, 0].legend(loc="lower right")
        figure.suptitle("Sums of four numbers, SmolLM2-135M; a line is a seed")
    page = HERE / "README.md"
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(before + BEGIN + table(found) + END + rest.partition(END)[2])


def table(found: dict[str, Any]) -> str:
    """Of each run: pass@1 before and after with their intervals, and its minutes."""
    rows = ["| engine | method | seed | before | after | rise, in standard errors | minutes |"]
    rows.append("|---|---|---|---|---|---|---|")
    for name, run in found.items():
        engine, method = name.split("/")
        ends = [run[HELD_OUT][0][1], run[HELD_OUT][-1][1]]
        shown = []
        for share in ends:
            low, high = wilson(share, PROBLEMS)
            shown.append(f"{share:.2f} ({low:.2f} to {high:.2f})")
        variance = sum(share * (1 - share) / PROBLEMS for share in ends)
        shown.append(f"{(ends[1] - ends[0]) / variance**0.5:.1f}")
        shown.append(f"{run['seconds'] / 60:.0f}")
        rows.append(
            f"| {ENGINES[engine][0]} | {method[:-1]} | {method[-1]} | {' | '.join(shown)} |"
        )
    return "\n".join(rows) + "\n"


def draw(axis: Any, run: dict[str, Any], reward: str, number: int, shown: dict[str, Any]) -> None:
    """A run: its training reward, smoothed, and its validations."""
    steps, rewards = zip(*run[reward], strict=True)
    half = SMOOTH // 2
    smooth = []
    for at in range(len(rewards)):
        near = rewards[max(0, at - half) : at + half + 1]
        smooth.append(sum(near) / len(near))
    axis.plot(steps, smooth, alpha=0.5, linewidth=1, **shown)
    steps, held_out = zip(*run[HELD_OUT], strict=True)
    errors = [[], []]
    for share in held_out:
        low, high = wilson(share, PROBLEMS)
        errors[0].append(share - low)
        errors[1].append(high - share)
    beside = [step + 0.25 * number for step in steps]
    axis.errorbar(beside, held_out, errors, fmt="o", markersize=4, color=shown["color"])


def wilson(share: float, number: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of so many."""
    middle = share + Z * Z / (2 * number)
    half = Z * ((share * (1 - share) + Z * Z / (4 * number)) / number) ** 0.5
    scale = 1 + Z * Z / number
    return (middle - half) / scale, (middle + half) / scale


if __name__ == "__main__":
    main()
