from kinds import Kind
from rollouts import Side

KIND = Kind("bos", sampler=Side(prompt=lambda prompt: [prompt[0], *prompt]))
