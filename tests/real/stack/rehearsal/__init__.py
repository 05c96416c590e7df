"""`nemo-algos rehearse`: a NeMo-RL run on this machine, everything but the GPUs."""
