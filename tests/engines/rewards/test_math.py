"""verify_math: which answers earn the reward."""
# ruff: noqa: RUF001

import subprocess
import sys
import threading

import pytest

from nemo_algos.engines.rewards.math import verify_math


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"\boxed{18}", "18"),
        ("She makes 9 * 2 = 18 dollars.\n#### 18", "18"),
        ("The answer is 18.", "18"),
        (r"First \boxed{17}, so the answer is $\boxed{18}$.", "18"),
        (r"\boxed{18}. I checked it with $x=3$ and 4.", "18"),
        # golds as the data sets write them
        (r"\boxed{27}", "27.0"),
        (r"\boxed{27.0}", "27"),
        (r"\boxed{1234}", "1,234"),
        (r"\boxed{70,000}", "70000"),
        (r"\boxed{0.5}", r"\frac12"),
        (r"\boxed{\dfrac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{33}", "033"),
        (r"\boxed{1.0}", "1"),
        (r"\boxed{\text{Evelyn}}", r"\text{Evelyn}"),
        (r"\boxed{(3, \pi/2)}", r"\left( 3, \frac{\pi}{2} \right)"),
        (r"\boxed{(1+x)^2}", "x^2+2x+1"),
        (r"\boxed{x=5}", "5"),
        (r"\boxed{(1,2)}", "1<x<2"),
        (r"\boxed{0.56 = 56\%}", r"0.56 = 56\%"),
        # other spellings
        (r"\boxed{90°}", r"90^\circ"),
        (r"\boxed{5~\text{cm}}", r"5\text{ cm}"),
        (r"\boxed{1\,234}", "1234"),
        (r"\boxed{\frac\pi2}", r"\frac{\pi}{2}"),
        (r"\boxed{\varnothing}", r"\emptyset"),
        (r"\boxed{5.}", "5"),
        (r"\boxed{\color{red}{5}}", "5"),
        (r"\boxed{\textcolor{red}{5}}", "5"),
        (r"\boxed{\textbf{5}}", "5"),
        (r"\boxed{5 \text{ million}}", "5000000"),
        (r"It is $\boxed{5}$ million.", "5000000"),
        (r"\boxed{5}" + "\n\nHundreds more fail.", "5"),
        (r"\boxed{5\text{ ft }6\text{ in}}", r"5\text{ ft }6\text{ in}"),
        (r"\boxed{5 \text{ or } 6}", "5, 6"),
        (r"\boxed{x \leq 5}", r"x \leq 5"),
        (r"\boxed{> 5}", "> 5"),
        ("<answer>5</answer> in 3 steps", "5"),
        (r"<answer> \boxed{5} </answer> in 3 steps", "5"),
        ("The answer is 5. Wait, I made a mistake. It is 6.", "6"),
    ],
)
def test_right_answers(response, answer):
    assert verify_math(response, answer) == 1.0


RELATIONS = [r"\neq", r"\ne", r"\not", r"\not=", r"\leq", r"\geq", r"\le", "<", ">", "!=", "≤"]
SCALES = ["dozen", "hundred", "thousand", "million", "billion", "trillion", "lakh"]


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"\boxed{19}", "18"),
        (r"\boxed{-18}", "18"),
        (r"First \boxed{18}, so the answer is $\boxed{17}$.", "18"),
        (r"\boxed{17}. The other sum was 18.", "18"),
        (r"\boxed{(2,1)}", "(1,2)"),
        (r"\boxed{18, 19}", "18"),
        (r"\boxed{}", "18"),
        *((rf"\boxed{{{relation} 18}}", "18") for relation in RELATIONS),
        *((rf"\boxed{{18\text{{ {scale}}}}}", "18") for scale in SCALES),
        *((rf"$\boxed{{18}}$ {scale}", "18") for scale in SCALES),
        ("$18$ million", "18"),
        (r"\boxed{18\text{ Millions}}", "18"),
        (r"\boxed{18k}", "18"),
        (r"\boxed{18 hours 30 minutes}", "18"),
        (r"\boxed{18\text{ hours }30\text{ minutes}}", "18"),
        (r"\boxed{18\text{ ft }6\text{ in}}", "18"),
        (r"\boxed{18}", r"18\text{ ft }6\text{ in}"),
        (r"\boxed{6\text{ ft }18\text{ in}}", r"18\text{ ft }6\text{ in}"),
        ("The answer is 18. Wait, I made a mistake. It is 6.", "18"),
        ("<answer>18</answer> <answer>19</answer>", "18"),
        ("", "18"),
        ("I do not know.", "18"),
        (r"\boxed{" * 30, "18"),
        ("\0\ud800", "18"),
    ],
)
def test_wrong_answers(response, answer):
    assert verify_math(response, answer) == 0.0


PERCENTS = [
    r"\boxed{42}\%",
    r"$\boxed{42}$ percent",
    r"\boxed{42\%}",
    r"$\boxed{42\%}$",
    "$42$%",
    "42%",
    "42 percent",
    r"\boxed{x = 42\%}",
]


@pytest.mark.parametrize("response", [*PERCENTS, r"\boxed{\{42\%\}}"])
def test_percentage_is_its_value(response):
    assert verify_math(response, "42") == 0.0
    assert verify_math(response.replace("42", "4200"), "42") == 0.0
    assert verify_math(response.replace("42", "0"), "0") == 1.0
    assert verify_math(response, "0.42") == 1.0
    assert verify_math(response, r"\frac{21}{50}") == 1.0


@pytest.mark.parametrize("response", [*PERCENTS, r"\boxed{42}", r"\boxed{0.42}"])
def test_percentage_gold_takes_all_its_forms(response):
    assert verify_math(response, r"42\%") == 1.0
    assert verify_math(response, r"43\%") == 0.0


AREA = r"15\mbox{ cm}^2"


@pytest.mark.parametrize(
    ("response", "answer", "reward"),
    [
        (r"\boxed{15}", AREA, 1),
        (r"\boxed{15\text{ cm}^2}", AREA, 1),
        (r"\boxed{15\,\mathrm{cm}^{2}}", AREA, 1),
        (r"\boxed{15 \text{ square centimeters}}", AREA, 1),
        (r"\boxed{15 \text{ sq. cm}}", AREA, 1),
        (r"$\boxed{15}$ cm$^2$", AREA, 1),
        (r"The area is $15\text{ cm}^2$.", AREA, 1),
        (r"\boxed{15\text{ cm}^3}", AREA, 0),
        (r"\boxed{15\text{ cm}}", AREA, 0),
        (r"\boxed{15\text{ cubic cm}}", AREA, 0),
        (r"\boxed{15 \text{ in}^2}", AREA, 0),
        (r"\boxed{15} cm^3.", AREA, 0),
        (r"The area is $15\text{ cm}^3$.", AREA, 0),
        ("15 cm³", AREA, 0),
        (r"\boxed{14\text{ cm}^2}", AREA, 0),
        (r"\boxed{15} in total", r"15\text{ feet}", 1),
        (r"\boxed{15\text{ feet tall}}", r"15\text{ feet}", 1),  # no unit that sympy knows
        (r"\boxed{\frac{270}{7}}", r"\frac{270}7\text{ degrees}", 1),
        (r"\boxed{\frac{270}{7}^\circ}", r"\frac{270}7\text{ degrees}", 1),
        (r"\boxed{\frac{270}{7}\text{ radians}}", r"\frac{270}7\text{ degrees}", 0),
        (r"\boxed{90\text{ degrees}}", r"90^\circ", 1),
        (r"\boxed{5.4\text{ dollars}}", r"5.4\text{ cents}", 0),
        (r"\boxed{5.4\text{ cent}}", r"5.4\text{ cents}", 1),
        (r"\boxed{18\text{ dollars}}", "18", 1),
        (r"\boxed{\$5}", r"\$5", 1),
        (r"\boxed{5}", r"\$5", 1),
        (r"\boxed{5 dollars}", r"\$5", 1),
        (r"The cost is \$5.", r"\$5", 1),
        (r"\boxed{5 cents}", r"\$5", 0),
        ("The cost is 5 cents.", r"\$5", 0),
        (r"\boxed{\$5}", r"5\text{ cents}", 0),
        (r"\boxed{€5}", r"\$5", 0),
        (r"\boxed{£5}", "€5", 0),
        (r"\boxed{\$1,234}", r"1234\text{ cents}", 0),
        (r"\boxed{52_8}", "52_8", 1),
        (r"\boxed{52_{8}}", "52_8", 1),
        (r"\boxed{52}", "52_8", 1),
        (r"\boxed{52_9}", "52_8", 0),
        (r"\boxed{17_8}", "17", 0),  # it is 15
        (r"\boxed{17_8}", "15", 1),
        (r"\boxed{19_8}", "19", 0),
        (r"\boxed{x \equiv 3 \pmod{7}}", r"3 \pmod 7", 1),
        (r"\boxed{3}", r"3 \pmod 7", 1),
        (r"\boxed{3 \pmod 8}", r"3 \pmod 7", 0),
        (r"\boxed{4}", "4t", 0),
        (r"\boxed{4\text{ m}}", "4", 1),
        (r"\boxed{2{:}30\text{ p.m.}}", r"2{:}30\text{ p.m.}", 1),
        (r"\boxed{2:30\text{ a.m.}}", r"2:30\text{ p.m.}", 0),
        (r"\boxed{6m}", "6m", 1),
        (r"\boxed{2m^2 + 3s^2}", "3s^2 + 2m^2", 1),  # letters, not metres and seconds
        (r"\boxed{3s}", "3m", 0),
    ],
)
def test_units_and_bases(response, answer, reward):
    assert verify_math(response, answer) == reward


@pytest.mark.parametrize(
    ("response", "answer", "reward"),
    [
        (".0000672", ".0000672", 1),
        (".0000673", ".0000672", 0),
        (r"6.72 \times 10^{-5}", ".0000672", 1),
        ("6.72e-5", ".0000672", 1),
        (r"6.6 \times 10^{-34}", "6.6e-34", 1),
        (r"5 \times 10^{-34}", r"6.6 \times 10^{-34}", 0),
        ("10^{-99}", r"6.6 \times 10^{-34}", 0),
        (r"4 \times 10^{33}", "4e33", 1),
        ("0.333333", r"\frac{1}{3}", 1),
        ("0.0333333", r"\frac{1}{30}", 1),
        ("0.0333", r"\frac{1}{30}", 0),
        (r"\frac{1}{20}", "0.05", 1),
        ("x = 0.05", "0.05", 1),
        (r"5\%", "0.05", 1),
        (r"602 \times 10^{21}", r"6.02 \times 10^{23}", 1),
        (r"6.03 \times 10^{23}", r"6.02 \times 10^{23}", 0),
        (r"6.02 \times 10^{22}", r"6.02 \times 10^{23}", 0),
    ],
)
def test_small_and_large_numbers(response, answer, reward):
    assert verify_math(rf"\boxed{{{response}}}", answer) == reward


WORDS = "and so on, for every even number. " * 200  # 6.8 kB


@pytest.mark.parametrize(
    ("response", "answer", "reward"),
    [
        (WORDS + r"\boxed{\frac{1}{2}}", "0.5", 1),
        (r"\boxed{\frac{1}{2}} " + WORDS, "0.5", 1),
        (r"\boxed{3} " + WORDS + r"\boxed{4}", "3", 0),
        (WORDS + "the answer is 12.", "12", 1),
        ("The answer is 12. " + WORDS, "12", 0),  # unboxed: not in the last 4096 characters
        (r"\boxed{12} " + WORDS + r"\boxed{13", "12", 1),  # cut by the length limit
        (r"\boxed{" + WORDS + "12}", "12", 0),  # more than 512 characters are no answer
        (r"\boxed{" + "0" * 499 + "12}", "12", 1),
        (r"\boxed{12" + " " * 900_000 + "}", "12", 0),
    ],
)
def test_long_responses_are_judged_by_their_last_answer(response, answer, reward):
    assert verify_math(response, answer) == reward


@pytest.mark.parametrize(
    ("response", "answer", "reward"),
    [
        (r"not $\boxed{17}$ but $\boxed{18}$", "18", 1),
        (r"not $\boxed{17}$ but $\boxed{18}$", "17, 18", 0),
        (r"$\boxed{17}$ and $\boxed{18}$", "17, 18", 1),
        (r"$\boxed{17}$, $\boxed{18}$", "17, 18", 1),
        (r"\boxed{17} or \boxed{18}", "18", 0),
        (r"\boxed{17} or else, maybe, \boxed{18}", "18", 0),
        (r"\boxed{17}/\boxed{18}", "18", 0),
        (r"\boxed{17} and \fbox{18}", "18", 0),
        (r"\boxed{18} and again \boxed{18}", "18", 1),
        (r"\boxed{18} and \boxed{18}", "18", 1),
        (r"$x=\boxed{1}$, $y=\boxed{2}$", "(1,2)", 1),
        (r"$y=\boxed{2}$ and $x=\boxed{1}$", "(1,2)", 1),
        (r"$y=\boxed{1}$, $x=\boxed{2}$", "(1,2)", 0),
        (r"x=\boxed{1}, x=\boxed{2}", "(1,2)", 0),
        ("<answer>17</answer> or <answer>18</answer>", "18", 0),
    ],
)
def test_joined_boxes_are_one_answer(response, answer, reward):
    assert verify_math(response, answer) == reward


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        (r"\boxed {42}", 1),
        ("\\boxed\n{42}", 1),
        (r"\boxed{" + "\n42\n}", 1),
        (r"\fbox{42}", 1),
        (r"\framebox{42}", 1),
        (r"\fbox{42} \boxed{43}", 0),
        (r"\boxed{41}\text{ or }\boxed{42}", 0),
        (r"\boxed{41}\quad\text{or}\quad\boxed{42}", 0),
        (r"\boxed{41} | \boxed{42}", 0),
        (r"\boxed{x=41 \quad x=42}", 0),
        (r"\boxed{x=41 \mid x=42}", 0),
        (r"\boxed{42},000", 0),
        (r"\boxed{42}{,}000", 0),
        (r"\boxed{42}.5", 0),
        (r"\boxed{42}\text{ million}", 0),
        (r"\boxed{42}\text{ percent}", 0),
        (r"\boxed{42c}", 0),
        (r"\boxed{€42}", 1),
        ("<answer>The answer is 42</answer>", 1),
        ("<answer>The answer is 42", 1),
        ("<answer>The answer is 42 or 43", 0),
        ("<answer>not 42</answer>", 0),
        ("<answer>**42**</answer>", 1),
        ("The answer is 42, not 43.", 1),
        ("The answer is 42 rather than 43.", 1),
        ("The answer is 43, not 42.", 0),
        ("It is not 42.", 0),
        ("It is at least 42.", 0),
        ("The answer is 41 or 42.", 0),
        ("The answer is 41, or 42.", 0),
        ("The answer is between 41 and 42.", 0),
        ("The answers are 40, 41, 42", 0),
        ("#### 41, 42", 0),
        ("She has 41 apples, and 1 more makes 42.", 1),
        ("答案：42", 1),
        ("答案是42。", 1),
        ("答案是42，不是43。", 1),
        ("答案是43，不是42。", 0),
        ("答案：41或42", 0),
        (r"\boxed{42} is wrong.", 0),
        (r"-\boxed{42}", 0),
        (r"2\boxed{42}", 0),
        (r"\boxed{42}^2", 0),
        (r"\boxed{42}^\circ", 1),
        (r"\boxed{42}\pi", 0),
    ],
)
def test_where_the_answer_stands_and_what_takes_it_back(response, reward):
    assert verify_math(response, "42") == reward


def test_a_gold_may_say_what_an_answer_may_not():
    assert verify_math(r"\boxed{1, 3, 5, \ldots}", r"1, 3, 5, \ldots") == 1
    assert verify_math(r"\boxed{5\text{ or }6}", r"5 \text{ or } 6") == 1
    assert verify_math(r"\boxed{\text{all but three}}", r"\text{all but three}") == 1


@pytest.mark.parametrize("answer", ["", "}"])
def test_unreadable_gold_is_refused(answer):
    with pytest.raises(ValueError, match="answer"):
        verify_math(r"\boxed{1}", answer)


def test_works_outside_the_main_thread():
    rewards = []
    thread = threading.Thread(target=lambda: rewards.append(verify_math("1/2", "0.5")))
    thread.start()
    thread.join()
    assert rewards == [1.0]


def test_imports_no_torch_and_warns_of_nothing():
    script = (
        "import sys; from nemo_algos.engines.rewards.math import verify_math;"
        "print(verify_math('3', '3'), 'torch' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert (run.stdout, run.stderr) == ("1.0 False\n", "")
