"""The method: its parameters' usual sizes, and of NeMo-RL's keys that go with it."""

from collections.abc import Iterator

from nemo_algos.algorithms.kernel import Method
from nemo_algos.algorithms.params import Params
from nemo_algos.config import Finding, at
from nemo_algos.preflight.check.rule import Preflight, note, warning

# of the papers' own settings and their ablations, with room (docs/methods/decisions.md)
TOKEN, SEQUENCE = (0.05, 0.5), (1e-4, 0.3)
USUAL: dict[str, dict[str, tuple[float, float]]] = {
    "grpo": {"clip_low": TOKEN, "clip_high": TOKEN},
    "erpo": {"clip_low": TOKEN, "clip_high": TOKEN, "process_weight": (0, 1)},
    "cispo": {"clip_low": (0.05, 1), "clip_high": (0.05, 10)},
    "gspo": {"clip_low": SEQUENCE, "clip_high": SEQUENCE},
    "gmpo": {"log_clip_low": (0.05, 1), "log_clip_high": (0.05, 1)},
    "etr": {"clip_base": TOKEN, "micro": (0, 0.3), "macro": (0, 0.3)},
    "quatro": {"delta": (1e-4, 0.5)},
    "apmpo": {"gamma": (0, 2), "clip_min": TOKEN, "clip_max": (0.05, 0.8), "clip_low": TOKEN},
}
PAPERS = {"etr", "quatro", "erpo", "apmpo"}
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
    for name, (low, high) in USUAL.get(method.name, {}).items():
        value = getattr(params, name)
        if not low <= value <= high:
            what = f"{value:g} is outside {method.name}'s usual {low:g} to {high:g}"
            yield warning(f"{path}.{name}", f"{what}: check the digits")


def token_sized_clip(run: Preflight) -> Iterator[Finding]:
    """GSPO's ratio is a mean over a sequence, so it moves far less than a token's."""
    bounds = run.algorithm and run.algorithm.bounds
    if bounds and bounds.method.name == "gspo" and bounds.params.clip_high >= TOKEN[0]:
        reason = "a sequence's ratio hardly reaches it; its own paper has 3e-4 and 4e-4"
        yield note("method.clip_high", f"{reason} (gspo_paper.yaml)")


def penalty(run: Preflight) -> Iterator[Finding]:
    """The papers' KL penalty is .001; NeMo-RL's example config has ten times as much."""
    found = run[KL] or 0
    if found > 0.1:
        what = f"{found:g} holds the policy to its start"
        yield warning(KL, f"{what}; the papers use 0.001: lower it")
    elif found >= 0.01 and at(run.written, KL) is None:
        yield note(KL, f"NeMo-RL's {found:g} is inherited; the four papers use 0.001")


def steep_gradient(run: Preflight) -> Iterator[Finding]:
    """QUATRO with a product of ratios needs gradient clipping (docs/methods/quatro.md)."""
    base = run.algorithm and run.algorithm.base
    steep = base and base.method.name == "quatro" and base.params.ratio == "sequence"
    if steep and not 0 < (run[NORM] or 0) <= 10:
        yield warning(NORM, "quatro's sequence ratio is steep beyond its radius: set it, e.g. 1.0")


def paper_group(run: Preflight) -> Iterator[Finding]:
    """Pass rates and duals of few responses are coarse; the papers have groups of 8."""
    a, path = run.algorithm, "grpo.num_generations_per_prompt"
    if a and {a.base.method.name, a.bounds.method.name} & PAPERS and 1 < run[path] < 4:
        yield warning(path, f"{a.name} reads statistics off each group: set 8, as the papers do")
