"""NeMo-RL's TensorBoard events under the embedded engine's metric names.

`train/X` is X; what NeMo-RL names otherwise is in NAMES. Clip shares are of all tokens there, in
the embedded engine of the tokens with that sign of the advantage (docs/nemo_rl.md).
"""

from __future__ import annotations

from pathlib import Path

EVENTS = "events.out.tfevents*"  # files of one writer
NAMES = {
    "train/reward": "reward/mean",
    "train/approx_entropy": "entropy/approximate",
    "train/mean_gen_tokens_per_sample": "length/mean",
    "train/probs_ratio": "ratio/mean",
    "train/probs_ratio_max": "ratio/max",
    "validation/accuracy": "validation/accuracy",
    "validation/avg_length": "validation/length",
}


def read_events(folder: Path) -> dict[str, tuple[list[float], list[float]]]:
    """Every scalar as (steps, values); of a step logged twice (a resumed run) the last counts."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    values: dict[str, dict[int, tuple[float, float]]] = {}
    for place in sorted({p.parent for p in folder.rglob(EVENTS)}):
        events = EventAccumulator(str(place), size_guidance={"scalars": 0}).Reload()
        tags: list[str] = events.Tags()["scalars"]  # pyright: ignore
        for tag in tags:
            steps = values.setdefault(NAMES.get(tag, tag.removeprefix("train/")), {})
            for event in events.Scalars(tag):
                if event.wall_time >= steps.get(event.step, (0.0, 0.0))[0]:
                    steps[event.step] = event.wall_time, event.value
    return {
        name: ([float(s) for s in sorted(steps)], [steps[s][1] for s in sorted(steps)])
        for name, steps in values.items()
    }
