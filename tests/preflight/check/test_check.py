"""`nemo-algos check`: planted mistakes are found by their rules, and what runs is left alone."""

import copy
import dataclasses
import json
import pickle
import re
import runpy
from pathlib import Path

import pytest
from matrix import one_of_each, some_of
from mistakes import DENSE, MISTAKES, MOE, ONE, RIGHT, SHARED
from releases import MAIN
from says import Says
from typer.testing import CliRunner

from nemo_algos.cli import app
from nemo_algos.config import SHIPPED, apply_overrides, read
from nemo_algos.findings import ConfigError, at
from nemo_algos.preflight.check import judge as module
from nemo_algos.preflight.check.compose import compose
from nemo_algos.preflight.check.judge import RULES, check, judge_composed
from nemo_algos.preflight.check.release import shipped
from nemo_algos.preflight.check.rule import divisors, near
from nemo_algos.preflight.forecast import this_run
from nemo_algos.preflight.plan import report
from nemo_algos.preflight.plan.layouts import plan
from nemo_algos.preflight.plan.nemo_rl_arguments import GPUS
from nemo_algos.preflight.slurm.batch import Job
from nemo_algos.preflight.slurm.placement import Sizes
from nemo_algos.preflight.slurm.prepare import prepare

HERE = Path(__file__).parent
# a NeMo-RL with two slips of v0.7.0
SLIPS = ("ignored layers are a nested list", "powers of two stop the engine")
OLD = dataclasses.replace(MAIN, facts=MAIN.facts | dict.fromkeys(SLIPS, True))
# a NeMo-RL of November, whose controller has workers for advantages
NEWER = {
    "async_rl.num_advantage_workers": {"type": "integer", "default": 0},
    "checkpointing.save_data_plane": {"type": "boolean", "default": False},
}
NEW = dataclasses.replace(MAIN, schema=MAIN.schema | NEWER)
OTHERS = {"old_quantisation": OLD, "signals": NEW}


def copied(plain):
    """As copy.deepcopy, in a third of its time, of which there are thousands."""
    return pickle.loads(pickle.dumps(plain))


def path_of(config):
    return str(HERE / config if (HERE / config).exists() else SHIPPED / config)


def found(config, overrides, path, words, release=MAIN):
    """The findings at (or below) this path whose message has these words."""
    findings = check(path_of(config), overrides, release)
    return [f for f in findings if f.path.startswith(path) and f.message == Says(words)]


@pytest.mark.parametrize(
    "mistake",
    one_of_each([*MISTAKES, *SHARED], lambda m: (m.rule, m.severity, m.path.split(".")[0])),
    ids=lambda m: f"{m[0]}-{m[4]}",
)
def test_a_planted_mistake_is_found_by_its_rule_alone(mistake, monkeypatch):
    rule, config, overrides, severity, path, words = mistake
    monkeypatch.delenv("WANDB_MODE")
    release, own = OTHERS.get(rule, MAIN), []

    def heard(each):
        def listened(run):
            for finding in each(run):
                own.extend([finding] if each.__name__ == rule else [])
                yield finding

        return listened

    monkeypatch.setattr(module, "RULES", [heard(each) for each in RULES])
    said = [f for f in found(config, overrides, path, words, release) if f.severity == severity]
    assert len(said) == 1
    assert mistake in SHARED or any(finding is said[0] for finding in own)
    for number in proposed(said[0]):
        cured = found(config, [*overrides, f"{said[0].path}={number}"], said[0].path, "", release)
        wrong = sentence(said[0])
        assert wrong not in [sentence(f) for f in cured], number


def sentence(finding):
    """What is wrong, whatever the numbers."""
    return re.sub(r"[\d,]+", "", finding.message.partition("Set it to")[0])


def proposed(finding):
    """The numbers that the message tells the user to set."""
    numbers = re.search(r"Set it to ((?:\d+, )*\d+(?: or \d+)?)[.,]", finding.message)
    return re.findall(r"\d+", numbers[1]) if numbers else []


def test_the_nearest_divisors_are_proposed():
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    assert near(5, divisors(12)) == "3, 4 or 6"
    assert near(1, [1]) == "1"
    (batch,) = found(ONE, ["policy.train_global_batch_size=96"], "policy.train_global_batch", "")
    assert proposed(batch) == ["32", "64", "128"]


def test_seven_ranks_divide_no_step_of_512():
    (said,) = found(ONE, ["cluster.gpus_per_node=7"], "", "multiple of the 7")
    assert said.message == Says("grpo.num_prompts_per_step") and not proposed(said)


# one that each source of findings refuses: NeMo-RL's schema, a method, FP8, rules
OF_ALL = ("values", "method", "fp8", "one_backend", "updates", "own_rewards", "environments")


@pytest.mark.parametrize("rule", [*OF_ALL, "samplers"])
def test_plan_and_slurm_refuse_what_check_refuses(rule, tmp_path):
    """With the same sentences; tests/real/nemo has the launcher."""
    errors = [m for m in [*MISTAKES, *SHARED] if m.rule == rule and m.severity == "error"]
    config, overrides = errors[0].config, errors[0].overrides
    file = path_of(config)
    errors = [str(f) for f in check(file, overrides, shipped()) if f.severity == "error"]
    planned = CliRunner().invoke(app, ["plan", file, *overrides])
    said = [line for line in planned.stderr.splitlines() if not line.startswith("warning ")]
    assert (planned.exit_code, said) == (2, errors) and errors
    with pytest.raises(ConfigError) as error:
        prepare(Path(file), overrides, Job("a", "b:c", tmp_path), tmp_path, Sizes())
    assert set(errors) <= {str(f) for f in error.value.findings}


@pytest.mark.parametrize(("config", "overrides"), some_of(RIGHT, 60))
def test_what_is_close_to_a_mistake_and_right_is_left_alone(config, overrides):
    assert not [f for f in check(path_of(config), overrides, MAIN) if f.severity != "note"]


def test_a_section_that_one_run_replaces_is_there_for_the_next():
    """NeMo-RL's configs are taken in once and serve every judgement."""
    written, release = apply_overrides(read(SHIPPED / "nemo_rl.yaml"), []), MAIN
    before = compose(written.copy(), release).plain
    replaced = apply_overrides(written.copy(), ["env._override_=true", "env.math.num_workers=3"])
    assert compose(replaced, release).plain["env"]["math"] == {"num_workers": 3}
    assert compose(written.copy(), release).plain == before


def test_every_rule_has_a_planted_mistake():
    assert {rule.__name__ for rule in RULES} == {m[0] for m in MISTAKES}


def test_the_list_of_rules_is_current():
    made = runpy.run_path(str(HERE.parents[2] / "scripts" / "rules.py"))
    assert made["PAGE"].read_text() == made["page"](), "run scripts/rules.py"


@pytest.mark.parametrize("config", [DENSE, MOE])
def test_the_configs_of_these_tests_give_no_false_alarm(config):
    assert not [f for f in check(str(HERE / config), [], MAIN) if f.severity != "note"]


LONG = "/" + 5000 * "a"
# null or absent in NeMo-RL's own config, so that their type does not show there
TYPED = (
    "data.num_prompts_per_dataloader", "grpo.skip_reference_policy_logprobs_calculation",
    "grpo.stop_at_validation_threshold", "on_policy_distillation.enabled",
    "policy.dtensor_cfg.dp_replicate_size", "policy.generation.colocated.resources.num_nodes",
    "policy.generation.top_k", "policy.generation.vllm_cfg.is_mx", "policy.logprob_chunk_size",
    "policy.reward_model_cfg.enabled",
)  # fmt: skip
ODD = [(ONE, None), (ONE, []), (ONE, LONG), (ONE, 0), (MOE, "x"), (MOE, -1.5), (MOE, 1e300)]


@pytest.mark.parametrize(("config", "value"), some_of(ODD, 2), ids=lambda x: repr(x)[:8])
def test_a_wrong_value_anywhere_is_survived(config, value):
    """A finding or none, never an exception; what has no error can be planned."""
    composed = compose(apply_overrides(read(Path(path_of(config))), []), MAIN)
    composed.plain["grpo"]["max_num_steps"] = 50  # the rates of a million take a while
    paths = {*_paths(composed.plain), *TYPED}
    assert len(paths) > 300
    for path in paths:
        plain = _with(composed.plain, path, value)
        run, findings = judge_composed(composed._replace(plain=plain))
        if run.algorithm:
            foretold = this_run.forecast_of(run)
            assert list(this_run.lines(run, foretold, drawn=True))
            assert json.dumps(this_run.as_json(foretold), allow_nan=False)
        if run.model and not [f for f in findings if f.severity == "error"]:
            p = plan(run.plain, run.model, GPUS["H100"])
            list(report.tables(p, None, report.totals(p, 100), {}))


@pytest.mark.parametrize("path", TYPED)
def test_a_text_that_stands_for_a_number_or_a_flag_is_refused(path):
    """NeMo-RL would turn it into what no rule has seen."""
    severities = [f.severity for f in found(ONE, [f"{path}='0'"], path, "'0'")]
    assert severities == ["error"]


def _paths(section, prefix=""):
    for key, value in section.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _paths(value, f"{prefix}{key}.")


def _with(plain, path, value):
    changed = copied(plain)
    parent, _, key = path.rpartition(".")
    section = at(changed, parent) if parent else changed
    if isinstance(section, dict):
        section[key] = value
    return changed


def test_all_mistakes_come_at_once():
    overrides = ["polcy.x=1", "cluster.gpus_per_node=x", "policy.train_global_batch_size=100"]
    findings = check(ONE, [*overrides, "method.name=etrr", "loss_fn.use_cispo=true"], MAIN)
    paths = {f.path for f in findings if f.severity == "error"}
    assert {"polcy", "cluster.gpus_per_node", "method.name"} <= paths
    assert "policy.train_global_batch_size" in paths


def test_errors_come_first():
    severities = [f.severity for f in check(ONE, ["loss_fn.x=1", "policy.max_grad_norm=x"], MAIN)]
    order = ("error", "warning", "note")
    assert severities == sorted(severities, key=order.index)


def test_a_job_s_time_is_compared_with_the_last_save():
    path = "checkpointing.checkpoint_must_save_by"

    def said(by):
        findings = check(ONE, [f"{path}={by}"], MAIN, seconds=4 * 3600)
        return [f.severity for f in findings if f.path == path]

    assert said("'00:03:45:00'") == []
    assert said("'00:04:00:00'") == ["error"]
    assert said("null") == ["warning"]


def test_a_model_offline_must_be_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert found(ONE, [], "policy.model_name", "download")
    (tmp_path / "hub" / "models--Qwen--Qwen2.5-1.5B").mkdir(parents=True)
    assert not found(ONE, [], "policy.model_name", "")
    assert not found(ONE, ["policy.model_name=fresh"], "policy.model_name", "download")  # a folder


def test_a_folder_s_own_facts_are_read(tmp_path):
    facts = {"num_hidden_layers": 2, "hidden_size": 70, "num_attention_heads": 7}
    facts |= {"intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 64}
    facts["model_type"] = "llama"
    (tmp_path / "config.json").write_text(json.dumps(facts))
    overrides = [f"policy.model_name={tmp_path}", "policy.max_total_sequence_length=128"]
    assert found(ONE, overrides, "policy.max_total_sequence_length", "64 positions")
    wider = "+policy.hf_config_overrides.max_position_embeddings=128"
    assert not found(ONE, [*overrides, wider], "policy.max_total_sequence_length", "")


def test_a_missing_v2_is_false():
    """As NeMo-RL reads it; its own configs have the key, or inherit it."""
    composed = compose(apply_overrides(read(Path(path_of(ONE))), []), MAIN)
    path = "checkpointing.model_save_format"
    before = judge_composed(composed._replace(plain=copy.deepcopy(composed.plain)))[1]
    assert [f.severity for f in before if f.path == path] == ["note"]
    del composed.plain["policy"]["dtensor_cfg"]["_v2"]
    (finding,) = [f for f in judge_composed(composed)[1] if f.path == path]
    assert finding.severity == "error" and "save" in finding.message


@pytest.mark.parametrize(
    ("base", "key", "value"),
    [
        ("performance/grpo-deepseek-v3-64n4g-async-1off", "force_on_policy_ratio", False),
        (
            "grpo-cispo-mm1-async-lag1-highoffpolicy-qwen3-30ba3b-3n8g-megatron-cispo",
            "use_cispo",
            False,
        ),
    ],
)
def test_the_method_decides_what_a_base_config_has(base, key, value):
    """It trains with the method's ratio, and a note says so."""
    written = apply_overrides(read(SHIPPED / ONE), [f"nemo_rl.config=recipes/llm/{base}.yaml"])
    assert MAIN.configs[f"recipes/llm/{base}.yaml"]["loss_fn"][key] is not value
    run, findings = module.judge(written, MAIN)
    assert run[f"loss_fn.{key}"] is value
    assert [f.severity for f in findings if f.path == f"loss_fn.{key}"] == ["note"]


def test_a_prompt_file_is_read(tmp_path):
    prompt = tmp_path / "p.txt"
    prompt.write_text("End with Answer: x. {}")
    overrides = [f"data.default.prompt_file={prompt}"]
    assert found(ONE, overrides, "env.math.math_verify_impl", "boxed")
    both = [*overrides, "env.math.math_verify_impl=dapo_math_verify"]
    assert not found(ONE, both, "env.math", "")


def test_the_embedded_engine_is_checked():
    (finding,) = check("etr.yaml", ["grpo.num_prompts_per_stepp=1"])
    assert (finding.severity, finding.path) == ("error", "grpo.num_prompts_per_stepp")


def run(*args):
    return CliRunner().invoke(app, ["check", *args])


def test_the_command():
    done = run(ONE)
    assert done.exit_code == 0 and done.output.startswith(f"judged by {shipped().name}")
    wrong = run(ONE, "policy.train_global_batch_size=96")
    assert wrong.exit_code == 1 and "errors: 1" in wrong.output
    assert "policy.train_global_batch_size: " in wrong.output
    whole = json.loads(run(ONE, "policy.train_global_batch_size=96", "--json").output)
    first = whole["findings"][0]
    assert whole["this_run"]["rewards"]["short"] == [1, 0]
    assert (first["path"], first["nemo_rl"]) == ("policy.train_global_batch_size", shipped().name)
    assert "\nwarning" in run(ONE, "--time", "4:00:00").output
    assert run("no.yaml").exit_code == 2


def test_an_unknown_key_of_the_shipped_nemo_rl_is_a_warning():
    """A newer one may have it; the user's own NeMo-RL decides."""
    (said,) = found(ONE, ["loss_fn.metrics_lvl=1"], "loss_fn.metrics_lvl", "--nemo-rl", shipped())
    assert said.severity == "warning"
    (said,) = found(ONE, ["loss_fn.metrics_lvl=1"], "loss_fn.metrics_lvl", "unknown key")
    assert said.severity == "error"


def test_every_rule_has_a_source():
    lines = (HERE / "sources.txt").read_text().splitlines()
    named = [line.split(maxsplit=1) for line in lines if line and line[0] != "#"]
    assert sorted(name for name, source in named) == sorted(rule.__name__ for rule in RULES)
