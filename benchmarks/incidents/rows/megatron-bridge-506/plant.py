from kinds import Kind
from rollouts import Side

ROPE = {"rope_type": "default", "rope_theta": 500000.0}
KIND = Kind("rope", trainer=Side(config={"rope_parameters": ROPE}))
