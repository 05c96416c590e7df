"""Makes tests/ importable (batches.py), and keeps the tests on one thread."""

import torch

torch.set_num_threads(1)
