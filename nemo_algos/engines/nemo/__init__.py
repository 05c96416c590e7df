"""The methods inside NVIDIA NeMo-RL, v0.7.0 and main (2026-08)."""
