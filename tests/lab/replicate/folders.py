"""Folders of runs and evaluations as they might be there, made by hand."""

import json

import yaml

from nemo_algos.config import find, load


def interval(value, half=0.05):
    return {"value": value, "low": value - half, "high": value + half}


def curve(values, half=0.05):
    ks = [2**i for i in range(len(values))]
    low, high = [v - half for v in values], [v + half for v in values]
    return {"k": ks, "value": values, "low": low, "high": high}


def evaluation(
    folder,
    benchmark,
    mean,
    best,
    model="served",
    samples=None,
    into="eval",
    verifier="math",
    **sampling,
):
    """INTO/BENCHMARK of a run: its mean, and best@k at k = 1, 2, 4, ..."""
    place = folder / into / benchmark
    place.mkdir(parents=True)
    samples = samples or 2 ** (len(best) - 1)
    settings = {"ucc_similarity": "tfidf", "ucc_threshold": 0.8, "linkage": "single"}
    settings |= {"embedding_model": "", "resamples": 10, "seed": 0}
    measured = {
        "benchmark": benchmark,
        "problems": 2,
        "samples": samples,
        "ids": ["a", "b"],
        "correct": [1, 0],
        "statuses": {},
        "scalars": {"mean": interval(mean)},
        "curves": {"pass@k": curve(best), "best@k": curve(best)},
        "per_problem": {"mean": [mean, mean], "clusters": [1, 0]},
        "settings": settings,
    }
    (place / "metrics.json").write_text(json.dumps(measured))
    asked = {"samples": samples, "temperature": 1.0, "top_p": 1.0, **sampling}
    manifest = {"model": {"engine": "endpoint", "model": model}, "benchmark": benchmark}
    manifest |= {"sampling": asked, "verifier": verifier}
    (place / "manifest.json").write_text(json.dumps(manifest))


def run(folder, model, steps=12, **method):
    """A training run's folder, its entropy falling from 1 by 0.05 a step."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"policy": {"model_name": model}, "method": method}
    (folder / "manifest.json").write_text(json.dumps({"config": config}))
    rows = [{"step": i, "entropy/exact": 1 - 0.05 * i} for i in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def checkpoint(folder, step, plain):
    """checkpoints/step_N of a run by hand, as NeMo-RL leaves it."""
    place = folder / f"checkpoints/step_{step}"
    place.mkdir(parents=True)
    (place / "config.yaml").write_text(yaml.safe_dump(plain))


def of_two_problems(known):
    """The manifest, its evaluations of as many problems as those here."""
    changed = {}
    for name, made in known.evaluations.items():
        there = load(find(made.config), made.overrides)["benchmarks"]
        two = [f"benchmarks.{b}.problems=2" for b, section in there.items() if section is not None]
        changed[name] = made.model_copy(update={"overrides": [*made.overrides, *two]})
    return known.model_copy(update={"evaluations": changed})
