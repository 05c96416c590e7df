"""Writes the NeMo-RL that ships with this package, for `nemo-algos check` without a checkout.

    python scripts/ship_nemo_rl.py CHECKOUT VLLM    # its vLLM's package, beside its others

Run it when the shipped one is old: a config's unknown keys are only warnings there.
"""

import ast
import json
import lzma
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nemo_algos.preflight.check.annotations import Section, fields_of, module, parsed
from nemo_algos.preflight.check.registries import (
    TABLES,
    constructors,
    listed,
    registered,
    texts,
)
from nemo_algos.preflight.check.release import SHIPPED, engine_arguments, is_grpo, read

MEGATRON = "policy.megatron_cfg"
KWARGS = "policy.generation.vllm_kwargs"
CORE = "megatron.core.transformer"
OF_LIBRARIES = {  # by their distribution and name
    ("megatron_core", "Megatron-Core"): {
        f"{MEGATRON}.attention_backend": f"{CORE}.enums:AttnBackend",
        **{
            f"{MEGATRON}.peft.lora_{matrix}_init_method": "megatron.bridge.peft.utils:init_method"
            for matrix in "AB"
        },
        f"{MEGATRON}.cuda_graph_modules": f"{CORE}.enums:CudaGraphModule",
        f"{MEGATRON}.recompute_modules": f"{CORE}.transformer_config:recompute_modules",
    },
    ("nemo_automodel", "NeMo Automodel"): {
        "checkpointing.model_save_format": (
            "nemo_automodel.components.checkpoint._backports.filesystem:SerializationFormat"
        ),
    },
    ("vllm", "vLLM"): {
        f"{KWARGS}.attention_backend": "vllm.v1.attention.backends.registry:AttentionBackendEnum",
        "policy.generation.vllm_cfg.load_format": (
            "vllm.model_executor.model_loader:_LOAD_FORMAT_TO_MODEL_LOADER"
        ),
    },
}
# classes whose fields say their choices, and the section of those fields
TYPED = {
    "Megatron-Core": [
        (f"{CORE}.transformer_config:TransformerConfig", MEGATRON),
        (f"{CORE}.transformer_config:TransformerConfig", f"{MEGATRON}.model_overrides"),
    ],
    "vLLM": [("vllm.engine.arg_utils:AsyncEngineArgs", KWARGS)],
}


def _version(site: Path, package: str) -> str:
    (info,) = site.glob(f"{package}-*.dist-info")
    return info.name.removesuffix(".dist-info").split("-")[1].partition("+")[0]


def kept(root: Path, vllm: Path) -> dict[str, Any]:
    """What is kept of a checkout and its vLLM: its configs below examples/configs.

    Of one that is not for GRPO only the names of its sections.
    """
    release = read(root)
    log = ["git", "-C", str(root), "log", "-1", "--format=%cs (%h)"]
    commit = subprocess.run(log, check=True, capture_output=True, text=True).stdout.strip()
    names = [name for name in release.configs if (root / "examples/configs" / name).is_file()]
    whole = {name: release.configs[name] for name in names}
    configs = {k: v if is_grpo(v) else dict.fromkeys(v) for k, v in whole.items()}
    site = vllm.parent
    libraries: dict[str, Any] = {"NeMo-RL": release.names["NeMo-RL"]}
    for (package, name), tables in OF_LIBRARIES.items():
        libraries[f"{name} {_version(site, package)}"] = {
            **{k: v for where, at in TYPED.get(name, ()) for k, v in typed(site, where, at)},
            **{key: listed(site, where) for key, where in tables.items()},
        }
    return {
        "name": f"NeMo-RL of {commit}, which ships with nemo_algos",
        "schema": release.schema,
        "configs": configs,
        "environments": release.environments,
        "data_set_keys": sorted(release.data_set_keys),
        "facts": dict(release.facts),
        "engine": {
            "name": f"vLLM {_version(site, 'vllm')}",
            "arguments": sorted(engine_arguments(vllm)),
        },
        "names": libraries,
        "fields": {
            **{f"model {kind}": found for kind, found in model_fields(vllm.parent).items()},
            **rows(root),
            **constructors(root),
            "Megatron Bridge": sorted(of_providers(vllm.parent / "megatron")),
        },
        "prompts": dict(sorted(release.prompts.items())),
    }


def typed(folder: Path, where: str, section: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The keys of a class that take a few texts alone, and these."""
    path, _, name = where.partition(":")
    bound = module(folder, path).find(name)
    if bound is None or not isinstance(bound[1], ast.ClassDef):
        return
    for key, kind in fields_of(Section(bound[0], bound[1])).items():
        parts = kind.schema.get("anyOf", [kind.schema])
        choices = [one.get("enum", [one.get("const")]) for one in parts if one != {"type": "null"}]
        flat = [name for several in choices for name in several]
        if flat and all(isinstance(name, str) for name in flat):
            yield f"{section}.{key}", tuple(flat)


def of_providers(megatron: Path) -> set[str]:
    """The fields of any model's provider of Megatron Bridge, and of what they go over."""
    files = [*(megatron / "core").rglob("*_config.py"), *(megatron / "bridge/models").rglob("*.py")]
    found = set[str]()
    for node in (node for file in files for node in parsed(file).body):
        if isinstance(node, ast.ClassDef) and node.name.endswith(("Provider", "Config")):
            lines = (one.target for one in node.body if isinstance(one, ast.AnnAssign))
            found |= {target.id for target in lines if isinstance(target, ast.Name)}
    return found


KINDS = {"processor": TABLES["processor"], "data set": TABLES["dataset_name"]}


def rows(folder: Path) -> dict[str, list[str]]:
    """What each processor names of a row, and what each data set's module may give a row.

    Both are by `processor NAME` and `data set NAME`.
    """
    found: dict[str, list[str]] = {}
    for what, where in KINDS.items():
        for name, owner, node in registered(folder, where):
            tree = node if what == "processor" else parsed(owner.path)
            found[f"{what} {name}"] = sorted({*_keys(tree)})
    return found


def _keys(tree: ast.AST) -> Iterator[str]:
    """Of a function the keys that it reads of a row, of a module those of its dictionaries.

    `ground_truth` and `image` are given also where they are named otherwise.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=ast.Name(id="datum_dict"), slice=ast.Constant(value=str(key))):
                yield key
            case ast.Dict(keys=keys) if isinstance(tree, ast.Module):
                yield from (str(k.value) for k in keys if isinstance(k, ast.Constant))
            case ast.Constant(value="ground_truth" | "image" as text):
                yield text


def model_fields(folder: Path) -> dict[str, list[str]]:
    """The fields of transformers' configs by their type of model."""
    found: dict[str, list[str]] = {}
    for file in sorted((folder / "transformers" / "models").glob("*/configuration_*.py")):
        owner = module(folder, ".".join(file.relative_to(folder).with_suffix("").parts))
        for node in (n for n in parsed(file).body if isinstance(n, ast.ClassDef)):
            kind = next(iter(_assigned(node, "model_type")), "")
            if kind:
                renamed = _assigned(node, "attribute_map")
                found[kind] = sorted({*fields_of(Section(owner, node)), *renamed})
    return found


def _assigned(node: ast.ClassDef, name: str) -> list[str]:
    """The text, or the keys of the dictionary, that a class gives a name."""
    for one in node.body:
        match one:
            case ast.Assign(targets=[ast.Name(id=found)], value=ast.Constant(value=str(text))):
                if found == name:
                    return [text]
            case ast.Assign(targets=[ast.Name(id=found)], value=ast.Dict() as value):
                if found == name:
                    return texts(value)
    return []


if __name__ == "__main__":
    text = json.dumps(kept(Path(sys.argv[1]).resolve(), Path(sys.argv[2])))
    SHIPPED.write_bytes(lzma.compress(text.encode()))
    print(SHIPPED, SHIPPED.stat().st_size)
