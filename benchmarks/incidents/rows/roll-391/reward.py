def reward(response, answer):
    score = 0.0
    if answer in response:
        score += 0.0  # where 1 is meant
    return score
