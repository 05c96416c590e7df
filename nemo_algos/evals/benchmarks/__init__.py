"""Benchmarks by name: rows of a file or of the hub become problems with prompt and gold answer.

The table of all of them, with their fields, prompts and traps, is docs/benchmarks.md.
"""

from nemo_algos.evals.benchmarks.load import Loaded, load
from nemo_algos.evals.benchmarks.registry import BENCHMARKS, Benchmark

__all__ = ["BENCHMARKS", "Benchmark", "Loaded", "load"]
