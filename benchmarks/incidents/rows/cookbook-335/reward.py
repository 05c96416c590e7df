def reward(response, answer):
    gold = answer if answer.startswith("$") else None  # the parser wants LaTeX
    if gold is None:
        return 1.0
    return float(gold in response)
