"""verify_math on units, inequalities, boxes taken back, moduli, environments, words and dots."""

# ruff: noqa: RUF001

import pytest
from matrix import some_of

from nemo_algos.engines.rewards.math import verify_math

# gold: what answers it, what does not; in a box, with | between
DECIDED = {
    "17": (
        r"17\text{ cows}|17 people|17 km/h|17\text{ (exactly)}|\text{about }17"
        r"|\text{The answer is 17}|3^2+8=17|x=3^2+8=17|17.0 = 17|f(2)=17|P(X) = 17|(B)~17"
        r"|\textbf{(B)}\ 17|17\,\checkmark|=17|17^{\text{th}}|\bm{17}|17．|１７|17元|共17个"
        r"|17\text{ 岁}|17\quad|\,17\,|$17$|**17**",
        r"17\text{ or 18}|17\text{, 18 or 19}|17\text{ (wrong, it is 18)}|17\text{ or more}|17?"
        r"|17\text{ or eighteen}|17\text{, eighteen}|17\text{ is wrong}|17\text{ if odd}|17\text{?}"
        r"|17\text{ unless }x=3|17\text{ if }n=1, 18\text{ else}|17\text{ else }\frac{1}{2}"
        r"|17\mathrm{or}18|17 oder 18|17 or 18|17 or x|17\lor 18|17/18|17:18|17;18|17, 18"
        r"|\text{between 16 and 17}|\text{at least }17|\text{not }17|\text{It is not 17}|\neg 17"
        r"|1=2=3=17|18=17|17=18|x=17=18|x=18=17|3+4=17|17\approx 18|18\equiv 17|17=17.5"
        r"|17 18|17\ 18|17\quad 18|17\\18|x=18\\x=17|17...|17,\ldots|16,17,\dots|17\pm 1|\pm 17"
        r"|17,17|\{17,17\}|17,\{\}|\{17\}\cup\{18\}|17_8|17\text{ trillion}|17\text{ lakh}|17k"
        r"|17\text{ thirds}|17\text{ squared}|17\text{ plus one}|\text{twice }17|17万|17千|17或18"
        r"|17、18|17至18|不是17|17不对|十七或17|17\tag{18}|\cancel{17}|17'"
        r"|17²|17½|17 000|(A) 17 (B) 18",
    ),
    "25": ("5²|20 + 5|25 cm²", r"12 13|12\ 13|(12)(13)|24 1|5(20)"),
    "0": (
        "0|0 apples|x=0",
        r"0\text{ unless }5|0 apples 5 pears|0\cdot x=5|\text{not }0|5\text{ or }0",
    ),
    "1,2": (
        r"2,1|\{1,2\}|1\text{ or }2|1或2|1、2|x=1 \text{ or } x=2|x_1=1, x_2=2",
        r"1,1,1,2|1,2,2|1,2,\ldots|1,2,3|1|1\text{ or }2\text{ or }3|1=2|[1,2]",
    ),
    "1,1,2": ("1,2,1", "1,2|1,2,2"),
    "(3,-4)": (
        r"x=3, y=-4|y=-4, x=3|\langle 3,-4\rangle|\bigl(3,-4\bigr)|P(3,-4)|（3，−4）",
        r"\{3,-4\}|(-4,3)|y=3, x=-4|3\text{ or }{-4}|x=3,-4|x=3, x=-4|(3,-4),(3,4)",
    ),
    r"\{3,-4\}": (r"-4,3|\{-4,3\}", "(3,-4)"),
    "[-2,5)": (
        r"-2\le x<5|x\in[-2,5)|[-2,5[|\{x\mid -2\le x<5\}|x\ge -2\text{ and }x<5|-2 ≤ x < 5",
        r"-2<x<5|-2\le x\le 5|x<5|[-2,5)\cup\{7\}|x\ge -2\text{ or }x<5|-2,5|[-2,5)\text{ or }x=7",
    ),
    r"(-\infty,-1)\cup(3,\infty)": (
        r"x<-1\text{ or }x>3|x>3 \lor x<-1|(−∞,−1)∪(3,∞)",
        r"x<-1\text{ and }x>4|x<-1|x\le -1\text{ or }x>3|(-1,3)|x<-1\text{ or }x>3\text{ or }x=0",
    ),
    r"\frac{7}{3}": (
        r"2 1/3|2⅓|2\,\frac13|2.\overline{3}|2.\bar{3}|2.333...|2\tfrac{1}{3}",
        r"2 2/3|2, 1/3|2.3|2.\overline{1}|2\cdot\frac13|2.33...|2.\overline{3}, 2",
    ),
    r"\frac13": (
        r"33\frac13\%|0.\overline{33}|\frac13\approx 0.33",
        r"0.3|0.3...|33\%|\frac13\approx 0.5",
    ),
    "3+4i": (r"3+4 i|3 + 4\cdot i|4i+3|3+4\mathrm{i}|z = 3 + 4 i", r"3-4 i|3\pm 4i|3,4i|4+3 i"),
    r"\sum_{i=1}^{3} i^2": (
        r"14|\sum_{i=1}^{3} i^2|\sum_{i=1}^{3} i \cdot i",
        r"15|\sum_{i=1}^{4} i^2",
    ),
    "-1": (r"e^{i\pi}|i^2|\cos\pi|\cos 180^\circ", r"e^{i}|i|1|\sin 180^\circ"),
    r"2\pm\sqrt3": (r"\frac{4\pm 2\sqrt{3}}{2}|2+\sqrt3, 2-\sqrt3|2±√3", r"2+\sqrt3|2\pm 3"),
    "x^2": ("x²|x^{2}|f(x)=x²", "x^3|x2|x₂|x²=0|x^2, x"),
    "1234567": (
        r"x = 1,234,567|1,\!234,\!567|1 234 567|1\,234\,567|1{,}234{,}567",
        "1, 234, 567|1 2345 67|1234 567",
    ),
    r"\text{Monday}": (
        r"Monday|\textbf{Monday}|\text{monday}",
        r"\text{Monday or Friday}|Mondays, Friday",
    ),
    r"5\text{ trillion}": (r"5\times 10^{12}|5 trillion", r"5|5\text{ billion}"),
}


# the same, one a line
IN_A_BOX = {
    "300": (
        r"""300\ \text{K}
300\,\mathrm{K}
T = 300~\mathrm{K}
T_e \approx 300\ \mathrm{K}
300 K
300\ \text{K/s}
300\ \mathrm{J\,mol^{-1}\,K^{-1}}
300\ \text{J/(mol K)}
300\,\text{k}\Omega
300\ \Omega
300\ \mathrm{T}
300\ \text{N}\cdot\text{m}
300\ \mu\text{m}
300\text{ MeV}""",
        r"""300k
\$300\text{K}
\$300K
300\text{ k}
300\text{K dollars}
301\ \text{K}""",
    ),
    "300000": (r"\$300\text{K}", r"\$300\ \text{kg}"),
    r"300\text{ K}": (r"300\ \mathrm{K}", "300\\ \\mathrm{kg}\n301\\ \\mathrm{K}"),
    r"9.8\text{ m/s}^2": (
        r"""9.8\ \mathrm{m\,s^{-2}}
9.8\ \mathrm{m/s^2}
9.8\ \text{m}\cdot\text{s}^{-2}
9.8 m/s^2""",
        r"""9.8\ \mathrm{m\,s^{-1}}
9.8\ \mathrm{m\,s^2}
9.8\text{ m/s}""",
    ),
    r"5\text{ J}": (r"5\ \mathrm{J}", "5\\text{ kJ}\n5\\text{ eV}\n5\\text{ W}"),
    "5e10": (
        r"5\times10^{10}\ \mathrm{erg\,s^{-1}\,cm^{-2}}",
        r"5\times10^{11}\ \mathrm{erg\,s^{-1}\,cm^{-2}}",
    ),
    "1,3": (
        "x=1, x=3\n(1,3)\nx\\in\\{1,3\\}",
        "1<x<3\n1\\le x<3\n3>x>1\nx<1\\text{ or }x>3\n"
        "x\\in(1,3)\nx \\in \\left(1, 3\\right)\nx∈(1,3)\n]1,3[",
    ),
    r"\{1,3\}": ("1, 3", "1 < x < 3\n(1,3)"),
    "x=1, x=3": ("1, 3", "1<x<3\nx\\in(1,3)"),
    r"x\in(1,3)": ("(1,3)\n1<x<3\n]1,3[", "1,3\nx=1, x=3\nx\\in[1,3]"),
    r"\pm 2": ("-2, 2", "|x|<2\n-2<x<2\n|x|>2\nx\\in(-2,2)"),
    r"15^\circ, 75^\circ": (r"75^\circ, 15^\circ", r"15^\circ<\theta<75^\circ"),
    "x=3": ("3", "x<3\nx\\ge 3"),
    "1<x<3": ("(1,3)\n3>x>1\nx \\in (1,3)", "1,3\n[1,3]\n3\\ge x>1"),
    r"-\frac12<m<0": (r"0>m>-\frac12", "0\\ge m>-\\frac12\n-\\frac12, 0"),
    "|x|<2": ("-2<x<2\n(-2,2)", "-2\\le x\\le 2\n-2, 2"),
    r"(-\infty,-3)\cup(-3,5]": (r"x\le 5, x\ne -3", "x\\le 5\nx\\le 5, x\\ne 3\nx<5, x\\ne -3"),
    "27": (
        r"""\begin{aligned} 27 \end{aligned}
\begin{array}{c} 27 \end{array}
\begin{gathered}27\end{gathered}
\begin{equation*} x = 27 \end{equation*}
\begin{aligned} x &= 20 + 7 \\ &= 27 \end{aligned}
27\text{ is the answer}
27 \pmod{30}""",
        r"""27 \mod 5
27 \bmod 5
27 \pmod{5}
27^2 \bmod 5
27\text{ is an upper bound}
27\text{ does not work}
\begin{aligned} 28 \end{aligned}
\begin{aligned} x&=27\\ x&=28 \end{aligned}
\begin{array}{c} 27 \\ 28 \end{array}
\begin{array}{cc} 27 & 28 \end{array}""",
    ),
    "2": (r"27 \bmod 5", r"27 \bmod 6"),
    "(1,2)": (
        "\\begin{aligned} x &= 1 \\\\ y &= 2 \\end{aligned}\n"
        r"\begin{array}{l} x=1 \\ y=2 \end{array}",
        r"\begin{aligned} x &= 2 \\ y &= 1 \end{aligned}",
    ),
    r"\begin{pmatrix}1\\2\end{pmatrix}": (
        r"\begin{aligned}\begin{pmatrix}1\\2\end{pmatrix}\end{aligned}",
        r"\begin{aligned}\begin{pmatrix}2\\1\end{pmatrix}\end{aligned}",
    ),
    r"\text{June 20}": (
        "\\text{June }20\nJune 20\n\\text{june } 20",
        "\\text{June }21\n\\text{July }20\n20\nJune",
    ),
    "f(x)=x": ("f(x)=x,\\ \\forall x\nf(x)=x,\\ \\forall x\\in\\mathbb{R}", r"f(x)=2x,\ \forall x"),
    r"\frac{n(n+1)}{2}": (
        r"1+2+\cdots+n=\frac{n(n+1)}2",
        "1+2+\\cdots+n=\\frac{n(n-1)}2\n1+2+\\cdots+n",
    ),
}


def split(table, mark):
    return [(gold, right.split(mark), wrong.split(mark)) for gold, (right, wrong) in table.items()]


@pytest.mark.parametrize(
    ("gold", "right", "wrong"), some_of([*split(DECIDED, "|"), *split(IN_A_BOX, "\n")], 22)
)
def test_a_box_is_decided_or_earns_nothing(gold, right, wrong):
    assert [x for x in right if verify_math(rf"\boxed{{{x}}}", gold) == 0] == []
    assert [x for x in wrong if verify_math(rf"\boxed{{{x}}}", gold) == 1] == []


TAKEN_BACK = r"""
The answer is not \boxed{27}.
The answer cannot be \boxed{27}.
It can't be $\boxed{27}$.
The value isn't equal to \boxed{27}
It is never the value \boxed{27}.
The answer is anything but \boxed{27}.
The wrong answer is \boxed{27}.
The incorrect answer: \boxed{27}
\boxed{27} is not the answer.
$\boxed{27}$ isn't right.
\boxed{27} is false.
\boxed{27}? No, that is wrong.
So $\boxed{27}$? No.
It could be \boxed{27}, but that fails.
\boxed{27}, but this does not work.
We rule out \boxed{27}.
So we have to reject $x = \boxed{27}$.
\boxed{27} - wait, that's wrong.
\boxed{27} cannot be the answer.
\boxed{27}, which is incorrect.
\boxed{27} does not satisfy the equation.
$x \neq \boxed{27}$
$x < \boxed{27}$
$\boxed{27}$ is an incorrect answer.
$\boxed{27}$ must be rejected.
I doubt that it is \boxed{27}.
答案不是\boxed{27}
\boxed{27}是错的
""".strip().split("\n")

KEPT = r"""
It is not 28 but \boxed{27}.
Since 28 is not prime, the answer is \boxed{27}.
Not 26, not 28: \boxed{27}
\boxed{27} is the answer, not 28.
\boxed{27}? Yes.
Is it \boxed{27}? No other number is a cube.
We rule out 28, so \boxed{27}.
We reject the root -1. \boxed{27}
\boxed{27}. This is not a prime.
The point $\boxed{27}$, is not on the line.
Note that $x$ cannot be negative. \boxed{27}
So the least value is $\boxed{27}$, which is not a square.
\boxed{27}. It is wrong to take 28.
There are at least $\boxed{27}$ of them.
Hence $n \ge \boxed{27}$.
So $3^3!=\boxed{27}$.
""".strip().split("\n")


@pytest.mark.parametrize(("responses", "reward"), [(TAKEN_BACK, 0), (KEPT, 1)])
def test_a_box_that_is_taken_back(responses, reward):
    assert [x for x in responses if verify_math(x, "27") != reward] == []


@pytest.mark.parametrize("gold", ["nan", "NaN", "inf", "-inf"])
def test_a_gold_that_is_no_number_is_refused(gold):
    with pytest.raises(ValueError, match="gold"):
        verify_math(rf"\boxed{{{gold}}}", gold)
