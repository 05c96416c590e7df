"""What `check --data` tries: tokenizer, data sets and rewards, by NeMo-RL's own code."""
