"""The runs of a study, each once and equal to a run by hand; and its own puzzles, by walks."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import design
import pytest
import runner
import trainers
from rich.console import Console
from runner import measures
from walks import Walk, grid_moves, solution, stair_moves

from nemo_algos.algorithms.build import build as method
from nemo_algos.algorithms.extensions.correction import CorrectionConfig
from nemo_algos.engines.data import countdown, puzzles
from nemo_algos.engines.data.countdown import EOS, Rules
from nemo_algos.engines.local import build
from nemo_algos.engines.local.evaluation import SEED, Sampled, sample
from nemo_algos.engines.local.trainer import Trainer

STUDY = design.Study.model_validate(
    {
        "settings": {
            "grpo.max_num_steps": 12,
            "grpo.num_prompts_per_step": 4,
            "grpo.num_generations_per_prompt": 4,
            "policy.train_global_batch_size": 8,
            "grpo.max_val_samples": 5,
            "grpo.val_samples_per_prompt": 4,
        },
        "regimes": {
            "r": {"claim": "-", "baseline": "grpo", "arms": {"grpo": {}, "gpg": {}}, "seeds": 2}
        },
    }
)


BRIEF = STUDY.model_copy(update={"settings": STUDY.settings | {"grpo.max_num_steps": 3}})


class Mixed(trainers.MadeUp):
    """Rewards that an untaught policy can earn."""

    mixed = 0


@pytest.fixture(autouse=True)
def untaught(monkeypatch):
    monkeypatch.setattr(build, "warm_start", lambda *_: trainers.policy().model)
    monkeypatch.setitem(build.OURS, "countdown", f"{__name__}:Mixed")


def go(folder, runs):
    with ThreadPoolExecutor(1) as threads:
        return list(runner.go(runs, folder, threads))


def test_a_row_is_what_a_run_by_hand_gives(tmp_path, monkeypatch):
    run = design.runs(STUDY)[0][0]
    clock = SimpleNamespace(process_time=iter([3.0, 10.5]).__next__)
    with monkeypatch.context() as patch:
        patch.setattr(runner, "time", clock)
        row = runner.train(run, _with_raw(tmp_path))
    trainer = build.build_trainer(run.config, method(run.config.method), Console(quiet=True))
    steps = [trainer.step() for _ in range(12)]
    found = measures(sample(trainer.policy, trainer.task, 5, 4, SEED))
    assert (row["id"], row["method"], row["seed"], row["steps"]) == (run.id, "grpo", 0, 12)
    assert row["CPU seconds"] == 7.5
    assert {name: row[name] for name in found} == found
    for name in ("reward/mean", "entropy/exact", "clip/fraction"):
        assert row[name] == pytest.approx(sum(s[name] for s in steps[-10:]) / 10)
    raw = (tmp_path / "raw" / f"{run.id}.jsonl").read_text().splitlines()
    assert [json.loads(line)["grad_norm"] for line in raw] == [s["grad_norm"] for s in steps]


def test_a_runs_correction_is_its_own(tmp_path):
    """A run is made of its whole config: without a correction it would be another's."""
    run = design.runs(BRIEF)[0][0]
    corrected = {"preset": "decoupled_token_is"}
    config = run.config.model_copy(update={"rollout_correction": CorrectionConfig(**corrected)})
    (row,) = go(tmp_path, [design.Trial("corrected", config)])
    assert row["correction/weight_mean"] == pytest.approx(1, abs=1e-4)


def _with_raw(folder):
    (folder / "raw").mkdir()
    return folder


def test_a_stopped_study_goes_on(tmp_path):
    runs, _ = design.runs(BRIEF)
    first = go(tmp_path, runs[:1])
    rest = go(tmp_path, runs)
    assert [row["id"] for row in first + rest] == [run.id for run in runs]
    assert go(tmp_path, runs) == []
    kept = runner.results(tmp_path / "results.csv")
    assert list(kept) == [run.id for run in runs]
    assert kept[runs[0].id]["pass@1"] == first[0]["pass@1"]


def test_a_run_that_diverges_is_a_result(tmp_path, monkeypatch):
    step = Trainer.step

    def diverges(trainer):
        if trainer.step_number == 2:
            raise FloatingPointError("no number")
        return step(trainer)

    runs, _ = design.runs(BRIEF)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", diverges)
        (row,) = go(tmp_path, runs[:1])
    assert (row["steps"], row["failed"], row["collapse step"]) == (2, "no number", 2)
    assert 0 <= row["pass@1"] <= 1


def test_a_run_made_again_is_compared_column_by_column(tmp_path):
    runs, _ = design.runs(BRIEF)
    go(tmp_path, runs[:2])
    with ThreadPoolExecutor(1) as threads:
        same = dict(runner.verify(runs, tmp_path, 1.0, tmp_path / "again", threads))
        rows = list(runner.results(tmp_path / "results.csv").values())
        runner.write_table(tmp_path / "results.csv", [{**rows[0], "pass@1": 0.123}, rows[1]])
        other = dict(runner.verify(runs, tmp_path, 1.0, tmp_path / "again", threads))
    assert same == {run.id: {} for run in runs[:2]}
    assert other == {runs[0].id: {"pass@1": (0.123, rows[0]["pass@1"])}, runs[1].id: {}}


@pytest.mark.parametrize(
    ("rewards", "entropies", "step"),
    [
        ([0.3, 0.1, 0.3, 0.1, 0.1], [0.2] * 5, 3),  # it recovers once
        ([0.3] * 4, [0.2, 0.019, 0.019, 0.0], 1),
        ([0.1, 0.1], [0.2, 0.2], 0),
        ([0.3, 0.3], [0.2, 0.2], 2),  # the trained weights alone collapsed, or the loss broke off
    ],
)
def test_a_collapse_begins_where_it_lasts(rewards, entropies, step):
    pairs = zip(rewards, entropies, strict=True)
    steps = [{"reward/mean": reward, "entropy/exact": entropy} for reward, entropy in pairs]
    assert runner.collapse_step(steps) == step


def test_measures_by_hand():
    # of 4: a twice, b once; of 4: c once
    solutions = [["a", "a", "b", None], [None, "c", None, None]]
    found = measures(Sampled(solutions, [[1, 2, 3, 9], [7, 6, 7, 7]]))
    assert found == pytest.approx(
        {
            "pass@1": (3 / 4 + 1 / 4) / 2,
            "pass@2": (1 + 1 / 2) / 2,
            "pass@4": 1,
            "UCC@1": (2 / 4 + 1 / 4 + 1 / 4) / 2,
            "UCC@2": (1 - 1 / 6 + 1 / 2 + 1 / 2) / 2,
            "UCC@4": (2 + 1) / 2,
            "length": 42 / 8,
            "length of right": (1 + 2 + 3 + 6) / 4,
        }
    )


# around a wall at 1 from 0 to 2: down, right twice, up
GRID, AROUND = Walk(0, 2, (1, 33, 44, 55), grid_moves), [10, 11, 12, 2, EOS]
STAIRS = Walk(0, 31, (7, 5, 12), stair_moves)


def told(family, times=300):
    rng = random.Random(0)
    return [puzzles.sample(rng, Rules(3, True, family)) for _ in range(times)]


@pytest.mark.parametrize(
    ("walk", "tokens", "right"),
    [
        (GRID, AROUND, True),
        (GRID, [1, 2, EOS], False),  # through the wall
        (GRID, [10, 11, 12, 2], False),  # no end
        (GRID, [10, 11, 12, EOS], False),  # not there
        (GRID, [11, 12, 2, EOS], False),  # diagonally
        (GRID, [10, 0, *AROUND], True),  # there and back
        (Walk(9, 10, (50, 51, 52, 53), grid_moves), [10, EOS], False),  # of the next row
        (Walk(0, 90, (50, 51, 52, 53), grid_moves), [EOS], False),
        (GRID, [], False),
        (STAIRS, [7, 12, 24, 31, EOS], True),
        (STAIRS, [12, 19, 31, EOS], True),
        (STAIRS, [12, 20, 31, EOS], False),  # a step of 8
        (STAIRS, [12, 24, 36, 31, EOS], False),  # down
        (STAIRS, [7, 12, countdown.TOKEN[","], 31, EOS], False),
    ],
)
def test_walks(walk, tokens, right):
    assert solution(walk, tokens) == (tuple(tokens[:-1]) if right else None)


def test_a_walk_is_a_prompt():
    assert (str(STAIRS), STAIRS.key) == ("0 31 > 7 5 12", "0 31 [5, 7, 12]")


def test_drawn_grid_walks_are_shortest():
    """By the lengths of all ways from the start, ring by ring."""
    for walk, response in told("walks:Grid", times=100):
        ring, seen, moves = {walk.start}, {walk.start}, 0
        while walk.goal not in ring:
            sides = ((1, 0), (-1, 0), (0, 1), (0, -1))
            around = {(c // 10 + i, c % 10 + j) for c in ring for i, j in sides}
            free = {10 * r + c for r, c in around if 0 <= r < 10 and 0 <= c < 10}
            ring = free - seen - set(walk.shown)
            seen, moves = seen | ring, moves + 1
        assert solution(walk, response) == tuple(response[:-1]) and len(response) == moves + 1


def test_drawn_stairs_use_the_sizes_shown():
    for walk, response in told("walks:Stairs"):
        steps = [b - a for a, b in zip([0, *response[:-2]], response[:-1], strict=True)]
        assert sum(steps) == walk.goal and {*steps} <= {*walk.shown} and len(steps) <= 18


@pytest.mark.parametrize("family", ["walks:Grid", "walks:Stairs"])
def test_no_puzzle_is_in_both_splits(family):
    rules = Rules(3, True, family)
    test = puzzles.held_out(15, rules)
    assert len({str(p) for p in test}) == 15 and puzzles.held_out(10, rules) == test[:10]
    assert {p.key for p, _ in told(family)}.isdisjoint(p.key for p in test)
    assert max(len(r) for _, r in told(family)) <= puzzles.FAMILIES[family].longest(rules)
