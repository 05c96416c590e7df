"""Run folders made up in the stored formats: training runs, evaluations, NeMo-RL logs.

Some responses are hostile to a page.
"""

import json
import random
from collections import Counter

import numpy as np

from nemo_algos.lab.evals.metrics import measure
from nemo_algos.lab.evals.problem import Evaluation, Problem
from nemo_algos.lab.evals.schema import Measure

HOSTILE = (
    "</script><script>window.stolen = 1</script>",
    "<img src=x onerror='window.stolen = 2'> &amp; {{ 7 * 7 }} {% raw %}",
    "a lone surrogate \ud800 and NUL \0, right to left \u202eabc, separator \u2028 here",
    "x" * 100_000,
    "]]> --> ${window.stolen = 3} `",
    "",
)


def draw_nothing(patch):
    """Drawing takes nearly all of a report's time."""
    for kind in ("figure.Figure", "matrix.Matrix"):
        patch.setattr(f"nemo_algos.lab.report.{kind}.save", lambda *_: "<svg></svg>")


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def evaluation(
    folder, skill=0.5, problems=24, samples=8, seed=0, benchmark="math500", model="m", **settings
):
    """The folder of one benchmark: problem p is solved with a chance that falls with p."""
    rng = random.Random(f"{seed} {skill}")
    asked = [
        Problem(
            f"p/{i}", f"What is {i} + {i}? Put it in \\boxed{{}}.", str(2 * i), (), {"level": "1"}
        )
        for i in range(problems)
    ]
    generations, verdicts, responses, rewards = [], [], [], []
    for i, problem in enumerate(asked):
        row = [_response(rng, i, s, samples, skill, problems) for s in range(samples)]
        responses.append([text for text, _, _ in row])
        rewards.append([reward for _, reward, _ in row])
        for s, (text, reward, status) in enumerate(row):
            place = {"problem": problem.id, "sample": s}
            finish = "length" if len(text) > 1000 else "stop"
            generations.append(
                {
                    **place,
                    "response": text,
                    "tokens": len(text.split()),
                    "finish": finish,
                    "key": "k",
                }
            )
            verdicts.append({**place, "reward": reward, "status": status, "detail": "", "of": "o"})
    write_lines(folder / "problems.jsonl", [_row(p) for p in asked])
    write_lines(folder / "generations.jsonl", generations)
    write_lines(folder / "verdicts.jsonl", verdicts)
    stored = Evaluation(
        benchmark,
        asked,
        responses,
        np.array(rewards),
        [[str(2 * i) if r else None for r in row] for i, row in enumerate(rewards)],
        np.array([[len(t.split()) for t in row] for row in responses]),
        np.array([[len(t) <= 1000 for t in row] for row in responses]),
        Counter(v["status"] for v in verdicts),
    )
    small = {"resamples": 200, "similarities": ["tfidf", "rouge_l"], "self_bleu": False}
    metrics = measure(stored, Measure.model_validate(small | settings))
    write_json(folder / "metrics.json", metrics)
    manifest = {
        "model": model,
        "benchmark": benchmark,
        "sampling": {"samples": samples, "temperature": 1.0, "seed": seed},
        "verifier": "nemo_algos.engines.rewards.math:verify_math",
        "answers": "",
        "versions": {"python": "3.11"},
    }
    write_json(folder / "manifest.json", manifest)
    return folder


def change_json(path, **changes):
    """{"a__b": 1} sets a.b."""
    value = json.loads(path.read_text())
    for place, new in changes.items():
        *above, last = place.split("__")
        inner = value
        for key in above:
            inner = inner[key]
        inner[last] = new
    write_json(path, value)


def _row(problem):
    return {**problem.__dict__, "images": list(problem.images)}


def _response(rng, i, sample, samples, skill, problems):
    """A response as (text, reward, status)."""
    if sample == samples - 1 and i < len(HOSTILE):
        return HOSTILE[i], 0.0, "timeout" if i == 3 else "ok"
    right = rng.random() < skill * 1.6 * (1 - i / problems)
    ways = ("Doubling", "Adding the number to itself", "Counting on from it", "Two equal parts:")
    text = f"{rng.choice(ways)} gives {i} + {i} = {2 * i + (not right)}.\n"
    return text + f"The answer is \\boxed{{{2 * i + (not right)}}}.", float(right), "ok"


def training(folder, method="grpo", seed=42, steps=60, traces=True, **config):
    """A training run's folder: reward rises, entropy falls, the ratio's tail grows."""
    rng = random.Random(seed)
    rows = [_step(i, steps, rng) for i in range(1, steps + 1)]
    write_lines(folder / "metrics.jsonl", rows)
    full = {"method": {"name": method}, "grpo": {"seed": seed, "max_num_steps": steps}, **config}
    manifest = {"config": full, "seed": seed, "versions": {"torch": "2.6"}, "git": "abc"}
    write_json(folder / "manifest.json", manifest)
    write_json(
        folder / "summary.json",
        {"before": {"pass@1": 0.34}, "after": {"pass@1": 0.5}, "steps": steps, "seconds": 1.0},
    )
    if traces:
        write_lines(folder / "trace.jsonl", [t for s in (1, steps) for t in _traces(s, rng)])
    return folder


def _step(i, steps, rng):
    done, noise = i / steps, rng.uniform(-0.03, 0.03)
    return {
        "step": i,
        "reward/mean": 0.3 + 0.3 * done + noise,
        "entropy/exact": 0.3 * (1 - 0.8 * done) + noise / 10,
        "clip/fraction": 0.05 * done,
        "clip/positive_above": 0.08 * done,
        "clip/negative_below": 0.05 * done,
        "ratio/p99": 1.1 + 0.5 * done,
        "ratio/max": float(np.exp(3 * done)),
        "kl/old": 1e-3 * (1 + done),
        "length/mean": 12 - done,
        "grad_norm": float("nan") if i == steps // 2 else 0.4 + noise,
    }


def _traces(step, rng):
    """Two prompts of two responses; the first token of a step's first response is cut above."""
    for group in range(2):
        for response in range(2):
            n = 5 if response else 7
            ratio = [rng.uniform(0.7, 1.4) for _ in range(n)]
            if not group and not response:
                ratio[0] = 1.5
            yield {
                "step": step,
                "group": group,
                "prompt": f"<b>prompt {group}</b> of step {step}",
                "tokens": ["</script>", "a\n", " b", "", "\ud800", "=", "1"][:n],
                "reward": float(1 - response),
                "entropy": [rng.uniform(0, 1.5) for _ in range(n - 1)] + [float("nan")],
                "advantage": [1.0 - 2 * response] * n,
                "ratio": ratio,
                "low": [0.8] * n,
                "high": [1.2] * n,
                "cut": [r > 1.2 if not response else r < 0.8 for r in ratio],
            }


def nemo_rl(folder, values):
    """A NeMo-RL log folder: {tag: {step: value}} as TensorBoard events."""
    from torch.utils.tensorboard.writer import SummaryWriter

    with SummaryWriter(str(folder / "tensorboard")) as writer:
        for tag, points in values.items():
            for step, value in points.items():
                writer.add_scalar(tag, value, step)
    return folder
