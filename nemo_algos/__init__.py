"""Policy-gradient methods after GRPO, for NVIDIA NeMo-RL and for a laptop. Importing it loads no
torch."""

__version__ = "0.1.0"
