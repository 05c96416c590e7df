"""verify_math on how models write their last lines: what is around an answer decides nothing.

FORMATS: BOX is a box with the answer, ANS the answer alone; each pays the right answer and none of
the wrong ones. TIED: BOX is a part of more, and pays nothing.
"""

import pytest
from matrix import some_of

from nemo_algos.engines.rewards.math import verify_math
from nemo_algos.engines.rewards.math.verifier import without_markup

# ruff: noqa: RUF001

_BOXED = r"""
BOX
BOX.
$BOX$
$BOX$.
$$BOX$$
\(BOX\)
\[BOX\]
\[⏎BOX⏎\]
\[⏎x = BOX⏎\]
$$⏎BOX⏎$$
$$⏎BOX.⏎$$
\[ \huge BOX \]
\[⏎\quad BOX \quad⏎\]
$\displaystyle BOX$
\begin{equation}⏎BOX⏎\end{equation}
\begin{align*}⏎x &= 1 + 2 \\⏎&= BOX⏎\end{align*}
\begin{center}⏎BOX⏎\end{center}
The answer is BOX.
The answer is $BOX$.
The answer is: $BOX$
The answer is $BOX$. I hope it is correct.
So x = BOX
So $x = BOX$.
Thus $2 + 3 = 5$, and the answer is BOX.
Therefore, \(a*b = 4\), so **BOX**.
$\therefore BOX$
$\Rightarrow BOX$
$a = 1 \implies BOX$
=> BOX
→ BOX
∴ BOX
**BOX**
**BOX.**
**BOX**.
**BOX**⏎
** BOX **
*BOX*
***BOX***
__BOX__
_BOX_
**$BOX$**
**\(BOX\)**
**\[BOX\]**
*$BOX$*
$\mathbf{BOX}$
\textbf{BOX}
{\large BOX}
\underline{BOX}
`BOX`
`$BOX$`
```⏎BOX⏎```
```latex⏎BOX⏎```
```⏎**BOX**⏎```
> BOX
> **BOX**
> **Answer:** BOX
# BOX
## Answer: BOX
### Final answer⏎⏎**BOX**
### Final answer⏎⏎$BOX$
### **Final answer:** **BOX**
### ✅ Final answer: **BOX**
#### BOX
####BOX
---⏎⏎**BOX**⏎⏎---
- BOX
* BOX
+ BOX
• BOX
•BOX
1. BOX
2) **BOX**
- **BOX**
* **BOX**
*BOX
The values:⏎*BOX
**Step 3.**⏎*BOX
- We add.⏎- We divide.⏎-BOX
- We add.⏎-**BOX**
* We add.⏎*BOX
- **Answer:** BOX
* *BOX*
- [x] BOX
**Answer:** BOX
**Answer:** **BOX**
**Answer**: **BOX**
**Answer:** $BOX$
**Answer: BOX**
**Answer: $BOX$**
**Answer:⏎BOX**
**Final answer:**BOX
**Final answer**BOX
**Final answer:** *BOX*
**Final Answer**⏎⏎BOX
**Final Answer**⏎⏎**BOX**
**Final Answer:**⏎⏎\[⏎BOX⏎\]
*Final answer:* BOX
*Final answer:*BOX
The **final answer** is **BOX**.
The final answer is: **BOX** ✅
The answer (as asked): **BOX**, which is *all*.
Final answer: **BOX
Final answer: (BOX)
Final answer: "BOX"
Final answer: “BOX”
Final answer: “**BOX**”
Final answer: (**BOX**)
Final answer — **BOX**
Final answer – BOX
👉 **BOX**
✅ BOX
🎉 $BOX$ 🎉
\text{Answer: }BOX
$\text{Answer: }BOX$
\textbf{Answer:} $BOX$
**\text{Answer: }**BOX
The answer:~$BOX$
| value | BOX |
| **value** | **BOX** |
|---|---|⏎| x | $BOX$ |
<answer>BOX</answer>
<answer>⏎BOX⏎</answer>
<answer>$BOX$</answer>
<answer>**BOX**</answer>
<answer>⏎**Answer:** BOX⏎</answer>
<answer>ANS</answer>
<answer> ANS </answer>
<answer>⏎ANS⏎</answer>
<answer>**ANS**</answer>
<think>Is it \boxed{777}? Or 2*3?</think>⏎⏎**BOX**
<think>**\boxed{777}**</think>⏎**Answer:** BOX
</think>⏎⏎BOX
<b>BOX</b>
<strong>BOX</strong>
<p>BOX</p>
<details><summary>Answer</summary>⏎⏎BOX⏎⏎</details>
{"answer": "BOX"}
{"reasoning": "2*3", "answer": "**BOX**"}
```json⏎{"answer": "BOX"}⏎```
{"answer": "JSON"}
```json⏎{⏎  "steps": 3,⏎  "answer": "JSON"⏎}⏎```
[{"final": "JSON"}]
answer: BOX
answer = "BOX"
答案：BOX
答案：**BOX**
答案是BOX。
答案是 $BOX$。
因此，答案为 **BOX**。
因此答案为**BOX**。
所以最终答案是：$BOX$。
【答案】BOX
**答案：**BOX
**最终答案**：**BOX**
故选 BOX
答えは **BOX** です。
답: **BOX**
Ответ: **BOX**
Respuesta: **BOX**.
La réponse est **BOX** !
BOX ∎
BOX $\blacksquare$
$BOX$ \qed
**BOX** (exactly)
**BOX**⏎⏎Let me know if 3*4 or 2 * 5 is unclear!
**BOX**⏎⏎*Check:* 2*3 = 6.
First \boxed{777}, which is wrong; then **BOX**.
**Step 1:** 2*3. **Step 2:** 4*5. **Result:** BOX
**Step 2** **BOX**
Step 2: *BOX*
We get $2*3$, *so* BOX.
"""
FORMATS = [line.replace("⏎", "\n") for line in _BOXED.strip().split("\n")]

_TIED = r"""
-BOX
x = -BOX
So x is -BOX.
$-BOX$
$x = -BOX$
$x = - BOX$
\[⏎-BOX⏎\]
\[⏎x =⏎-BOX⏎\]
$$⏎-BOX⏎$$
Then x equals⏎-BOX
**-BOX**
**x = -BOX**
2*BOX
2 *BOX
2*BOX*3
2 *BOX* 3
**2*BOX**
**Answer:** 2*BOX
x*BOX
(x+1)*BOX
$x$*BOX
$2$*BOX*$3$
2**BOX
x**BOX
$2*BOX$
$2*BOX*3$
$2\cdot BOX$
$3 \times BOX$
$3\timesBOX$
2BOX
$2BOX$
**2BOX**
1/BOX
$1/BOX$
2^BOX
$x^BOX$
3+BOX
BOX^2
$BOX^2$
**BOX**^2
BOX**2
BOX*3
**BOX***3
**BOX** * 3
BOX/3
BOX is wrong.
**BOX** is wrong.
**BOX** is incorrect: try again.
**BOX**0
**BOX** million
**$BOX$** million
"""
TIED = [line.replace("⏎", "\n") for line in _TIED.strip().split("\n")]

# gold, a right spelling, a wrong one
_GOLDS = r"""
42|42|43
-7|-7|7
0|0|1
1234567|1,234,567|1,234,576
2.5|2.5|2.4
0.125|\frac18|\frac17
\frac{3}{4}|\dfrac{3}{4}|\dfrac{4}{3}
-\frac{2}{3}|-\frac{2}{3}|\frac{2}{3}
\frac{7}{3}|2\frac{1}{3}|2\frac{2}{3}
\sqrt{2}|\sqrt2|\sqrt3
2\sqrt{3}|\sqrt{12}|3\sqrt{2}
\frac{\sqrt{3}}{2}|\frac12\sqrt3|\frac{\sqrt{2}}{2}
\pi|\pi|2\pi
\frac{\pi}{6}|\pi/6|\pi/3
4\pi r^2|4\pi r^2|4\pi r^3
e^2|e^2|e^3
2^{10}|1024|1025
10!|3628800|3628801
\binom{5}{2}|10|20
\log_2 8|3|4
3+4i|3+4i|3-4i
e^{i\pi}|-1|1
x^2+2x+1|(x+1)^2|(x-1)^2
x^2-4|(x-2)(x+2)|(x-2)^2
2x+3|3+2x|2x-3
\frac{x}{x+1}|1-\frac{1}{x+1}|1+\frac{1}{x+1}
y=2x+1|y=2x+1|y=2x-1
x=5|x=5|x=-5
(1,2)|(1,2)|(2,1)
(3,-4)|(3, -4)|(3, 4)
(1,2,3)|(1,2,3)|(1,3,2)
\{1,2\}|\{2,1\}|\{1,3\}
1,2|1, 2|1, 3
-1,4|x=-1\text{ or }x=4|x=1\text{ or }x=4
\pm 3|\pm 3|\pm 2
\emptyset|\varnothing|\{0\}
[0,1]|[0,1]|(0,1)
(-\infty,3)|x<3|x\le 3
[-2,5)|-2\le x<5|-2<x<5
(-\infty,1]\cup[2,\infty)|(-\infty,1]\cup[2,\infty)|(-\infty,1)\cup(2,\infty)
(-\infty,1]\cup[2,\infty)|x\le1 \text{ or } x\ge2|x<1 \text{ or } x\ge2
(-\infty,1]\cup[2,\infty)|x\leq 1 \lor x\geq 2|x\leq 1 \land x\geq 2
(-\infty,1]\cup[2,\infty)|\{x \mid x\le 1\text{ or }x\ge 2\}|\{x \mid x\le 1\text{ or }x\ge 3\}
x \le 1 \text{ or } x \ge 2|(-\infty,1]\cup[2,\infty)|(-\infty,1]\cup[3,\infty)
(-\infty,-1)\cup(3,\infty)|x<-1\text{ or }x>3|x<-1\text{ and }x>3
\begin{pmatrix}1&2\\3&4\end{pmatrix}|\begin{pmatrix}1&2\\3&4\end{pmatrix}|\begin{pmatrix}1&3\\2&4\end{pmatrix}
\begin{bmatrix}1\\2\end{bmatrix}|\begin{pmatrix}1\\2\end{pmatrix}|\begin{pmatrix}2\\1\end{pmatrix}
42\%|42\%|43\%
0.42|42\%|4.2\%
90^\circ|90°|45°
15\text{ cm}^2|15\text{ cm}^2|15\text{ cm}^3
5\text{ m/s}|5\,\text{m/s}|5\,\text{km/h}
5 m/s|5\;\frac{\text{m}}{\text{s}}|6\;\frac{\text{m}}{\text{s}}
9.8\text{ m/s}^2|9.8\;\frac{\text{m}}{\text{s}^2}|8.9\;\frac{\text{m}}{\text{s}^2}
\$5|\$5|\$6
5\text{ million}|5{,}000{,}000|5
6.02\times10^{23}|6.02\cdot 10^{23}|6.02\cdot 10^{22}
52_8|52_8|52_9
3\pmod 7|3\pmod 7|4\pmod 7
\text{Monday}|\text{Monday}|\text{Friday}
\text{Evelyn}|\text{Evelyn}|\text{Carla}
2:30|2:30|3:20
0.\overline{3}|\frac13|0.3
2n-1|2n-1|2n+1
\frac{1}{2},\frac{1}{3}|\frac13,\frac12|\frac13,\frac14
"""
GOLDS = [tuple(line.split("|")) for line in _GOLDS.strip().split("\n")]


def written(form: str, answer: str) -> str:
    """The response of this form that gives `answer`."""
    box = rf"\boxed{{{answer}}}"
    in_json = box.replace("\\", "\\\\")
    return form.replace("JSON", in_json).replace("BOX", box).replace("ANS", answer)


GOLDS_OF = {form: [GOLDS[0], (GOLDS * 3)[i % 65]] for i, form in enumerate(FORMATS)}


@pytest.mark.parametrize(("gold", "right", "wrong"), some_of(GOLDS, 33))
def test_a_right_spelling_earns_and_a_wrong_one_does_not(gold, right, wrong):
    assert verify_math(written("BOX", right), gold) == 1
    assert verify_math(written("BOX", gold), gold) == 1
    assert verify_math(written("BOX", wrong), gold) == 0


@pytest.mark.parametrize("form", some_of(FORMATS, 86))
def test_a_format_pays_right_answers_alone(form):
    for gold, right, wrong in GOLDS_OF[form]:
        assert verify_math(written(form, right), gold) == 1
        assert verify_math(written(form, wrong), gold) == 0


@pytest.mark.parametrize("form", TIED)
def test_a_box_that_is_a_part_of_more_is_no_answer(form):
    for answer in ("42", r"\frac{3}{4}", "2.5"):
        assert verify_math(written(form, answer), answer) == 0


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        (r"**\boxed{1}**, **\boxed{2}**", r"\boxed{1}, \boxed{2}"),
        (r"**x = $\boxed{1*2}$**", r"x = $\boxed{1*2}$"),
        (r"$a*b*\boxed{1}*c$", r"$a*b*\boxed{1}*c$"),
        (r"`x` **y** \(p_1\) _\boxed{1}_", r"x y \(p_1\) \boxed{1}"),
        ("no box: **1**", "no box: **1**"),
        (r"\$5 or \$6: *\boxed{5}*", r"\$5 or \$6: \boxed{5}"),
        ("$5 or *$6*:\n*\\boxed{5}*", "$5 or *$6*:\n\\boxed{5}"),
        ("\ue000 **\\boxed{\ue000}**", "  \\boxed{\ue000}"),
    ],
)
def test_without_markup(text, bare):
    assert without_markup(text) == bare


@pytest.mark.parametrize(
    "filler", ["*", "**", "_", "`", "* ", "$", "\\[", "$$", "- ", "> *", "*a*"]
)
def test_markup_of_a_megabyte_is_read_in_linear_time(filler):
    text = filler * (10**6 // len(filler)) + r"**\boxed{42}**"
    assert verify_math(text, "43") == 0


def test_two_bold_boxes_are_one_answer():
    assert verify_math(r"**\boxed{1}** and **\boxed{2}**", "1, 2") == 1
    assert verify_math(r"**\boxed{1}** and **\boxed{2}**", "2") == 0
