"""docs/methods/zoo.md: every method of the package, from its record and tests/real/peers' figures.

`NEMO_ALGOS_PARITY=docs/methods/parity.csv make test-peers` writes the figures.
"""

import csv
import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import get_args

from nemo_algos.algorithms.core.importance import importance
from nemo_algos.algorithms.kernel import Method, group_advantages, keep_advantages, token_log_ratio
from nemo_algos.algorithms.methods import FAMILIES, METHODS, STUDIED
from nemo_algos.algorithms.riders.loss_config import LossConfig
from nemo_algos.cli.methods import facts

FOLDER = Path(__file__).parents[1] / "docs" / "methods"
SHARED = ("advantage_std", "max_log_ratio", "aggregation")
HEAD = """# Paper index

{total} methods. Name one (`method: {{name: rloo}}`), or [combine](../configuration.md#method) the
advantages of one with the bounds or the ratio of another; what has no meaning together is refused.
The {studied} studied ones have [pages and recipes of their own](index.md), the others any recipe:

```bash
uv run examples/run_grpo_math.py --config grpo.yaml method.name=rloo grpo.max_num_steps=2
```

J is the mean of min(r' A', clip(r') A'), or with the form `score` of A' log pi. A slot says what
the method's own function computes; `-` is GRPO's. Each method is one [file](../api/methods.md): at
its head stand the formula, why it works, and where a peer departs from its paper.

Compared with: the largest difference of loss and gradient from that trainer's own code, or from the
formula where none can be installed, in float64, rounded up, over batches with unequal groups,
holes, an empty row and a flat group. A gradient alone where the paper's loss has another value
(a penalty beside the surrogate). Lines: of the method's own functions, docstrings apart.

This page is made of the records and of what `tests/real/peers` measured, by
`scripts/method_index.py`.
"""
SETTINGS = """
## Corrections for the sampler

IcePop, TIS and their like are no methods: settings of `loss_fn` beside any of them. The terms of J
are multiplied by w = pi_old / pi_gen, and `truncated_importance_sampling_type` says what becomes
of it ([configuration](../configuration.md)).

| type | |
|---|---|
"""


def page() -> str:
    figures = parity(FOLDER / "parity.csv")
    parts = [HEAD.format(total=len(METHODS), studied=len(STUDIED))]
    for family, names in FAMILIES.items():
        parts.append(f"\n## {family.capitalize()}\n")
        parts += [section(METHODS[name], figures.get(name, [])) for name in names]
    return "".join(parts) + SETTINGS + "".join(settings())


def section(method: Method, figures: list[dict[str, str]]) -> str:
    """A method: its paper, why it works, its slots, defaults and parity."""
    fact = facts(method)
    title = f"[{method.name}]({method.name}.md)" if method.name in STUDIED else method.name
    defaults = {k: v for k, v in fact["defaults"].items() if k not in SHARED or k in own(method)}
    lines = [f"\n### {title}\n", f"{paper(method.paper)}.", "", why(method.name), ""]
    lines += ["| slot | |", "|---|---|"]
    lines += [f"| {slot} | {text} |" for slot, text in slots(method).items()]
    form = "ratio" if method.form == "ratio" else "score"
    lines.append(f"| form, mean | {form}, {fact['mean']} |")
    needs = ", ".join(f"`{need}`" for need in fact["needs"])
    lines += [f"| needs | {needs} |"] if needs else []
    values = ", ".join(f"`{k}={v}`" for k, v in defaults.items())
    lines += [f"| defaults | {values} |"] if values else []
    for row in figures:
        loss = f"loss {row['loss']}, gradient" if row["loss"] else "gradient"
        lines.append(f"| compared with | {row['against']}: {loss} {row['gradient']} |")
    lines.append(f"| lines | {sum(map(length, functions(method)))} |")
    return "\n".join(lines) + "\n"


def why(name: str) -> str:
    """The paragraph that begins with Why at the head of its file, else the file's first line."""
    paragraphs = (inspect.getdoc(import_module(METHODS.modules[name])) or "").split("\n\n")
    reasons = [p.removeprefix("Why: ") for p in paragraphs if p.startswith("Why: ")]
    text = " ".join((reasons or paragraphs)[0].split())
    return text[0].upper() + text[1:]


def own(method: Method) -> set[str]:
    """The shared parameters whose default is the method's own."""
    fields = method.params.model_fields
    stock = {"advantage_std": "sample", "max_log_ratio": 20.0}
    return {k for k in SHARED if k in fields and fields[k].default != stock.get(k)}


def slots(method: Method) -> dict[str, str]:
    """What each function says it computes; `-` where it is GRPO's."""
    shared = (group_advantages, token_log_ratio, keep_advantages)
    named = {
        "advantages A": method.advantages,
        "bounds": method.bounds or method.constant_bounds,
        **{f"extra `{name}`": function for name, function in method.extras.items()},
        "log r'": method.log_ratio,
        "A'": method.reweight,
    }
    return {k: "-" if f in shared else summary(f) for k, f in named.items()}


def summary(function: object) -> str:
    """The first sentence of its docstring, in a table's cell."""
    line = (inspect.getdoc(function) or "").splitlines()[0].removesuffix(".")
    return f"`{line}`".replace("|", "\\|") if re.search(r"[_^=]", line) else line


def functions(method: Method) -> list[object]:
    """The functions of its record but for those that all methods have."""
    slots = (method.advantages, method.bounds, method.constant_bounds, method.log_ratio)
    found = [*slots, method.reweight, *method.extras.values()]
    return [f for f in found if f is not None and f.__module__ != Method.__module__]


def length(function: object) -> int:
    """Its lines of code, without docstring."""
    code = inspect.getsource(function).rstrip()  # pyright: ignore
    return len(code.splitlines()) - len((inspect.getdoc(function) or "").splitlines())


def paper(text: str) -> str:
    """With links to arXiv."""
    return re.sub(r"(?:arXiv )?(\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", text)


def settings() -> list[str]:
    """The corrections that LossConfig knows, as core.importance describes them."""
    field = LossConfig.model_fields["truncated_importance_sampling_type"]
    kinds = [kind for option in get_args(field.annotation) for kind in get_args(option)]
    text = " ".join((importance.__doc__ or "").split())
    said = {kind: re.search(rf"{kind}: (.*?)[;.] ", text + " ") for kind in kinds}
    return [f"| `{kind}` | {match[1]} |\n" for kind, match in said.items() if match]


def parity(file: Path) -> dict[str, list[dict[str, str]]]:
    """The figures by method."""
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    return {row["method"]: [r for r in rows if r["method"] == row["method"]] for row in rows}


if __name__ == "__main__":
    (FOLDER / "zoo.md").write_text(page())
