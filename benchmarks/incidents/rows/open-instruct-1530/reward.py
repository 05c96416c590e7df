import re


def boxed(response):
    found = re.findall(r"\\boxed\{(.*?)\}", response)
    return found[-1] if found else None


def reward(response, answer):
    number = re.findall(r"\d+", boxed(response) or "")
    return float(bool(number) and number[-1] == answer.lstrip("+-"))
