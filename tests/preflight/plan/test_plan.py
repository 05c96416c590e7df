"""plan against published figures, and its own consistency.

Published: [N] NeMo-RL's docs/about/performance-summary.md (H100 and GB200, step times);
[M] Megatron-Core's distributed optimizer, bytes per parameter; [L] Narayanan et al. 2021, section
5.1: 34 days for GPT-3 on 1024 A100 at 140 TFLOP/s.
"""

import csv
import json
import os
import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from planned import EXAMPLE, OFFLOADED, planned
from typer.testing import CliRunner

from nemo_algos.cli import app
from nemo_algos.preflight.check.known_models import facts, table
from nemo_algos.preflight.check.layout import MEGATRON
from nemo_algos.preflight.plan import memory, report, search, speed
from nemo_algos.preflight.plan.layouts import measured_errors, plan, with_keys
from nemo_algos.preflight.plan.nemo_rl_arguments import scored_sequences, training

ROOT = Path(__file__).parents[3]
PUBLISHED = list(csv.DictReader((ROOT / "benchmarks" / "published_step_times.csv").open()))  # [N]
GPT3 = {"model_type": "gpt2", "n_layer": 96, "n_embd": 12288, "n_head": 96, "vocab_size": 51200}
KWARGS = "policy.generation.vllm_kwargs"
UNFORCED = {"loss_fn.force_on_policy_ratio": False}
PACKED = "policy.sequence_packing.enabled"
ERPO = f"""engine: nemo_rl
nemo_rl: {{config: {EXAMPLE}}}
method: {{name: erpo}}
loss_fn: {{force_on_policy_ratio: false}}
"""


@pytest.mark.parametrize("summaries, rows", [(("v0.7",), 27), (("v0.5", "v0.6"), 27)])
def test_step_times_that_nemo_rl_published(summaries, rows):
    """All GRPO rows of v0.7 and v0.6, and of v0.5 those of models that v0.6 does not list."""
    errors = {}
    for row in (row for row in PUBLISHED if row["summary"] in summaries):
        config = f"recipes/llm/performance/{row['recipe']}.yaml"
        change = {} if "v0.7" in summaries else UNFORCED | {f"{KWARGS}.speculative_config": None}
        change["policy.train_global_batch_size"] = int(row["train_batch"])
        p = planned(config, float(row["mean_tokens"]), **change)
        assert p.run.gpu.name == row["system"]
        errors[row["recipe"]] = (p.step_seconds / float(row["seconds"]) - 1, p.overlaps)
    assert len(errors) == rows
    sizes = [abs(error) for error, _ in errors.values()]
    late = [abs(error) for error, overlaps in errors.values() if overlaps]
    assert max(sizes) < 0.45 and statistics.median(sizes) < 0.2, errors
    assert statistics.median(late) < 0.25, errors


@pytest.mark.parametrize("ahead", [1, 4])
def test_asynchronous_batches_overlap_unless_a_refit_waits_for_them(ahead):
    """A batch lasts G, a step's rest R: ahead + 1 batches in G + R, or one behind the other."""
    name = "recipes/llm/performance/grpo-qwen3-235b-32n8g-async-1off.yaml"
    late = {"grpo.async_grpo.max_trajectory_age_steps": ahead}
    p = planned(name, 5695.0, **late)
    generation = p.phases["generation"]
    rest = sum(p.phases.values()) - generation
    assert p.step_seconds == max((generation + rest) / (ahead + 1), rest)
    waits = planned(name, 5695.0, **late, **{"grpo.async_grpo.in_flight_weight_updates": False})
    assert waits.step_seconds == max(generation / ahead, rest) > p.step_seconds


def test_drafts_shorten_decoding():
    drafts = {f"{KWARGS}.speculative_config": {"method": "mtp", "num_speculative_tokens": 2}}
    plain, drafted = planned(EXAMPLE), planned(EXAMPLE, **drafts)
    assert plain.phases["generation"] / drafted.phases["generation"] == pytest.approx(
        1 + 0.8 + 0.64
    )


@pytest.mark.parametrize(("fp32", "states"), [(True, 6), (False, 4)])
@pytest.mark.parametrize("gpus", [8, 32])
def test_bytes_per_parameter_of_megatron(fp32, states, gpus):
    """[M]: bf16 weights, 4 + 2 with float32 gradients, and 10 / d of the optimizer.

    Precision-aware: of the float32 master weight only the half that the bf16 weight lacks, 2 bytes
    (store_param_remainders), and two float32 moments.
    """
    path = "policy.megatron_cfg.distributed_data_parallel_config.grad_reduce_in_fp32"
    change = {path: fp32, "policy.megatron_cfg.pipeline_model_parallel_size": 1}
    p = planned("grpo_math_8B_megatron.yaml", **change, **{"cluster.num_nodes": gpus // 8})
    each = sum(p.training[k] for k in ("weights", "gradients", "optimizer"))
    assert p.run.layout.pipeline == p.run.layout.tensor == 1
    assert each / p.run.model.parameters == pytest.approx(states + 10 / gpus, rel=1e-4)


def test_days_of_gpt3():
    """[L]: 34 days, with full recomputation."""
    gpt3 = facts(
        {"model_type": "gpt2", "n_layer": 96, "n_embd": 12288, "n_head": 96} | GPT3, "gpt3"
    )
    p = planned(EXAMPLE)
    flops = 4 * speed.forward_flops(replace(p.run, model=gpt3), 2048)
    assert gpt3.parameters == pytest.approx(175e9, rel=0.01)
    assert 300e9 * flops / (1024 * 140e12) / 86400 == pytest.approx(34, rel=0.05)


def test_a_model_that_the_shapes_do_not_explain_is_refused():
    p = planned(EXAMPLE)
    strange = p.run.model.model_copy(update={"parameters": 2 * p.run.model.parameters})
    with pytest.raises(ValueError, match=r"qwen3_moe.*50%"):
        plan(p.run.plain, strange, p.run.gpu)


def test_activations_by_hand():
    """Llama 8B: 8 h + 4 (a + kv) d + (2 d + 4) a + 6 f bytes a token and layer, flash attention."""
    p = planned("grpo_math_8B_megatron.yaml", **{"policy.megatron_cfg.sequence_parallel": False})
    run = training(p.run)
    tp, pp, tokens = run.parallel.tensor, run.parallel.pipeline, run.tokens
    inside = 4 * (32 + 8) * 128 + (2 * 128 + 4) * 32 + 6 * 14336
    layer = tokens * (8 * 4096 + inside / tp)
    assert p.training["activations"] == pytest.approx(layer * 32)
    assert pp == 2


def test_every_sum_has_the_range_of_what_was_measured(monkeypatch):
    """9 of 10 within 25 %: measured = predicted / 1.25 at the least, predicted / .75 at most."""
    assert all(0 < e["median"] < e["nine_of_ten"] < 0.5 for e in measured_errors().values())
    monkeypatch.setattr(report, "measured_errors", lambda: {"peak": {"nine_of_ten": 0.25}})
    assert report.within(60.0, "peak") == "60 (48 to 80)"


def test_the_parts_that_only_rl_has():
    p = planned(EXAMPLE, **UNFORCED)
    made = replace(training(p.run), micro_batch=scored_sequences(p.run))
    assert p.training["sleeping engine"] == 2e9 and p.log_probs["sleeping engine"] == 2e9
    one = memory.layer(made, "*E")
    assert p.log_probs["activations"] == one < p.training["activations"] / 20
    assert p.phases["reference log-probs"] == p.phases["log-probs"] > 0
    apart = planned("recipes/llm/performance/grpo-qwen3-30ba3b-4n8g-async-1off.yaml")
    assert "sleeping engine" not in apart.training and apart.phases["offloading"] == 0


def test_the_pass_for_log_probs_has_a_batch_of_its_own():
    """Its logits in float32, their softmax and gradient: 12 bytes of a number."""
    unpacked = UNFORCED | {"policy.sequence_packing.enabled": False}
    small, large = (
        planned(EXAMPLE, **unpacked, **{"policy.logprob_batch_size": n}) for n in (1, 64)
    )
    size = small.run["policy.max_total_sequence_length"] * small.run.model.vocab_size
    logits = 12 * size / small.run.layout.tensor
    assert small.log_probs["logits and log-probs"] == pytest.approx(logits)
    assert large.log_probs["logits and log-probs"] == pytest.approx(64 * logits)
    assert small.training == large.training
    assert small.scores and not large.scores
    assert large.misfits == ["the pass for log-probs does not fit the GPU"]
    change = search.remedy(large, accepts=lambda change: True)
    assert change == {"policy.logprob_batch_size": 4}
    assert not planned(EXAMPLE, **unpacked, **{"policy.logprob_batch_size": 8}).scores


def test_old_as_the_sampler_leaves_out_a_forward():
    three = planned(EXAMPLE, **UNFORCED)
    two = planned(EXAMPLE, **UNFORCED, rollout_correction={"preset": "bypass_pg_is"})
    assert two.phases == three.phases | {"log-probs": 0.0} and three.phases["log-probs"] > 0
    kept = planned(EXAMPLE, **UNFORCED, rollout_correction={"preset": "decoupled_token_is"})
    assert kept.phases == three.phases
    assert planned(EXAMPLE).phases == two.phases  # NeMo-RL's own skip, with a ratio of 1
    judged = planned(EXAMPLE, **{"grpo.seq_logprob_error_threshold": 2.0})
    assert judged.phases == three.phases


def test_a_small_model_is_bound_by_launches():
    """16 layers of two parts, 1.44 ms each forward and backward, so many micro-batches."""
    p = planned("recipes/llm/grpo-llama3.2-1b-instruct-1n8g-fsdp2tp1.v3.yaml")
    assert p.run.packing == "dynamic_batching"
    rounds = 512 * p.tokens / 8 / p.run["policy.dynamic_batching.train_mb_tokens"]
    assert p.phases["training"] == pytest.approx(rounds * 16 * 2 * 1.44e-3)


def test_without_packing_sequences_are_padded_to_the_longest():
    packed, padded = planned(EXAMPLE, 1000), planned(EXAMPLE, 1000, **{PACKED: False})
    assert padded.phases["training"] > 2.5 * packed.phases["training"]


def test_an_optimizer_on_the_host_costs_a_transfer_and_its_processors():
    """An update: 30.5B / 4 nodes at 1e9 a second, and 4 + 2 bytes of a GPU's share at 20 GB/s."""
    each = planned(EXAMPLE).run.model.parameters / 32
    p = planned(EXAMPLE, **OFFLOADED)
    gradient = training(p.run).states.gradient
    assert p.phases["optimizer on the host"] == pytest.approx(
        8 * each / 1e9 + (gradient + 2) * each / 20e9
    )
    assert planned(EXAMPLE).phases["optimizer on the host"] == 0


def test_training_in_fp8_is_faster():
    fp8 = {f"{MEGATRON}.fp8_cfg.enabled": True}
    dense = "recipes/llm/performance/grpo-qwen3-32b-4n8g.yaml"
    ratio = planned(dense, **fp8).phases["training"] / planned(dense).phases["training"]
    assert ratio == pytest.approx(1 / speed.FP8)


@pytest.mark.parametrize(
    ("model", "seconds"),
    [  # NeMo-RL's blog on v0.3, and docs/guides/checkpoint-engine-refit.md
        ("meta-llama/Llama-3.1-8B-Instruct", 5),
        ("meta-llama/Llama-3.3-70B-Instruct", 14),
        ("Qwen/Qwen3-32B", 12),
        ("Qwen/Qwen3-30B-A3B", 7),
        ("deepseek-ai/DeepSeek-V3", 36.8),
    ],
)
def test_refits_that_nemo_rl_published(model, seconds):
    run = replace(planned(EXAMPLE).run, model=table()[model])
    assert speed.phases(run, 1000)["refit"] == pytest.approx(seconds, rel=0.15)


def test_refit_by_hand():
    """48 layers of 0.14 s, and 2 bytes of 30.5B parameters at 48.2 GB a second."""
    assert planned(EXAMPLE).phases["refit"] == pytest.approx(6.72 + 61.06 / 48.2, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "longest"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", 1500),
        ("google/gemma-3-1b-it", 1500),
        ("a/b-Chat", 1500),
        ("/models/llama-3.1-8b-instruct", 1500),
        ("meta-llama/Llama-3.1-70B", 4096),
        ("Qwen/Qwen3-8B-Base", 4096),
        ("a/items", 4096),
    ],
)
def test_a_base_model_s_longest_response_runs_to_the_limit(name, longest):
    """Of 4096 tokens, where the mean is 500; others end by 3 times the mean."""
    p = planned(EXAMPLE, 500)
    run = replace(p.run, plain=with_keys(p.run.plain, {"policy.model_name": name}))
    assert speed.longest(run, 500) == longest


def test_without_a_mean_both_ends_are_shown(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(ERPO)
    run = CliRunner().invoke
    ends = json.loads(run(app, ["plan", str(file), "--json"]).stdout)["step_seconds_by_mean_tokens"]
    assert list(ends) == ["1024.0", "4096.0"]
    for tokens, seconds in ends.items():
        given = run(app, ["plan", str(file), "--json", "--mean-tokens", tokens]).stdout
        assert json.loads(given)["step_seconds"] == seconds
        assert "step_seconds_by_mean_tokens" not in json.loads(given)
    text = run(app, ["plan", str(file)]).stdout
    assert "--mean-tokens" in text and all(f"{s:,.0f} s" in text for s in ends.values())


def test_errors_of_check_with_another_model_are_errors(tmp_path):
    """10 key-value heads over 4 ranks of vLLM's: neither split nor copied."""
    sizes = {"hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 10}
    sizes |= {"num_hidden_layers": 40, "intermediate_size": 17920, "vocab_size": 100352}
    sizes |= {"model_type": "phi3", "pad_token_id": 0, "max_position_embeddings": 16384}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    asked = ["plan", "recipes/qwen3-32b-4n8g-tp4pp4.yaml", "--model", str(tmp_path)]
    tensor = "policy.generation.vllm_cfg.tensor_parallel_size"
    failed = CliRunner().invoke(app, asked)
    assert failed.exit_code == 2 and f"{tensor}: " in failed.stderr
    fits = CliRunner().invoke(
        app, [*asked, f"{tensor}=2", f"{MEGATRON}.tensor_model_parallel_size=2"]
    )
    assert fits.exit_code == 0, fits.stderr


def driver_log(*steps):
    """As NeMo-RL's trainers print it, the single controller's behind Ray's prefix."""
    lines = ["Setup • policy: 99.00s"]
    for parts in steps:
        lines += ["⏱️  Timing:", f"  • Total step time: {parts['total']:.2f}s"]
        others = {name: s for name, s in parts.items() if name != "total"}
        lines += [f"(Actor pid=3)   • {name}: {s:.2f}s (1.0%)" for name, s in others.items()]
        lines += ["  • Mean Generation Length: 512.0000"]
    return "\n".join(lines)


def step(total, generation, training, sync="weight_sync"):
    own = {"policy_and_reference_logprobs": 10.0, sync: 7.0, "checkpointing": 2.0}
    return {"total": total, generation[0]: generation[1], "policy_training": training} | own


def test_own_first_steps_correct_the_plan(tmp_path):
    """Medians without the first step, which compiles; the total is theirs."""
    file, run = tmp_path / "run.yaml", tmp_path / "run"
    file.write_text(ERPO)
    old, new = (run / "logs" / f"{n}-logs" / "ray-driver.log" for n in (1, 2))
    for log in (old, new):
        log.parent.mkdir(parents=True)
    old.write_text(driver_log({"total": 900.0}))
    sync = "prepare_for_generation/transfer_and_update_weights"
    of = [step(500, ("generation", 300), 60, sync), step(100, ("generation", 50), 20, sync)]
    new.write_text(driver_log(*of, step(120, ("generation", 60), 30, sync)))
    os.utime(old, (1, 1))
    asked = ["plan", str(file), "--steps", "90", "--measured"]
    numbers = json.loads(CliRunner().invoke(app, [*asked, str(run), "--json"]).stdout)
    assert numbers["measured_seconds"] == {
        "step": 110.0,
        "generation": 55.0,
        "log-probs": 10.0,
        "training": 25.0,
        "refit": 7.0,
        "rest": 13.0,
    }
    text = CliRunner().invoke(app, [*asked, str(new)]).stdout
    assert f"{90 * 110 * 32 / 3600:,.0f} GPU-hours" in text
    assert re.search(r"generation +\d+ +55 *\n", text)


def test_parts_of_an_asynchronous_plan_are_those_that_are_waited_for():
    p = planned("recipes/llm/performance/grpo-qwen3-30ba3b-4n8g-async-1off.yaml", 3201)
    parts = report.planned_parts(p)
    assert sum(parts.values()) == pytest.approx(2 * p.step_seconds) and p.overlaps
    assert parts["generation"] < p.phases["generation"]
    alone = report.planned_parts(planned(EXAMPLE))
    assert alone["generation"] == pytest.approx(planned(EXAMPLE).phases["generation"])


@pytest.mark.parametrize("text", [None, "", "• Total validation time: 3.00s"])
def test_a_log_without_steps(tmp_path, text):
    if text is not None:
        (tmp_path / "log").write_text(text)
    with pytest.raises(ValueError, match="--measured"):
        report.read_steps(tmp_path / "log")
    (tmp_path / "log").write_text(driver_log(step(500, ("exposed_generation", 300), 60)))
    assert report.read_steps(tmp_path / "log")["generation"] == 300


def test_a_page_with_prices(tmp_path):
    file, page = tmp_path / "run.yaml", tmp_path / "plan.html"
    file.write_text(ERPO)
    asked = ["--nodes", "4", "--top", "2", "--price", "2", "--steps", "50", "--html", str(page)]
    text = CliRunner().invoke(app, ["plan", str(file), *asked]).stdout
    hours = 50 * planned(EXAMPLE, **UNFORCED).step_seconds * 32 / 3600
    assert f"{hours:,.0f} GPU-hours, which cost {2 * hours:,.0f}" in text
    whole = planned(EXAMPLE).steps / 50 * hours
    assert f"{whole:,.0f} GPU-hours, which cost {2 * whole:,.0f}, without" in text
    assert "price" in text and "90 % of unseen tests" in text
    html = page.read_text()
    assert (
        html.count("<svg") == 2
        and "saves" in html
        and "as configured" in html
        and "sleeping engine" in html
    )
    assert not re.search(r'(src|href)="http|@import|url\(http', html)
    numbers = json.loads(CliRunner().invoke(app, ["plan", str(file), *asked, "--json"]).stdout)
    assert numbers["target"]["price"] == pytest.approx(2 * hours)
    assert numbers["relative_errors"] == measured_errors()


def test_the_command(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(ERPO)
    run = CliRunner().invoke
    numbers = json.loads(run(app, ["plan", str(file), "--json", "--nodes", "4"]).stdout)
    parts = numbers["training_bytes"]
    assert sum(parts.values()) < 80e9 and all(numbers["fits"].values())
    assert numbers["layouts"][0]["step_seconds"] <= numbers["step_seconds"]
    assert numbers["host_bytes"]["reference weights"] > 0  # ERPO's, also without a penalty
    text = run(app, ["plan", str(file)]).stdout
    assert "30.5B parameters" in text and "fits" in text
    for arguments, message in (
        (["--gpu", "H900"], "A100"),
        *((["--nodes", n], f"--nodes {n}: ") for n in ("four", "0", "4,0", ",")),
        *((["--price", n], f"--price {n}: ") for n in ("-1", "nan", "inf")),
        *((["--top", n], f"--top {n}: ") for n in ("0", "-3")),
        (["--mean-tokens", "-5"], "4096"),
        *((["--mean-tokens", n], "4096") for n in ("0", "nan", "inf", "4097")),
        (["policy.train_global_batch_size=abc", "cluster.num_nodes=null"], "cluster.num_nodes"),
        (["method.mikro=1"], "method"),
        (["policy.model_name=nobody/knows"], "config.json"),
        (["nemo_rl.config=grpo_math_1C.yaml"], "grpo_math_1B.yaml"),
        (["--model", "/" + 5000 * "a"], "a" * 9),
        (["engine=local"], "engine: "),
        (["--html", "/nope/plan.html"], "/nope "),
    ):
        failed = run(app, ["plan", str(file), *arguments])
        assert failed.exit_code == 2 and message in failed.stderr
    warned = run(app, ["plan", str(file), "policy.modell=3"])
    assert warned.exit_code == 0 and "policy.model_name" in warned.stderr


def test_the_end_is_the_last_epochs_where_that_comes_first(tmp_path):
    """95 rows in batches of 30: 3 steps an epoch, 2 epochs."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"input": "1 + 1", "output": "2"}\n' * 95)
    own = {"dataset_name": "ResponseDataset", "data_path": str(rows), "split_validation_size": 0}
    words = [f"data.train={json.dumps(own)}", "data.validation=null", "grpo.val_period=0"]
    words += ["grpo.max_num_steps=200", "grpo.num_prompts_per_step=30"]
    words += ["policy.train_global_batch_size=120"]
    words += ["grpo.max_num_epochs=2", "data.default.env_name=math", "--json"]
    done = CliRunner().invoke(app, ["plan", "nemo_rl.yaml", *words])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["target"]["steps"] == 6
