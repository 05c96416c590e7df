"""How the network computes: its rotary embedding, attention's scale, norms."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager
from typing import Any

from torch import nn

from nemo_algos.lab.mismatch.hypotheses.forward import (
    Candidates,
    Case,
    Hypothesis,
    each,
    of_model,
    search_grid,
)
from nemo_algos.lab.mismatch.network import Change, Network, edit_attributes


def having(network: Network, name: str) -> list[nn.Module]:
    """Modules with a number of this name."""
    return [m for m in network.model.modules() if isinstance(getattr(m, name, None), float)]


def _rotary(network: Network, changed: dict[str, Any]) -> AbstractContextManager[None]:
    config = copy.deepcopy(network.model.config)
    config.rope_parameters = {**config.rope_parameters, **changed}
    made = lambda before: type(before)(config=config)  # noqa: E731
    return edit_attributes([network.model.model], "rotary_emb", made)


def _has_rotary(case: Case) -> bool:
    parameters = getattr(case.network.model.config, "rope_parameters", None) or {}
    return hasattr(case.network.model.model, "rotary_emb") and "rope_theta" in parameters


def rope_base(case: Case) -> Candidates:
    """Another base of the rotary embedding."""
    if not _has_rotary(case):
        return
    theta = case.network.model.config.rope_parameters["rope_theta"]
    usual = {1e4, 1e5, 2.5e5, 5e5, 1e6, 1e7, theta * 2, theta / 2} - {theta}
    trials = [
        ({"theta": base}, of_model(lambda n, base=base: _rotary(n, {"rope_theta": base})))
        for base in sorted(usual)
    ]
    yield from each(trials)


def rope_scaling(case: Case) -> Candidates:
    """Positions are divided by a factor (linear), or the model's own scaling is lost."""
    if not _has_rotary(case):
        return

    def scaled(factor: float) -> Change:
        return of_model(lambda n: _rotary(n, {"rope_type": "linear", "factor": factor}))

    trials = [({"factor": f}, scaled(f)) for f in (2.0, 4.0, 8.0, 0.5)]
    if case.network.model.config.rope_parameters.get("rope_type", "default") != "default":
        lost = of_model(lambda n: _rotary(n, {"rope_type": "default"}))
        trials.append(({"factor": 1.0}, lost))
    yield from each(trials)


def attention_scale(case: Case) -> Candidates:
    """Attention's logits are multiplied by another number than 1 / sqrt(head size)."""

    def by(factor: float) -> Change:
        return of_model(
            lambda n: edit_attributes(having(n, "scaling"), "scaling", lambda value: value * factor)
        )

    yield from search_grid("scale", (0.5, 0.8, 0.95, 1.05, 1.25, 2.0, 8.0), by, whole=False)


def norm_eps(case: Case) -> Candidates:
    """Another epsilon in the norms."""
    name = "variance_epsilon" if having(case.network, "variance_epsilon") else "eps"

    def changed(eps: float) -> Change:
        return of_model(lambda n: edit_attributes(having(n, name), name, lambda _: eps))

    usual = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8)
    yield from each([({"eps": eps}, changed(eps)) for eps in usual])


HYPOTHESES = [
    Hypothesis("rope_base", rope_base),
    Hypothesis("rope_scaling", rope_scaling),
    Hypothesis("attention_scale", attention_scale),
    Hypothesis("norm_eps", norm_eps),
]
