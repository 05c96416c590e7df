import re


def reward(response, answer):
    whole = r"^<think>[^\n]*</think><answer>[^\n]*</answer>$"
    found = re.match(whole, response)
    return float(bool(found) and f"<answer>{answer}</answer>" in response)
