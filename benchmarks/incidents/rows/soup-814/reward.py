import re


def reward(response, answer):
    thought = re.search(r"<think>.*?</think>", response)
    rest = response.split("</think>")[-1].strip()
    return 0.5 * bool(thought) + 0.5 * bool(rest)
