"""The first number of a step that is not finite, which ends the run before its checkpoint."""

from collections.abc import Mapping
from typing import Any

import torch

# of a batch, in the order in which a step computes them
COLUMNS = {
    "generation_logprobs": "sampler's log-prob",
    "prev_logprobs": "trainer's log-prob",
    "reference_policy_logprobs": "reference model's log-prob",
    "advantages": "advantage",
}
RESULTS = ("loss", "grad_norm")  # of the workers, per update
CURE = (
    "The model, or the learning rate, is probably broken. Lower the learning rate and start the "
    "command again: it resumes from the last checkpoint. `loss_fn.on_nonfinite: report` only warns."
)


def in_batch(batch: Mapping[str, Any]) -> str:
    """What is wrong with a training batch's columns [B,S] on its response tokens; "" if nothing."""
    mask = (batch["token_mask"] * batch["sample_mask"][:, None]).bool()
    for key, name in COLUMNS.items():
        bad = mask & ~batch[key].isfinite() if key in batch else torch.zeros_like(mask)
        if bad.any():
            row, position = bad.nonzero()[0].tolist()
            return (
                f"the {name} of {int(bad.sum())} of {int(mask.sum())} response tokens is not "
                f"finite (first: sequence {row}, position {position}, {key})"
            )
    return ""


def in_results(results: Mapping[str, Any]) -> str:
    """What is wrong with a step's loss and gradient norm; "" if nothing."""
    for key in RESULTS:
        values = torch.as_tensor(results[key] if results.get(key) is not None else 0.0).flatten()
        bad = ~values.isfinite()
        if bad.any():
            update = int(bad.nonzero()[0]) + 1
            of = f" of update {update} of {len(values)}" if len(values) > 1 else ""
            return f"the {key}{of} is {float(values[bad][0])}"
    return ""
