import numpy as np


def change(arrays):
    draws = np.random.default_rng(5)
    prompts = np.repeat(np.arange(8), 4)
    wrong = np.isin(prompts, (2, 5))
    size = arrays["sampler_logprobs"][wrong].shape
    arrays["sampler_logprobs"][wrong] -= draws.exponential(1.0, size)
    arrays["prompt_length"] = np.full(32, 3)
    width = np.column_stack([prompts + 3, prompts + 9, prompts + 20])
    arrays["tokens"] = np.column_stack([width, arrays["tokens"]])
    for side in ("sampler_logprobs", "trainer_logprobs"):
        arrays[side] = np.column_stack([np.zeros((32, 3)), arrays[side]])
    arrays["mask"] = np.arange(27) >= np.full((32, 1), 3)
