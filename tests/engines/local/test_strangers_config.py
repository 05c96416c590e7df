"""Every text of a run's config, as a stranger's folder might hold it: what a resume asks about."""

import pytest

from nemo_algos.engines.local.manifest import foreign
from nemo_algos.engines.local.schema import LocalConfig

SCHEMA = LocalConfig.model_json_schema()
TEXTS = {
    "data.prompt",
    "data.system_prompt",
    "data.answer_prefix",
    "policy.tokenizer.chat_template",
}
SERVERS = {"logger.mlflow.tracking_uri", "logger.wandb.entity"}
CODE = {"data.verifier", "data.rewards.x.function", "policy.optimizer.name"}
CODE |= {"policy.scheduler.0.name"}


def texts(shape, path=""):
    """The paths of keys that take a text, or anything."""
    if "$ref" in shape:
        shape = SCHEMA["$defs"][shape["$ref"].rpartition("/")[2]]
    for kind in shape.get("anyOf", ()):
        yield from texts(kind, path)
    for key, below in shape.get("properties", {}).items():
        yield from texts(below, f"{path}.{key}")
    for key, below in (("x", "additionalProperties"), ("0", "items")):
        if isinstance(inner := shape.get(below), (dict, bool)) and inner:
            yield from texts({} if inner is True else inner, f"{path}.{key}")
    if shape.get("type", "string") == "string" and not shape.keys() & {"anyOf", "enum", "const"}:
        yield path


PATHS = {path.removeprefix(".") for path in texts(SCHEMA)}


def asked(value):
    def config(path):
        inner = value
        for key in reversed(path.split(".")):
            inner = [inner] if key == "0" else {key: inner}
        return inner

    return {path for path in PATHS if foreign(config(path)) == {path: value}}


def test_every_text_of_the_schema_is_walked():
    assert TEXTS | SERVERS | CODE | {"method.x", "policy.optimizer.kwargs.x"} < PATHS
    assert {"policy.model_name", "data.train.data_path", "logger.log_dir"} < PATHS


@pytest.mark.parametrize("address", ["http://evil.example/x", "s3://evil/x\ny", "databricks://p"])
def test_an_address_is_asked_about_but_in_what_is_said_to_the_model(address):
    assert PATHS - asked(address) == TEXTS


def test_code_and_those_who_are_told_are_asked_about_whatever_they_are():
    assert asked("evil") == SERVERS | CODE
    assert asked("os:system") == SERVERS | CODE | {"data.task", "method.x"}
    assert asked("${logger.log_dir}") == PATHS
