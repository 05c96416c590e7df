"""docs/adapters.md's loss for Tinker on the client's own records, and its own way to a gradient."""

import re
import runpy
from pathlib import Path
from typing import Any

import torch
from tinker import types

PAGE = Path(__file__).parents[3] / "docs" / "adapters.md"
PLAIN = {"name": "grpo", "advantage_std": "none", "aggregation": "token"}


def test_a_batch_of_tinkers_records_is_the_formulas(tmp_path: Path) -> None:
    block = re.search(r"```python\n(# with_tinker\.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    assert block
    (tmp_path / "with_tinker.py").write_text(block[1])
    loss_of: Any = runpy.run_path(str(tmp_path / "with_tinker.py"))["loss_of"]
    torch.manual_seed(0)
    old = [-torch.rand(n) for n in (4, 6)]
    new = [(x + 0.1).requires_grad_() for x in old]
    data = []
    for logprobs in old:
        mask = torch.ones(len(logprobs))
        mask[0] = 0.0  # of the prompt
        fields: Any = {
            "target_tokens": types.TensorData.from_torch(torch.arange(len(logprobs))),
            "logprobs": types.TensorData.from_torch(logprobs),
            "mask": types.TensorData.from_torch(mask),
        }
        tokens = types.ModelInput.from_ints(list(range(len(logprobs))))
        data.append(types.Datum(model_input=tokens, loss_fn_inputs=fields))
    value, metrics = loss_of(PLAIN, [0, 0], [1.0, 0.0])(data, new)
    gains = [(x - y).exp()[1:].sum() for x, y in zip(new, old, strict=True)]
    torch.testing.assert_close(value, (gains[1] - gains[0]) / 16, rtol=1e-6, atol=1e-7)
    assert all(isinstance(number, float) for number in metrics.values())
