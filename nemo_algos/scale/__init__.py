"""What can be known of a run on a cluster without one: check, plan, Slurm. Loads no torch, no
NeMo-RL."""
