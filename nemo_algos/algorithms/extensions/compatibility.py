"""What of a `method:` block has no meaning together, and which keys nothing would read."""

from collections.abc import Iterator
from dataclasses import replace

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.algorithms.extensions.correction import CorrectionConfig
from nemo_algos.algorithms.kernel import (
    Component,
    Method,
    clip_bounds,
    group_advantages,
    keep_advantages,
    no_bounds,
    token_log_ratio,
)
from nemo_algos.algorithms.record import Params, Slot
from nemo_algos.findings import Finding

COMPONENTS = ("advantages", "bounds")


def slots(params: Params, key: str) -> set[str]:
    """The slots whose functions read this parameter."""
    marks = type(params).model_fields[key].metadata
    return {mark for mark in marks if isinstance(mark, str)} or {"loss"}


def essence(method: Method) -> frozenset[Slot]:
    """The slots that make the method what it is; with all of them replaced it is gone."""
    if method.own is not None:
        return method.own
    loss = (method.log_ratio, method.reweight, method.form, bool(method.extras))
    parts: dict[Slot, bool] = {
        "advantages": method.advantages is not group_advantages,
        "bounds": bool(method.bounds) or method.constant_bounds not in (clip_bounds, no_bounds),
        "loss": loss != (token_log_ratio, keep_advantages, "ratio", False),
    }
    return frozenset(slot for slot, changed in parts.items() if changed)


def misfits(a: Algorithm, beside: set[str]) -> Iterator[Finding]:
    """Everything; beside: the keys that are written in the method's own block."""
    yield from _unread(a, beside)
    for reason in _misfits(a):
        yield Finding("method", reason)
    for reason in two_policies(a):
        yield Finding("rollout_correction", reason)


def _replaced(a: Algorithm) -> dict[str, Component]:
    """The components that are not the base's own, by slot."""
    parts = dict(zip(COMPONENTS, (a.advantages, a.bounds), strict=True))
    return {slot: part for slot, part in parts.items() if part is not a.base}


def _unread(a: Algorithm, beside: set[str]) -> Iterator[Finding]:
    """Changed keys of a slot that is another's, or that is not the component's."""
    base = a.base
    components = _replaced(a)
    for slot, (method, params) in components.items():
        for key in params.non_default:
            if slot in slots(params, key):
                continue
            advice = "Remove it."
            if key in type(base.params).model_fields:
                advice = "Write it under method, or remove it."
            yield Finding(
                f"method.{slot}.{key}",
                f"only the {slot} of {method.name} are used here, and they do not use it. {advice}",
            )
    for key in base.params.non_default:
        read = slots(base.params, key)
        if read <= components.keys():
            others = " and ".join(
                f"the {s} come from {components[s].method.name}" for s in sorted(read)
            )
            path = f"method.{key}" if key in beside else f"method.advantages.{key}"
            yield Finding(path, f"it has no effect, because {others}. Remove it.")
    if has_no_ratio(a) and "max_log_ratio" in base.params.non_default:
        yield Finding(
            "method.max_log_ratio",
            f"it has no effect, because {base.method.name} has no ratio. Remove it.",
        )


def has_no_ratio(a: Algorithm) -> bool:
    """Whether the loss is A log pi, without a ratio."""
    return a.base.method.form == "logprob" and a.base.method.reweight is keep_advantages


def _misfits(a: Algorithm) -> list[str]:
    """Why the components have no meaning together."""
    base = a.base.method
    advantages = a.advantages.method
    bounds = a.bounds.method
    reasons = []
    one = a.one_advantage
    if a.per_token["advantages"] and one:
        kind = "sequence ratio" if base.ratio == "sequence" else "weight of a whole response"
        reasons.append(
            f"{base.name}'s {kind} needs one advantage per sequence, but {advantages.name} gives "
            "one per token. Use its advantages with a token ratio (grpo, etr, cispo)."
        )
    if "bounds" in bounds.per_token and one:
        reasons.append(
            f"{bounds.name} has bounds per token, but {base.name} has one ratio or weight per "
            "response. Use bounds per response (grpo, etr), or a token ratio."
        )
    replaced = {k for k, part in _replaced(a).items() if part.method is not base}
    if essence(base) and essence(base) <= replaced:
        kept = " and ".join(sorted(essence(base)))
        reasons.append(
            f"the idea of {base.name} is in its {kept}, which this config replaces. "
            f"Keep its {kept}, or set `method.name` to the method whose loss you want."
        )
    for slot, component in _replaced(a).items():
        other = component.method
        if essence(other) and _alike(slot, component, a.base):
            reasons.append(
                f"the {slot} of {other.name} and {base.name} are equal, so nothing would change. "
                f"The idea of {other.name} is in its {' and '.join(sorted(essence(other)))}."
            )
    if "sequence_mean" in advantages.needs and a.mean == "token":
        reasons.append(
            f"advantages of {advantages.name} grow with the length, and the token mean of "
            f"{base.name} would weigh by length again. Use a sequence mean."
        )
    if bounds is not base and base.clips is None:
        reasons.append(
            f"{base.name} does not clip a ratio, so the bounds of {bounds.name} would hardly ever "
            "act. Remove `method.bounds`, or set `method.name` to a method that clips."
        )
    if bounds is not base and bounds.bounds is None and bounds.constant_bounds is no_bounds:
        reasons.append(f"{bounds.name} does not define bounds. Remove `method.bounds`.")
    # it cuts a ratio that the surrogate itself clips, with advantages of a fixed sign
    plain = base.clips == base.form == "ratio" and base.reweight is keep_advantages
    if a.base.params.dual_clip is not None and not plain:
        reasons.append(
            f"dual_clip does not apply to {base.name}: it only applies to the clipped ratio of "
            "grpo, etr, erpo and gspo. Remove it."
        )
    return reasons


def _alike(slot: str, component: Component, base: Component) -> bool:
    """Whether another method's component is the base's own, in functions and parameters."""
    if slot == "bounds" and component.method.constant_bounds is no_bounds:
        return False  # it has none at all
    names = ("advantages",) if slot == "advantages" else ("bounds", "constant_bounds")
    keys = []
    for k in type(component.params).model_fields:
        if slot in slots(component.params, k):
            keys.append(k)
    pairs = [(component.method, base.method, names), (component.params, base.params, keys)]
    return component.method is not base.method and all(
        getattr(a, name) == getattr(b, name, None) for a, b, names in pairs for name in names
    )


def two_policies(a: Algorithm) -> Iterator[str]:
    """Why old_policy: sampler has no meaning for the method, or the method's loss none for it."""
    correction = a.correction
    plain = has_no_ratio(a)
    if not correction.bypass_mode:
        return
    needs = replace(a, correction=CorrectionConfig()).needs
    if "entropy" in needs:
        yield (
            f"{a.name} needs the exact entropies of pi_old, but `old_policy: sampler` "
            "(bypass_mode) skips the forward that computes them. Set `old_policy: trainer`."
        )
    if "drift" in needs:
        yield (
            f"{a.name} measures how far an update moves the trainer's log-probs, which "
            "`old_policy: sampler` (bypass_mode) skips. For spo, set forgetting: constant."
        )
    if "gen_logprobs" in needs:
        yield (
            f"{a.name} compares pi_old with the sampler, but with `old_policy: sampler` "
            "(bypass_mode) both are the same. Set `old_policy: trainer`."
        )
    if correction.loss_type == "reinforce" and not plain:
        yield (
            f"`loss_type: reinforce` has no ratio, but {a.name} has one. Set `method.name: gpg` "
            "(with `method.advantages`), or set `loss_type: ppo_clip` without rollout_is."
        )
    elif correction.loss_type == "ppo_clip" and plain:
        yield f"{a.name} has no ratio to clip. Set `loss_type: reinforce`."
    elif correction.rollout_is and not plain:
        yield (
            f"with `old_policy: sampler` (bypass_mode) the ratio of {a.name} already corrects for "
            "the sampler, and `rollout_is` would do so twice. Remove rollout_is."
        )
