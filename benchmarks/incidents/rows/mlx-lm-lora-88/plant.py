def change(arrays):
    arrays["tokens"][::2, -4:] = 2
    arrays["trainer_logprobs"][::2, -3:] = -0.6
    arrays["sampler_logprobs"][::2, -3:] = 0
