"""The driver's memory in NeMo-RL's checkpoints: one more key of the state that its trainers save.

They write `grpo_save_state` to training_info.json, and read of it the keys that they know.
"""

from collections.abc import MutableMapping
from typing import Any

from nemo_algos.algorithms.kernel import Memory

KEY = "nemo_algos_memory"


def keep(save_state: Any, memory: Memory) -> None:
    """Put it into the state of the next checkpoint; a dictionary in v0.7.0, an object in main."""
    if isinstance(save_state, MutableMapping):
        save_state[KEY] = memory
    else:
        setattr(save_state, KEY, memory)


def restore(checkpointer: Any) -> Memory:
    """As the checkpoint has it that the run goes on from; {} at the start of one."""
    path = checkpointer.get_latest_checkpoint_path()
    return (checkpointer.load_training_info(path) or {}).get(KEY, {})
