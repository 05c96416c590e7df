"""Evaluate a model: `uv run examples/run_eval.py eval/countdown.yaml model.run=RUN`."""

from nemo_algos.cli import main

if __name__ == "__main__":
    main("eval")
