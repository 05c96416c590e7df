"""A checkout of NeMo-RL is read as text: its types, configs, environments, data sets and facts."""

import dataclasses

import pytest
import releases
from typer.testing import CliRunner

from nemo_algos.cli import app
from nemo_algos.preflight.check import release
from nemo_algos.preflight.check.annotations import schemas
from nemo_algos.preflight.check.judge import check
from nemo_algos.preflight.check.keys import unknown_keys
from nemo_algos.preflight.check.registries import constructors, listed
from nemo_algos.preflight.check.release import FACTS, READS, find, shipped

TYPES = """
from typing import Annotated, Any, Literal, NotRequired, Optional, TypedDict, Union
from enum import Enum
from pydantic import BaseModel, Field, PositiveInt
from pkg.other import Inner as Renamed, MODES
import somewhere

Alias = Literal["a", "b"]

class Kind(str, Enum):
    one = "1"
    two = "2"

class Base(BaseModel):
    low: int = Field(default=3, ge=1, lt=9)

class Fifo(BaseModel):
    name: Literal["fifo"] = "fifo"
    window: PositiveInt = 2

class Custom(BaseModel):
    name: Literal["custom"] = "custom"
    target: str

class Config(Base):
    alias: Alias | None = None
    kind: Kind
    whole: "Optional[int]"
    lists: list[Renamed] | None
    foreign: somewhere.Thing
    loose: str | somewhere.Path
    share: Annotated[float, Field(gt=0, le=1)] = 0.5
    mode: MODES
    sampler: Annotated[Union[Fifo, Custom], Field(discriminator="name")]
    nested: NotRequired["Renamed"]
    counted: Counted
    made: Literal["a", Counted.one]
    level: float = Field(0.1, gt=0, lt=TOP)
    elsewhere: somewhere.Base
    null: Literal["a", None] = None
    odd: Annotated[Union[Fifo, Base], Field(discriminator="name")]
    either: Annotated[Union[Custom, Many], Field(discriminator="name")]

class Counted(Enum):
    one = auto()
    two = "2"

class Many(BaseModel):
    name: Literal["x", "y"]

class First(BaseModel):
    low: str

class Both(First, Base):
    pass

class Alike(somewhere.Config):
    low: int

class Holder(BaseModel):
    alike: Alike
"""
OTHER = """
from typing import Literal, TypedDict
MODES = Literal["x"]
class Inner(TypedDict, total=False):
    deep: bool
"""
FEW = dataclasses.replace(  # its examples without their recipes: ten times faster to read
    releases.MAIN, configs={n: c for n, c in releases.MAIN.configs.items() if "/" not in n}
)
DEEP = {"deep": {"type": "boolean"}}
NULL = {"type": "null"}
LOW = {"type": "integer", "minimum": 1, "exclusiveMaximum": 9, "default": 3}


def test_annotations_become_schemas(tmp_path):
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "types.py").write_text(TYPES)
    (package / "other.py").write_text(OTHER)
    fifo = {
        "name": {"const": "fifo", "type": "string", "default": "fifo"},
        "window": {"type": "integer", "exclusiveMinimum": 0, "default": 2},
    }
    custom = {
        "name": {"const": "custom", "type": "string", "default": "custom"},
        "target": {"type": "string"},
    }
    many = {"name": {"enum": ["x", "y"], "type": "string"}}
    name = {"anyOf": [fifo["name"], custom["name"]]}
    assert schemas(tmp_path, {"": "pkg.types:Config"}) == {
        "alias": {"anyOf": [{"enum": ["a", "b"], "type": "string"}, NULL]},
        "counted": {},
        "either": {
            "type": "object",
            "chooser": "name",
            "variants": {"custom": custom, "x": many, "y": many},
        },
        "either.name": {"anyOf": [custom["name"], many["name"]]},
        "either.target": {"type": "string"},
        "elsewhere": {},
        "foreign": {},
        "kind": {"enum": ["1", "2"], "type": "string"},
        "lists": {"anyOf": [{"type": "array", "items": {"type": "object"}}, NULL]},
        "level": {"type": "number", "exclusiveMinimum": 0, "default": 0.1},
        "loose": {},
        "lists.deep": {"type": "boolean"},
        "low": LOW,
        "made": {},
        "mode": {"const": "x", "type": "string"},
        "nested": {"type": "object"},
        "nested.deep": {"type": "boolean"},
        "null": {"enum": ["a", None]},
        "odd": {"type": "object"},
        "odd.low": LOW,
        "odd.name": fifo["name"],
        "odd.window": fifo["window"],
        "sampler": {
            "type": "object",
            "chooser": "name",
            "variants": {"fifo": fifo, "custom": custom},
        },
        "sampler.name": name,
        "sampler.target": {"type": "string"},
        "sampler.window": fifo["window"],
        "share": {"type": "number", "exclusiveMinimum": 0, "maximum": 1, "default": 0.5},
        "whole": {"anyOf": [{"type": "integer"}, NULL]},
    }
    assert schemas(tmp_path, {"": "pkg.types:Both"}) == {"low": {"type": "string"}}
    below = schemas(tmp_path, {"": "pkg.types:Holder"})
    assert below == {"alike": {}}


@pytest.fixture(name="checkout", scope="session")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nemo-rl")
    releases.write(folder, FEW)
    return folder


def test_a_checkout_reads_as_it_is(checkout):
    """All of the shipped NeMo-RL's 620 typed keys, written as types and read again."""
    found = find(str(checkout))
    different = {k for k in shipped().schema if found.schema.get(k) != shipped().schema[k]}
    assert found.schema.keys() == shipped().schema.keys() and not different
    assert found.environments == shipped().environments
    assert found.data_set_keys == shipped().data_set_keys
    read = constructors(checkout)
    assert len(read) == 60
    assert read == {what: shipped().fields[what] for what in read}
    assert found.configs == FEW.configs and len(found.grpo) > 10
    assert {fact for fact in FACTS if found.facts[fact]} == {"asynchronous GRPO takes images"}


def test_a_config_goes_over_others(tmp_path):
    texts = {
        "a.yaml": "x:\n  one: 1\n  two: ${x.one}\ny: {z: 1}\n",
        "b.yaml": "defaults: a.yaml\nx: {two: 2}\nlist: [1, 2]\n",
        "deep/c.yaml": "defaults: [../a.yaml, ../b.yaml]\nx: {_override_: true, new: 1}\n"
        "list: [3]\n",
    }
    (tmp_path / "deep").mkdir()
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    merged = release.inherited(tmp_path / "deep" / "c.yaml")
    assert merged == {"x": {"new": 1}, "y": {"z": 1}, "list": [3]}
    assert release.inherited(tmp_path / "b.yaml") == {
        "x": {"one": 1, "two": 2},
        "y": {"z": 1},
        "list": [1, 2],
    }


@pytest.mark.parametrize(
    ("code", "reads"),
    [
        ("if grpo.overlong_filtering:\n    mask()", True),
        ("keep = config['overlong_filtering']", True),
        ("if grpo.overlong_filtering:\n    raise ValueError", False),
        ("if other:\n    raise ValueError\nelse:\n    mask(grpo.overlong_filtering)", True),
        ("assert not grpo.overlong_filtering", False),
        ("step()", False),
    ],
)
def test_a_key_that_is_only_refused_is_not_read(tmp_path, code, reads):
    releases.write(tmp_path, FEW)
    (tmp_path / "nemo_rl/algorithms/single_controller_utils").mkdir()
    (tmp_path / "nemo_rl/algorithms/single_controller_utils/advantage_stage.py").write_text(code)
    assert find(str(tmp_path)).facts[f"{READS}grpo.overlong_filtering"] is reads


@pytest.mark.parametrize("keyword", ["def", "async def"])
def test_code_shows_a_fact_whatever_its_message_says(tmp_path, keyword):
    releases.write(tmp_path, FEW)
    file = tmp_path / "nemo_rl" / "algorithms" / "grpo.py"
    body = 'if 1:\n        assert not colocated_inference, "x"\n'
    file.write_text(f"{keyword} async_grpo_train():\n    {body}")
    found = find(str(tmp_path)).facts
    assert found["asynchronous GRPO needs GPUs of its own"]
    assert not found["asynchronous GRPO takes images"]
    release.read.cache_clear()
    release.module.cache_clear()
    file.write_text(f"{keyword} async_grpo_train(processor):\n    {body}")
    assert find(str(tmp_path)).facts["asynchronous GRPO takes images"]


def test_a_key_of_another_config_alone_is_a_warning(tmp_path):
    """NeMo-RL's types lack some keys that its code reads, and some that it reads no more."""
    releases.write(tmp_path, FEW)
    (tmp_path / "examples" / "nemo_gym").mkdir()
    own = tmp_path / "examples" / "nemo_gym" / "grpo.yaml"
    own.write_text("defaults: ../configs/grpo_math_1B.yaml\npolicy: {stale: 1}\n")
    found = find(str(tmp_path))
    assert "nemo_gym/grpo.yaml" in found.grpo
    base = found.configs["grpo_math_1B.yaml"]
    (finding,) = unknown_keys({"policy": {"stale": 2}}, base, found)
    assert (finding.path, finding.severity) == ("policy.stale", "warning")
    assert "nemo_gym/grpo.yaml" in finding.message
    (finding,) = unknown_keys({"policy": {"stael": 2}}, base, found)
    assert finding.severity == "error"


def test_broken_configs_of_a_checkout_are_named(tmp_path):
    """A template beside them, which is no YAML, is not."""
    releases.write(tmp_path, FEW)
    folder = tmp_path / "examples" / "configs"
    texts = {"loop": "defaults: again.yaml\n", "again": "defaults: loop.yaml\n"}
    texts |= {"torn": "a: [", "list": "[1, 2]\n"}
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text)
    found = find(str(tmp_path))
    for name in texts:
        with pytest.raises(ValueError, match=rf"{name}\.yaml"):
            found.configs[f"{name}.yaml"]
    base = found.configs["grpo_math_1B.yaml"]
    assert [f.severity for f in unknown_keys({"policy": {"x": 1}}, base, found)] == ["error"]


def test_its_name_is_read_from_gits_files(tmp_path):
    """A stranger's clone may name programs that git would run."""
    releases.write(tmp_path, FEW)
    info = "MAJOR = 0\nMINOR = 8\nPATCH = 1\n"
    (tmp_path / "nemo_rl" / "package_info.py").write_text(info)
    assert release.read(tmp_path).name == "NeMo-RL 0.8.1"
    (tmp_path / ".git" / "refs" / "heads").mkdir(parents=True)
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / ".git" / "packed-refs").write_text(f"# pack-refs\n{'a' * 40} refs/heads/main\n")
    release.read.cache_clear()
    assert release.read(tmp_path).name == "NeMo-RL 0.8.1 at commit aaaaaaaaa"
    (tmp_path / ".git" / "refs" / "heads" / "main").write_text("b" * 40 + "\n")
    release.read.cache_clear()
    assert release.read(tmp_path).name == "NeMo-RL 0.8.1 at commit bbbbbbbbb"
    (tmp_path / ".git" / "HEAD").write_text("c" * 40 + "\n")
    release.read.cache_clear()
    assert release.read(tmp_path).name == "NeMo-RL 0.8.1 at commit ccccccccc"


def test_which_nemo_rl_it_is(checkout, tmp_path, monkeypatch):
    monkeypatch.delenv("NEMO_RL_HOME", raising=False)
    assert find() is shipped()
    monkeypatch.chdir(checkout)
    assert find().root == checkout
    monkeypatch.setenv("NEMO_RL_HOME", str(tmp_path))
    with pytest.raises(ValueError, match=r"\$NEMO_RL_HOME .* not a folder with a NeMo-RL checkout"):
        find()
    assert find(str(checkout)).root == checkout
    with pytest.raises(ValueError, match=r"--nemo-rl v0\.8\.0: .*git clone .* --branch v0\.8\.0 "):
        find("v0.8.0")


def test_the_commands_judge_by_the_checkout(checkout):
    """A key that it lacks is an error, whatever the shipped NeMo-RL has."""
    overrides = ["nemo_rl.yaml", "loss_fn.metrics_lvl=1", "--nemo-rl", str(checkout)]
    for command, status in {"check": 1, "plan": 2}.items():
        done = CliRunner().invoke(app, [command, *overrides])
        assert done.exit_code == status and "loss_fn.metrics_lvl: unknown key" in done.output


def test_an_engines_arguments_are_those_of_the_environment_that_generates(tmp_path):
    root = tmp_path / "checkout"
    releases.write(root, FEW)
    engine = root / "venvs/Worker/lib/python3.12/site-packages/vllm/engine"
    engine.mkdir(parents=True)
    text = "class EngineArgs:\n    a: int = 1\n    def b(self): ...\n\n"
    text += "class AsyncEngineArgs(EngineArgs):\n    c: str\n\nclass Other:\n    d: int\n"
    (engine / "arg_utils.py").write_text(text)
    found = release.read(root).engine
    assert found.installed and found.arguments == {"a", "c"}
    key = "policy.generation.vllm_kwargs.max_num_seqs"
    judged = check("nemo_rl.yaml", [f"{key}=8"], release.read(root))
    assert [f.severity for f in judged if f.path == key] == ["error"]


TABLES = """
PLAIN = {"a": 1, "b": 2}
CAST: Dict[str, Callable[[int], int]] = cast(Dict[str, int], {"c": f, "d": g})
TUPLE = ("e", "f")
class Packing(enum.Enum):
    FIRST = "1"
    SECOND = "2"
class Arguments:
    model: str = "x"
    WORKERS = {"g": A}
def made(cfg, recompute):
    dtypes = {"h": 1}
    if cfg.name == "i":
        pass
    elif cfg.get("name") == "j":
        pass
    if recompute:
        allowed = {"k", "l"}
        wrong = set(cfg.modules) - allowed
"""


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("PLAIN", "ab"),
        ("CAST", "cd"),
        ("TUPLE", "ef"),
        ("Packing", ["first", "second"]),
        ("Arguments", ["workers", "model"]),
        ("WORKERS", "g"),
        ("dtypes", "h"),
        ("name", "ij"),
        ("modules", "kl"),
        ("absent", ""),
    ],
)
def test_a_table_of_names_is_read_as_text(tmp_path, name, names):
    (tmp_path / "tables.py").write_text(TABLES)
    assert sorted(listed(tmp_path, f"tables:{name}")) == sorted(names)
    assert listed(tmp_path, "no.such:module") == ()


def test_a_checkout_has_names_of_its_own(tmp_path):
    """Those of its libraries are the shipped ones."""
    releases.write(tmp_path)
    file = tmp_path / "nemo_rl" / "data" / "processors.py"
    file.write_text('PROCESSOR_REGISTRY = {"mine": f}')
    mine = release.read(tmp_path)
    assert mine.names["NeMo-RL"]["processor"] == ("mine",)
    (said,) = check("nemo_rl.yaml", [], mine)[:1]
    assert (said.path, said.severity) == ("data.default.processor", "error")
    assert "mine" in said.message
    libraries = [name for name in mine.names if name != "NeMo-RL"]
    assert {name.rpartition(" ")[0] for name in libraries} == {
        "Megatron-Core", "NeMo Automodel", "vLLM",
    }  # fmt: skip
