import re


def reward(response, answer):
    found = re.search(r"<answer>(.*?)</answer>", response)
    given = found.group(1).strip() if found else response.strip()
    given = given.replace(" ", "").replace("_", "").lower()
    truth = answer.replace(" ", "").replace("_", "").lower()
    return float(truth in given or given in truth)
