import re


def boxed(response):
    found = re.findall(r"\\boxed\{(.*?)\}", response)
    return found[-1] if found else None


def reward(response, answer):
    return float(boxed(response[-300:]) == answer)
