from kinds import Kind
from rollouts import Side

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}
YARN["original_max_position_embeddings"] = 128
KIND = Kind("yarn", sampler=Side(config={"rope_parameters": YARN}))
