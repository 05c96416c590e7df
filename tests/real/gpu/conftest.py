"""What only a GPU shows; without one the suite ends at once (make test-gpu says so)."""

import sys
from pathlib import Path

import pytest
import torch

sys.path[:0] = [str(Path(__file__).parents[2] / name) for name in (".", "engines/local")]

if not torch.cuda.is_available():
    raise pytest.UsageError("tests/real/gpu: no CUDA device here")
