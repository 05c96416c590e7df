"""What a NeMo-RL run will do, computed from its config, and what is wrong in that."""
