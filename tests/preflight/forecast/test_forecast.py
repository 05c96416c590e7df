"""What a run will do, against numbers worked by hand, torch, and plain simulations."""

import json
import math
import os
import random
from types import SimpleNamespace

import pytest
import torch

from nemo_algos.config import SHIPPED
from nemo_algos.preflight.check.judge import judged
from nemo_algos.preflight.check.known_models import template_of
from nemo_algos.preflight.forecast import (
    batch,
    learning,
    rates,
    rewards,
    template,
    this_run,
    timeline,
)

UNSCALED = rewards.UNSCALED
DAPO = {"overlong_buffer_length": 100, "overlong_buffer_penalty": 2.0, "max_response_length": 500}
COSINE = {"lr_decay_style": "cosine", "lr_decay_iters": 110, "lr_warmup_iters": 10}


def part(name, **kwargs):
    return {"name": f"torch.optim.lr_scheduler.{name}", "kwargs": kwargs}


def forecast(*overrides, config="nemo_rl.yaml"):
    run, findings = judged(config, ["grpo.max_num_steps=500", *overrides])
    return run, this_run.forecast_of(run), [f for f in findings if f.severity != "note"]


@pytest.mark.parametrize(
    ("reward", "section", "want"),
    [
        (1.0, {}, 1.0),
        (0.25, {"target_min": -1.0}, -0.5),
        (0.25, {"source_max": 0.5, "target_max": 4.0}, 2.0),
        (3.0, {}, 1.0),  # cut to the source
        (1.0, {"source_max": -1.0}, 1.0),  # crossed: torch.clamp gives the maximum
        (0.0, {"source_min": 1.0}, math.nan),
    ],
)
def test_scaled_rewards(reward, section, want):
    assert rewards.scaled(reward, UNSCALED | section) == pytest.approx(want, nan_ok=True)


@pytest.mark.parametrize(
    ("tokens", "cut", "section", "want"),
    [
        (400, False, DAPO, 1.0),
        (450, False, DAPO, 0.0),
        (500, True, DAPO, -1.0),
        (600, True, DAPO, -3.0),  # without an end
        (600, True, DAPO | {"stop_properly_penalty_coef": 0.25}, 0.25),
        (600, False, DAPO | {"stop_properly_penalty_coef": 0.25}, 1.0),
    ],
)
def test_shaped_rewards(tokens, cut, section, want):
    assert rewards.shaped(rewards.Outcome(1.0, tokens, cut), section) == pytest.approx(want)


@pytest.mark.parametrize("section", [{"enabled": True}, DAPO | {"overlong_buffer_penalty": -1}])
def test_what_nemo_rl_would_stop_at_is_no_number(section):
    with pytest.raises(ValueError):
        rewards.shaped(rewards.Outcome(1.0, 5, cut=False), section)


@pytest.mark.parametrize("gap", [0.01, 0.05, 1.0])
def test_a_batchs_differences(gap):
    draws = torch.randn(2_000_000, generator=torch.manual_seed(0), dtype=torch.float64) * gap
    error = draws.abs().exp().mean().item()
    assert batch.probability_error(gap) == pytest.approx(error, rel=3e-3)
    weights = draws.exp()
    inside = ((weights >= 0.98) & (weights <= 1.03)).double().mean().item()
    assert batch.kept(gap, 0.98, 1.03) == pytest.approx(inside, abs=2e-3)


SAMPLING = ["grpo.use_dynamic_sampling=true", "grpo.batch_multiplier=3"]
SAMPLING += ["grpo.num_generations_per_prompt=16"]


@pytest.mark.parametrize(
    ("overrides", "key", "words"),
    [
        # groups of 2: 0.2^2 + 0.8^2 = 0.68; of 3: 0.2^3 + 0.8^3 = 0.52
        (["grpo.num_generations_per_prompt=2"], "num_generations_per_prompt", ["68%", "50%"]),
        (["grpo.num_generations_per_prompt=3"], "num_generations_per_prompt", ["52%", "25%"]),
        (["grpo.num_generations_per_prompt=4"], "num_generations_per_prompt", None),
        # one draw of three batches holds 3 (1 - 0.97^16) = 1.16 at 3 %, and 0.83 at 2 %
        ([*SAMPLING, "grpo.dynamic_sampling_max_gen_batches=1"], "dynamic_samp", ["3 % to 97 %"]),
        # ten draws: 30 (1 - 0.99^16) = 4.5 at 1 %
        ([*SAMPLING, "grpo.dynamic_sampling_max_gen_batches=10"], "dynamic_samp", None),
    ],
)
@pytest.mark.parametrize("method", ["grpo", "gspo"])
def test_pass_rates_at_which_a_run_trains_little_or_ends_are_noted(method, overrides, key, words):
    given = [f"method={{name: {method}}}", *overrides, "policy.train_global_batch_size=32"]
    found = judged("nemo_rl.yaml", given)[1]
    notes = [f for f in found if f.path.startswith(f"grpo.{key}")]
    assert {f.severity for f in notes} == ({"note"} if words else set())
    assert all(word in notes[0].message for word in words or ())


def test_a_warm_up_that_starts_at_0_is_noted():
    def notes(*overrides):
        given = ["nemo_rl.config=grpo_math_8B_megatron.yaml", *overrides]
        found = judged("nemo_rl.yaml", given)[1]
        return [f.severity for f in found if "first step changes nothing" in f.message]

    warm_up = "policy.megatron_cfg.scheduler.lr_warmup_init"
    assert notes(f"{warm_up}=0.0") == ["note"] and not notes(f"{warm_up}=1.0e-8")


def test_flat_groups():
    assert batch.flat(2, 0.5) == 0.5
    assert batch.flat(3, 0.1) == pytest.approx(0.1**3 + 0.9**3)


@pytest.mark.parametrize(
    ("scheduler", "step", "want"),
    [
        (COSINE, 0, 1e-7),
        (COSINE, 5, 1e-7 + 0.5 * 4.9e-6),
        (COSINE, 10, 5e-6),
        (COSINE, 60, 1e-6 + 0.5 * 4e-6),
        (COSINE, 111, 1e-6),
        (COSINE | {"lr_decay_style": "linear"}, 85, 1e-6 + 0.25 * 4e-6),
        (COSINE | {"lr_decay_style": "constant"}, 200, 5e-6),
        (COSINE | {"lr_decay_style": "inverse-square-root"}, 40, 2.5e-6),
        (COSINE | {"lr_decay_style": "WSD", "lr_wsd_decay_iters": 20}, 90, 5e-6),
        (
            COSINE
            | {"lr_decay_style": "WSD", "lr_wsd_decay_iters": 20, "lr_wsd_decay_style": "linear"},
            100,
            3e-6,
        ),
    ],
)
def test_megatrons_rate(scheduler, step, want):
    optimizer = {"lr": 5e-6, "min_lr": 1e-6}
    found = rates.megatron_rates(optimizer, scheduler | {"lr_warmup_init": 1e-7}, 300, 250)
    assert found[step] == pytest.approx(want, rel=1e-9)


def test_torchs_rate():
    sections = [
        part("LinearLR", start_factor=0.1, total_iters=4),
        part("ConstantLR", factor=0.5, total_iters=2),
        {"milestones": [4]},
    ]
    optimizer = {"name": "torch.optim.SGD", "kwargs": {"lr": 1.0}}
    found = rates.torch_rates(optimizer, sections, 8)
    assert found == pytest.approx([0.1, 0.325, 0.55, 0.775, 0.5, 0.5, 1.0, 1.0])


def test_no_class_of_a_strangers_config_is_loaded(tmp_path, monkeypatch):
    (tmp_path / "stranger.py").write_text("raise SystemExit('run')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("stranger.AdamW", "os.system", "torch.hub.load"):
        with pytest.raises((rates.Unknown, rates.Wrong)):
            rates.build_optimizer({"name": name, "kwargs": {"lr": 1e-6}})


@pytest.mark.parametrize(
    ("name", "kwargs", "first", "turned"),
    [
        ("AdamW", {}, 1.0, True),
        ("AdamW", {"betas": [0.999, 0.9]}, 1.0, False),
        ("Adam", {"eps": 1e-3}, 0.5, True),
        ("SGD", {}, 1e-3, True),
        ("AdamW", {"maximize": True}, -1.0, True),
        ("adamw.AdamW", {}, 1.0, True),
    ],
)
def test_what_a_step_does(name, kwargs, first, turned):
    section = {"name": f"torch.optim.{name}", "kwargs": {"lr": 1e-6, **kwargs}}
    move = rates.move_of(rates.walk_of_torch(section), 1e-6, 0.0)
    assert move.first == pytest.approx(first, rel=1e-2)
    assert move.turned is turned


def test_megatrons_adam_is_torchs():
    draw = random.Random(0)
    gradients = [draw.gauss(0, 1e-3) for _ in range(30)]
    kwargs = {"lr": 1e-2, "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.1}
    section = {"name": "torch.optim.AdamW", "kwargs": kwargs}
    core = {"adam_beta1": 0.8, "adam_beta2": 0.95, "adam_eps": 1e-6}
    found = rates.walk_of_megatron(core)(1e-2, 0.1, gradients)
    assert found == pytest.approx(rates.walk_of_torch(section)(1e-2, 0.1, gradients), rel=1e-5)


def test_the_timeline():
    late = ["grpo.val_period=20", "grpo.val_start_at=50", "grpo.val_at_end=true"]
    _, whole, _ = forecast(*late, "grpo.max_val_samples=300")
    t = whole.timeline
    assert [*t.validations] == [*range(60, 501, 20)]
    assert (t.prompts, t.responses) == (256, 1)  # whole batches of 256
    assert t.share == pytest.approx(23 * 256 / (23 * 256 + 500 * 512))
    assert t.validates(500) and not t.validates(40)
    assert [*t.saves][:2] == [10, 20]


def test_the_lines(capsys):
    run, whole, findings = forecast("grpo.reward_scaling.enabled=true")
    said = "\n".join(this_run.lines(run, whole, drawn=False))
    assert "right 1, wrong 0" in said and "5e-06 at step 51" in said and "after step 500" in said
    assert max(map(len, said.splitlines())) <= 80
    assert not findings


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["grpo.val_period=10"], "keeps the 3 with the highest val:accuracy"),
        (["grpo.val_period=0", "grpo.val_at_end=true"], "the 3 with the highest val:accuracy"),
        (["grpo.val_period=0"], "keeps 3 by val:accuracy, which none of them has"),
        (["grpo.num_generations_per_prompt=16"], "hardly any groups"),
        (["grpo.num_generations_per_prompt=8"], "0.8% of groups"),
    ],
)
def test_what_is_kept_and_what_is_flat(overrides, said):
    whole = ["checkpointing.enabled=true", "grpo.val_at_end=false", "grpo.val_at_start=false"]
    run, forecasted, _ = forecast(*whole, *overrides)
    assert said in "\n".join(this_run.lines(run, forecasted, drawn=False))


def test_the_embedded_engines_run():
    run, findings = judged(str(SHIPPED / "etr.yaml"), [])
    whole = this_run.forecast_of(run)
    assert (whole.batch.prompts, whole.batch.responses, whole.batch.updates) == (32, 16, 4)
    assert whole.rates[5][1] == pytest.approx(2e-4)
    assert whole.timeline.steps == 120 and not findings


def test_the_json_has_no_number_for_what_is_none():
    _, whole, _ = forecast("grpo.reward_scaling.enabled=true", "grpo.reward_scaling.source_min=1")
    made = json.loads(json.dumps(this_run.as_json(whole), allow_nan=False))
    assert made["rewards"]["short"] == [None, None]
    assert made["timeline"]["saves"] == {"first": 10, "last": 500, "every": 10}
    assert made["rates"][-1] == [500, pytest.approx(5e-6)]


def test_a_key_is_blamed_for_what_its_usual_value_mends():
    values = {"a": 1, "b": 5}
    wrong = rewards.blamed("s", values, {"a": 0, "b": 0}, lambda v: v["b"] > 2)
    assert wrong == "s.b"
    assert rewards.blamed("s", values, {"a": 0, "b": 0}, lambda v: True) == "s.a"


def test_a_curve_has_its_shape():
    assert this_run.curve([0.0, 0.5, 1.0]) == "▁▅█"
    assert len(this_run.curve([1.0] * 500)) == this_run.WIDTH


def test_an_unknown_scheduler_is_no_error():
    run = SimpleNamespace(megatron=False, last_step=5, algorithm=None)
    keys = {
        "policy": {"scheduler": {}},
        rates.OPTIMIZER: {"name": "transformer_engine.FusedAdam", "kwargs": {"lr": 1e-6}},
        rates.SCHEDULER: {"name": "torch.optim.lr_scheduler.ConstantLR"},
    }

    class Run(SimpleNamespace):
        def __getitem__(self, path):
            return keys.get(path)

    (said,) = learning.schedule(Run(**vars(run)))
    assert said.severity == "note" and "FusedAdam" in said.message
    assert range(0) == timeline.NO_STEPS


MESSAGES = {"messages": [{"role": "user", "content": "2 + 3?"}]}


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", "<user>2 + 3?"),
        ("{{ x }}", ""),
    ],
)
def test_a_template_is_rendered(text, want):
    found = template.rendered(text, MESSAGES)
    assert found["made"] == want and found["names"] == ["messages" if want else "x"]


NO_SYSTEM = """{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}
{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if terse %}!{% endif %}"""
SYSTEM = "data.default.system_prompt_file"


@pytest.mark.parametrize(
    ("form", "text", "overrides", "said"),
    [
        ("jinja", NO_SYSTEM, [], {}),
        ("text", NO_SYSTEM, [f"{SYSTEM}=examples/prompts/cot.txt"], {SYSTEM: "no system"}),
        ("named", "{{ messages }}", [], {"policy.tokenizer.chat_template": "content"}),
        ("jinja", NO_SYSTEM, ["+policy.tokenizer.chat_template_kwargs.terse=true"], {}),
        (
            "named",
            NO_SYSTEM,
            ["+policy.tokenizer.chat_template_kwargs.enable_thinking=true"],
            {"policy.tokenizer.chat_template_kwargs.enable_thinking": "no effect"},
        ),
    ],
)
def test_a_models_own_template_is_read(tmp_path, form, text, overrides, said):
    if form == "jinja":
        (tmp_path / "chat_template.jinja").write_text(text)
    else:
        of_tools = {"name": "tool_use", "template": "{{ x }}"}
        named = [of_tools, {"name": "default", "template": text}]
        own = {"chat_template": text if form == "text" else named}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(own))
    _, _, findings = forecast(f"policy.model_name={tmp_path}", *overrides)
    found = {f.path: f.message for f in findings if "template" in f.path or f.path == SYSTEM}
    assert found.keys() == said.keys()
    assert all(words in found[path] for path, words in said.items())


def test_what_is_no_file_or_too_large_is_no_template(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "tokenizer_config.json")
    assert template_of(str(tmp_path)) == ""
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert template_of(str(tmp_path)) == "{{ messages }}"
    monkeypatch.setattr("nemo_algos.preflight.check.known_models.LARGEST", 3)
    assert template_of(str(tmp_path)) == ""


@pytest.mark.parametrize(
    "text",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% if %}",
    ],
)
def test_a_strangers_template_ends(text):
    assert template.rendered(text, MESSAGES)["failure"]
