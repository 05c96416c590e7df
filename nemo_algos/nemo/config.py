"""What a method decides of NeMo-RL's config, and what it refuses. Sections are dictionaries
here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from itertools import chain
from types import UnionType
from typing import Any, NotRequired, Union, get_args, get_origin

from nemo_algos.config import Problem, at, did_you_mean
from nemo_algos.methods.algorithm import Algorithm
from nemo_algos.methods.loss import DERIVED
from nemo_algos.nemo import precision

OURS = ("engine", "method", "mismatch", "nemo_rl")
TINY_KL = 1e-8  # of a penalty that only makes NeMo-RL load the reference

# what would change the meaning of a method: key, the only value, why
FIXED: tuple[tuple[str, Any, str], ...] = (
    ("loss_fn.disable_ppo_ratio", False, "a method without a ratio is method.name: gpg"),
    ("loss_fn.use_cispo", False, "set method.name: cispo"),
    ("loss_fn.force_on_policy_ratio", False, "it makes every ratio 1"),
    (
        "loss_fn.positive_example_nll_weight",
        0.0,
        "NeMo-RL would compute it from the method's ratio",
    ),
    ("grpo.advantage_clip_low", None, "the advantages are the method's"),
    ("grpo.advantage_clip_high", None, "the advantages are the method's"),
    ("grpo.invalid_tool_call_advantage", None, "the advantages are the method's"),
    ("grpo.malformed_thinking_advantage", None, "the advantages are the method's"),
)
FREE = ("env", "data")  # custom environments and datasets have keys of their own
# read by NeMo-RL's vLLM workers, and in neither its example config nor its types
UNDECLARED = {
    f"{precision.VLLM}.{key}" for key in (*precision.POW2, "quantization_ignored_layer_kws")
}
# refused by NeMo-RL's examples/run_grpo.py, whose part nemo.launch takes
NOT_ASYNC = (
    "grpo.use_dynamic_sampling",
    "grpo.reward_scaling.enabled",
    "grpo.reward_shaping.enabled",
    "data.use_multiple_dataloader",
)
UNSHAPED = ("grpo.reward_scaling.enabled", "grpo.reward_shaping.enabled")


def decided(algorithm: Algorithm) -> dict[str, Any]:
    """The keys of `loss_fn` that the method decides."""
    return {
        "token_level_loss": algorithm.mean == "token",
        "sequence_level_importance_ratios": algorithm.base.ratio == "sequence",
        "disable_ppo_ratio": algorithm.base.form == "logprob",
        "ratio_clip_min": getattr(algorithm.bounds_params, "clip_low", 0.2),
        "ratio_clip_max": getattr(algorithm.bounds_params, "clip_high", 0.2),
        "ratio_clip_c": algorithm.params.dual_clip,
    }


def derive(plain: dict[str, Any], algorithm: Algorithm) -> None:
    """Set what the method decides, in place."""
    loss, grpo = plain["loss_fn"], plain["grpo"]
    loss |= decided(algorithm)
    grpo["adv_estimator"] = {**(grpo.get("adv_estimator") or {}), "name": "nemo_algos"}
    if "ref_logprobs" in algorithm.needs:
        grpo["skip_reference_policy_logprobs_calculation"] = False
        if not loss["reference_policy_kl_penalty"]:
            # NeMo-RL loads a reference only for a penalty; as a penalty of the reward it is not in
            # the loss
            loss |= {"reference_policy_kl_penalty": TINY_KL, "use_kl_in_reward": True}


def conflicts(plain: dict[str, Any], written: Any, algorithm: Algorithm) -> list[Problem]:
    """Every key that contradicts the method. written: what the user's own file says, without
    NeMo-RL's defaults."""
    problems = [
        Problem(path, f"must stay {value}: {why}")
        for path, value, why in FIXED
        if (found := at(plain, path)) is not None and found != value
    ]
    loss = (written or {}).get("loss_fn") or {}
    problems += [Problem(f"loss_fn.{k}", f"is {why}") for k, why in DERIVED.items() if k in loss]
    problems += precision.conflicts(plain)
    if at(plain, "grpo.async_grpo.enabled"):
        why = "asynchronous GRPO does not do it: set it to false"
        problems += [Problem(path, why) for path in NOT_ASYNC if at(plain, path)]
    problems += _of_rewards(plain, algorithm)
    problems += _of_fused_logprobs(plain)
    if "entropy" in algorithm.needs:
        problems += _of_entropy(plain, algorithm)
    if (written or {}).get("single_controller") or at(plain, "grpo.single_controller.enabled"):
        problems.append(
            Problem(
                "single_controller",
                "NeMo-RL's single controller is not supported: it computes advantages per "
                "streaming chunk and fetches a fixed list of columns; use grpo_train, async or "
                "data_plane",
            )
        )
    kind = at(plain, "loss_fn.truncated_importance_sampling_type")
    if algorithm.base.ratio == "sequence" and kind == "seq-mask-tis":
        problems.append(
            Problem(
                "loss_fn.truncated_importance_sampling_type",
                f"{algorithm.name} has one ratio per sequence, "
                "and NeMo-RL's seq-mask-tis one per token: use tis or icepop",
            )
        )
    return problems


def _of_rewards(plain: dict[str, Any], algorithm: Algorithm) -> list[Problem]:
    """Pass rates and means of rewards need the verifier's own."""
    parts = {algorithm.bounds.name, algorithm.base.name} & {"etr", "apmpo"}
    problems = [
        Problem(path, f"{'+'.join(sorted(parts))} reads pass rates off the rewards: switch it off")
        for path in UNSHAPED
        if parts and at(plain, path)
    ]
    batchwise = getattr(algorithm.params, "statistics", None) == "batch"
    if batchwise and at(plain, "grpo.use_dynamic_sampling"):
        problems.append(
            Problem(
                "grpo.use_dynamic_sampling",
                "drops groups before apmpo's batch statistics: set "
                "method.statistics: group, or switch it off",
            )
        )
    if not algorithm.base.flat_group_is_inert and at(plain, "grpo.use_dynamic_sampling"):
        why = f"drops groups of equal rewards, which hold {algorithm.name} near the sampling policy"
        problems.append(Problem("grpo.use_dynamic_sampling", f"{why}: switch it off"))
    return problems


def _of_entropy(plain: dict[str, Any], algorithm: Algorithm) -> list[Problem]:
    version = at(plain, "policy.dtensor_cfg._v2")
    if at(plain, "policy.dtensor_cfg.enabled") and version is False:
        return [
            Problem(
                "policy.dtensor_cfg._v2",
                f"{algorithm.name} needs exact entropies, which our extension gives "
                "for DTensor v2 and Megatron: set it to true",
            )
        ]
    return []


def _of_fused_logprobs(plain: dict[str, Any]) -> list[Problem]:
    megatron, problems = "policy.megatron_cfg", []
    if at(plain, f"{megatron}.use_linear_ce_fusion_loss"):
        problems.append(
            Problem(
                f"{megatron}.use_linear_ce_fusion_loss",
                "NeMo-RL v0.7.0 has it for SFT and DPO only: switch it off",
            )
        )
    temperature = at(plain, "policy.generation.temperature")
    if at(plain, f"{megatron}.use_fused_linear_logprobs") and temperature != 1:
        problems.append(
            Problem(
                "policy.generation.temperature",
                "NeMo-RL divides fused log-probs, not logits, by the temperature: set it to 1, or "
                f"{megatron}.use_fused_linear_logprobs to false",
            )
        )
    return problems


def remarks(plain: dict[str, Any], algorithm: Algorithm) -> list[str]:
    """What is allowed and probably not meant."""
    grpo = plain["grpo"]
    rollouts = grpo["num_prompts_per_step"] * grpo["num_generations_per_prompt"]
    if rollouts <= plain["policy"]["train_global_batch_size"] and algorithm.base.form == "ratio":
        return [
            f"clipping is inert here: one update per batch (policy.train_global_batch_size covers "
            f"all {rollouts} rollouts)"
        ]
    return []


def unknown_keys(
    written: Mapping[Any, Any], base: Mapping[Any, Any], declared: Set[str]
) -> list[Problem]:
    """Keys that neither NeMo-RL's example config nor its types have; `+key` is not needed."""
    known = {*_paths(base), *UNDECLARED, *declared}
    return [
        Problem(path, f"unknown key of NeMo-RL{did_you_mean(path, sorted(known))}")
        for path in _paths(written)
        if path not in known and not _open(path, known)
    ]


def declared(types: Mapping[str, type]) -> set[str]:
    """Paths of typed keys; types: by the path of what they are the type of, "" for the whole
    config."""
    return set(chain.from_iterable(_fields(of, path) for path, of in types.items()))


def _open(path: str, known: set[str]) -> bool:
    """Below an empty or free-form section anything may stand, such as an optimizer's kwargs."""
    if path.partition(".")[0] in FREE and "." in path:
        return True
    parent = path.rpartition(".")[0]
    siblings = any(k.startswith(parent + ".") for k in known)
    return (
        bool(parent)
        and (not siblings or "kwargs" in path)
        and (parent in known or _open(parent, known))
    )


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
