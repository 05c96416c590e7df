from kinds import Kind
from plants_sampling import temperature
from rollouts import Side

KIND = Kind("tempered", trainer=Side(logits=temperature(0.7)))
