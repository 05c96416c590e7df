"""A section that is no section is told by its name, whatever it is; never a traceback."""

import pytest
from matrix import some_of
from releases import MAIN

from nemo_algos.engines.nemo.derived_config import OURS
from nemo_algos.preflight.check.judge import check

ONE, USUAL = "nemo_rl.yaml", "grpo_math_1B.yaml"
MAY_BE_EMPTY = {"mismatch", "on_policy_distillation", "data.validation"}  # as a list of none


def sections(config, above=""):
    for key, value in config.items():
        if isinstance(value, dict):
            yield f"{above}{key}"
            yield from sections(value, f"{above}{key}.")


def errors(override):
    return [f for f in check(ONE, [override], MAIN) if f.severity == "error"]


@pytest.mark.parametrize("third", some_of(range(3), 1))
def test_a_value_in_place_of_a_section_is_refused_by_name(third):
    """Those within others by thirds."""
    own = [name for name in OURS if name != "engine"] + ["data.validation"]
    walked = [*own, *sections(MAIN.configs[USUAL])]
    assert len(walked) > 40
    within = [path for path in walked if "." in path]
    for path in [*(path for path in walked if "." not in path), *within[third::3]]:
        for value in ("3", "null") if "." in path else ("3", "x", "[]", "null"):
            found = errors(f"{path}={value}")
            told = {f.path for f in found if f.path and f"{f.path}.".startswith(f"{path}.")}
            assert told or value == "null" or (value, path) in {("[]", p) for p in MAY_BE_EMPTY}
            assert not [f for f in found if "nterpol" in f.message or not f.path], (path, value)


@pytest.mark.parametrize("value", ["true", "3", "x"])
def test_a_value_in_place_of_a_list_is_refused(value):
    assert [f.path for f in errors(f"policy.scheduler={value}")] == ["policy.scheduler"]


def test_a_method_s_name_alone_is_a_method():
    assert not errors("method=grpo")
    (found,) = errors("method=grop")
    assert found.path == "method.name" and "grpo" in found.message


def test_null_where_other_keys_take_their_values_names_the_section():
    recipe = "recipes/erpo-qwen2.5-7b-1n1g-lora.yaml"
    found = [f for f in check(recipe, ["logger.wandb=null"], MAIN) if f.severity == "error"]
    assert [f.path for f in found] == ["logger.wandb"]


@pytest.mark.parametrize("name", [name for name in OURS if name != "engine"])
def test_a_key_that_nobody_knows_is_refused_in_every_section_of_ours(name):
    found = errors(f"{name}.zzz=1")
    assert any(f"{f.path}.".startswith(f"{name}.") for f in found), found
