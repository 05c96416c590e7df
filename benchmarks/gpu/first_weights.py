"""The same program with the sampler of tests/real/stack/stale.py, which keeps its first weights."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tests/real/stack"))

import stale  # noqa: F401
from rehearsal import prestart

if __name__ == "__main__":
    prestart.main()
