"""The embedded engine: GRPO-style training of a causal LM in one process."""
