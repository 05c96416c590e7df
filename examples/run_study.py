"""Run a study, or go on with one: `uv run examples/run_study.py study/quick.yaml`."""

from nemo_algos.cli import main

if __name__ == "__main__":
    main("study")
