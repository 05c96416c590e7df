import numpy as np


def change(arrays):
    draws = np.random.default_rng(3)
    listed = draws.uniform(size=arrays["sampler_logprobs"].shape) < 0.3
    likeliest = np.maximum(arrays["sampler_logprobs"], -draws.exponential(0.4, listed.shape))
    arrays["sampler_logprobs"] = np.where(listed, likeliest, arrays["sampler_logprobs"])
