"""Train with a method: `uv run examples/run_grpo_math.py --config etr.yaml`."""

from nemo_algos.cli import main

if __name__ == "__main__":
    main("train")
