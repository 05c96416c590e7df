"""The first number of a step that is not finite, which ends the run before its checkpoint."""

import math
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
    for key in COLUMNS:
        if key not in batch:
            continue
        bad = mask & ~batch[key].isfinite()
        if bad.any():
            row, position = bad.nonzero()[0].tolist()
            return (
                f"the {COLUMNS[key]} of {int(bad.sum())} of {int(mask.sum())} response tokens is "
                f"not finite (first: sequence {row}, position {position}, {key})"
            )
    return ""


def in_results(results: Mapping[str, Any]) -> str:
    """What is wrong with a step's losses and gradient norms, of each update; "" if nothing."""
    for key in RESULTS:
        given = results.get(key)
        values = [] if given is None else torch.as_tensor(given).flatten().tolist()
        for update, value in enumerate(values, start=1):
            if not math.isfinite(value):
                return f"the {key} of update {update} of {len(values)} is {value}"
    return ""
