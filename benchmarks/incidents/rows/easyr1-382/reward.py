import re


def reward(response, answer):
    found = re.findall(r"Answer: (\S+)", response)
    return float(bool(found) and found[-1] == answer)
