"""Incidents of a loss: the cases of tests/real/peers/conformance.py, given to the wrong one."""

from __future__ import annotations

import functools
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from incident import Conformance
from measured import Measured

sys.path.append(str(Path(__file__).parents[2] / "tests/real/peers"))

from conformance import build_cases, run  # pyright: ignore[reportMissingImports]

TOLERANCE = 1e-6


@functools.cache
def cases(method: str) -> list[dict[str, Any]]:
    """Of one method, in every trap."""
    return build_cases([method])


def answer(file: Path) -> Any:
    """The function of a loss.py, as conformance.py calls it.

    `loss(b)` gets old, logprobs, ref, gen, entropy [B,S], mask [B,S], A [B,S], low, high, params
    and the counts of the whole batch; a piece of a batch is a batch of its own. A loss with a KL
    penalty says in KL_TYPES of which types; other cases with a penalty are refused.
    """
    wrong = runpy.run_path(str(file))

    def function(method: str, params: Any, inputs: Any, signals: Any, counts: Any) -> Any:
        if params.get("kl_type") not in (None, *wrong.get("KL_TYPES", ())):
            raise NotImplementedError("has no such KL penalty")
        of = {k: torch.from_numpy(v) for k, v in inputs.items()}
        mask = of["mask"]
        given = torch.from_numpy(signals["advantages"])
        A = given if given.ndim == 2 else given[:, None]
        own = {}
        if "advantages" in wrong and "rewards" in of:
            made = wrong["advantages"](of["rewards"], of["group"], mask)
            own = {"advantages": made} if made.ndim == 1 else {}
            A = made[:, None] if made.ndim == 1 else made
        leaf = of["logprobs"].requires_grad_()
        batch = SimpleNamespace(
            old=of["old_logprobs"],
            logprobs=leaf,
            ref=of["ref_logprobs"],
            gen=of["gen_logprobs"],
            entropy=of["entropy"],
            mask=mask,
            A=A.expand_as(leaf),
            params=SimpleNamespace(**params),
            counts=SimpleNamespace(**counts),
        )
        value = wrong["loss"](batch)
        value.backward()
        return {"loss": value.item(), "grad": leaf.grad, **own}

    return function


def measure_conformance(row: Conformance) -> Measured:
    """The named traps depart, or at least one does."""
    rows = run(answer(row.folder / "loss.py"), cases(row.expected.method), TOLERANCE)
    asked = [r for r in rows if r["verdict"] != "refused"]
    caught = [r for r in asked if r["verdict"] in ("departs", "fails")]
    named = [f"{r['trap']} with {r['kl']}" if r["kl"] else r["trap"] for r in caught]
    said = f"{len(caught)} of {len(asked)} traps: {', '.join(named)}"
    if set(row.expected.fails) <= {r["trap"] for r in caught}:
        return Measured("whole", said)
    return Measured("part" if caught else "missed", said)
