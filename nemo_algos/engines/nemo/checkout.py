"""Where this package lies: jobs and workers import it from a checkout that all nodes mount."""

from pathlib import Path

import nemo_algos

ROOT = Path(nemo_algos.__file__).parents[1]


def refusal(root: Path = ROOT) -> str | None:
    """What is wrong with an installed package, whose folder would carry all others with it."""
    if root.name not in ("site-packages", "dist-packages"):
        return None
    where = f"nemo_algos is installed in {root}, and workers have environments of their own"
    return f"{where}: run from a checkout on a filesystem that every node mounts"
