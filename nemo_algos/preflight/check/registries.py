"""Names that are looked up late, read as text: scripts/ship_nemo_rl.py reads libraries so, too.

A table is a dictionary's keys, an enum's members or a class's fields, a list, or what a value is
compared with.
"""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from nemo_algos.preflight.check.annotations import Module, module, parsed

TABLES = {  # of NeMo-RL; keys without a dot are of data sets and environments
    "dataset_name": "nemo_rl.data.datasets.response_datasets:DATASET_REGISTRY",
    "processor": "nemo_rl.data.processors:PROCESSOR_REGISTRY",
    "verifier_type": "nemo_rl.environments.math_environment:WORKER_CLASS_DICT",
    "math_verify_impl": "nemo_rl.environments.math_environment:math_verify_impl",
    "reward_functions": "nemo_rl.environments.vlm_environment:reward_func_name",
    "policy.sequence_packing.algorithm": "nemo_rl.data.packing.algorithms:PackingAlgorithm",
    "policy.precision": "nemo_rl.models.automodel.setup:STRING_TO_DTYPE",
    "policy.megatron_cfg.pipeline_dtype": "nemo_rl.models.megatron.setup:dtype_map",
    "fields of YaRN": "nemo_rl.models.megatron.setup:_YARN_REQUIRED_FIELDS",
}


def listed(folder: Path, where: str) -> tuple[str, ...]:
    """The names of a table; none where the file or the table is not there."""
    path, _, name = where.partition(":")
    file = module(folder, path).path
    found: dict[str, None] = {}
    for node in ast.walk(parsed(file)) if file.is_file() else ():
        found |= dict.fromkeys(_names(node, name))
    return tuple(found)


def _names(node: ast.AST, name: str) -> Iterable[str]:
    """The names in a node, if it is the table of this name. A class's are in small letters."""
    match node:
        case ast.ClassDef(name=found, body=body) if found == name:
            targets = [one.targets[0] for one in body if isinstance(one, ast.Assign)]
            targets += [one.target for one in body if isinstance(one, ast.AnnAssign)]
            return [one.id.lower() for one in targets if isinstance(one, ast.Name)]
        case (
            ast.Assign(targets=[ast.Name(id=found)], value=value)
            | ast.AnnAssign(target=ast.Name(id=found), value=ast.AST() as value)
        ) if found == name:
            return texts(value)
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=str(text))]):
            return [text] if name in ast.unparse(left) else []
        case ast.If(body=[ast.Assign(value=ast.Set() as value), ast.Assign(value=rest), *_]):
            if name in ast.unparse(rest):  # what is in neither
                return texts(value)
            return []
    return []


def texts(value: ast.AST) -> list[str]:
    """The texts of the first dictionary (its keys), set, list or tuple within an expression."""
    for node in ast.walk(value):
        parts = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
        texts = [one.value for one in parts if isinstance(one, ast.Constant)]
        if texts:
            return [text for text in texts if isinstance(text, str)]
    return []


def registered(folder: Path, where: str) -> Iterator[tuple[str, Module, ast.AST]]:
    """The names of a registry, each with the module and the code of its class or function."""
    path, _, name = where.partition(":")
    bound = module(folder, path).find(name)
    tables = [one for one in ast.walk(bound[1]) if isinstance(one, ast.Dict)] if bound else []
    for key, value in zip(tables[0].keys, tables[0].values, strict=True) if tables else ():
        named = [one.id for one in ast.walk(value) if isinstance(one, ast.Name)]
        found = module(folder, path).find("".join(named[-1:]))
        if found and isinstance(key, ast.Constant):
            yield str(key.value), *found


def constructors(folder: Path) -> dict[str, list[str]]:
    """Of each data set what it takes (`arguments of NAME`) and its splits (`splits of NAME`).

    It takes what any constructor of its module does. A data set that takes any split has none.
    """
    found: dict[str, list[str]] = {}
    for name, owner, _ in registered(folder, TABLES["dataset_name"]):
        nodes = list(ast.walk(parsed(owner.path)))
        made = [n for n in nodes if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        arguments = [one for n in made for one in [*n.args.args[1:], *n.args.kwonlyargs]]
        found[f"arguments of {name}"] = [one.arg for one in arguments]
        found[f"splits of {name}"] = [text for n in nodes for text in _splits(n, nodes)]
    return found


def _splits(node: ast.AST, nodes: Iterable[ast.AST]) -> list[str]:
    """The splits than which a statement refuses any other, by a list or a table among the nodes."""
    match node:
        case (
            ast.If(
                test=ast.Compare(ast.Name("split"), [ast.NotIn() | ast.NotEq()], [table]),
                body=[ast.Raise()],
            )
            | ast.Assert(test=ast.Compare(ast.Name("split"), [ast.In()], [table]))
        ):
            named = [text for one in nodes for text in _names(one, ast.unparse(table))]
            return named or texts(ast.List([table]))
    return []
