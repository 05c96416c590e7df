"""Facts of a model that decide where it fits: the shipped models.json, or a folder's config.json.

models.json is written by scripts/model_facts.py from the config values of models.yaml.
"""

import functools
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from nemo_algos.config import did_you_mean, validate
from nemo_algos.preflight.check.decoder import Model

HERE = Path(__file__).parent
FILE = "config.json"
TRAINED = re.compile(r"(-(Instruct|Base|Chat|Thinking|2507))+$")  # of a name
POSITIONS = "max_position_embeddings"  # the one key of config.json that changes no shape


@functools.cache
def table() -> dict[str, Model]:
    """The shipped facts by model name."""
    return TypeAdapter(dict[str, Model]).validate_json((HERE / "models.json").read_bytes())


@functools.cache
def configs() -> dict[str, dict[str, Any]]:
    """What the config.json of each model of the table says of its shape."""
    return yaml.safe_load((HERE / "models.yaml").read_text())


def model(name: str, overrides: Mapping[str, Any] | None = None) -> Model:
    """By name in the table, or by folder or path of a config.json, with these values in it changed.

    Other names are looked for in the local cache of Hugging Face's hub, then among the table's by
    their stems. Raises ValueError for a model that is not known or that transformers cannot build.
    """
    path = os.path.join(name, FILE) if os.path.isdir(name) else name
    over = overrides or {}
    if name not in table() and not os.path.isfile(path):
        path = _cached(name)
    if os.path.isfile(path):
        values = json.loads(Path(path).read_text())
        if not isinstance(values, dict):
            raise ValueError(f"{path} must contain a JSON object of key: value pairs")
        return _build({**over, **_override(values, over)}, path)
    if name not in table():
        name = _relative(name)
    if not over:
        return table()[name]
    values = configs()[name]
    changed = _override(values, over)
    if {k for k in changed if k not in values or values[k] != changed[k]} <= {POSITIONS}:
        facts = table()[name].model_dump()
        facts[POSITIONS] = changed.get(POSITIONS, facts[POSITIONS])
        return validate(Model, facts, "policy.hf_config_overrides")
    return _build(changed, name)


def _cached(name: str) -> str:
    """The path of a model's config.json in the hub's cache; it need not be there."""
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    hub = os.environ.get("HF_HUB_CACHE") or f"{home}/hub"
    folder = Path(hub).expanduser() / f"models--{name.replace('/', '--')}"
    try:
        return str(folder / "snapshots" / (folder / "refs" / "main").read_text().strip() / FILE)
    except (OSError, ValueError):
        return ""


def _relative(name: str) -> str:
    """The table's model of the same weights' shape: another only in how it was trained.

    The one of the most positions, which a later release may have extended. Raises ValueError where
    there is none.
    """
    alike = [known for known in table() if TRAINED.sub("", known) == TRAINED.sub("", name)]
    if not alike:
        near = did_you_mean(name, sorted(table()))
        cure = f"Get it by `hf download {name} {FILE}`, or name a folder with its {FILE}."
        raise ValueError(f"Model {name} is unknown{near}. {cure}")
    return max(alike, key=lambda known: table()[known].max_position_embeddings)


def _override(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with those of `over` in their place, of which only those that say a shape."""
    changed = {k: v for k, v in over.items() if k in values or k in _of_shape()}
    both = {k: _override(v, over[k]) for k, v in values.items() if _sections(v, over.get(k))}
    return {**values, **changed, **both}


def _sections(*values: Any) -> bool:
    return all(isinstance(value, Mapping) for value in values)


@functools.cache
def _of_shape() -> set[str]:
    """Keys by which any model of the table says its shape; where one has none, a default does."""
    sections = [s for c in configs().values() for s in (c, *filter(_sections, c.values()))]
    named = {k for section in sections for k, v in section.items() if not _sections(v)}
    return named | {"attention_bias"}


def _build(values: Mapping[str, Any], where: str) -> Model:
    return _built(json.dumps(values), where)


@functools.cache  # `plan` asks `check` about many layouts of one model
def _built(values: str, where: str) -> Model:
    from nemo_algos.preflight.check.built import facts  # transformers takes seconds to import

    return facts(json.loads(values), where)
