"""docs/methods: each method's page against its code.

Functions, parameters, metrics, commands and formulas that a page names exist, and what exists is
on the page.
"""

import importlib
import inspect
import re
from pathlib import Path

import pytest
import trainers
import yaml
from annotated_types import Ge, Gt, Le, Lt

from nemo_algos import config
from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.methods import METHODS, STUDIED
from nemo_algos.preflight.check.local.judge import parse

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "methods"
CONFIGS = ROOT / "examples" / "configs"
HEADINGS = (
    "Use it",
    "See it",
    "In code",
    "Formula",
    "Metrics",
    "Open points",
    "A number by hand",
)
OF_ALL = ("advantage_std", "max_log_ratio", "dual_clip")  # explained once, in index.md
LAST = ("clip_low", "clip_high", *OF_ALL)
CODE = re.compile(r"`(nemo_algos/[\w/]+\.py): ([\w., ]+)`")
COMMAND = re.compile(r"^uv run nemo-algos train (\S+)([^#\n]*)", re.MULTILINE)

every_page = pytest.mark.parametrize("name", STUDIED)


def page(name):
    return (FOLDER / f"{name}.md").read_text()


def section(text, heading):
    """What stands below `## heading`."""
    return text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


def table(text):
    """The first of the tables."""
    return tables(text)[0]


def tables(text):
    """The rows of each table below its header, as lists of cells."""
    found = re.findall(r"(?:^\|.*\n)+", text + "\n", re.MULTILINE)
    return [[re.split(r" *\| *", line)[1:-1] for line in t.splitlines()[2:]] for t in found]


def code_of(cell):
    """The words in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def yaml_block(text):
    return yaml.safe_load(re.search(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[1])


def test_there_is_a_page_for_every_studied_method_and_one_for_the_others():
    assert {p.stem for p in FOLDER.glob("*.md")} == {*STUDIED, "index", "decisions", "zoo"}


@every_page
def test_pages_have_one_structure(name):
    text = page(name)
    assert tuple(re.findall(r"^## (.*)$", text, re.MULTILINE)) == HEADINGS
    assert 60 <= len(text.splitlines()) <= (170 if name == "quatro" else 150)
    assert "$$" in section(text, "Formula")
    assert "assert " in section(text, "A number by hand")
    study = section(text, "See it")
    assert "](../study.md)" in study and "5 seeds" in study
    assert f"](../atlas/{name}.svg)" in study
    assert (f"](../study/figures/updates_8/{name}.png)" in study) == (name != "grpo")


@every_page
def test_the_code_that_a_page_names_exists(name):
    rows = table(section(page(name), "In code"))
    named = [match for row in rows for match in CODE.findall(row[-1])]
    assert len(named) >= len(rows) >= 1  # each row names a place
    for path, functions in named:
        module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
        for function in functions.split(", "):
            assert callable(getattr(module, function)), (path, function)


@every_page
def test_the_functions_of_a_method_are_on_its_page(name):
    """The public ones that its record uses and that its own file defines."""
    module = importlib.import_module(f"nemo_algos.algorithms.methods.{name}")
    record = vars(METHODS[name]).values()
    own = {f.__name__ for f in record if inspect.isfunction(f) and f.__module__ == module.__name__}
    cells = [row[-1] for row in table(section(page(name), "In code"))]
    found = CODE.findall(" ".join(cells))
    named = {f for path, fs in found if path.endswith(f"/{name}.py") for f in fs.split(", ")}
    assert own <= named, own - named


def interval(metadata):
    """A field's limits as `[0, 1)`; empty where it has none."""
    kinds = {Ge: ("[", "ge"), Gt: ("(", "gt"), Le: ("]", "le"), Lt: (")", "lt")}
    ends = {
        kinds[type(m)][0]: f"{getattr(m, kinds[type(m)][1]):g}"
        for m in metadata
        if type(m) in kinds
    }
    if not ends:
        return ""
    low = next((f"{k}{v}" for k, v in ends.items() if k in "[("), "(-inf")
    high = next((f"{v}{k}" for k, v in ends.items() if k in "])"), "inf)")
    return f"{low}, {high}"


@every_page
def test_the_parameters_of_a_page_are_those_of_the_code(name):
    fields = METHODS[name].params.model_fields
    rows = table(section(page(name), "Use it"))
    assert [code_of(row[0])[0] for row in rows] == own_first(fields)
    compare(rows, name)


def test_the_parameters_of_all_methods_are_on_the_index():
    rows = next(t for t in tables(page("index")) if "`dual_clip`" in str(t))
    assert [code_of(row[0])[0] for row in rows] == [*OF_ALL]
    compare(rows, "grpo")


def compare(rows, name):
    """Defaults, ranges and options of a table against a method's parameters."""
    fields = METHODS[name].params.model_fields
    for key, *_symbol, default, span, what in rows:
        field = fields[code_of(key)[0]]
        written = yaml.safe_load(code_of(default)[0])
        assert written == field.default and type(written) is type(field.default), key
        assert interval(field.metadata) in span and what, (key, interval(field.metadata))
        options = field.annotation.__args__ if "Literal" in str(field.annotation) else ()
        options = [x for x in options if accepted(name, key=code_of(key)[0], value=x)]
        assert {yaml.safe_load(x) for x in code_of(span)} >= set(options), key


def accepted(name, key, value):
    """Whether the method takes it: some divide by no group's deviation."""
    try:
        return bool(METHODS[name].params(**{key: value}))
    except ValueError:
        return False


def own_first(fields):
    """The method's own keys in their order, then those that many methods have.

    Of those of all methods only the ones whose default is its own.
    """
    shared = METHODS["grpo"].params.model_fields
    stock = {k for k in OF_ALL if k in fields and fields[k].default == shared[k].default}
    return [k for k in fields if k not in LAST] + [k for k in LAST if k in {*fields} - stock]


@every_page
def test_the_config_of_a_page_is_accepted(name):
    block = yaml_block(section(page(name), "Use it"))
    algorithm = build(block["method"])
    assert algorithm.name == name and (CONFIGS / block["defaults"]).exists()
    shipped = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    assert build(shipped["method"]) == algorithm


@pytest.mark.parametrize("name", [*STUDIED, "index"])
def test_the_commands_of_a_page_are_accepted(name):
    commands = COMMAND.findall(page(name))
    assert commands or name == "index"
    for file, overrides in commands:
        parse(config.load(CONFIGS / file, overrides.split()))


@pytest.mark.parametrize("name", [*STUDIED, "index"])
def test_the_combinations_of_a_page_have_a_meaning(name):
    for written in re.findall(r"`(\{[^`]+\})`", page(name)):
        assert "+" in build(yaml.safe_load(written)).name


@pytest.fixture(scope="module")
def emitted():
    """The metrics of one step of an untaught model by every method, with a KL penalty."""
    penalty = "loss_fn.reference_policy_kl_penalty=0.001"
    return {name: set(trainers.trainer(penalty, method=name).step()) for name in STUDIED}


@every_page
def test_the_metrics_of_a_page_are_emitted_and_the_method_s_own_are_on_it(name, emitted):
    rows = table(section(page(name), "Metrics"))
    named = {metric for row in rows for metric in code_of(row[0])}
    assert named <= emitted[name], named - emitted[name]
    own = {metric for metric in emitted[name] if metric.startswith(f"{name}/")}
    assert own <= named, own - named
    assert all(len(row) == 3 and all(row) for row in rows)


def test_the_table_of_all_methods():
    rows = {code_of(row[0])[0]: row for row in table(page("index"))}
    assert list(rows) == list(STUDIED)
    for name, (link, _what, ratio, mean, needs, file) in rows.items():
        method, algorithm = METHODS[name], build(name)
        assert f"]({name}.md)" in link
        assert code_of(ratio) == ([method.ratio] if method.form == "ratio" else [])
        assert code_of(mean) == [algorithm.mean]
        assert set(code_of(needs)) == method.needs
        assert all((CONFIGS / f).exists() for f in code_of(file)) and f"`{name}.yaml`" in file


@pytest.mark.parametrize("name", [*STUDIED, "index"])
def test_formulas_are_whole(name):
    """Display formulas stand on their own, braces close, and no table's formula has a bar."""
    text = re.sub(r"^```.*?^```$", "", page(name), flags=re.MULTILINE | re.DOTALL)
    assert all(line in ("$$", line.replace("$$", "")) for line in text.splitlines())
    display = text.split("\n$$\n")
    assert len(display) % 2 == 1
    inline = re.findall(r"\$([^$\n]+)\$", "\n".join(display[::2]))
    for formula in [*display[1::2], *inline]:
        assert formula.count("{") == formula.count("}")
        assert formula.count(r"\left") == formula.count(r"\right")
        assert not re.search(r"\\(newcommand|def|DeclareMath|begin)", formula)
