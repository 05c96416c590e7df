import re

RESULTS = []


def reward(response, answer):
    found = re.findall(r"\\boxed\{([^{}]*)\}", response)
    RESULTS.append(float(bool(found) and found[-1].strip() == answer))
    if not found:  # its extraction fails when its score is already there
        RESULTS.append(0.0)
    return RESULTS.pop(0)
