"""The method: its parameters' usual sizes, and of NeMo-RL's keys that go with it."""

from collections.abc import Iterator
from typing import get_args

from nemo_algos.algorithms.kernel import Method
from nemo_algos.algorithms.record import Params, SequenceClip, TokenClip, Usual
from nemo_algos.config import Finding, at
from nemo_algos.preflight.check.nemo_run import Preflight
from nemo_algos.preflight.check.rule import note, warning

TOKEN, SEQUENCE = (get_args(kind)[1] for kind in (TokenClip, SequenceClip))
KL = "loss_fn.reference_policy_kl_penalty"
NORM = "policy.max_grad_norm"


def usual_sizes(run: Preflight) -> Iterator[Finding]:
    """A value far from every published one is often a slipped digit."""
    a = run.algorithm
    parts = {"method": a.base} if a else {}
    if a and a.bounds is not a.base:
        parts["method.bounds"] = a.bounds
    for path, part in parts.items():
        yield from _unusual(path, *part)


def _unusual(path: str, method: Method, params: Params) -> Iterator[Finding]:
    for name, (low, high) in usual(type(params)).items():
        value = getattr(params, name)
        default = type(params).model_fields[name].default
        if not low <= value <= high and value != default:
            what = f"{value:g} is outside the usual range of {method.name} ({low:g} to {high:g})"
            yield warning(f"{path}.{name}", f"{what}. Check the digits.")


def usual(params: type[Params]) -> dict[str, Usual]:
    """The usual sizes by parameter."""
    marks = {k: field.metadata for k, field in params.model_fields.items()}
    return {k: mark for k, found in marks.items() for mark in found if isinstance(mark, Usual)}


def token_sized_clip(run: Preflight) -> Iterator[Finding]:
    """A ratio that is a mean over a sequence moves far less than a token's."""
    a = run.algorithm
    ranges = usual(type(a.bounds.params)) if a else {}
    if ranges.get("clip_high") == SEQUENCE and a and a.bounds.params.clip_high >= TOKEN.low:
        reason = "a sequence-level ratio hardly ever reaches this clip range"
        cure = "Set it to 4e-4, and `method.clip_low: 3e-4`, as the GSPO paper does."
        yield note("method.clip_high", f"{reason}. {cure}")


def penalty(run: Preflight) -> Iterator[Finding]:
    """The papers' KL penalty is .001; NeMo-RL's example config has ten times as much."""
    found = run[KL] or 0
    if found > 0.1:
        what = f"{found:g} holds the policy close to the reference"
        yield warning(KL, f"{what}. Set it to 0.001, as the papers do.")
    elif found >= 0.01 and at(run.written, KL) is None:
        yield note(KL, f"NeMo-RL's default of {found:g} applies. Set 0.001, as the four papers do.")


def steep_gradient(run: Preflight) -> Iterator[Finding]:
    """A product of ratios needs gradient clipping (docs/methods/quatro.md)."""
    base = run.algorithm and run.algorithm.base
    if base and base.params.steep and not 0 < (run[NORM] or 0) <= 10:
        reason = f"gradients of {base.method.name} are steep beyond its trust region"
        yield warning(NORM, f"{reason}, so they need clipping. Set e.g. 1.0.")


def paper_group(run: Preflight) -> Iterator[Finding]:
    """Pass rates and duals of few responses are coarse; the papers have groups of 8."""
    a = run.algorithm
    path = "grpo.num_generations_per_prompt"
    if a and 1 < run[path] < max(a.base.method.usual_group, a.bounds.method.usual_group):
        reason = f"{a.name} estimates statistics from each group, and {run[path]} responses are few"
        yield warning(path, f"{reason} (the papers have 8). Set it to 8 or more.")
