"""`nemo-algos check --explain KEY`: type, default and text of a key, of whichever engine has it."""

import dataclasses
import itertools

import pytest
import releases
from commands import invoke
from pydantic import BaseModel

from nemo_algos.algorithms.methods import METHODS
from nemo_algos.cli.explain import SOURCES, explain_key
from nemo_algos.findings import ConfigError, Section, fields_of
from nemo_algos.preflight.check.release import shipped

HAVE = f"{shipped().name}: a key of NeMo-RL, "


@pytest.mark.parametrize(
    ("key", "lines"),
    [
        (
            "grpo.num_generations_per_prompt",
            [
                "embedded engine: int > 0 <= 1000000, required. ",
                f"{HAVE}16 in its grpo_math_1B.yaml.",
            ],
        ),
        ("policy.megatron_cfg.enabled", [f"{HAVE}false in its grpo_math_1B.yaml."]),
        ("data.rewards.right.weight", ["embedded engine: float, default 1.0."]),
        (
            "model.url",
            [
                "eval with model.engine=endpoint: str, "
                'default "http://localhost:8000/v1". It ends in /v1.'
            ],
        ),
        ("loss_fn.kl_coef", ["every engine: not allowed: the key has NeMo-RL's name. Set "
                             "`loss_fn.reference_policy_kl_penalty` instead."]),
        ("cluster", [f"{shipped().name}: a section of NeMo-RL."]),
    ],
)  # fmt: skip
def test_a_key_is_explained(key, lines):
    said = explain_key(key, shipped())
    assert all(map(str.startswith, said, lines)) and len(said) == len(lines)
    done = invoke("check", "--explain", key)
    assert (done.exit_code, done.output.splitlines()) == (0, said)


def test_a_parameter_is_said_of_the_methods_that_have_it():
    (line,) = explain_key("method.max_log_ratio", shipped())
    assert line.startswith("every method: float > 0 <= 20, default 20.0.")
    assert explain_key("method.macro", shipped())[0].startswith(
        "etr, turn_etr: float >= 0, default "
    )
    said = explain_key("method.advantage_std", shipped())
    assert sum(line.partition(":")[0].count(",") + 1 for line in said) == len(METHODS)


def test_an_unknown_key_names_the_nearest():
    done = invoke("check", "--explain", "grpo.num_generation")
    assert done.exit_code == 2
    assert "(did you mean grpo.num_generations_per_prompt?)" in done.stderr
    with pytest.raises(ConfigError, match="zzz: "):
        explain_key("zzz", shipped())


@pytest.mark.parametrize("turned", [False, True])
def test_the_named_checkout_explains_it(tmp_path, turned):
    """Also where its name stands behind the key."""
    config = {"grpo": {}, "loss_fn": {"new_key": 7}}
    few = dataclasses.replace(releases.MAIN, configs={"grpo_math_1B.yaml": config})
    releases.write(tmp_path, few)
    pairs = [("--nemo-rl", str(tmp_path)), ("--explain", "loss_fn.new_key")]
    done = invoke("check", *itertools.chain(*(pairs[::-1] if turned else pairs)))
    assert done.output.endswith("a key of NeMo-RL, 7 in its grpo_math_1B.yaml.\n")


def test_a_text_below_a_field_is_the_field_s():
    class Own(Section):
        number: int = 1
        """How many."""

    ((path, field),) = fields_of(Own)
    assert (path, field.description) == ("number", "How many.")


def test_every_key_of_ours_has_a_line():
    assert all(issubclass(schema, BaseModel) for _, schema, _ in SOURCES)
    for path in {path for _, schema, above in SOURCES for path, _ in fields_of(schema, above)}:
        assert explain_key(path.replace("*", "one"), shipped()), path
