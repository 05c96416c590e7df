"""How the network computes: its rotary embedding, attention's scale, norms."""

import copy
from typing import Any

from nemo_algos.lab.mismatch.hypotheses.forward import (
    Attempt,
    Case,
    named,
    of_attribute,
    search_grid,
)
from nemo_algos.lab.mismatch.network import Change


def _rope(case: Case) -> dict[str, Any]:
    """The rotary embedding's parameters, where there is one that can be changed."""
    parameters = getattr(case.network.model.config, "rope_parameters", None) or {}
    known = hasattr(case.network.model.model, "rotary_emb") and "rope_theta" in parameters
    return parameters if known else {}


def _rotary(case: Case, **changed: Any) -> Change:
    config = copy.deepcopy(case.network.model.config)
    config.rope_parameters = {**config.rope_parameters, **changed}
    return of_attribute("rotary_emb", lambda before: type(before)(config=config))


def rope_base(case: Case, attempt: Attempt) -> None:
    """Another base of the rotary embedding."""
    if rope := _rope(case):
        theta = rope["rope_theta"]
        for base in sorted({1e4, 1e5, 2.5e5, 5e5, 1e6, 1e7, theta * 2, theta / 2} - {theta}):
            attempt({"theta": base}, _rotary(case, rope_theta=base))


def rope_scaling(case: Case, attempt: Attempt) -> None:
    """Positions are divided by a factor (linear), or the model's own scaling is lost."""
    if rope := _rope(case):
        for factor in (2.0, 4.0, 8.0, 0.5):
            attempt({"factor": factor}, _rotary(case, rope_type="linear", factor=factor))
        if rope.get("rope_type", "default") != "default":
            attempt({"factor": 1.0}, _rotary(case, rope_type="default"))


def attention_scale(case: Case, attempt: Attempt) -> None:
    """Attention's logits are multiplied by another number than 1 / sqrt(head size)."""
    by = lambda factor: of_attribute("scaling", lambda value: value * factor)  # noqa: E731
    search_grid(attempt, "scale", (0.5, 0.8, 0.95, 1.05, 1.25, 2.0, 8.0), by)


def norm_eps(case: Case, attempt: Attempt) -> None:
    """Another epsilon in the norms."""
    named = any(hasattr(m, "variance_epsilon") for m in case.network.model.modules())
    for eps in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8):
        change = of_attribute("variance_epsilon" if named else "eps", lambda _, eps=eps: eps)
        attempt({"eps": eps}, change)


HYPOTHESES = named(rope_base, rope_scaling, attention_scale, norm_eps)
