"""How the network computes: its rotary embedding, attention's scale, norms."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from nemo_algos.lab.mismatch.hypotheses.forward import (
    Attempt,
    Case,
    Hypothesis,
    of_model,
    search_grid,
)
from nemo_algos.lab.mismatch.network import Change, Network, edit_attributes


def having(network: Network, name: str) -> list[nn.Module]:
    """Modules with a number of this name."""
    return [m for m in network.model.modules() if isinstance(getattr(m, name, None), float)]


def _rotary(changed: dict[str, Any]) -> Change:
    def edit(network: Network) -> Any:
        config = copy.deepcopy(network.model.config)
        config.rope_parameters = {**config.rope_parameters, **changed}
        made = lambda before: type(before)(config=config)  # noqa: E731
        return edit_attributes([network.model.model], "rotary_emb", made)

    return of_model(edit)


def _rope(case: Case) -> dict[str, Any]:
    """Its parameters, where there is a rotary embedding that can be changed."""
    parameters = getattr(case.network.model.config, "rope_parameters", None) or {}
    known = hasattr(case.network.model.model, "rotary_emb") and "rope_theta" in parameters
    return parameters if known else {}


def rope_base(case: Case, attempt: Attempt) -> None:
    """Another base of the rotary embedding."""
    if rope := _rope(case):
        theta = rope["rope_theta"]
        for base in sorted({1e4, 1e5, 2.5e5, 5e5, 1e6, 1e7, theta * 2, theta / 2} - {theta}):
            attempt({"theta": base}, _rotary({"rope_theta": base}))


def rope_scaling(case: Case, attempt: Attempt) -> None:
    """Positions are divided by a factor (linear), or the model's own scaling is lost."""
    if rope := _rope(case):
        for factor in (2.0, 4.0, 8.0, 0.5):
            attempt({"factor": factor}, _rotary({"rope_type": "linear", "factor": factor}))
        if rope.get("rope_type", "default") != "default":
            attempt({"factor": 1.0}, _rotary({"rope_type": "default"}))


def attention_scale(case: Case, attempt: Attempt) -> None:
    """Attention's logits are multiplied by another number than 1 / sqrt(head size)."""

    def by(factor: float) -> Change:
        return of_model(
            lambda n: edit_attributes(having(n, "scaling"), "scaling", lambda value: value * factor)
        )

    search_grid(attempt, "scale", (0.5, 0.8, 0.95, 1.05, 1.25, 2.0, 8.0), by)


def norm_eps(case: Case, attempt: Attempt) -> None:
    """Another epsilon in the norms."""
    name = "variance_epsilon" if having(case.network, "variance_epsilon") else "eps"

    def changed(eps: float) -> Change:
        return of_model(lambda n: edit_attributes(having(n, name), name, lambda _: eps))

    for eps in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8):
        attempt({"eps": eps}, changed(eps))


HYPOTHESES = [
    Hypothesis("rope_base", rope_base),
    Hypothesis("rope_scaling", rope_scaling),
    Hypothesis("attention_scale", attention_scale),
    Hypothesis("norm_eps", norm_eps),
]
