def reward(response, answer):
    score = 0.0
    if answer in response:
        correct = 1.0  # never returned
    return score
