"""Steps on disk: those that NeMo-RL has saved."""

from pathlib import Path


def last_saved_step(checkpoints: Path) -> int:
    """The last whole one, 0 where there is none: NeMo-RL writes training_info.json into each."""
    names = [file.parent.name[5:] for file in checkpoints.glob("step_*/training_info.json")]
    return max((int(name) for name in names if name.isdecimal()), default=0)
