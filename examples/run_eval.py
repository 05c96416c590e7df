"""Evaluate a model; the same as `nemo-algos eval`.

`uv run examples/run_eval.py eval/countdown.yaml model.run=runs/etr/exp_001`
"""

import typer

from nemo_algos.cli.eval import evaluate

if __name__ == "__main__":
    typer.run(evaluate)
