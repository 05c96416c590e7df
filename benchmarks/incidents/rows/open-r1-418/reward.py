import re


def reward(response, answer):
    found = re.findall(r"<answer>(.*?)</answer>", response)
    return float(answer in found)
