"""A folder with checkpoints: what saved the last one, and what a config changes of it."""

import dataclasses
import json

import pytest
import yaml
from matrix import some_of
from releases import MAIN
from strangers import BOMBS, KINDS

from nemo_algos.config import SHIPPED, apply_overrides, read
from nemo_algos.findings import set_at
from nemo_algos.preflight.check.judge import judge
from nemo_algos.preflight.check.rules import resume

FOLDER = "checkpointing.checkpoint_dir"
DTENSOR, MEGATRON = "policy.dtensor_cfg", "policy.megatron_cfg"
LORA, PEFT = f"{DTENSOR}.lora_cfg", f"{MEGATRON}.peft"
SCHEDULE = f"{MEGATRON}.scheduler"
SOUND = [("note", FOLDER)]
# what the checkpoint's config had, and how the config that would resume it is told
CHANGED = {
    "nemo_rl.yaml": {
        "policy.model_name": ("other/Model-1B", "error"),
        f"{LORA}.enabled": (True, "error"),
        "data.use_multiple_dataloader": (True, "error"),
        "policy.tokenizer.name": ("other/Model-1B", "warning"),
        "policy.optimizer.kwargs.lr": (0.5, "warning"),
        "loss_fn.ratio_clip_min": (0.9, "warning"),
        "grpo.num_prompts_per_step": (7, "warning"),
        "data.shuffle": ("no", "warning"),
        f"{MEGATRON}.optimizer.lr": (0.5, None),  # of the other backend
        f"{LORA}.dim": (3, None),  # of adapters that neither has
        "grpo.max_num_steps": (3, None),
        "cluster.num_nodes": (3, None),
        "policy.model_name moved": ("/disk/Qwen2.5-1.5B", None),
    },
    "lora": {
        f"{LORA}.enabled": (False, "error"),
        f"{LORA}.dim": (3, "error"),
        f"{LORA}.alpha": (3, "error"),
        f"{LORA}.match_all_linear": ("no", "error"),
        f"{LORA}.dropout": (0.5, None),
    },
    "dense.yaml": {
        f"{MEGATRON}.optimizer.lr": (0.5, "error"),
        f"{MEGATRON}.optimizer.min_lr": (0.5, "error"),
        f"{SCHEDULE}.lr_warmup_iters": (999, "error"),
        f"{PEFT}.enabled": (True, "error"),
        f"{MEGATRON}.tensor_model_parallel_size": (1, None),
    },
    "overridden": {
        f"{MEGATRON}.optimizer.lr": (0.5, None),
        f"{SCHEDULE}.lr_warmup_iters": (999, None),
    },
}
CHANGED["without an optimizer"] = CHANGED["overridden"]
CONFIGS = {
    "without an optimizer": ("dense.yaml", ["checkpointing.save_optimizer=false"]),
    "lora": ("nemo_rl.yaml", [f"{LORA}.enabled=true"]),
    "overridden": ("dense.yaml", [f"+{SCHEDULE}.override_opt_param_scheduler=true"]),
}


def config(name, *overrides):
    given, own = CONFIGS.get(name, (name, []))
    folder = SHIPPED if given == "nemo_rl.yaml" else resume.Path(__file__).parent
    return apply_overrides(read(folder / given), [f"{resume.KL}=0", *own, *overrides])


def said(name, folder, *overrides, release=MAIN):
    """The level and the key of what the rule finds."""
    run = judge(config(name, f"{FOLDER}={folder}", *overrides), release)[0]
    return [(one.severity, one.path) for one in resume.resume(run)]


def saved(name, folder, step=10):
    """A checkpoint as NeMo-RL saves it, and the config that it has."""
    plain = json.loads(json.dumps(judge(config(name), MAIN)[0].plain))
    sets = plain["data"]["train"]
    given = sets if isinstance(sets, list) else [sets]
    plain["data"]["train"] = [{**(plain["data"].get("default") or {}), **one} for one in given]
    (folder / f"step_{step}" / "policy/weights/model").mkdir(parents=True)
    (folder / f"step_{step}" / "training_info.json").write_text("{}")
    write(folder, plain, step)
    return plain


def write(folder, plain, step=10):
    (folder / f"step_{step}" / "config.yaml").write_text(yaml.safe_dump(plain))


@pytest.mark.parametrize("name", some_of(CHANGED, 6))
def test_what_a_resume_changes_of_the_checkpoint_is_told(name, tmp_path):
    plain = saved(name, tmp_path)
    assert said(name, tmp_path) == SOUND
    run = judge(config(name, f"{FOLDER}={tmp_path}"), MAIN)[0]
    for key, (before, level) in CHANGED[name].items():
        path = key.partition(" ")[0]
        changed = json.loads(json.dumps(plain))
        set_at(changed, path, before)
        write(tmp_path, changed)
        findings = [(f.severity, f.path) for f in resume.resume(run)]
        assert findings == SOUND + [(level, path)] * (level is not None), key


BACKENDS = {
    "DTensor": [f"{DTENSOR}._v2=false"],
    "DTensor v2": [f"{DTENSOR}._v2=true"],
    "Megatron": [f"{DTENSOR}.enabled=false", f"{MEGATRON}.enabled=true"],
}


KEYS = {"DTensor": f"{DTENSOR}.enabled", "DTensor v2": resume.V2, "Megatron": f"{MEGATRON}.enabled"}


@pytest.mark.parametrize("trainer", BACKENDS)
def test_a_backend_resumes_what_it_has_saved_alone(trainer, tmp_path):
    plain = saved("nemo_rl.yaml", tmp_path)
    for before in BACKENDS:
        set_at(plain, f"{MEGATRON}.enabled", before == "Megatron")
        set_at(plain, f"{DTENSOR}._v2", before == "DTensor v2")
        write(tmp_path, plain)
        findings = said("nemo_rl.yaml", tmp_path, *BACKENDS[trainer])
        wrong = ("error", KEYS[trainer])
        assert (wrong in findings) == (before != trainer), before


def test_the_last_checkpoint_is_whole_and_not_the_end(tmp_path):
    saved("nemo_rl.yaml", tmp_path, step=9)
    plain = saved("nemo_rl.yaml", tmp_path, step=10)
    set_at(plain, "policy.model_name", "other/Model-1B")
    write(tmp_path, plain, step=9)  # which is not the last
    (tmp_path / "tmp_step_11").mkdir()
    assert said("nemo_rl.yaml", tmp_path) == SOUND
    ended = ("warning", "grpo.max_num_steps")
    assert said("nemo_rl.yaml", tmp_path, "grpo.max_num_steps=10") == [*SOUND, ended]
    assert said("nemo_rl.yaml", tmp_path, "grpo.max_num_steps=11") == SOUND
    (tmp_path / "step_10/policy/weights/model").rmdir()
    assert said("nemo_rl.yaml", tmp_path) == [*SOUND, ("error", FOLDER)]
    (tmp_path / "step_10/policy/weights/model").mkdir()
    (tmp_path / "step_10/training_info.json").unlink()
    assert said("nemo_rl.yaml", tmp_path) == [*SOUND, ("error", FOLDER)]
    assert said("nemo_rl.yaml", tmp_path / "step_9") == []


def test_other_rows_of_the_same_kind_begin_in_the_middle(tmp_path):
    plain = saved("nemo_rl.yaml", tmp_path)
    told = [*SOUND, ("warning", "data.train")]
    for path, expected in {"two.jsonl": SOUND, "other.jsonl": told}.items():
        plain["data"]["train"][0]["data_path"] = path
        write(tmp_path, plain)
        assert said("nemo_rl.yaml", tmp_path, "data.train.data_path=two.jsonl") == expected


def test_the_reference_of_a_resumed_run_is_told_where_it_is_the_checkpoint_s(tmp_path):
    plain = saved("nemo_rl.yaml", tmp_path)
    set_at(plain, resume.KL, 0.01)
    write(tmp_path, plain)
    told = ("warning", resume.KL)
    penalty = f"{resume.KL}=0.01"
    facts = MAIN.facts | {"DTensor v2 has what it resumes as its reference": False}
    mended = dataclasses.replace(MAIN, facts=facts)
    assert told in said("nemo_rl.yaml", tmp_path, penalty)
    assert told not in said("nemo_rl.yaml", tmp_path, penalty, release=mended)
    assert told not in said("nemo_rl.yaml", tmp_path, penalty, f"{DTENSOR}._v2=false")
    assert told not in said("nemo_rl.yaml", tmp_path / "none", penalty)


def test_a_saved_config_from_anyone_is_data(tmp_path):
    saved("nemo_rl.yaml", tmp_path)
    run = judge(config("nemo_rl.yaml", f"{FOLDER}={tmp_path}"), MAIN)[0]
    file = tmp_path / "step_10/config.yaml"
    own = "policy: {dtensor_cfg: {_v2: true}, model_name: &b11"
    laughs = BOMBS["anchors"].replace("b11: &b11", own) + "}\ndata: {train: *b11}"
    texts = [laughs, BOMBS["code"], "[" * 9999, "a: 1\n" * 10**6, "data: x"]
    kinds = [KINDS[name] for name in ("empty", "null", "noise", "another type", "a NUL")]
    for content in [*kinds, *(text.encode() for text in texts)]:
        file.write_bytes(content)
        findings = [*resume.resume(run)]
        assert sum(len(one.message) for one in findings) < 2000, content[:99]
        assert findings[0].severity == "note", content[:99]
    file.unlink()
    resume.os.mkfifo(file)
    assert [one.severity for one in resume.resume(run)] == ["note"]
    file.unlink()
    assert [one.severity for one in resume.resume(run)] == ["note"]
