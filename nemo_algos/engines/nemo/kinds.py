"""What kind of GRPO run a config of NeMo-RL's is: each kind has a script of its own there."""

from collections.abc import Iterator, Mapping
from typing import Any

PICTURED = "vlm_hf_data_processor"  # takes the model's processor, of images and sounds, as well


def is_vlm(data: Any) -> bool:
    """Whether `data` is for NeMo-RL's examples/run_vlm_grpo.py: prompts with images or sounds."""
    return any(one.get("processor") == PICTURED for one in data_sets(data))


def uses_gym(env: Any) -> bool:
    """Whether `env` is for examples/nemo_gym/run_grpo_nemo_gym.py: NeMo Gym's servers roll out."""
    return isinstance(env, Mapping) and bool(env.get("should_use_nemo_gym"))


def data_sets(data: Any) -> Iterator[Mapping[str, Any]]:
    """The sections of `data` that name or describe a data set."""
    for name in ("default", "train", "validation") if isinstance(data, Mapping) else ():
        found = data.get(name) or []
        for one in found if isinstance(found, list) else [found]:
            if isinstance(one, Mapping):
                yield one
