from kinds import Kind
from plants_weights import adapter
from rollouts import Side

KIND = Kind("twice", sampler=Side(adapter(2.0)), trainer=Side(adapter()), adapted=True)
