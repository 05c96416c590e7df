"""What is looked at in a run before it starts; index.py lists all rules of a NeMo-RL run."""
