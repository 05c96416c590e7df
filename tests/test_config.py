"""Configs: inheritance, overrides, and one report with every error before torch is imported."""

import pickle
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel
from says import Says

from nemo_algos import config
from nemo_algos.algorithms.methods import METHODS
from nemo_algos.engines.local.schema import LocalConfig
from nemo_algos.findings import ConfigError, first_line
from nemo_algos.preflight.check.compose import compose
from nemo_algos.preflight.check.judge import check as judged
from nemo_algos.preflight.check.local.judge import parse
from nemo_algos.preflight.check.release import shipped

ROOT = Path(__file__).parents[1]
SHIPPED = ROOT / "examples" / "configs"


@pytest.fixture
def folder(tmp_path):
    """grandparent.yaml <- parent.yaml <- child.yaml."""
    write(tmp_path, "grandparent", "x: 1\ny: {p: 1, q: [1, 2]}\nz: a ${y.p}\n")
    write(tmp_path, "parent", "defaults: grandparent.yaml\ny: {p: 5}\n")
    write(tmp_path, "child", "defaults: parent.yaml\ny: {q: [9]}\n")
    return tmp_path


def write(folder, name, text):
    path = folder / f"{name}.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def problems(function, *args):
    with pytest.raises(ConfigError) as error:
        function(*args)
    assert not any("\n" in str(p) for p in error.value.findings)
    return [str(p) for p in error.value.findings]


def check(*overrides, name="etr.yaml"):
    return parse(config.load(SHIPPED / name, overrides))


# ---- files


def test_a_file_overrides_what_it_inherits(folder):
    want = {"x": 1, "y": {"p": 5, "q": [9]}, "z": "a 5"}
    assert config.load(folder / "child.yaml") == want


def test_names_are_looked_up_beside_the_file_and_later_ones_win(folder):
    (folder / "deep").mkdir()
    write(folder / "deep", "own", "x: 7\nw: 2\n")
    path = write(folder / "deep", "both", "defaults: [../parent.yaml, own.yaml]\nw: 3\n")
    assert config.load(path) == {"x": 7, "y": {"p": 5, "q": [1, 2]}, "z": "a 5", "w": 3}


def test_one_parent_twice_is_no_cycle(folder):
    path = write(folder, "twice", "defaults: [grandparent.yaml, parent.yaml]\n")
    assert config.load(path)["y"]["p"] == 5


@pytest.mark.parametrize("name", ["one", "two", "self"])
def test_a_cycle_is_refused(folder, name):
    for own, parent in (("one", "two"), ("two", "one"), ("self", "self")):
        write(folder, own, f"defaults: {parent}.yaml\n")
    assert problems(config.load, folder / f"{name}.yaml") == [Says(f"defaults: {name}.yaml")]


def test_a_missing_file_names_the_near_one(folder):
    missing, orphan = folder / "chid.yaml", write(folder, "orphan", "defaults: parnt.yaml\n")
    assert problems(config.load, missing) == [Says(f"{missing} child.yaml")]
    (problem,) = problems(config.load, orphan)
    assert problem == Says(f"{folder / 'parnt.yaml'} parent.yaml")
    (problem,) = problems(config.load, folder / "nowhere" / "child.yaml")
    assert problem == Says("child.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1,\nb: 2", "YAML:"),
        ("a: 1\n\tb: 2", "found a tab character"),
        ("a: 1\na: 2", "found duplicate key a"),
        ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        (b"\xff\xfe\x00a", "YAML"),
        ("- 1", "key: value"),
    ],
)
def test_a_file_that_is_not_a_config(folder, text, message):
    path = write(folder, "bad", text)
    (problem,) = problems(config.load, path)
    assert problem.startswith(str(path)) and message in problem


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: {b: '${nope}'}", "a.b: Interpolation key 'nope' not found"),
        ("a: ${b}\nb: ${a}", "a: Recursive interpolation detected"),
    ],
)
def test_an_interpolation_that_leads_nowhere_names_its_key(folder, text, message):
    assert problems(config.load, write(folder, "bad", text)) == [message]


# ---- overrides


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("x=2", "x", 2),
        ("y.p=1e-3", "y", {"p": 1e-3, "q": [1, 2]}),
        ("y.q.0=5", "y", {"p": 5, "q": [5, 2]}),
        ("y={p: 2}", "y", {"p": 2, "q": [1, 2]}),
        ("+new.key=true", "new", {"key": True}),
        ("++x=a=b", "x", "a=b"),
        ("x=", "x", ""),
        ("x=null", "x", None),
        ("y.p=3", "z", "a 3"),
        ("x=mine.py:NAME", "x", "mine.py:NAME"),
    ],
)
def test_overrides(folder, override, key, value):
    assert config.load(folder / "parent.yaml", [override])[key] == value


def test_every_malformed_override_is_named(folder):
    bad = ["x", "=1", "y..p=1", "y.p=[1", "y.q.7=1"]
    got = problems(config.load, folder / "parent.yaml", ["x=1", *bad])
    assert [p.split(": ")[0] for p in got] == [f"override {o!r}" for o in bad]
    assert all(p.endswith(" key.path=value") for p in got[:3])


# ---- the schema


def test_all_errors_at_once_with_path_and_nearest_name():
    got = problems(
        check,
        "grpo.sed=3",
        "grpo.num_prompts_per_step=many",
        "policy.optimizer.nam=x",
        "policy.generation.temperature=0",
        "loss_fn.ratio_clip_min=0.2",
        "data.numbers=9",
        "engin=local",
        "method.mirco=1",
        "checkpointing.save_period=0.5",
    )
    assert sorted(got) == [
        Says("checkpointing.save_period: integer 0.5"),
        Says("data.numbers: 6 9"),
        Says("engin: engine"),
        Says("grpo.num_prompts_per_step: integer 'many'"),
        Says("grpo.sed: seed"),
        Says("loss_fn: ratio_clip_min method.clip_low"),
        Says("method.mirco: micro"),
        Says("policy.generation.temperature: 0"),
        Says("policy.optimizer.nam: name"),
    ]


# the others: tests/real/nemo
LOCAL = sorted(p for p in SHIPPED.glob("*.yaml") if config.read(p).engine == "local")


@pytest.mark.parametrize("path", LOCAL, ids=lambda p: p.name)
def test_shipped_configs_parse_and_build(path):
    named = {  # what a file leaves to who uses it
        "local.yaml": ["method.name=grpo"],
        "math.yaml": ["policy.model_name=a/b", "data.train.data_path=train.jsonl"],
    }
    checked, algorithm = check(*named.get(path.name, []), name=path.name)
    if path.stem in METHODS:
        assert algorithm.name == path.stem
    batch = checked.grpo.num_prompts_per_step * checked.grpo.num_generations_per_prompt
    updates = checked.grpo.num_update_epochs * batch / checked.policy.train_global_batch_size
    assert updates > 1  # so that clipping bites


def test_a_parent_lies_beside_the_file_or_is_shipped(tmp_path):
    (tmp_path / "own.yaml").write_text("defaults: math.yaml\npolicy: {model_name: a/b}\n")
    assert config.load(tmp_path / "own.yaml")["policy"]["device"] == "auto"
    (tmp_path / "math.yaml").write_text("policy: {device: mine}\n")
    assert config.load(tmp_path / "own.yaml") == {"policy": {"device": "mine", "model_name": "a/b"}}


def test_shipped_files_are_read_once_and_no_config_is_another_s(monkeypatch):
    """Not what is written in it, nor below it in one of its sections."""
    for name in ("local.yaml", "etr.yaml"):  # without a parent, and with
        before = config.load(SHIPPED / name)
        changed = config.read(SHIPPED / name)
        changed.grpo.max_num_steps, changed["method"] = -7, "none"
        monkeypatch.setattr(config, "_read", None)
        assert config.load(SHIPPED / name) == before and "defaults" not in changed
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("error", "line"),
    [(OSError(), "OSError"), (ValueError(" \n"), "ValueError"), (ValueError("\na\nb"), "a")],
)
def test_an_error_without_a_message_is_told_by_its_type(error, line):
    assert first_line(error) == line


# ---- what a stranger's config names, and what Hydra reads

SECRETS = {
    "token": "hf_secretsecret\n",
    "token.txt": "machine example.org login me password hf_secretsecret\n",
    "credentials.yml": "key: hf_secretsecret\n",
    "one.yaml": "hf_secretsecret\n",
    "words.yaml": "machine example.org\n  password hf_secretsecret\n",
    "pairs.yaml": "'hf_secretsecret ': 3\n",
    "below.yaml": "policy: {'my hf_secretsecret': 3}\n",
    "linked.yaml": "",
}


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("parent", ["etr.yaml", "nemo_rl.yaml"])
def test_no_text_of_a_file_that_a_config_names_is_shown(name, parent, tmp_path):
    for other, text in SECRETS.items():
        (tmp_path / other).write_text(text)
    (tmp_path / "linked.yaml").unlink()
    (tmp_path / "linked.yaml").symlink_to(tmp_path / "token")
    write(tmp_path, "config", f"defaults: [{parent}, {name}]\n")
    findings = judged(str(tmp_path / "config.yaml"), [])
    assert {f.severity for f in findings} & {"error", "warning"}
    assert not [f for f in findings if "secret" in f"{f} {f._asdict()}"]


HYDRA = {  # as hydra.core.override_parser reads them
    "010": "010",
    "yes": "yes",
    "Off": "Off",
    "3:45:00": "3:45:00",
    "0x10": "0x10",
    ".inf": ".inf",
    "[010, on, 2]": ["010", "on", 2],
    "{a: 0b1}": {"a": "0b1"},
    "-1_000": -1000,
    "1e-5": 1e-5,
    "1e-05": 1e-5,
    "1.5e+06": 1.5e6,
    "-2e0_3": -2000.0,
    "01e5": "01e5",
    "1e": "1e",
    "+5": 5,
    ".5": 0.5,
    "5.": 5.0,
    "INF": float("inf"),
    "True": True,
    "NULL": None,
    "'1'": "1",
    "": "",
}


def test_an_override_is_what_hydra_reads(folder):
    for text, want in HYDRA.items():
        found = config.load(folder / "child.yaml", [f"x={text}"])["x"]
        assert (found, type(found)) == (want, type(want)), text


@pytest.mark.parametrize("number", [1e-5, 2.5e-7, 1e22, 0.1, -3e-300, 1 / 3])
def test_a_number_that_python_writes_is_that_number(folder, number):
    assert config.load(folder / "child.yaml", [f"x={number!r}"])["x"] == number


def test_an_error_of_another_process_arrives_whole(folder):
    with pytest.raises(ConfigError) as error:
        config.load(folder / "child.yaml", ["~x", "y"])
    there = pickle.loads(pickle.dumps(error.value))
    assert (there.findings, str(there)) == (error.value.findings, str(error.value))
    assert len(there.findings) == 2


def test_an_override_names_an_element_of_an_inherited_list():
    words = ["policy.scheduler.0.kwargs.start_factor=0.5", "policy.scheduler.2.milestones=[7]"]
    composed = compose(
        config.apply_overrides(config.read(SHIPPED / "nemo_rl.yaml"), words), shipped()
    )
    first, *_, last = composed.plain["policy"]["scheduler"]
    assert first["kwargs"]["start_factor"] == 0.5
    assert first["name"] == "torch.optim.lr_scheduler.LinearLR"
    assert last == {"milestones": [7]}
    assert not composed.unknown


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("~policy.lr", "`~` deletes a key in Hydra"),
        ("y.q.7=1", "list index out of range"),
        ("y.q.first=1", "y.q.first"),
    ],
)
def test_what_is_no_override_is_named(folder, word, said):
    assert said in "".join(problems(config.load, folder / "parent.yaml", [word]))


def integers(model, path=""):
    """Each whole number of a schema, by its path, with the field's bounds."""
    for name, field in model.model_fields.items():
        kinds = [field.annotation, *get_args(field.annotation)]
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from integers(kind, f"{path}{name}.")
        if int in kinds:
            yield f"{path}{name}", field.metadata


def test_every_number_of_the_embedded_engine_has_an_upper_bound():
    """One above it would end a run late, or the machine: of threads and seeds as of counts."""
    found = dict(integers(LocalConfig))
    assert len(found) > 25
    assert [path for path, metadata in found.items() if not any(map(is_upper, metadata))] == []
    for key in ("policy.threads=100000", "grpo.seed=99999999999999999999999"):
        assert problems(check, key)
    assert problems(check, "grpo.num_prompts_per_step=1000000000")


def is_upper(bound):
    return getattr(bound, "le", None) is not None


def test_a_negative_learning_rate_is_an_error():
    (found,) = [
        f for f in judged("nemo_rl.yaml", ["policy.optimizer.kwargs.lr=-1"]) if "lr" in f.path
    ]
    assert found.severity == "error"
