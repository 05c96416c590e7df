"""Where methods train: the embedded engine, NeMo-RL, other trainers; their data and rewards."""
