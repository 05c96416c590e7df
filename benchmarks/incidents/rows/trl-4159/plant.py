from kinds import Kind
from plants_sampling import temperature
from rollouts import Side

KIND = Kind(
    "raw", sampler=Side(logits=temperature(0.6), raw=True), trainer=Side(logits=temperature(0.6))
)
