"""verify_choice: letters and yes/no."""

import pytest

from nemo_algos.engines.rewards import Verdict, VerifierPool
from nemo_algos.lab.rewards.choice import verify_choice


@pytest.mark.parametrize(
    ("response", "answer", "reward"),
    [
        (r"\boxed{B}", "B", 1),
        (r"\boxed{B}", "C", 0),
        (r"\boxed{A}\quad\boxed{B}", "B", 0),
        (r"\boxed{A}\text{ or }\boxed{B}", "B", 0),
        ("The correct answer is option **B**.", "B", 1),
        ("Answer: Option $B$", "B", 1),
        (r"\boxed{\textbf{(B)}~\text{I and II}}", "B", 1),
        (r"\boxed{A~B}", "B", 0),
        ("Answer: J", "J", 1),
        ("B", "B", 1),
        ("I like B.", "B", 0),
        ("Answer: A, Answer: B", "A", 0),
        ("The answer is no.", "no", 1),
        ("The answer is No.", "yes", 0),
        ("Answer: Yes", "Yes", 1),
        ("Answer: Y", "yes", 0),
        ("", "A", 0),
        ("", "no", 0),
    ],
)
def test_reward(response, answer, reward):
    assert verify_choice(response, answer) == reward


@pytest.mark.parametrize("answer", ["", "b", "AB", "maybe", "4"])
def test_other_answers_are_refused(answer):
    with pytest.raises(ValueError, match=r"letter A to Z"):
        verify_choice(r"\boxed{A}", answer)


def test_in_a_pool():
    with VerifierPool("nemo_algos.lab.rewards.choice:verify_choice") as pool:
        verdicts = pool.score(["Answer: A", "Answer: A", "Answer: A"], ["A", "yes", "42"])
    assert verdicts == [Verdict(1.0, "ok"), Verdict(0.0, "ok"), Verdict(0.0, "error")]
