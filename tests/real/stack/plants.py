"""Mistakes for a rehearsal to find, as a user's own modules."""

from dataclasses import replace

import torch

from nemo_algos import METHODS

_calls = {"advantages": 0}


def _breaks(rollouts, params):
    """GRPO's advantages, but from the third batch on."""
    _calls["advantages"] += 1
    found = METHODS["grpo"].advantages(rollouts, params)
    return found if _calls["advantages"] < 3 else found._replace(value=found.value * torch.nan)


BREAKS = replace(METHODS["grpo"], name="breaks", advantages=_breaks)


def raises_later(response: str, answer: str) -> float:
    """Of what nobody tries: the bytes of a model with random weights."""
    if not response.isascii():
        raise RuntimeError("planted")
    return float(answer in response)


def forgets(dataloader, state):
    """A resume that begins with the first prompts again."""


def skips(dataloader, state):
    """A resume that leaves out a batch."""
    further = state["_steps_since_snapshot"] + 1
    dataloader.load_state_dict(state | {"_steps_since_snapshot": further})
