import re


def reward(response, answer):
    found = re.findall(r"<answer>(.*?)</answer>", response)
    return float(bool(found) and answer in found[-1])
