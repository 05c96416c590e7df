"""nemo_algos.engines.adapters.trl, in TRL's GRPOTrainer really trained on a CPU.

TRL's own GRPO step by step; what the cut of a batch must not change; learning; what is refused.
"""

import inspect
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
import trl_runs
from datasets import Dataset
from peft import LoraConfig
from says import Says
from trl import GRPOConfig, GRPOTrainer
from trl_runs import GROUP, one_thread, saved, settings, trainer, trajectory  # noqa: F401

from nemo_algos import ConfigError, build, policy_loss
from nemo_algos.algorithms import core
from nemo_algos.engines.adapters import trl as adapter

oracle = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "golden" / "oracle.py")))
COMBINED = {"advantages": {"name": "erpo"}, "bounds": {"name": "etr"}}
MARGIN = 0.08  # found: 0.138 to 0.182


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A countdown model that solves some puzzles."""
    return saved(tmp_path_factory.mktemp("countdown"), 100)


PAIRS = {  # TRL's settings, our blocks, and how a batch is cut
    "grpo, with a KL penalty": (
        {"loss_type": "grpo", "beta": 0.04, "use_bias_correction_kl": False},
        {"method": {"name": "grpo"}, "loss_fn": {"reference_policy_kl_penalty": 0.04}},
        {},
    ),
    "dapo, accumulated": (
        {"loss_type": "dapo", "epsilon_high": 0.28, "delta": 1.5},
        {"method": {"name": "grpo", "aggregation": "token", "clip_high": 0.28, "dual_clip": 1.5}},
        {"per_device_train_batch_size": 32, "gradient_accumulation_steps": 2},
    ),
    "an entropy bonus, two optimizer batches of each generation": (
        {"loss_type": "grpo", "entropy_coef": 0.02},
        {"method": {"name": "grpo", "terms": {"entropy": {"coef": 0.02}}}},
        {"per_device_train_batch_size": 32, "steps_per_generation": 2},
    ),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_our_loss_is_trls(pair, model, monkeypatch):
    """40 steps, two to a batch; with TRL's epsilon beside the standard deviation."""
    monkeypatch.setattr(core.groups, "advantages", partial(core.groups.advantages, eps=1e-4))
    theirs, ours, cut = PAIRS[pair]
    plain = {"max_steps": 40, "num_iterations": 2, **cut}
    logs = []
    for changed, own in ((theirs, {}), ({}, ours)):
        run = trainer(model, settings(model, **plain, **changed), **own)
        run.train()
        logs.append(run.state.log_history[:-1])
    rewards = [[row["reward"] for row in log if "reward" in row] for log in logs]
    assert rewards[0] == rewards[1] and len(set(rewards[0])) > len(rewards[0]) // 2
    losses = [torch.tensor([row["loss"] for row in log]) for log in logs]
    assert len(losses[0]) == 40 and losses[0].abs().max() > 1e-2
    torch.testing.assert_close(*losses, rtol=0, atol=1e-6)
    assert max(row["clip/fraction"] for row in logs[1]) > 0


def erpo_etr(batch, p):
    """ERPO's advantages and mean of all tokens, ETR's radius."""
    A = oracle.erpo(batch, p).A
    own = oracle.group_advantages(batch)
    share = oracle.pooled(batch, lambda R: [sum(x > 1e-6 for x in R) / len(R)] * len(R))
    radius = 0.2 + 0.1 * own.tanh() + 0.1 * 4 * share * (1 - share)
    J = oracle.clipped(oracle.token_ratio(batch), A, radius, radius)
    return oracle.averaged(batch, J, A, "token")


def cases_by_formula():
    """By name: the block, the formula, its parameters."""
    found = {
        "erpo+etr": (COMBINED, erpo_etr, {**oracle.CLIP, **oracle.ERPO, "progress_scale": 0.1})
    }
    for function, p in oracle.METHODS:
        name = function.__name__
        if name in ("etr", "quatro", "erpo", "apmpo", "grpo", "gspo", "cispo"):
            found.setdefault(name, ({"name": name, **p}, function, p))
    return found


def at_most_8(prompts, trainer):
    """Completions as long as the oracle's rows."""
    made = trl_runs.given(prompts, trainer)
    cut = ("completion_ids", "logprobs", "env_mask")
    return made | {name: [row[:8] for row in made[name]] for name in cut}


@pytest.mark.parametrize("name", cases_by_formula())
def test_bounds_in_play_are_the_formulas(name, model, monkeypatch):
    """Steps so large that tokens are clipped: every update's loss and gradient in float64."""
    method, formula, params = cases_by_formula()[name]
    seen = []

    def spied(algorithm, logprobs, rollouts, *given):
        loss = policy_loss(algorithm, logprobs, rollouts, *given)
        gradient = torch.autograd.grad(loss.value, logprobs, retain_graph=True)[0]
        seen.append((rollouts, logprobs.detach(), loss, gradient))
        return loss

    monkeypatch.setattr(adapter, "policy_loss", spied)
    rate = 0.01 if name == "quatro" else 0.5  # whose products of ratios no bound holds
    large = {"optim": "sgd", "learning_rate": rate, "max_grad_norm": 0.0, "max_steps": 5}
    args = settings(model, num_iterations=4, num_generations=4, **large, **cut(oracle.ROWS, 1))
    trainer(model, args, method, rollout_func=at_most_8, reward_funcs=trl_runs.even).train()
    assert len(seen) == 5
    torch.set_default_dtype(torch.float64)
    try:
        for rollouts, logprobs, loss, gradient in seen:
            batch = oracle.Batch(inputs_of(rollouts, logprobs))
            value = -formula(batch, params).J
            (wanted,) = torch.autograd.grad(value, batch.logprobs)
            assert loss.value.item() == pytest.approx(value.item(), rel=1e-3, abs=1e-5)
            error = (gradient.double() - wanted[:, : gradient.shape[1]])[rollouts.mask].norm()
            assert error <= 1e-3 * wanted.norm() and wanted.any(), name
    finally:
        torch.set_default_dtype(torch.float32)
    clipped = [each[2].stats.summary()["clip/fraction"] for each in seen]
    assert name == "quatro" or clipped[3] > 0.05  # the fourth update of a batch


def inputs_of(rollouts, logprobs):
    """As the oracle has them."""
    tokens = {k: getattr(rollouts, k) for k in ("old_logprobs", "ref_logprobs", "entropy")}
    tokens = {k: torch.zeros_like(logprobs) if x is None else x for k, x in tokens.items()}
    tokens |= {"mask": rollouts.mask.long(), "logprobs": logprobs, "gen_logprobs": logprobs}
    tokens = {k: F.pad(x, (0, oracle.STEPS - x.shape[1])) for k, x in tokens.items()}
    rows = {"group": rollouts.group.tolist(), "rewards": rollouts.rewards.tolist()}
    nothing = {"prompt": [""] * len(rollouts), "parts": {}, "drift": [0.0] * len(rollouts)}
    return {k: x.double().tolist() for k, x in tokens.items()} | rows | nothing


@pytest.mark.parametrize("where", ["attention", "lora"])
def test_one_update_has_ratios_of_1_whatever_the_dropout(where, model):
    tight = {"name": "gspo", "clip_low": 3e-4, "clip_high": 4e-4}
    args = {"model_init_kwargs": {"dtype": "float32", "attention_dropout": 0.2}}
    peft = None
    if where == "lora":
        args = {}
        own = {"lora_dropout": 0.2, "target_modules": "all-linear", "init_lora_weights": False}
        peft = LoraConfig(r=4, **own)
    run = trainer(model, settings(model, max_steps=3, **args), tight, peft_config=peft)
    run.train()
    for row in run.state.log_history[:-1]:
        assert (row["ratio/max"], row["clip/fraction"]) == (1.0, 0.0)
    with pytest.warns(UserWarning, match="dropout"):
        trainer(model, settings(model, num_iterations=2, **args), tight, peft_config=peft)


LEARNERS = ["etr", "quatro", "erpo", "apmpo", COMBINED, {"name": "gspo", "bounds": "etr"}]
IN_SHORT = [pytest.param(m, marks=[] if m is COMBINED else pytest.mark.long) for m in LEARNERS]


@pytest.mark.parametrize("method", IN_SHORT, ids=str)
def test_it_learns(method, model):
    """From the mean of ten batches of 128 to that of the last ten."""
    changed = {"per_device_train_batch_size": 128, "learning_rate": 3e-4, "adam_beta2": 0.99}
    run = trainer(model, settings(model, max_steps=80, num_iterations=2, **changed), method)
    run.train()
    rewards = [row["reward"] for row in run.state.log_history if "reward" in row]
    assert len(rewards) == 40 and fmean(rewards[-10:]) - fmean(rewards[:10]) > MARGIN


def case(method, loss_fn=None, **args):
    return {"method": method, "loss_fn": loss_fn or {}, "args": args}


def cut(per_device, accumulated, generations=1):
    """Of 12 rows in a generation's optimizer batch, of each process."""
    steps = accumulated * generations
    return {
        "per_device_train_batch_size": per_device,
        "gradient_accumulation_steps": accumulated,
        "steps_per_generation": steps,
    }


CORRECTED = {
    "reference_policy_kl_penalty": 0.01,
    "use_importance_sampling_correction": True,
    "truncated_importance_sampling_type": "tis",
    "truncated_importance_sampling_ratio": 2.0,
}
ADAPTIVE = {"target": 2.0, "start": 0.3, "delta": 0.1, "largest": 0.45}
TERMS = {"adaptive_entropy": ADAPTIVE, "nll": {"coef": 0.2, "aggregation": "sequence"}}
METHODS = {  # loss of the tokens' mean with all inputs, and of the sequences' with batch statistics
    "erpo+etr": {"method": COMBINED, "loss_fn": CORRECTED},
    "apmpo": {"method": "apmpo", "loss_fn": {}},
    "terms": {"method": {"name": "etr", "terms": TERMS}, "loss_fn": {}},
}
ITERATED = {
    f"{name}, {n} iteration(s)": {**method, "num_iterations": n}
    for name, method in METHODS.items()
    for n in (1, 2)
}
BETWEEN = {"eval_strategy": "steps", "eval_steps": 1}


@pytest.fixture(scope="module")
def whole(model):
    """Each run on one process, with batches of one piece."""
    return {name: trajectory(model, case(**x, **cut(12, 1))) for name, x in ITERATED.items()}


@pytest.fixture(scope="module")
def of_two_processes(model, tmp_path_factory):
    """The same runs on two processes, of which the first ends within the second group of three."""
    folder = tmp_path_factory.mktemp("two")
    cases = {name: case(**x, **cut(6, 1)) for name, x in ITERATED.items()}
    cases["cut"] = case(**ITERATED["erpo+etr, 2 iteration(s)"], **cut(3, 2), **BETWEEN)
    (folder / "cases.json").write_text(json.dumps(cases))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    out, root = folder / "out.pt", Path(__file__).parents[3]
    command += [trl_runs.__file__, str(model), str(folder / "cases.json"), str(out)]
    env = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(out, weights_only=True)


def equal(got, want):
    """Weights to 1e-6, and the logs."""
    first = [row for row in got["logs"] if not any(k.startswith("eval_") for k in row)]
    assert [row.keys() for row in first] == [row.keys() for row in want["logs"]]
    for row, other in zip(first, want["logs"], strict=True):
        for name, value in row.items():
            assert value == pytest.approx(other[name], rel=1e-4, abs=1e-6), name
    for name, weight in want["weights"].items():
        torch.testing.assert_close(got["weights"][name], weight, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ITERATED)
def test_accumulated(name, whole, model):
    for per_device, accumulated in ((6, 2), (3, 4)):
        equal(
            trajectory(model, case(**ITERATED[name], **cut(per_device, accumulated))), whole[name]
        )


@pytest.mark.parametrize("name", ITERATED)
def test_on_two_processes(name, whole, of_two_processes):
    equal(of_two_processes[name], whole[name])


def test_accumulated_on_two_processes_with_evaluations_between(whole, of_two_processes):
    equal(of_two_processes["cut"], whole["erpo+etr, 2 iteration(s)"])


def test_two_optimizer_batches_of_a_generation(model):
    """TRL shuffles their rows alike, for there are as many; counts are of each."""
    runs = [
        trajectory(model, case(**METHODS[name], num_iterations=2, **cut(*pieces, generations=2)))
        for name in METHODS
        for pieces in ((6, 1), (3, 2), (2, 3))
    ]
    for first, second, third in zip(*3 * [iter(runs)], strict=True):
        equal(second, first)
        equal(third, first)


def test_the_runs_go_somewhere(whole, model):
    """Weights move by far more than they may differ, and tokens are clipped and masked."""
    start = trainer(model, settings(model)).model.state_dict()
    for name, run in whole.items():
        moved = max(float((run["weights"][k] - start[k]).abs().max()) for k in start)
        assert moved > 1e-3, name
        assert {"ratio/mean", "entropy/updated", "kl/old"} <= run["logs"][-1].keys()
        assert 0 < run["logs"][0]["rollouts/masked_share"] < 1
    assert whole["erpo+etr, 2 iteration(s)"]["logs"][1]["clip/fraction"] > 0
    assert whole["erpo+etr, 1 iteration(s)"]["logs"][1]["erpo/gate"] > 0


REFUSED = {
    "beta": 0.04,
    "delta": 2.0,
    "entropy_coef": 0.01,
    "epsilon": 0.1,
    "epsilon_high": 0.28,
    "importance_sampling_level": "sequence",
    "loss_type": "grpo",
    "multi_objective_aggregation": "normalize_then_sum",
    "off_policy_mask_threshold": 0.5,
    "sapo_temperature_neg": 2.0,
    "scale_rewards": "batch",
    "top_entropy_quantile": 0.2,
    "use_adaptive_entropy": True,
    "use_bias_correction_kl": False,
    "use_liger_kernel": True,
    "vespo_k_pos": 1.0,
    "vllm_importance_sampling_clip_min": 0.5,
    "vllm_importance_sampling_mode": "token_mask",
}


def unrefused(model, method="grpo", loss_fn=None, sampled=False, **args):
    return adapter.judge(method, loss_fn, settings(model, **args), sampled)


def found(model, method="grpo", loss_fn=None, **args):
    with pytest.raises(ConfigError) as raised:
        trainer(model, settings(model, **args), method, loss_fn=loss_fn)
    return {f.path: f.message for f in raised.value.findings}


def test_settings_of_trls_loss_are_refused_all_at_once(model):
    messages = found(model, **REFUSED)
    assert messages.keys() == {f"args.{name}" for name in REFUSED}
    assert messages["args.epsilon"] == Says("method.clip_low method.clip_high")
    for name, message in messages.items():
        assert "TRL" in message, name


def test_every_setting_that_trls_loss_reads_is_refused_or_ours():
    """So that a new one of TRL's is seen: what its loss reads of args and of itself."""
    source = inspect.getsource(GRPOTrainer._compute_loss)
    read = set(re.findall(r"self\.(?:args\.)?(\w+)", source)) & {f.name for f in fields(GRPOConfig)}
    refused = {n for n in read if any(n.startswith(prefix) for prefix in adapter.REPLACED)}
    judged = {"use_vllm", adapter.CORRECTION, "router_aux_loss_coef", "steps_per_generation"}
    assert read - refused == {"max_completion_length", *judged}  # of sampling, too


WEIGHTS = "loss_fn.use_importance_sampling_correction"
CORRECTION = {"loss_fn": {"use_importance_sampling_correction": True}}
OURS = {"use_vllm": True, "vllm_importance_sampling_correction": False}
CUTS = [{"top_p": 0.9}, {"top_k": 50}, {"min_p": 0.1}]
LACKING = [  # what is asked for, the key, words of the message
    ({"method": {"name": "opd"}}, "method", "teacher"),
    (
        {"use_vllm": True},
        f"args.{adapter.CORRECTION}",
        "False loss_fn.use_importance_sampling_correction",
    ),
    (
        {"gradient_accumulation_steps": 2, "steps_per_generation": 3},
        "args.steps_per_generation",
        "gradient_accumulation_steps",
    ),
    (CORRECTION, WEIGHTS, "rollout_func"),
    *((CORRECTION | OURS | cut, f"args.{next(iter(cut))}", "") for cut in CUTS),
]


@pytest.mark.parametrize(("asked", "key", "words"), LACKING, ids=str)
def test_what_trl_cannot_give_is_refused(model, asked, key, words):
    assert found(model, **asked) == {key: Says(words)}


def test_what_it_can_give_is_not(model):
    spo = build({"name": "spo", "terms": {"adaptive_entropy": {}}})
    (finding,) = adapter.misfits(spo, settings(model))
    assert str(finding) == Says("method: spo+adaptive_entropy drift prompt TRL")
    unrefused(model, **CORRECTION, sampled=True)
    for cut in ({}, *CUTS):
        unrefused(model, **OURS, **cut)
    unrefused(model, **CORRECTION, **OURS)


def test_dr_grpo_divides_by_trls_limit(model):
    found = [
        unrefused(model, {"name": "dr_grpo", **own})[0].advantages.params.max_tokens
        for own in ({}, {"max_tokens": 77})
    ]
    assert found == [settings(model).max_completion_length, 77]


def test_wrong_blocks_and_wrong_settings_are_told_at_once(model):
    assert found(model, {"name": "etr", "mikro": 0.1}, {"ratio_clip_min": 0.2}, epsilon=0.1) == {
        "method.mikro": Says("micro"),
        "loss_fn": Says("ratio_clip_min method.clip_low"),
        "args.epsilon": Says("method.clip_low method.clip_high"),
    }


def test_a_balance_of_experts_is_refused(model, monkeypatch):
    """As TRL has it from a model's own config, where no coefficient is written."""
    init = GRPOTrainer.__init__

    def of_experts(self, *args, **named):
        init(self, *args, **named)
        self.aux_loss_enabled = True

    monkeypatch.setattr(GRPOTrainer, "__init__", of_experts)
    refused = {"args.router_aux_loss_coef": Says("experts 0")}
    assert found(model) == refused


def test_a_reward_that_no_function_gives_is_refused(model):
    def none(completions, **_):
        return [None if i == 3 else 1.0 for i in range(len(completions))]

    run = trainer(model, settings(model, max_steps=1), "grpo", reward_funcs=[none, none])
    with pytest.raises(ValueError, match=r"^rewards .*3 .*nan"):
        run.train()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_nan_of_one_of_several_functions_is_refused(model, asynchronous):
    """TRL takes NaN for None, and leaves the function out."""

    def plain(completions, **_):
        return [float("nan") if i == 5 else 1.0 for i in range(len(completions))]

    async def awaited(completions, **_):
        return plain(completions)

    broken = awaited if asynchronous else plain

    def number(completions, **_):
        return [1.0] * len(completions)

    run = trainer(model, settings(model, max_steps=1), "grpo", reward_funcs=[number, broken])
    with pytest.raises(ValueError, match=rf"{broken.__name__} .*nan .*5\."):
        run.train()


def test_one_update_per_batch_is_warned_of(model, recwarn):
    def warned(method, **args):
        recwarn.clear()
        unrefused(model, method, **args)
        return [str(w.message) for w in recwarn if "num_iterations" in str(w.message)]

    assert len(warned("etr")) == 1
    assert warned("etr", num_iterations=4) == warned("grpo") == []
    assert warned("etr", steps_per_generation=2) == []


def test_rewards_are_weighted_and_one_function_may_have_none(model):
    def some(completions, **_):
        return [None if i % 2 else 1.0 for i in range(len(completions))]

    def number(completions, **_):
        return [float(i) for i in range(len(completions))]

    args = settings(model, max_steps=1, reward_weights=[0.5, 2.0])
    run = trainer(model, args, "grpo", reward_funcs=[some, number])
    run.train()
    rollouts, _ = run._own[True]
    assert rollouts.rewards.tolist() == [2.0 * i + 0.5 * (i % 2 == 0) for i in range(64)]
    assert rollouts.group.tolist() == [i // GROUP for i in range(64)]


def test_the_reference_is_the_first_model_and_lora_has_it_too(model):
    """Without a beta of the user's: 0 at first, then further from the policy with each step."""
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    for named in ({}, {"peft_config": lora}):
        args = settings(model, max_steps=3, learning_rate=1e-2)
        run = trainer(model, args, "erpo", **named)
        run.train()
        assert args.beta == run.args.beta == 0.0
        assert (run.ref_model is None) == bool(named)
        distance = [row["kl/ref"] for row in run.state.log_history[:-1]]
        assert distance[0] < 1e-9 and 1e-5 < distance[1] < distance[2]


def test_without_need_no_reference_is_kept(model):
    assert trainer(model, settings(model), "etr").beta == 0.0


def test_images_reach_the_forward(model, monkeypatch):
    run = trainer(model, settings(model), "grpo")
    seen = {}

    def score(*args, **named):
        seen.update(named)
        return torch.zeros(2, 3), torch.zeros(2, 3), None

    monkeypatch.setattr(run, "_get_per_token_logps_and_entropies", score)
    names = [f"{part}_{kind}" for part in ("prompt", "completion") for kind in ("ids", "mask")]
    batch = dict.fromkeys(names, torch.ones(2, 3)) | {"pixel_values": 1, "num_images": [1, 1]}
    run._score(None, batch | {"advantages": 0})
    assert seen == {"compute_entropy": True, "pixel_values": 1, "num_images": [1, 1]}
    every = inspect.signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters
    assert adapter.VISION[0] == "pixel_values" and set(adapter.VISION) < set(every)


def test_the_table_of_completions_has_our_advantages(model):
    run = trainer(model, settings(model, max_steps=1), "gpg")
    run.train()
    _, signals = run._own[True]
    assert [*run._logs["advantages"]] == pytest.approx(signals.advantages[:, 0].tolist())


def test_the_example_trains_a_combination(model, tmp_path, capsys):
    shutil.copytree(model, tmp_path / "model", ignore=shutil.ignore_patterns("cache", "out"))
    row = json.dumps({"problem": "2 3 > 5 :", "answer": "2 3 > 5"}) + "\n"
    (tmp_path / "train.jsonl").write_text(row * 16)
    path = Path(__file__).parents[3] / "examples/trl_countdown.py"
    runpy.run_path(str(path))["main"](
        tmp_path, "{advantages: erpo, bounds: etr}", out=tmp_path / "run", steps=10
    )
    (logged,) = re.findall(r"'erpo/gate': '?([\d.]+)", capsys.readouterr().out)
    assert 0 < float(logged) < 1


@pytest.mark.parametrize(
    ("hook", "replacement", "said"),
    [
        ("compute_loss", lambda self, model, inputs, **_: next(model.parameters()).sum(), "asking"),
        ("_prepare_inputs", lambda self, batch: batch, "batches"),
    ],
)
def test_a_trl_that_trains_without_our_loss_is_refused(
    hook, replacement, said, model, tmp_path, monkeypatch
):
    made = trainer(model, settings(tmp_path, max_steps=1), "grpo")
    monkeypatch.setattr(type(made), hook, replacement)
    with pytest.raises(ConfigError, match=said):
        made.train()


def test_the_method_is_recorded_for_the_report(model, tmp_path):
    block = {"name": "etr", "micro": 0.05}
    made = trainer(model, settings(model, output_dir=str(tmp_path), max_steps=1), block)
    assert not [*tmp_path.iterdir()]  # another run's folder may be looked at
    made.train()
    config = json.loads((tmp_path / "nemo_algos.json").read_text())["config"]
    assert config["method"] == block and config["grpo"] == {"seed": 42}
    assert config["trl"]["learning_rate"] == 1e-3 and "output_dir" not in config["trl"]


# ---- adaptive_entropy: its coefficient, and what a checkpoint keeps

COEF = "adaptive_entropy/coef"
SGD = {"optim": "sgd", "learning_rate": 0.01, "max_grad_norm": 0.0, "num_generations": 4}
SGD |= {"per_device_train_batch_size": 12, "num_generations_eval": 4, "max_steps": 12}
ASKED = [{"prompt": f"{i} 2 > 5 :", "numbers": [i, 2], "target": 5} for i in range(3)]


def on_given(model, method, **changed):
    """A trainer on given completions."""
    named = {"rollout_func": trl_runs.given, "reward_funcs": trl_runs.even}
    named["eval_dataset"] = Dataset.from_list(ASKED)
    return trainer(model, settings(model, **SGD | changed), method, **named)


ADAPTED = {"target": 2.0, "start": 0.2, "delta": 0.1, "largest": 0.3}
METHOD = {"name": "grpo", "terms": {"adaptive_entropy": ADAPTED}}


def test_the_coefficient_moves_once_a_batch_by_the_entropy_of_its_sampler(model):
    """Two updates a batch; evaluations between them, in which nothing moves."""
    run = on_given(model, METHOD, num_iterations=2, eval_strategy="steps", eval_steps=1)
    run.train()
    first = [row for row in run.state.log_history if COEF in row]  # of each batch's updates
    assert len(first) == 6
    coefficient, used = ADAPTED["start"], []
    for row in first:
        entropy = row["entropy/exact"]
        used.append(coefficient if entropy <= ADAPTED["target"] else 0.0)
        step = ADAPTED["delta"] if entropy < ADAPTED["target"] else -ADAPTED["delta"]
        coefficient = min(max(coefficient + step, 0.0), ADAPTED["largest"])
    assert [row[COEF] for row in first] == pytest.approx(used)
    assert {0.0, ADAPTED["largest"]} < set(used)  # switched off, at its limit, and between


def test_a_resumed_run_goes_on_with_the_coefficient(model, tmp_path):
    whole = on_given(model, METHOD)
    whole.train()
    kept = {"output_dir": str(tmp_path), "save_strategy": "steps", "save_steps": 3}
    on_given(model, METHOD, max_steps=3, **kept).train()
    run = on_given(model, METHOD, **kept)
    run.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    ours, wanted = ([r[COEF] for r in x.state.log_history if COEF in r] for x in (run, whole))
    assert ours == wanted
    for name, weight in whole.model.state_dict().items():
        torch.testing.assert_close(run.model.state_dict()[name], weight, rtol=0, atol=1e-6)


def test_a_method_without_a_memory_leaves_no_callback_to_look_for(model, tmp_path):
    """Transformers warns of each one in a checkpoint that the resumed trainer has not."""
    kept = {"output_dir": str(tmp_path), "save_strategy": "steps", "save_steps": 1}
    on_given(model, "grpo", **kept, max_steps=1).train()
    run = on_given(model, "grpo", **kept, max_steps=2)
    run.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert not [key for key in run.state.stateful_callbacks if key.startswith("nemo_algos")]
