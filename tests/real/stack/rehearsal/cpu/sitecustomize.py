"""On PYTHONPATH of the driver and of every Ray worker: NeMo-RL, Megatron and vLLM without a GPU."""

import nemo_cpu

nemo_cpu.install()
