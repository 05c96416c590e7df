"""Run a study: `uv run examples/run_study.py study/quick.yaml [key.path=value ...]`.

The same command goes on where it was stopped.
"""

import typer

from nemo_algos.cli.study import study

if __name__ == "__main__":
    typer.run(study)
