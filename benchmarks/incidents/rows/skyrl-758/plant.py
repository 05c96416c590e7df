def change(arrays):
    arrays["tokens"][:, -1] = 2
    arrays["sampler_logprobs"][:, -1] = 0.0
    arrays["trainer_logprobs"][:, -1] = -1.1
