"""What README.md and docs/index.md say of their five lines, and the picture beside those.

README's program is run, then the five lines of docs/index.md on its batch, both sides of the diff.
What they give replaces what stands between `<!-- first screen: NAME -->` and `<!-- end -->`, and
is docs/images/first_batch.svg. README has badges once pyproject.toml has an address.
"""

import contextlib
import io
import math
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
INDEX = ROOT / "docs" / "index.md"
PICTURE = ROOT / "docs" / "images" / "first_batch.svg"
PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DIFF = re.compile(r"^```diff\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLUE, ORANGE = (26, 102, 165), (224, 118, 32)  # of ratios below and above 1, as in the report
FULL = math.log(1.5)  # the log-ratio from which on a colour is full
CELL, ROW, LABEL, TOP = 29, 22, 38, 24  # pixels


class Side(NamedTuple):
    """A side of the diff: the gradient of each token's log-prob [B,S], and the metrics."""

    gradient: Tensor
    log: dict[str, Tensor]

    @property
    def cut(self) -> Tensor:
        """[B,S]: where clipping leaves no gradient."""
        return self.gradient == 0


def program() -> tuple[dict[str, Any], str]:
    """The names that README's first program leaves, and what it prints."""
    names: dict[str, Any] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(PROGRAM.findall(README.read_text())[0], names)
    return names, printed.getvalue()


def side(sign: str, names: dict[str, Any]) -> Side:
    """Run the lines of docs/index.md's first diff that are not of the other side."""
    lines = DIFF.findall(INDEX.read_text())[0].splitlines()
    given = dict(names)
    given["new"] = names["new"].detach().clone().requires_grad_()
    exec("\n".join(line[1:] for line in lines if line[0] in f" {sign}"), given)
    return Side(given["new"].grad, given["log"])


def output() -> str:
    """What README's program prints, as a block."""
    return f"```text\n{program()[1]}```"


def numbers() -> str:
    """The picture, and the sentence under the five lines."""
    names, _ = program()
    grpo, etr = side("-", names), side("+", names)
    right = etr.log["etr/radius_positive"]
    wrong = etr.log["etr/radius_negative"]
    total = grpo.cut.numel()
    alt = f"GRPO cuts the gradient of {grpo.cut.sum()} of {total} tokens, ETR of {etr.cut.sum()}"
    return (
        f"![{alt}](images/first_batch.svg)\n\n"
        f"A cell is a token's ratio, a frame a cut gradient. On [this "
        f"batch](../examples/first_hour.ipynb) GRPO\n"
        f"clips **{grpo.cut.sum()} of {total} tokens, ETR {etr.cut.sum()}**: its clip range is "
        f"±{right:.2f} for right responses and ±{wrong:.2f} for wrong\n"
        f"ones, not ±0.20. The gradient's norm is {etr.gradient.norm():.2f} instead of "
        f"{grpo.gradient.norm():.2f}."
    )


def badges() -> str:
    """CI's badge, where there is an address."""
    there = address()
    if not there:
        return ""
    return f"[![tests]({there}/actions/workflows/release.yml/badge.svg)]({there}/actions)"


def address() -> str:
    """pyproject.toml's [project.urls] Repository; empty while it has none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project.get("urls", {}).get("Repository", "")


def picture() -> str:
    """The batch's ratios, token by token; framed where a side's clipping cuts the gradient."""
    names, _ = program()
    ratio = (names["new"].detach() - names["old"]).exp()
    cells = ""
    width = LABEL + 5 * CELL + 4
    for at, (name, sign) in enumerate((("GRPO", "-"), ("ETR", "+"))):
        cut = side(sign, names).cut
        x = at * width
        cells += f'<text x="{x + LABEL}" y="14"><tspan font-weight="bold">{name}</tspan>'
        cells += f" clips {cut.sum()} of {cut.numel()}</text>\n"
        for i, reward in enumerate(names["rewards"]):
            y = TOP + i * ROW
            cells += f'<text x="{x}" y="{y + 13}">{"right" if reward else "wrong"}</text>\n'
            for j in range(ratio.shape[1]):
                place = x + LABEL + j * CELL
                cells += cell(place, y, float(ratio[i, j]), framed=bool(cut[i, j]))
    size = f"{2 * width} {TOP + 4 * ROW + 2}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-size="11" '
        f'font-family="system-ui, sans-serif">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{cells}</svg>\n'
    )


def cell(x: int, y: int, ratio: float, framed: bool) -> str:
    """A token: its ratio on the ratio's colour."""
    share = min(abs(math.log(ratio)) / FULL, 1)
    end = ORANGE if ratio > 1 else BLUE
    fill = "#" + "".join(f"{round(255 + share * (c - 255)):02x}" for c in end)
    ink = "white" if share > 0.7 and ratio < 1 else "black"
    frame = 'stroke="black" stroke-width="2"' if framed else 'stroke="#ccc"'
    box = f'<rect x="{x + 1}" y="{y}" width="{CELL - 3}" height="{ROW - 4}" rx="2"'
    text = f'<text x="{x + CELL / 2 - 0.5}" y="{y + 13}" text-anchor="middle" fill="{ink}"'
    return f'{box} fill="{fill}" {frame}/>\n{text}>{ratio:.2f}</text>\n'


PARTS: dict[Path, dict[str, Callable[[], str]]] = {
    README: {"badges": badges, "output": output},
    INDEX: {"numbers": numbers},
}


def page(path: Path) -> str:
    """A page with its parts as they are now."""
    text = path.read_text()
    for name, part in PARTS[path].items():
        before, rest = text.split(f"<!-- first screen: {name} -->\n")
        after = rest.partition("<!-- end -->")[2]
        body = f"{part()}\n".lstrip("\n")
        text = f"{before}<!-- first screen: {name} -->\n{body}<!-- end -->{after}"
    return text


if __name__ == "__main__":
    for each in PARTS:
        each.write_text(page(each))
    PICTURE.write_text(picture())
