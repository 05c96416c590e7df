import re


def reward(response, answer):
    found = re.findall(r"<answer>(.*?)</answer>", response)
    right = bool(found) and found[-1].strip() == answer
    return float(right and response.startswith("<think>"))
