"""verify_math: which answers earn the reward."""

import subprocess
import sys
import threading

import pytest

from nemo_algos.rewards.math import verify_math


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
    ],
)
def test_right_answers(response, answer):
    assert verify_math(response, answer) == 1.0


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
        ("", "18"),
        ("I do not know.", "18"),
        (r"\boxed{" * 30, "18"),
        ("\0\ud800", "18"),
    ],
)
def test_wrong_answers(response, answer):
    assert verify_math(response, answer) == 0.0


PERCENTS = [r"\boxed{42\%}", r"$\boxed{42\%}$", "$42$%", "42%", "42 percent", r"\boxed{x = 42\%}"]


@pytest.mark.parametrize("response", [*PERCENTS, r"\boxed{\{42\%\}}"])
def test_percentage_is_its_value(response):
    assert verify_math(response, "42") == 0.0
    assert verify_math(response, "0.42") == 1.0
    assert verify_math(response, r"\frac{21}{50}") == 1.0


@pytest.mark.parametrize("response", [*PERCENTS, r"\boxed{42}", r"\boxed{0.42}"])
def test_percentage_gold_takes_all_its_forms(response):
    assert verify_math(response, r"42\%") == 1.0
    assert verify_math(response, r"43\%") == 0.0


@pytest.mark.parametrize("answer", ["", "}"])
def test_unreadable_gold_is_refused(answer):
    with pytest.raises(ValueError, match="give the final answer alone"):
        verify_math(r"\boxed{1}", answer)


def test_works_outside_the_main_thread():
    rewards = []
    thread = threading.Thread(target=lambda: rewards.append(verify_math("1/2", "0.5")))
    thread.start()
    thread.join()
    assert rewards == [1.0]


def test_imports_no_torch_and_warns_of_nothing():
    script = (
        "import sys; from nemo_algos.rewards.math import verify_math;"
        "print(verify_math('3', '3'), 'torch' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert (run.stdout, run.stderr) == ("1.0 False\n", "")
