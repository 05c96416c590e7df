"""The reward of a multiple-choice or a yes/no answer."""

from nemo_algos.engines.rewards import answers


def verify_choice(response: str, answer: str) -> float:
    """1.0 where the final answer in `response` is `answer`, else 0.0.

    answer: a letter "A" to "Z", or "yes" or "no", else ValueError. What counts as a response's:
    `answers.letter` and `answers.yes_no`.
    """
    if answer.lower() in ("yes", "no"):
        return float(answers.yes_no(response) == answer.lower())
    if len(answer) == 1 and "A" <= answer <= "Z":
        return float(answers.letter(response) == answer)
    raise ValueError(f"The answer {answer!r} cannot be chosen. Give a letter A to Z, or yes or no.")
