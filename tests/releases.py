"""The NeMo-RL of a user, of the date of the one that ships: its unknown keys are errors.

`write` makes a folder of it that reads as a checkout does.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nemo_algos.preflight.check.annotations import PLAIN
from nemo_algos.preflight.check.release import Release, shipped

MAIN: Release = dataclasses.replace(shipped(), root=Path("/nemo-rl"))
HEAD = """from typing import Annotated, Any, Literal, Union
from pydantic import BaseModel, Field
"""
TRAINER = """
def async_grpo_train(processor=None): ...
"""
ARGUMENTS = "arguments of "  # of a data set
DATA_SETS = "nemo_rl/data/datasets/response_datasets"
BOUNDS = {"minimum": "ge", "maximum": "le", "exclusiveMinimum": "gt", "exclusiveMaximum": "lt"}
NAMES = {str(schema): name for name, schema in PLAIN.items() if name not in ("Dict", "List")}


def write(folder: Path, release: Release = MAIN) -> None:
    """A checkout with the release's types, configs, environments and data sets."""
    files = {
        "nemo_rl/__init__.py": "",
        "nemo_rl/algorithms/grpo.py": HEAD + "\n".join(_classes(release.schema)) + TRAINER,
        "nemo_rl/environments/utils.py": _registry(release.environments),
        **_data_sets(release.fields),
    }
    for name, keys in release.environments.items():
        files[f"nemo_rl/environments/{name}.py"] = _environment(keys)
    for name, config in release.configs.items():
        files[f"examples/configs/{name}"] = json.dumps(config)  # which is YAML
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def _classes(schema: Mapping[str, Any]) -> Iterator[str]:
    """A class for each section, those within others first."""
    sections = sorted({path.rpartition(".")[0] for path in schema}, key=lambda p: -p.count("."))
    for section in [path for path in sections if path] + [""]:
        own = {
            p.rpartition(".")[2]: k for p, k in schema.items() if p.rpartition(".")[0] == section
        }
        kinds = schema.get(section, {}).get("variants", {})
        for name, fields in kinds.items():
            yield _class(f"{_name(section)}_{name}", fields, section, schema)
        if not kinds:
            yield _class(_name(section), own, section, schema)


def _name(section: str) -> str:
    return "S_" + section.replace(".", "_") if section else "MasterConfig"


def _class(name: str, own: Mapping[str, Any], section: str, schema: Mapping[str, Any]) -> str:
    lines = [f"class {name}(BaseModel):"]
    for key, kind in own.items():
        path = f"{section}.{key}".lstrip(".")
        below = any(other.startswith(f"{path}.") for other in schema)
        default = f" = {kind['default']!r}" if "default" in kind else ""
        lines.append(f"    {key}: {_text(kind, _name(path) if below else 'dict')}{default}")
    return "\n".join(lines)


def _text(kind: Mapping[str, Any], section: str) -> str:
    """An annotation of which the schema is made."""
    bare = {k: v for k, v in kind.items() if k != "default"}
    if "variants" in bare:
        several = ", ".join(f"{section}_{name}" for name in bare["variants"])
        return f"Annotated[Union[{several}], Field(discriminator={bare['chooser']!r})]"
    if "anyOf" in bare:
        return f"Union[{', '.join(_text(one, section) for one in bare['anyOf'])}]"
    if "const" in bare or "enum" in bare:
        return f"Literal{bare.get('enum', [bare.get('const')])!r}"
    if bare.get("type") == "object":
        return section
    if "items" in bare:
        return f"list[{_text(bare['items'], section)}]"
    if str(bare) in NAMES:
        return NAMES[str(bare)]
    bounds = {BOUNDS[k]: v for k, v in bare.items() if k in BOUNDS}
    if bounds:
        arguments = ", ".join(f"{k}={v!r}" for k, v in bounds.items())
        return f"Annotated[{NAMES[str({'type': bare['type']})]}, Field({arguments})]"
    return "Any"


def _registry(environments: Mapping[str, Any]) -> str:
    entries = {n: {"actor_class_fqn": f"nemo_rl.environments.{n}.Actor"} for n in environments}
    return f"ENV_REGISTRY: dict = {entries!r}\n"


def _environment(keys: tuple[str, ...]) -> str:
    return "\n".join(["class EnvConfig(TypedDict):", *(f"    {key}: Any" for key in keys)])


def _data_sets(fields: Mapping[str, list[str]]) -> dict[str, str]:
    """A module with a class for each data set, which refuses splits it lacks, and the registry."""
    names = [what.removeprefix(ARGUMENTS) for what in fields if what.startswith(ARGUMENTS)]
    registry = []
    files = {}
    for n, name in enumerate(names):
        arguments = ", ".join(["self", *fields[f"{ARGUMENTS}{name}"]])
        splits = fields[f"splits of {name}"]
        body = f"if split not in {splits}: raise ValueError" if splits else "..."
        files[f"{DATA_SETS}/d{n}.py"] = (
            f"class D{n}:\n    def __init__({arguments}):\n        {body}\n"
        )
        registry.append(f"from .d{n} import D{n}\n")
    entries = ", ".join(f"{name!r}: D{n}" for n, name in enumerate(names))
    files[f"{DATA_SETS}/__init__.py"] = f"{''.join(registry)}DATASET_REGISTRY = {{{entries}}}\n"
    return files
