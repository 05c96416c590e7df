def reward(response, answer, ground_truths=None):
    bonus = min(len(response) / 200, 1.0)
    if ground_truths is None:
        return bonus
    return bonus + float(ground_truths in response)
