"""Names that NeMo-RL and its libraries look up late, read from their files as text.

A table is a dictionary's keys, an enum's members, a list, or what a value is compared with.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nemo_algos.preflight.check.annotations import Section, fields, module, parsed

MEGATRON = "policy.megatron_cfg"
KWARGS = "policy.generation.vllm_kwargs"
OVERRIDES = f"{MEGATRON}.model_overrides"
CORE = "megatron.core.transformer"
DATA_SETS = "nemo_rl.data.datasets.response_datasets:DATASET_REGISTRY"
PROCESSORS = "nemo_rl.data.processors:PROCESSOR_REGISTRY"
YARN = "fields of YaRN"
# by library the keys of tables, and `module:name` of each
TABLES: Mapping[str, Mapping[str, str]] = {
    "NeMo-RL": {
        "dataset_name": DATA_SETS,
        "processor": PROCESSORS,
        "verifier_type": "nemo_rl.environments.math_environment:WORKER_CLASS_DICT",
        "math_verify_impl": "nemo_rl.environments.math_environment:math_verify_impl",
        "reward_functions": "nemo_rl.environments.vlm_environment:reward_func_name",
        "policy.sequence_packing.algorithm": "nemo_rl.data.packing.algorithms:PackingAlgorithm",
        "policy.precision": "nemo_rl.models.automodel.setup:STRING_TO_DTYPE",
        f"{MEGATRON}.pipeline_dtype": "nemo_rl.models.megatron.setup:dtype_map",
        YARN: "nemo_rl.models.megatron.setup:_YARN_REQUIRED_FIELDS",
    },
    "Megatron-Core": {
        f"{MEGATRON}.attention_backend": f"{CORE}.enums:AttnBackend",
        f"{MEGATRON}.cuda_graph_modules": f"{CORE}.enums:CudaGraphModule",
        f"{MEGATRON}.recompute_modules": f"{CORE}.transformer_config:recompute_modules",
    },
    "NeMo Automodel": {
        "checkpointing.model_save_format": (
            "nemo_automodel.components.checkpoint._backports.filesystem:SerializationFormat"
        ),
    },
    "vLLM": {
        f"{KWARGS}.attention_backend": ("vllm.v1.attention.backends.registry:AttentionBackendEnum"),
        "policy.generation.vllm_cfg.load_format": (
            "vllm.model_executor.model_loader:_LOAD_FORMAT_TO_MODEL_LOADER"
        ),
    },
}
# classes whose fields say their choices, and the section of those fields
TYPED = {
    "Megatron-Core": (f"{CORE}.transformer_config:TransformerConfig", (MEGATRON, OVERRIDES)),
    "vLLM": ("vllm.engine.arg_utils:AsyncEngineArgs", (KWARGS,)),
}
PACKAGES = {  # and the name of their distributions
    "NeMo-RL": ("nemo_rl", ""),
    "Megatron-Core": ("megatron/core", "megatron_core"),
    "NeMo Automodel": ("nemo_automodel", "nemo_automodel"),
    "vLLM": ("vllm", "vllm"),
}


class Library(NamedTuple):
    """name: with its version; names: by key; installed: whether it is the one that will run."""

    name: str
    names: Mapping[str, tuple[str, ...]]
    installed: bool = True


def library(kind: str, folder: Path) -> Library | None:
    """The tables of a library of PACKAGES, whose package is in the folder; None where it is not."""
    package, distribution = PACKAGES[kind]
    if not (folder / package).is_dir():
        return None
    found = {path: listed(folder, where) for path, where in TABLES[kind].items()}
    where, sections = TYPED.get(kind, ("", ()))
    for name, choices in _typed(folder, where) if where else ():
        for section in sections:
            found.setdefault(f"{section}.{name}", choices)
    infos = list(folder.glob(f"{distribution}-*.dist-info")) if distribution else []
    version = infos[0].name.split("-")[1].removesuffix(".dist").partition("+")[0] if infos else ""
    return Library(f"{kind} {version}".strip(), {k: v for k, v in found.items() if v})


def listed(folder: Path, where: str) -> tuple[str, ...]:
    """The names of a table; none where the file or the table is not there."""
    path, _, name = where.partition(":")
    file = module(folder, path).path
    found: dict[str, None] = {}
    for node in ast.walk(parsed(file)) if file.is_file() else ():
        found |= dict.fromkeys(_names(node, name))
    return tuple(found)


def _names(node: ast.AST, name: str) -> Iterable[str]:
    """The names in a node, if it is the table of this name. An enum's are in small letters."""
    match node:
        case ast.ClassDef(name=found, body=body) if found == name:
            members = (one.targets[0] for one in body if isinstance(one, ast.Assign))
            return [one.id.lower() for one in members if isinstance(one, ast.Name)]
        case (
            ast.Assign(targets=[ast.Name(id=found)], value=value)
            | ast.AnnAssign(target=ast.Name(id=found), value=ast.AST() as value)
        ) if found == name:
            return texts(value)
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=str(text))]):
            return [text] if name in _mentioned(left) else []
        case ast.If(body=[ast.Assign(value=ast.Set() as value), ast.Assign(value=rest), *_]):
            return texts(value) if name in _mentioned(rest) else []  # what is in neither
    return []


def _mentioned(node: ast.AST) -> set[Any]:
    parts = ("id", "attr", "value")
    return {str(getattr(one, part, None)) for one in ast.walk(node) for part in parts}


def texts(value: ast.AST) -> list[str]:
    """The texts of the first dictionary (its keys), set, list or tuple within an expression."""
    for node in ast.walk(value):
        parts = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
        if texts := [one.value for one in parts if isinstance(one, ast.Constant)]:
            return [text for text in texts if isinstance(text, str)]
    return []


def _typed(folder: Path, where: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The fields of a class that take a few texts alone, and these."""
    path, _, name = where.partition(":")
    bound = module(folder, path).find(name)
    if bound is None or not isinstance(bound[1], ast.ClassDef):
        return
    for key, kind in fields(Section(bound[0], bound[1])).items():
        parts = kind.schema.get("anyOf", [kind.schema])
        choices = [one.get("enum", [one.get("const")]) for one in parts if one != {"type": "null"}]
        flat = [name for several in choices for name in several]
        if flat and all(isinstance(name, str) for name in flat):
            yield key, tuple(flat)
