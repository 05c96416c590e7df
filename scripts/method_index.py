"""docs/methods/zoo.md: every method of the package, from its record and tests/real/peers' figures.

`NEMO_ALGOS_PARITY=docs/methods/parity.csv make test-peers` writes the figures.
"""

import csv
import inspect
import re
from pathlib import Path
from textwrap import dedent, fill
from typing import Any, get_args

from nemo_algos.algorithms.core.importance import importance
from nemo_algos.algorithms.extensions.loss_config import LossConfig
from nemo_algos.algorithms.kernel import Method
from nemo_algos.algorithms.methods import FAMILIES, METHODS, STUDIED
from nemo_algos.cli.methods import facts

FOLDER = Path(__file__).parents[1] / "docs" / "methods"
SHARED = ("advantage_std", "max_log_ratio", "aggregation")
VERSION = re.compile(r"(verl|TRL|ms-swift) [\d.]+")  # said once, at the head
HEAD = """# Paper index

Use any of {total} methods by name (`method: {{name: rloo}}`), or
[combine](../configuration.md#method) the advantages of one with the bounds or the ratio of another.
Nine have [pages of their own](index.md); these are the others.

```bash
uv run nemo-algos train grpo.yaml method.name=rloo grpo.max_num_steps=2
```

An entry shows what a method changes in GRPO: J is the mean of min(r A, clip(r) A), or of A log pi
with the form `score`. Unless an entry says otherwise, the mean is `sequence` and l is log r. The
[source](../api/more_methods.md) says where other implementations depart from the paper.

*Equals* names the code that ours was compared with (of verl 0.9.1, TRL 1.16 or ms-swift 4.6) and
the largest difference of loss and gradient in float64 (of the gradient alone where the paper's loss
has another value). The batches have unequal groups, masked tokens within responses, an empty
response and a [flat group](../glossary.md#flat-group). Every method is also compared, to 1e-9, with
a program that was written from the formulas alone (`tests/golden/oracle.py`; methods by turn:
`tests/algorithms/methods/test_by_turn.py`).
"""
SETTINGS = """
## Corrections for the sampler

IcePop, TIS and similar corrections are settings of `loss_fn` that work with any method. They
multiply the terms of J by w = pi_old / pi_gen ([old policy](../old_policy.md)):

| `truncated_importance_sampling_type` | effect |
|---|---|
"""


def page() -> str:
    figures = parity(FOLDER / "parity.csv")
    parts = [HEAD.format(total=len(METHODS))]
    for family, names in FAMILIES.items():
        if names[0] not in STUDIED:
            parts.append(f"\n## {family.capitalize()}\n")
            parts += [section(METHODS[name], figures.get(name, [])) for name in names]
    return "".join(parts) + SETTINGS + "".join(settings())


def section(method: Method, figures: list[dict[str, str]]) -> str:
    """A method: its paper, why it works, its formula, settings and parity."""
    fact = facts(method)
    form = "ratio" if method.form == "ratio" else "score"
    mean = "" if "aggregation" in fact["defaults"] else fact["mean"]  # said by the default
    shape = {"form": (form, "ratio"), "mean": (mean, "sequence")}
    rows = {key: value for key, (value, usual) in shape.items() if value != usual}
    rows["needs"] = ", ".join(f"`{need}`" for need in fact["needs"])
    first = "; ".join(f"{key}: {text}" for key, text in rows.items() if text)
    rows = {}
    rows["defaults"] = ", ".join(f"`{k}={v}`" for k, v in defaults(method, fact).items())
    peers = ((VERSION.sub(r"\1", row["against"]), largest(row)) for row in figures)
    rows["equals"] = ", ".join(f"{peer} ({difference})" for peer, difference in peers)
    lines = [f"\n### {method.name}\n", wrapped(f"{paper(method.paper)}. {why(method)}"), ""]
    lines += [f"```text\n{formula(method)}\n```\n"]
    lines += [wrapped(f"- {first}", "  ")] if first else []
    lines += [wrapped(f"- {key}: {text}", "  ") for key, text in rows.items() if text]
    return "\n".join(lines) + "\n"


def wrapped(text: str, indent: str = "") -> str:
    """In lines of 100 columns, code unbroken."""
    whole = re.sub("`[^`]*`", lambda code: code[0].replace(" ", "\0"), text)
    kept = {"break_on_hyphens": False, "break_long_words": False}
    return fill(whole, 100, subsequent_indent=indent, **kept).replace("\0", " ")


def defaults(method: Method, fact: dict[str, Any]) -> dict[str, Any]:
    """Without those that are GRPO's."""
    usual = facts(METHODS["grpo"])["defaults"]
    own_ones = own(method)
    return {
        key: value
        for key, value in fact["defaults"].items()
        if key in own_ones or (key not in SHARED and usual.get(key) != value)
    }


def largest(row: dict[str, str]) -> str:
    """The larger of a peer's differences; of the gradient alone where only that is compared."""
    return max((row[k] for k in ("loss", "gradient") if row[k]), key=float)


def formula(method: Method) -> str:
    """The indented paragraph of the method's docstring."""
    (text,) = re.findall(r"^(?: {4}.*\n?)+", document(method), re.MULTILINE)
    return dedent(text).rstrip()


def document(method: Method) -> str:
    """The docstring of the one function of the record that has the method's name and a reason."""
    slots = (method.advantages, method.bounds, method.log_ratio, method.reweight)
    named = [f for f in slots if f and f.__name__.startswith(f"{method.name}_")]
    found = [doc for doc in map(inspect.getdoc, named) if doc and "\n\nWhy: " in doc]
    if len(found) != 1:
        raise ValueError(
            f"{method.name}: {len(found)} of the functions {method.name}_... have a docstring with "
            "a paragraph that begins with Why. One must."
        )
    return found[0]


def why(method: Method) -> str:
    """The paragraph of the method's docstring that begins with Why."""
    (reason,) = (p for p in document(method).split("\n\n") if p.startswith("Why: "))
    text = " ".join(reason.removeprefix("Why: ").split())
    return text[0].upper() + text[1:]


def own(method: Method) -> set[str]:
    """The shared parameters whose default is the method's own."""
    fields = method.params.model_fields
    stock = {"advantage_std": "sample", "max_log_ratio": 20.0}
    return {k for k in SHARED if k in fields and fields[k].default != stock.get(k)}


def paper(text: str) -> str:
    """With links to arXiv."""
    return re.sub(r"(?:arXiv )?(\d{4}\.\d{5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", text)


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
