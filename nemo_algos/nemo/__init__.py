"""The methods inside NVIDIA NeMo-RL. The only importer of nemo_rl and ray; targets v0.7.0 and main
(2026-08)."""
