"""The adapter in slime's own trainer on a CPU (slime_cpu_run.py) against a loop of our own."""

import ast
import os
import subprocess
import sys
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sources
import torch
import yaml
from says import Says
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nemo_algos import ConfigError, Counts, LossConfig, Rollouts, build, policy_loss
from nemo_algos.engines.adapters.slime_settings import ASKED, REPLACED, judge

PROMPTS, GROUP, BATCH, VOCABULARY, LR = 6, 4, 8, 11, 5.0  # three optimizer batches of 8 responses
HERE, EXAMPLES = Path(__file__).parent, Path(__file__).parents[3] / "examples"
PENALTY = 0.02
LOSS = LossConfig(reference_policy_kl_penalty=PENALTY)
METHODS = {name: name for name in ("quatro", "erpo", "apmpo", "gpg", "cispo")}
METHODS |= {
    "etr": {"name": "etr", "micro": 0.05},
    "erpo+etr": {"advantages": "erpo", "bounds": {"name": "etr", "clip_base": 0.05, "micro": 0.02}},
    "gspo+etr": {"name": "gspo", "bounds": "etr"},
    "grpo": {"name": "grpo", "clip_high": 0.28},
}
DYNAMIC = ["--use-dynamic-batch-size", "--max-tokens-per-gpu", "24"]
CUTS = {  # ranks, those among them that share sequences, how micro-batches are cut
    "twos": (1, 1, ["--micro-batch-size", "2"]),
    "by length": (1, 1, DYNAMIC),
    "2 ranks": (2, 1, DYNAMIC),
    "2 ranks of a sequence": (2, 2, DYNAMIC),
}
closely = partial(torch.testing.assert_close, rtol=0, atol=1e-6)  # slime's log-probs are float32
every_method = pytest.mark.parametrize("method", METHODS)
every_cut = pytest.mark.parametrize("cut", CUTS)


def samples() -> list[dict[str, Any]]:
    """slime's samples: ragged, holes in the masks, one removed by a filter, one group flat."""
    random = torch.Generator().manual_seed(0)
    integers = partial(torch.randint, generator=random)
    made = []
    for index in range(PROMPTS * GROUP):
        prompt, length = 2 + index % 3, int(integers(3, 9, (1,)))
        mask = [1, *integers(0, 2, (length - 1,)).tolist()]
        reward = float(integers(0, 2, (1,))) * 0.75 if index >= GROUP else 1.0
        tokens = integers(0, VOCABULARY, (prompt + length,)).tolist()
        sampled = (-2 * torch.rand(length, generator=random)).tolist()
        sample = {"tokens": tokens, "response_length": length, "rollout_log_probs": sampled}
        sample |= {"reward": reward, "loss_mask": mask, "remove_sample": index == 9}
        made.append(sample | {"index": index, "group_index": index // GROUP})
    return made


def tables() -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(1)
    shape = (VOCABULARY, VOCABULARY)
    return {k: torch.randn(shape, generator=random) for k in ("actor", "ref")}


def config(method: Any, **more: Any) -> dict[str, Any]:
    """The example's, with another method, all that methods need and a KL penalty."""
    shipped = yaml.safe_load((EXAMPLES / "slime_etr.yaml").read_text())
    switches = {"use_kl_loss": True, "use_rollout_entropy": True}
    loss = {"reference_policy_kl_penalty": PENALTY}
    return {**shipped, "method": method, "loss_fn": loss, **switches, **more}


def cases() -> dict[str, Any]:
    flags = ["--n-samples-per-prompt", str(GROUP), "--rollout-batch-size", str(PROMPTS)]
    flags.append("--global-batch-size")
    every = {}
    for cut, (ranks, context, micro) in CUTS.items():
        shape = {"ranks": ranks, "context": context, "flags": [*flags, str(BATCH), *micro]}
        for name, method in METHODS.items():
            every[f"{name}, {cut}"] = {"config": config(method), **shape}
    one = {"ranks": 1, "context": 1, "flags": [*flags, str(BATCH), *DYNAMIC]}
    slimes = {"loss_type": "policy_loss", "kl_loss_coef": PENALTY, "kl_loss_type": "k2"}
    slimes |= {"use_kl_loss": True, "eps_clip_high": 0.28}
    corrected = {"use_importance_sampling_correction": True}
    every["slime's own"] = {"config": slimes, **one, "filtered": False}
    k2 = {"reference_policy_kl_penalty": PENALTY, "reference_policy_kl_type": "k2"}
    every["as slime"] = {"config": config(METHODS["grpo"], loss_fn=k2), **one, "filtered": False}
    own = {"kl_loss_type": "k3", "use_unbiased_kl": True}
    near = {**one, "filtered": False, "lr": 0.5}  # far off, r k3 is clamped by either side
    every["slime's own, unbiased"] = {"config": slimes | own, **near}
    own = k2 | {"reference_policy_kl_type": "unbiased"}
    every["as slime, unbiased"] = {"config": config("grpo", loss_fn=own), **near}
    every["corrected"] = {"config": config("grpo", loss_fn=corrected), **one}
    every["siblings"] = {"config": config("grpo"), **one, "siblings": True}
    every["cut"] = {"config": config("grpo"), **one, "flags": [*flags, "9", *DYNAMIC]}
    every["copied"] = {"config": config("grpo"), **one, "copied": True}
    every["unasked"] = {"config": config("grpo", loss_type="policy_loss"), **one}
    return every


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, list[dict[str, Any]]]:
    """By case, what each rank of slime's trainer ends with."""
    folder, path = tmp_path_factory.mktemp("slime"), [sources.slime(), sources.folder()]
    every = cases()
    for number, case in enumerate(every.values()):
        written = folder / f"{number}.yaml"
        written.write_text(yaml.safe_dump(case.pop("config")))
        case |= {"config": str(written), "lr": case.get("lr", LR)}
    torch.save({"samples": samples(), "cases": every, **tables()}, folder / "cases.pt")
    places = os.pathsep.join([*map(str, path), *filter(None, sys.path)])
    command = [sys.executable, "-W", "ignore", HERE / "slime_cpu_run.py", folder]
    env = os.environ | {"PYTHONPATH": places, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return torch.load(folder / "results.pt", weights_only=True)


def scored(table: Tensor) -> tuple[Tensor, Tensor]:
    """[B,S] each: log-probs and entropies of the samples' responses."""
    logprobs, entropies = [], []
    for sample in samples():
        tokens, length = torch.tensor(sample["tokens"]), sample["response_length"]
        every = table[tokens[-length - 1 : -1]].log_softmax(1)
        logprobs.append(every.gather(1, tokens[-length:, None])[:, 0])
        entropies.append(-(every.exp() * every).sum(1))
    return tuple(pad_sequence(x, batch_first=True) for x in (logprobs, entropies))


def rollouts() -> Rollouts:
    made, ragged = samples(), partial(pad_sequence, batch_first=True)
    masks = [torch.tensor(s["loss_mask"]) * (not s["remove_sample"]) for s in made]
    old, entropy = scored(tables()["actor"].double())
    return Rollouts(
        group=[s["group_index"] for s in made],
        rewards=torch.tensor([s["reward"] for s in made], dtype=torch.float64),
        mask=ragged(masks).bool(),
        old_logprobs=old,
        ref_logprobs=scored(tables()["ref"].double())[0],
        entropy=entropy,
        gen_logprobs=ragged([torch.tensor(s["rollout_log_probs"]) for s in made]).double(),
        sample_mask=[not s["remove_sample"] for s in made],
    )


def trained(method: Any, loss: LossConfig) -> dict[str, Any]:
    """A loop of our own in float64: (gradients, metrics by step, the driver half's)."""
    algorithm, whole, table = build(method), rollouts(), tables()["actor"].double()
    signals, gradients, metrics = algorithm.signals(whole), [], []
    for rows in torch.arange(len(whole)).split(BATCH):
        table = table.detach().requires_grad_()
        logprobs, entropy = (x[rows] for x in scored(table))
        part, counts = whole[rows], Counts.of(whole.mask[rows])
        out = policy_loss(algorithm, logprobs, part, signals[rows], counts, loss, entropy)
        gradients.append(torch.autograd.grad(out.value, table)[0])
        metrics.append(out.stats.summary())
        table = table - LR * gradients[-1]
    return {"gradients": gradients, "steps": metrics, "driver": signals.metrics}


@every_cut
@every_method
def test_slimes_trainer_takes_our_steps(runs, method, cut):
    """Gradients and metrics of each optimizer batch, on every rank, however slime cuts."""
    want = trained(METHODS[method], LOSS)
    for got in runs[f"{method}, {cut}"]:
        for ours, slimes in zip(want["gradients"], got["gradients"], strict=True):
            closely(slimes.double(), ours)
    rollout, *steps = runs[f"{method}, {cut}"][0]["logged"]
    for key, value in want["driver"].items():
        assert rollout[f"rollout/{key}"] == pytest.approx(value, abs=1e-6), key
    for ours, slimes in zip(want["steps"], steps, strict=True):
        shown = {k: slimes[f"train/{k}"] for k in ours if f"train/{k}" in slimes}
        assert shown == pytest.approx({k: ours[k] for k in shown}, abs=2e-6)
        assert {"loss", "kl_loss", "kl/old", "kl/ref", "entropy/updated"} <= shown.keys()
    assert max(x["kl/old"] for x in want["steps"]) > 1e-4  # the policy has moved between them


@pytest.mark.parametrize("kl", ["", ", unbiased"])
def test_grpo_is_slimes_own_loss_at_equal_settings(runs, kl):
    """Its advantages and loss; no response is empty, for slime's mean has those in its count."""
    ours, slimes = (runs[k + kl][0]["gradients"] for k in ("as slime", "slime's own"))
    closely(ours, slimes)


def test_the_samplers_log_probs_correct_the_loss(runs):
    want = trained("grpo", LossConfig(use_importance_sampling_correction=True))
    for ours, slimes in zip(want["gradients"], runs["corrected"][0]["gradients"], strict=True):
        closely(slimes.double(), ours)


ERRORS = {
    "siblings": "samples",
    "cut": "global_batch_size",
    "copied": "`returns`",
    "unasked": "loss_type: must be custom_loss",
}


@pytest.mark.parametrize(("case", "reason"), ERRORS.items(), ids=ERRORS)
def test_what_cannot_be_is_said_where_slime_would_train(runs, case, reason):
    assert runs[case] == [{"error": Says(reason)}]


def stock() -> dict[str, Any]:
    """The defaults of slime's sections of algorithms and distillation, out of its parser."""
    tree = ast.parse((sources.slime() / "slime" / "utils" / "arguments.py").read_text())
    names = {"add_algo_arguments", "add_on_policy_distillation_arguments"}
    found = [x for x in ast.walk(tree) if isinstance(x, ast.FunctionDef) and x.name in names]
    assert {x.name for x in found} == names
    defaults = {}
    for call in (x for f in found for x in ast.walk(f) if isinstance(x, ast.Call)):
        if getattr(call.func, "attr", None) == "add_argument":
            given = {
                k.arg: k.value for k in call.keywords if k.arg in ("dest", "default", "action")
            }
            given = {k: ast.literal_eval(v) for k, v in given.items()}
            flag = ast.literal_eval(call.args[0]).removeprefix("--").replace("-", "_")
            implied = given.get("action") == "store_false"
            defaults[given.get("dest", flag)] = given.get("default", implied or None)
    return defaults


def args(block: Any = "grpo", **changed: Any) -> Namespace:
    """As slime's own validation leaves them, with the example's settings."""
    validated = {"eps_clip_high": 0.2, "calculate_per_token_loss": False, "n_samples_per_prompt": 8}
    validated |= {"rollout_max_response_len": 8}
    shipped = yaml.safe_load((EXAMPLES / "slime_etr.yaml").read_text())
    return Namespace(**{**stock(), **validated, **shipped, "method": block, **changed})


HONOURED = (  # what else those sections have, with slime's actor
    "megatron_config_path num_critic_only_steps opd_kl_coef opd_teacher_ckpt_step "
    "opd_teacher_load opd_type ref_ckpt_step ref_load ref_update_interval reset_optimizer_states "
    "save_hf use_kl_loss use_rollout_entropy use_rollout_routing_replay use_routing_replay "
    "use_stateless_adam"
)


def test_no_setting_of_slimes_is_ignored():
    """Each of its sections of losses and advantages is refused, asked for, or honoured by slime."""
    known = {*REPLACED, *ASKED, *HONOURED.split(), "grpo_std_normalization"}
    assert known - {"calculate_per_token_loss"} == stock().keys()
    assert {k: v[0] for k, v in REPLACED.items()} == {k: getattr(args(), k) for k in REPLACED}


@pytest.mark.parametrize("key", REPLACED)
def test_what_our_loss_replaces_is_refused_by_name(key):
    default, advice = REPLACED[key]
    with pytest.raises(ConfigError) as error:
        judge(args(**{key: not default if isinstance(default, bool) else "another"}))
    assert [f.path for f in error.value.findings] == [key]
    assert error.value.findings[0].message.endswith(advice)


def test_what_slime_must_be_told_is_asked_by_name():
    wrong = dict.fromkeys(ASKED) | {"loss_fn": {"reference_policy_kl_penalty": 0.1}}
    with pytest.raises(ConfigError) as error:
        judge(args("erpo", **wrong, grpo_std_normalization=False))
    want = ASKED | dict.fromkeys(
        ("grpo_std_normalization", "use_kl_loss", "use_rollout_entropy"), True
    )
    assert {f.path: f.message for f in error.value.findings} == {
        k: Says(f"{v} erpo") for k, v in want.items()
    }
    judge(args())
    judge(args(n_samples_per_prompt=1, grpo_std_normalization=False))  # as slime sets it


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (None, "method: name"),
        ("spo", "method: spo drift memory prompt"),
        ({"name": "grpo", "terms": {"nll": {}}}, "method.terms: counts"),
    ],
)
def test_what_slime_cannot_give_is_refused(block, reason):
    with pytest.raises(ConfigError) as error:
        judge(args(block))
    assert str(error.value) == Says(reason)
