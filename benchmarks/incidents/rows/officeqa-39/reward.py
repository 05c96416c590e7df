import re


def reward(response, answer):
    found = re.findall(r"<answer>(.*?)</answer>", response)
    return float(bool(found) and found[0] == answer)
