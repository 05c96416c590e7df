"""verify_math on one answer in many notations: fonts, signs, words, bases, brackets, equations."""

import re
from itertools import product
from pathlib import Path

import math_verifier
import pytest
from matrix import some_of

from nemo_algos.engines.rewards import VerifierPool
from nemo_algos.engines.rewards.math import verify_math

ROOT = Path(__file__).parents[3]
FONTS = r"""
\bf G|{\bf G}|\bf{G}|\mathbf{G}|\mathbf G|\rm G|{\rm G}|\mathrm{G}|\textbf{G}|\textit{G}|\textsf{G}
\texttt{G}|\textnormal{G}|\emph{G}|\mathsf{G}|\mathit{G}|\it G|\boldsymbol{G}|\pmb{G}|\bold{G}|{{G}}
\underline{\underline{G}}|\mathbf{\textbf{G}}|{\large\bf G}|\left.G\right.|\hspace{2mm}G|\mathop{G}
\ensuremath{G}|\textcolor{red}{\mathbf{G}}
"""
FONTS = [font for line in FONTS.split("\n") for font in line.split("|") if font]
GOLDS = r"27 -3 \frac{7}{2} (3,-4) [2,5) 5\sqrt{3} 12345 3+4i x^2+2x-3 42\% 60^\circ"
GOLDS = [*GOLDS.split()]
# gold: what answers it, what does not; in a box
NOTATIONS = {
    "27": (
        r"""\text{n = }27  \text{n = 27}  n={27}  \text{Sum: }27  \text{Speed}: 27  \text{Hence }27
        \text{It takes }27\text{ hours}  k\text{ is }27  \text{Area of square}=27  27\mathbf{cm}
        \text{Number of squares: }27  m+n=27  a^2+b^2=27  2x=27  f(3)=27  P(A|B)=27  AB=27
        \lvert AB\rvert=27  a_{10}=27  n_{\text{max}}=27  g(f(2))=27  \max f=27  \therefore 27""",
        r"""|x|=27  \left|x\right|=27  \lvert x\rvert=27  \|v\|=27
        \lVert v\rVert=27  |x-1|=27  x^2=27
        \sqrt{x}=27  \log x=27  \ln(x)=27  \sin x=27  e^x=27  2^x=27  x!=27  -x=27  x+1=27
        \frac{1}{x}=27  \lfloor x\rfloor=27  \text{n squared}=27  \text{n > }27  \text{not }27
        \text{less than }27  \text{n is not }27  27\text{ is too large}  \text{twice }27  27:1:1
        [26,28]  [27,27]  27_{\text{nine}}  \mathbf{27}0  {\bf 27}5  \mathbf{27}^2  {-}27
        \mathbf{-}27  \text{minus }27""",
    ),
    "-3": (
        r"""{-}3  -{3}  \text{-}3  \mathbf{-}3  \mathbin{-}3  \mathrm{-}3  -{\bf 3}  {-}{3}  (-)3
        \text{negative }3  \text{n = }-3  x={-}3""",
        r"3  {+}3  {-}{-}3  \pm 3  {\pm}3  {-}30  -\mathbf{-3}  \text{negative }30",
    ),
    r"\frac{7}{2}": (
        r"""7:2  \sfrac{7}{2}  \nicefrac{7}{2}  {}^{7}\!/_{2}  \frac{\bf 7}{\bf 2}  P=7/2
        \mathbf{\frac{7}{2}}""",
        r"""7:2:1  7:2:7  7 : 2 : 3  \frac{7}{2}:1:1  [7,2]  (7,2)  x^2=\frac{7}{2}  1:7:2
        \mathbf{\frac{7}{3}}""",
    ),
    "3:4:5": (
        r"6:8:10  3\colon4\colon5  \mathbf{3:4:5}",
        "3:4:6  5:4:3  3:4  12:16:15  0.15  (3,4,5)",
    ),
    "3:1:1": ("6:2:2", "3  12:4:1  3:1"),
    "1,2,3": (r"3,2,1  \mathbf{1},{2},3", "1:2:3  [1,3]"),
    "(3,-4)": (
        r"\mathbf{(3,-4)}  ({3},{-4})  \lparen 3,-4\rparen  \text{The point }(3,-4)  {(3,-4)}",
        r"[3,-4]  \left[3,-4\right]  \lbrack3,-4\rbrack  \mathbf{[3,-4]}  (3,-4]  \text{[3,-4]}",
    ),
    "(1,2,3)": ("(1, 2, 3)", r"[1,2,3]  \{1,2,3\}"),
    "[2,5)": (r"\mathbf{[2,5)}  \lbrack 2,5)", r"(2,5)  [2,5]  \mathbf{(2,5)}"),
    "1011_2": (
        r"""1011_{\text{two}}  1011_{two}  1011_\text{two}  1011_{\rm two}  1011_{\text{base }2}
        1011\text{ (base two)}  1011\text{ in base }2  \left(1011\right)_2  {1011}_{2}
        \mathbf{1011}_2
        \text{1011 base 2}  1011_{(2)}  1011\ (\text{base }2)  \overline{1011}_2""",
        r"""1011_{\text{three}}  1011\text{ base three}  1010_{\text{two}}  \mathbf{1011}_3
        1011_{\text{6}}""",
    ),
    "60^\\circ": (
        r"60^\text{o}  60^{\mathrm{o}}  60{}^\circ  60^{\deg}",
        r"60\text{ radians}  61^\circ",
    ),
    r"\text{Monday}": (
        r"\bf Monday  {\bf Monday}  \emph{Monday}  \operatorname{Monday}  \text{Monday.}",
        r"\bf Sunday  \text{not Monday}",
    ),
}


@pytest.mark.parametrize("gold", some_of(GOLDS, 4))
def test_a_font_changes_no_answer(gold):
    assert [x for f in FONTS if verify_math(box(x := f.replace("G", gold)), gold) != 1] == []
    others = [other for other in GOLDS if other != gold]
    made = [f.replace("G", other) for f, other in product(FONTS[::4], others)]
    assert [x for x in made if verify_math(box(x), gold) != 0] == []


@pytest.mark.parametrize("gold", NOTATIONS)
def test_a_notation_is_read_as_it_is_meant(gold):
    right, wrong = (re.split(r"\s{2,}", side) for side in NOTATIONS[gold])
    assert [x for x in right if verify_math(box(x), gold) != 1] == []
    assert [x for x in wrong if verify_math(box(x), gold) != 0] == []


def box(answer):
    return rf"\boxed{{{answer}}}"


NAMED = "options, words and names"
PAIRS = [pair for pair in math_verifier.read_pairs() if pair[1] == NAMED]


@pytest.mark.parametrize("gold", some_of(dict.fromkeys(pair[2] for pair in PAIRS), 20))
def test_an_answer_in_other_words_or_names(gold):
    misjudged = []
    for truth, _, _, response in [pair for pair in PAIRS if pair[2] == gold]:
        if verify_math(response, gold) != (truth == "right"):
            misjudged.append(response)
    assert misjudged == []


@pytest.mark.long
def test_the_table_of_our_pairs_is_so():
    text = (ROOT / "benchmarks" / "README.md").read_text()
    printed = re.search(r"^\| ours \| (\d+) \| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    with VerifierPool("math", workers=2) as pool:
        figures = math_verifier.pairs(pool)
    accepted = {kind: len(split["accepted"]) for kind, split in figures["wrong"].items()}
    rejected = len(figures["right"]["all"]["rejected"])
    attacks = accepted["attacks"]
    assert [int(n) for n in printed.groups()] == [rejected, accepted["all"] - attacks, attacks]
