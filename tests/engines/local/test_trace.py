"""Token traces: their numbers by hand for every kind of clipping, in a run, and over a resume."""

import json
from dataclasses import replace
from math import exp

import pytest
import small_llama
import torch
from matrix import some_of
from short_runs import assert_same_run, short_warm_start, train  # noqa: F401
from trainers import checked, trainer

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.rollouts import Rollouts
from nemo_algos.engines import trace
from nemo_algos.engines.local import checkpoint
from nemo_algos.engines.local.hf import HFPolicy
from nemo_algos.engines.local.run import TrainingRun

# a group of a right response of two tokens and a wrong one of two, population std: A = +1, -1
MASK = torch.tensor([[True, True, False], [True, True, False]])
LOG_RATIO = torch.tensor([[0.5, 0.1, 9.0], [-0.5, 0.3, 9.0]], dtype=torch.float64)


def traced(log_ratio=LOG_RATIO, rewards=(1.0, 0.0), **method):
    """What tokens_of says of the four tokens."""
    divided = {} if method.get("name") == "quatro" else {"advantage_std": "population"}
    algorithm = build({**divided, **method})
    old = torch.full_like(log_ratio, -1.0)
    rollouts = Rollouts(torch.zeros(2), torch.tensor(rewards), MASK, old, old, -old)
    signals = algorithm.signals(rollouts)
    tokens = trace.tokens_of(algorithm, MASK, old, signals, old + log_ratio)
    return {name: x[MASK].tolist() for name, x in tokens.items()}


@pytest.mark.parametrize(
    ("method", "ratio", "cut"),
    [
        # a token is cut above 1.2 for A > 0, below 0.8 for A < 0
        ({"name": "grpo"}, [0.5, 0.1, -0.5, 0.3], [True, False, True, False]),
        ({"name": "grpo", "clip_low": 0.5, "clip_high": 0.7}, None, [False] * 4),
        # a whole response is cut or is not: exp(mean) is 1.35 > 1.2 and .90 > .8
        ({"name": "gspo"}, [0.3, 0.3, -0.1, -0.1], [True, True, False, False]),
        # a token within its sequence's mean, at e^.4 and e^-.4
        ({"name": "gmpo"}, [0.5, 0.1, -0.5, 0.3], [True, False, True, False]),
        # the weight is clipped, the gradient is not
        ({"name": "cispo"}, [0.5, 0.1, -0.5, 0.3], [False] * 4),
        ({"name": "gpg"}, [0.5, 0.1, -0.5, 0.3], [False] * 4),
        # s = exp(sum), no clipping
        ({"name": "quatro"}, [0.6, 0.6, -0.2, -0.2], [False] * 4),
        ({"name": "etr"}, [0.5, 0.1, -0.5, 0.3], [True, False, True, False]),
        ({"name": "apmpo"}, [0.5, 0.1, -0.5, 0.3], [True, False, True, False]),
        # dual clip: for A < 0 a ratio above 1.3 has no gradient either
        ({"name": "grpo", "dual_clip": 1.3}, None, [True, False, True, True]),
    ],
    ids=lambda x: "-".join(map(str, x.values())) if isinstance(x, dict) else "",
)
def test_where_the_gradient_stops(method, ratio, cut):
    tokens = traced(**method)
    assert tokens["cut"] == cut
    if ratio:
        assert tokens["ratio"] == pytest.approx([exp(x) for x in ratio])


def test_the_cut_share_of_a_whole_batch_is_the_metric():
    """Traced over all rows before the last update: clip/fraction of that update's statistics."""
    from batches import make

    from nemo_algos.algorithms.core.surrogate import Counts
    from nemo_algos.algorithms.loss import policy_loss

    batch = make(large=False, dtype=torch.float64)
    rollouts = replace(batch.rollouts, rewards=(batch.rollouts.rewards > 0.5).double())
    for name in ("grpo", "gspo", "gmpo", "etr", "erpo", "apmpo"):
        algorithm = build({"name": name})
        signals = algorithm.signals(rollouts)
        counts = Counts.of(rollouts.mask)
        stats = policy_loss(algorithm, batch.logprobs, rollouts, signals, counts).stats
        cut = trace.tokens_of(
            algorithm, rollouts.mask, rollouts.old_logprobs, signals, batch.logprobs
        )["cut"]
        share = float(cut[rollouts.mask].double().mean())
        assert share == pytest.approx(stats.summary()["clip/fraction"]) and share > 0


def read(folder):
    return [json.loads(line) for line in (folder / "trace.jsonl").read_text().splitlines()]


def test_first_last_and_every_period_of_a_run(tmp_path):
    train(tmp_path / "run", "logger.trace_period=5")
    rows = read(tmp_path / "run")
    places = [(r["step"], r["group"]) for r in rows]
    assert places == [(s, g) for s in (1, 5, 10, 12) for g in (0, 1) for _ in range(4)]
    one = rows[0]
    assert list(one) == [
        *("step", "group", "prompt", "tokens", "reward", "entropy", "advantage", "ratio"),
        *("low", "high", "cut"),
    ]
    assert one["prompt"].endswith(":") and len(one["prompt"].split()) == 6
    lengths = {len(one[k]) for k in ("tokens", "entropy", "advantage", "ratio", "cut", "low")}
    assert lengths == {len(one["tokens"])} and {one["reward"] for one in rows} <= {0.0, 1.0}


def test_a_run_without_bounds_says_null(tmp_path):
    train(tmp_path / "run", name="quatro.yaml")
    assert {(r["low"], r["high"]) for r in read(tmp_path / "run")} == {(None, None)}


@pytest.mark.parametrize("method", some_of(["erpo.yaml", "etr.yaml"], 1))
def test_tracing_changes_no_bit_of_a_run(tmp_path, method):
    train(tmp_path / "traced", "logger.trace_period=1", name=method)
    train(tmp_path / "plain", "logger.trace_period=0", name=method)
    assert_same_run(tmp_path / "traced", tmp_path / "plain")
    assert not (tmp_path / "plain" / "trace.jsonl").exists()
    assert len(read(tmp_path / "traced")) == 12 * 2 * 4


def test_a_resumed_run_has_every_line_once(tmp_path, monkeypatch):
    """Killed after step 7 was logged and before it was saved: its lines come again, once."""
    save = TrainingRun._save_if_due

    def killed(self):
        if self.trainer.step_number == 7:
            with open(self.folder / "trace.jsonl", "a") as file:
                file.write('{"step": 8, "gro')  # cut by the kill
            raise KeyboardInterrupt
        save(self)

    train(tmp_path / "whole", "logger.trace_period=1")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TrainingRun, "_save_if_due", killed)
        train(tmp_path / "run", "logger.trace_period=1")
    assert {r["step"] for r in map(json.loads, _whole(tmp_path / "run"))} == set(range(1, 8))
    latest = checkpoint.latest(tmp_path / "run" / "checkpoints")
    assert latest is not None and latest.name == "step_000006.pt"
    train(tmp_path / "run", "logger.trace_period=1")
    assert read(tmp_path / "run") == read(tmp_path / "whole")


def _whole(folder):
    return [line for line in (folder / "trace.jsonl").read_text().splitlines() if line[-1] == "}"]


def test_ratios_are_those_after_the_updates():
    made = trainer("logger.trace_period=1", method="grpo")
    experience = []
    collect = made.collect
    made.collect = lambda: experience.append(collect()) or experience[-1]
    made.step()
    ((drawn, rollouts),) = experience
    rows = torch.arange(4)
    with torch.no_grad():
        ratio = (made.policy.logprobs(drawn, rows) - rollouts.old_logprobs[rows]).exp()
    for row, line in zip(rows, made.traces, strict=False):
        assert line["ratio"] == pytest.approx(ratio[row][drawn.mask[row]].tolist(), rel=1e-5)
        assert line["entropy"] == pytest.approx(drawn.entropy[row][drawn.mask[row]].tolist(), 1e-5)
    assert len({x for line in made.traces for x in line["ratio"]}) > 10


def test_text_of_a_transformers_model(tmp_path):
    policy = HFPolicy(small_llama.section(small_llama.save(tmp_path)), torch.device("cpu"))
    ids = [small_llama.WORDS.index(word) for word in ("what", "is", "<eos>")]
    assert [policy.decode([i]) for i in ids] == ["what", "is", "<eos>"]
    assert policy.decode(ids) == "what is <eos>" and policy.text(ids) == "what is"


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match=r"logger\.trace_period"):
        checked("logger.trace_period=-1")
