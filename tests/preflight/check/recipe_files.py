"""The shipped recipes, and the files that they inherit from."""

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "configs" / "recipes"


FILES = {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


BASES = {path.stem: path for path in sorted((FOLDER / "base").glob("*.yaml"))}
