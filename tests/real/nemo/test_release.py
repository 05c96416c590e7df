"""What is read of NeMo-RL's checkout as text is what NeMo-RL itself makes of it."""

import random
from importlib import import_module
from types import UnionType
from typing import NotRequired, Union, get_args, get_origin

import checkout
import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from nemo_rl.algorithms import grpo
from nemo_rl.algorithms.loss import ClippedPGLossConfig
from nemo_rl.models.generation.vllm.config import VllmConfig
from nemo_rl.utils.config import (
    load_config,
    merge_with_override,
    register_omegaconf_resolvers,
)
from omegaconf import OmegaConf
from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from nemo_algos import config as strict
from nemo_algos.config import SHIPPED, resolve
from nemo_algos.engines.nemo import versions
from nemo_algos.preflight.check.compose import compose
from nemo_algos.preflight.check.release import PURPOSES, config_files, is_grpo, purpose

EXAMPLES = versions.EXAMPLES / "configs"
RECIPES = "recipes/llm/performance"


SECTIONS = {"grpo": grpo.GRPOConfig, "loss_fn": ClippedPGLossConfig}
TYPES = {"": grpo.MasterConfig, "policy.generation": VllmConfig}
# what is kept of a type's JSON schema: what judges a value
JUDGES = ("const", "enum", "exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "type")


def types():
    """Of NeMo-RL's trainers, by the path of their section."""
    if not versions.present(versions.CONTROLLER):
        return [TYPES]
    return [TYPES, {"": import_module(f"{versions.CONTROLLER}_utils.config").MasterConfig}]


def fields(model, path=""):
    """Path and type of the fields of a pydantic model, a TypedDict, or a union of them."""
    if get_origin(model) in (Union, UnionType, NotRequired):
        for part in get_args(model):
            yield from fields(part, path)
    own = getattr(model, "model_fields", {})
    annotations = getattr(model, "__annotations__", {})
    for name in own or annotations:
        inner = f"{path}.{name}".removeprefix(".")
        bare = own[name].annotation if own else annotations[name]
        yield inner, own[name].rebuild_annotation() if own else bare
        yield from fields(bare, inner)


def json_schema(annotation):
    while get_origin(annotation) is NotRequired:
        annotation = get_args(annotation)[0]
    try:
        made = TypeAdapter(annotation).json_schema()
    except (PydanticUserError, PydanticSchemaGenerationError):
        return {}
    return cut(made, made.get("$defs", {}))


def cut(found, named):
    """What of a JSON schema judges a value, without the keys of a section."""
    if "$ref" in found:
        return cut(named[found["$ref"].rpartition("/")[2]], named)
    kept = {key: found[key] for key in JUDGES if key in found}
    for several in ("anyOf", "oneOf"):
        if several in found:
            kept["anyOf"] = [cut(one, named) for one in found[several]]
    if isinstance(found.get("items"), dict):
        kept["items"] = cut(found["items"], named)
    return kept


def flat(kind):
    """A set of alternatives, each once, in no order; without defaults and ways to choose."""
    if "anyOf" in kind:
        return frozenset().union(*map(flat, kind["anyOf"]))
    own = {k: v for k, v in kind.items() if k in JUDGES}
    if "items" in kind:
        own["items"] = flat(kind["items"])
    return frozenset([repr(sorted(own.items()))])


def test_types_are_read_as_pydantic_reads_them():
    """Every typed key; where pydantic can make nothing of a type, what the text says is kept."""
    several = {}
    for path, annotation in [pair for each in types() for t in each.items() for pair in walk(t)]:
        several.setdefault(path, []).append(json_schema(annotation))
    read = checkout.release().schema
    assert len(several) > 440 and not several.keys() - read.keys()
    wrong = {
        p
        for p, kinds in several.items()
        if {} not in kinds
        if flat(read[p]) != flat({"anyOf": kinds})
    }
    assert wrong <= {"policy.scheduler"}  # a union of lists, whose alternatives pydantic nests


def walk(pair):
    path, kind = pair
    return fields(kind, path)


@pytest.mark.parametrize(("section", "model"), SECTIONS.items(), ids=[*SECTIONS])
def test_every_default_is_nemo_rls(section, model):
    """What an empty section becomes; a TypedDict has none."""
    read = checkout.release().schema
    own = {k.rpartition(".")[2]: v for k, v in read.items() if k.rpartition(".")[0] == section}
    found = {key: kind["default"] for key, kind in own.items() if "default" in kind}
    if not issubclass(model, BaseModel):
        assert not found
        return
    made = model().model_dump()
    assert len(found) > 5 and found == {key: made[key] for key in found}


def test_configs_are_composed_as_nemo_rl_composes_them():
    """Every eighth config, of any folder."""
    register_omegaconf_resolvers()
    release = checkout.release()
    files = config_files(versions.EXAMPLES.parent)
    assert any(name.startswith("nemo_gym/") for name in files)
    for name in [*release.configs][::8]:
        theirs = OmegaConf.to_container(load_config(str(files[name])))
        assert release.configs[name] == theirs, name


def test_a_config_for_grpo_is_one_with_its_section(monkeypatch):
    """NeMo-RL's GRPO trainers cannot do without it, and none of its others knows it."""
    assert grpo.MasterConfig.model_fields["grpo"].is_required()
    for name in ("distillation", "dpo", "ppo", "rm", "sft"):
        other = import_module(f"nemo_rl.algorithms.{name}").MasterConfig
        assert "grpo" not in (getattr(other, "model_fields", None) or other.__annotations__)
    monkeypatch.setenv("HF_HOME", "/hub")
    register_omegaconf_resolvers()
    release = checkout.release()
    # of those in other folders NeMo-RL itself refuses some
    own = {name: release.configs[name] for name in release.configs if (EXAMPLES / name).is_file()}
    for config in filter(is_grpo, own.values()):
        grpo.MasterConfig(**resolve(OmegaConf.create(config)))
    kinds = {purpose(config) for config in own.values() if not is_grpo(config)}
    assert kinds == set(PURPOSES.values())


def written(*overrides):
    return strict.apply_overrides(strict.read(SHIPPED / "nemo_rl.yaml"), overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["nemo_rl.config=grpo_math_70B_megatron.yaml", "policy.train_micro_batch_size=2"],
        [
            f"nemo_rl.config={RECIPES}/grpo-qwen3-30ba3b-4n8g.yaml",
            "logger.log_dir=${policy.model_name}",
        ],
        ["env._override_=true", "env.math.num_workers=3"],
        ["env._override_=false", "policy.scheduler=${policy.optimizer.kwargs.betas}"],
    ],
    ids=["default", "megatron", "recipe", "override", "no override"],
)
def test_it_composes_as_nemo_rl_merges(overrides):
    register_omegaconf_resolvers()
    config = written(*overrides)
    name = OmegaConf.select(config, "nemo_rl.config")
    merged = merge_with_override(load_config(EXAMPLES / name), config.copy())
    assert compose(config, checkout.release()).plain == resolve(merged)


def test_an_overrides_number_is_hydras():
    parser, draw, asked = OverridesParser.create(), random.Random(0), 0
    for _ in range(2000):
        text = "".join(draw.choices("0115_..eE+-", k=draw.randint(1, 7)))
        if not any(letter.isdigit() for letter in text):
            continue
        try:
            want = parser.parse_override(f"a={text}").value()
        except HydraException:
            continue
        found = yaml.load(text, strict.OverrideLoader)
        assert (found, type(found)) == (want, type(want)), text
        asked += 1
    assert asked > 1000
