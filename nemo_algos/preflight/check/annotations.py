"""The types of NeMo-RL's config, read from its files as text: nothing of it is imported.

A type is a pydantic model or a TypedDict. Its fields become JSON schemas by path, by
which `rules.values` judges values. What this cannot read has the schema {}, which every value
fits.
"""

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from importlib.util import resolve_name
from pathlib import Path
from typing import Any, NamedTuple

Schema = dict[str, Any]

# what a name stands for, whichever module it comes from
PLAIN: Mapping[str, Schema] = {
    "bool": {"type": "boolean"},
    "dict": {"type": "object"},
    "Dict": {"type": "object"},
    "float": {"type": "number"},
    "int": {"type": "integer"},
    "list": {"type": "array"},
    "List": {"type": "array"},
    "str": {"type": "string"},
    "None": {"type": "null"},
    "NegativeFloat": {"type": "number", "exclusiveMaximum": 0},
    "NegativeInt": {"type": "integer", "exclusiveMaximum": 0},
    "NonNegativeFloat": {"type": "number", "minimum": 0},
    "NonNegativeInt": {"type": "integer", "minimum": 0},
    "NonPositiveInt": {"type": "integer", "maximum": 0},
    "PositiveFloat": {"type": "number", "exclusiveMinimum": 0},
    "PositiveInt": {"type": "integer", "exclusiveMinimum": 0},
}
# the arguments of pydantic's Field that bound a number
BOUNDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
}
UNREADABLE = ...  # in place of a value that is no constant; pydantic's own sign for "no default"
TRANSPARENT = ("NotRequired", "Required", "ReadOnly", "Final")  # which say nothing of a value
# Sections within sections: twice as deep as NeMo-RL's are. It ends types that contain themselves.
DEEPEST = 12


class Module:
    """One file: what its names stand for, and the other files they come from."""

    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        self.name = name
        path = root.joinpath(*name.split("."))
        file = path / "__init__.py"
        self.is_package = file.is_file()
        self.path = file if self.is_package else path.with_suffix(".py")

    @cached_property
    def names(self) -> dict[str, ast.AST]:
        """What is bound at the top of the file, also below `if` and `try`."""
        if self.path.is_file():
            return dict(_bindings(parsed(self.path).body))
        return {}

    def find(self, name: str) -> "tuple[Module, ast.AST] | None":
        """Where a name is bound, and what to; None where that is not within NeMo-RL."""
        bound = self.names.get(name)
        if isinstance(bound, ast.ImportFrom):
            original = next(a.name for a in bound.names if (a.asname or a.name) == name)
            package = self.name if self.is_package else self.name.rpartition(".")[0]
            source = resolve_name("." * bound.level + (bound.module or ""), package)
            if source.split(".")[0] != self.name.split(".")[0]:
                return None
            return module(self.root, source).find(original)
        return (self, bound) if bound is not None else None


def parsed(file: Path) -> ast.Module:
    """A file of NeMo-RL's. Raises ValueError where this Python cannot read it."""
    try:
        return ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise ValueError(
            f"Python {sys.version_info.major}.{sys.version_info.minor} cannot read {file}: "
            f"{error}. Run nemo-algos with the Python of that NeMo-RL."
        ) from None


@cache
def module(root: Path, name: str) -> Module:
    """A module of the checkout at root, read once."""
    return Module(root, name)


class Section(NamedTuple):
    """A class whose fields are keys."""

    owner: Module
    node: ast.ClassDef


class Kind(NamedTuple):
    """What a field takes: a schema, and the sections whose keys may be below it."""

    schema: Schema
    sections: tuple[Section, ...] = ()


def schemas(root: Path, *configs: Mapping[str, str]) -> dict[str, Schema]:
    """The schema of every typed key by its path: of several configs any that one of them has.

    configs: of each its types, `module:Class` by the path of the section, "" for the whole. A type
    that the checkout does not have gives nothing.
    """
    found: dict[str, list[Schema]] = {}
    for types in configs:
        for path, named in types.items():
            where, _, name = named.partition(":")
            bound = module(root, where).find(name)
            if bound is None or not isinstance(bound[1], ast.ClassDef):
                continue
            for below, schema in _walk(Section(bound[0], bound[1]), path, DEEPEST):
                found.setdefault(below, []).append(schema)
    return {path: any_of(kinds) for path, kinds in sorted(found.items())}


def _walk(section: Section, path: str, depth: int) -> Iterator[tuple[str, Schema]]:
    for name, kind in fields_of(section).items():
        below = f"{path}.{name}".removeprefix(".")
        yield below, kind.schema
        for inner in kind.sections if depth else ():
            yield from _walk(inner, below, depth - 1)


def fields_of(section: Section) -> dict[str, Kind]:
    """The fields of a class and of its parents, by name."""
    found: dict[str, Kind] = {}
    for base in reversed(section.node.bases):  # as in Python, the first parent wins
        parent = section.owner.find(base.id) if isinstance(base, ast.Name) else None
        if parent is not None and isinstance(parent[1], ast.ClassDef):
            found |= fields_of(Section(parent[0], parent[1]))
    for node in section.node.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            kind = read(node.annotation, section.owner)
            schema = _bounded(kind.schema, node.value) | _default(node.value, section.owner)
            found[node.target.id] = kind._replace(schema=schema)
    return found


def read(annotation: ast.AST, where: Module) -> Kind:
    """What an annotation takes."""
    match annotation:
        case ast.Constant(value=None):
            return Kind({"type": "null"})
        case ast.Constant(value=str(text)):
            return read(ast.parse(text, mode="eval").body, where)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _union([read(left, where), read(right, where)])
        case ast.Name(id=name):
            return _named(name, where)
        case ast.Attribute(attr=name):  # of a module, which is not followed
            return Kind(dict(PLAIN.get(name, {})))
        case ast.Subscript(value=ast.Name(id=name) | ast.Attribute(attr=name), slice=inside):
            return _generic(name, inside, where)
    return Kind({})


def _named(name: str, where: Module) -> Kind:
    if name in PLAIN:
        return Kind(dict(PLAIN[name]))
    match where.find(name):
        case (owner, ast.ClassDef() as node):
            if _is_a(node, owner, ("Enum", "StrEnum", "IntEnum")):
                values = []
                for n in node.body:
                    if isinstance(n, ast.Assign):
                        values.append(_constant(n.value))
                return Kind(_choice(values))
            if _is_a(node, owner, ("BaseModel", "TypedDict")):
                return Kind({"type": "object"}, (Section(owner, node),))
        case (owner, ast.Assign(value=value) | ast.AnnAssign(value=ast.AST() as value)):
            return read(value, owner)
    return Kind({})


def _generic(name: str, inside: ast.expr, where: Module) -> Kind:
    parts = inside.elts if isinstance(inside, ast.Tuple) else [inside]
    if name in TRANSPARENT:
        return read(inside, where)
    if name in ("Optional", "Union"):
        null = [Kind({"type": "null"})] if name == "Optional" else []
        return _union([read(part, where) for part in parts] + null)
    if name == "Literal":
        return Kind(_choice([_constant(part, where) for part in parts]))
    if name == "Annotated":
        kind = read(parts[0], where)
        for extra in parts[1:]:
            kind = kind._replace(schema=_bounded(kind.schema, extra))
        choosers = []
        for extra in parts[1:]:
            choosers.append(_field_arguments(extra).get("discriminator"))
        chooser = next(filter(None, choosers), None)
        if chooser is None:
            return kind
        variants = {}
        for section in kind.sections:
            own = {name: field.schema for name, field in fields_of(section).items()}
            choice = own.get(chooser, {})
            for value in choice.get("enum", [choice.get("const", UNREADABLE)]):
                variants[value] = own
        if UNREADABLE in variants:
            return kind
        return Kind({"type": "object", "chooser": chooser, "variants": variants}, kind.sections)
    if name in ("list", "List", "Sequence"):
        one = read(parts[0], where)
        return Kind({"type": "array", "items": one.schema}, one.sections)
    if name in ("dict", "Dict", "Mapping"):
        return Kind({"type": "object"})
    if name in ("tuple", "Tuple", "set", "frozenset"):
        return Kind({"type": "array"})
    return Kind({})


def _union(kinds: list[Kind]) -> Kind:
    sections = tuple(section for kind in kinds for section in kind.sections)
    return Kind(any_of([kind.schema for kind in kinds]), sections)


def any_of(schemas: Iterable[Schema]) -> Schema:
    """The schema of a value that fits one of several."""
    several: list[Schema] = []
    for schema in schemas:
        parts = schema["anyOf"] if [*schema] == ["anyOf"] else [schema]
        several += [part for part in parts if part not in several]
    if {} in several:
        return {}
    if len(several) == 1:
        return several[0]
    return {"anyOf": several}


def _choice(values: list[Any]) -> Schema:
    """As pydantic writes it: `const` of one value, `enum` of several, with their type if shared."""
    if UNREADABLE in values:
        return {}
    schema: Schema = {"const": values[0]} if len(values) == 1 else {"enum": values}
    kinds = {type(value).__name__ for value in values}
    return schema | (PLAIN.get(kinds.pop(), {}) if len(kinds) == 1 else {})


def _constant(node: ast.AST, where: Module | None = None) -> Any:
    """A constant, or the constant that a name stands for; else UNREADABLE."""
    if isinstance(node, ast.Name) and where is not None:
        found = where.find(node.id)
        if found is not None and isinstance(found[1], (ast.Assign, ast.AnnAssign)):
            node = found[1].value or node
    try:
        return ast.literal_eval(node)  # pyright: ignore[reportArgumentType]
    except ValueError:
        return UNREADABLE


def _bounded(schema: Schema, field: ast.AST | None) -> Schema:
    """A schema whose numbers have the bounds of a `Field(gt=0)`."""
    bounds = {}
    for k, value in _field_arguments(field).items():
        if k in BOUNDS:
            bounds[BOUNDS[k]] = value
    return narrowed(schema, bounds) if bounds else schema


def narrowed(schema: Mapping[str, Any], bounds: Mapping[str, Any]) -> Schema:
    """The schema, whose numbers have these bounds too."""
    if "anyOf" in schema:
        return {"anyOf": [narrowed(one, bounds) for one in schema["anyOf"]]}
    numbers = schema.get("type") in ("integer", "number")
    return {**schema, **bounds} if numbers else {**schema}


def _default(value: ast.AST | None, where: Module) -> Schema:
    """The usual value of a field, where it is a constant other than None."""
    given = value
    if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("Field"):
        named = [k.value for k in value.keywords if k.arg == "default"]
        given = next(iter(value.args + named), None)
    found = _constant(given, where) if given is not None else None
    return {} if found in (None, UNREADABLE) else {"default": found}


def _field_arguments(node: ast.AST | None) -> dict[str, Any]:
    """The constant arguments of a call of pydantic's Field."""
    match node:
        case ast.Call(func=ast.Name(id="Field") | ast.Attribute(attr="Field"), keywords=keywords):
            found = {k.arg: _constant(k.value) for k in keywords if k.arg}
            return {name: value for name, value in found.items() if value is not UNREADABLE}
    return {}


def _is_a(node: ast.ClassDef, where: Module, kinds: tuple[str, ...]) -> bool:
    """Whether a class has one of these among its parents."""
    for base in node.bases:
        name = base.id if isinstance(base, ast.Name) else ""
        if name in kinds or getattr(base, "attr", "") in kinds:
            return True
        parent = where.find(name)
        if parent and isinstance(parent[1], ast.ClassDef) and _is_a(parent[1], parent[0], kinds):
            return True
    return False


def _bindings(body: list[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    """Each name with what binds it. The later of two counts, so `else` comes before the usual case.

    What an `except` binds only stands in for what cannot be imported, and is left out.
    """
    for node in body:
        match node:
            case (
                ast.ClassDef(name=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
            ):
                yield name, node
            case ast.ImportFrom():
                yield from ((alias.asname or alias.name, node) for alias in node.names)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name, node
            case ast.If() | ast.Try():
                yield from _bindings([*node.orelse, *node.body])
