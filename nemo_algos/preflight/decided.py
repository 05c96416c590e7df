"""What a method decides of NeMo-RL's config, and which keys there are."""

from collections.abc import Iterator, Mapping, Set
from itertools import chain
from types import UnionType
from typing import Any, NotRequired, Union, get_args, get_origin

from nemo_algos.config import ConfigError, Finding, did_you_mean
from nemo_algos.objective.algorithm import Algorithm
from nemo_algos.preflight import precision

OURS = ("engine", "method", "mismatch", "nemo_rl", "rollout_correction")
DEFAULT = "grpo_math_1B.yaml"  # of NeMo-RL's own, below its examples/configs
# a class path; a NeMo-RL that takes none refuses it as a name, so that no path can run its GRPO
ESTIMATOR = "nemo_algos.nemo.trainers.given"
TINY_KL = 1e-8  # of a penalty that only makes NeMo-RL load the reference

FREE = ("env", "data")  # custom environments and datasets have keys of their own
# read by NeMo-RL's workers, and in neither its example config nor its types
OF_VLLM = (*precision.POW2, "quantization_ignored_layer_kws", "enable_prefix_caching")
UNDECLARED = {f"{precision.VLLM}.{key}" for key in OF_VLLM} | {"policy.sequence_packing.fuse_loss"}


# of a loss whose terms we weigh by the sampler ourselves
UNWEIGHTED = {
    "use_importance_sampling_correction": False,
    "truncated_importance_sampling_type": None,
    "truncated_importance_sampling_ratio": None,
    "truncated_importance_sampling_ratio_min": None,
}


def weighs(algorithm: Algorithm) -> bool:
    """Whether our loss weighs by the sampler: NeMo-RL's takes a sequence ratio's product."""
    return algorithm.correction.active or algorithm.base.method.ratio == "sequence"


def decided(algorithm: Algorithm) -> dict[str, Any]:
    """The keys of `loss_fn` that the method decides, of NeMo-RL's loss."""
    return {
        "token_level_loss": algorithm.mean == "token",
        "sequence_level_importance_ratios": algorithm.base.method.ratio == "sequence",
        "disable_ppo_ratio": algorithm.base.method.form == "logprob",
        "ratio_clip_min": getattr(algorithm.bounds.params, "clip_low", 0.2),
        "ratio_clip_max": getattr(algorithm.bounds.params, "clip_high", 0.2),
        "ratio_clip_c": algorithm.base.params.dual_clip,
    }


def derive(plain: dict[str, Any], algorithm: Algorithm) -> None:
    """Set what the method decides, in place."""
    loss, grpo = plain["loss_fn"], plain["grpo"]
    loss |= decided(algorithm)
    if algorithm.correction.active:
        # what NeMo-RL asserts of asynchronous and FP8 rollouts; its loss goes by `decided`
        loss["use_importance_sampling_correction"] = True
    grpo["adv_estimator"] = {**(grpo.get("adv_estimator") or {}), "name": ESTIMATOR}
    # only NeMo-RL's filter of flat groups reads it: a group's one right response would seem flat
    grpo["use_leave_one_out_baseline"] = False
    if "ref_logprobs" in algorithm.needs:
        grpo["skip_reference_policy_logprobs_calculation"] = False
        if not loss["reference_policy_kl_penalty"]:
            # a reference is loaded only for a penalty; of the reward, it is not in the loss
            loss |= {"reference_policy_kl_penalty": TINY_KL, "use_kl_in_reward": True}


def base_name(written: Mapping[Any, Any]) -> str:
    """The config of NeMo-RL that ours goes over. Raises ConfigError where it is no name."""
    section = written.get("nemo_rl") or {}
    if not isinstance(section, Mapping):
        raise ConfigError([Finding("nemo_rl", f"must be a section, got {section!r}")])
    name = section.get("config", DEFAULT)
    if not isinstance(name, str):
        raise ConfigError([Finding("nemo_rl.config", f"must be a file's name, got {name!r}")])
    return name


def unknown_keys(
    written: Mapping[Any, Any], base: Mapping[Any, Any], declared: Set[str]
) -> list[Finding]:
    """Keys that neither NeMo-RL's example config nor its types have; `+key` is not needed."""
    known = {*_paths(base), *UNDECLARED, *declared, *(f"{section}._override_" for section in base)}
    return [
        Finding(path, f"unknown key of NeMo-RL{did_you_mean(path, sorted(known))}")
        for path in _paths(written)
        if path not in known and not _open(path, known)
    ]


def declared(types: Mapping[str, type]) -> set[str]:
    """Paths of typed keys; types: by the path of their section, "" for the whole config."""
    return set(chain.from_iterable(_fields(kind, path) for path, kind in types.items()))


def _open(path: str, known: set[str]) -> bool:
    """Below an empty or free-form section anything may stand, such as an optimizer's kwargs."""
    if path.partition(".")[0] in FREE and "." in path:
        return True
    parent = path.rpartition(".")[0]
    free = "kwargs" in path or not any(k.startswith(parent + ".") for k in known)
    return bool(parent) and free and (parent in known or _open(parent, known))


def _paths(section: Mapping[Any, Any], prefix: str = "") -> Iterator[str]:
    for key, value in section.items():
        path = f"{prefix}{key}"
        yield path
        if isinstance(value, Mapping):
            yield from _paths(value, f"{path}.")


def _fields(model: Any, path: str = "") -> Iterator[str]:
    """Paths of the fields of a pydantic model, a TypedDict, or a union of them."""
    if get_origin(model) in (Union, UnionType, NotRequired):
        yield from chain.from_iterable(_fields(part, path) for part in get_args(model))
    annotations = getattr(model, "__annotations__", {})
    fields = {k: v.annotation for k, v in getattr(model, "model_fields", {}).items()} or annotations
    for name, annotation in fields.items():
        inner = f"{path}.{name}".removeprefix(".")
        yield inner
        yield from _fields(annotation, inner)
