"""The method: its parameters' usual sizes, and what NeMo-RL would train beside or instead of it."""

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from nemo_algos.algorithms.record import Params, SequenceClip, TokenClip, Usual
from nemo_algos.engines.nemo.derived_config import uses_gym
from nemo_algos.findings import Finding, at
from nemo_algos.preflight.check.layout import MEGATRON, VLLM
from nemo_algos.preflight.check.rule import Preflight, error, errors, note, warning
from nemo_algos.preflight.check.rules.conflicts import success_readers
from nemo_algos.preflight.check.rules.data import environment
from nemo_algos.preflight.check.rules.generation import GENERATION
from nemo_algos.preflight.check.training_rows import datasets

TOKEN = get_args(TokenClip)[1]
SEQUENCE = get_args(SequenceClip)[1]
KL = "loss_fn.reference_policy_kl_penalty"
NORM = "policy.max_grad_norm"
BALANCE = f"{MEGATRON}.moe_router_load_balancing_type"
BIASES = f"{MEGATRON}.moe_router_bias_update_rate"
MTP = f"{MEGATRON}.mtp_num_layers"
MTP_LOSS = f"{MEGATRON}.mtp_loss_scaling_factor"
REPLAY = "policy.router_replay.enabled"
DYNAMIC = "grpo.use_dynamic_sampling"
ONE_REWARD = ("code", "code_jaccard", "math", "math_default", "reward_model", "vlm")
GRADED = ("code_jaccard", "math_multi_reward", "reward_model", "vlm")  # environments


def usual_sizes(run: Preflight) -> Iterator[Finding]:
    """A value far from every published one is often a slipped digit; so is a small group."""
    a = run.algorithm
    parts = {"method": a.base} if a else {}
    if a and a.bounds is not a.base:
        parts["method.bounds"] = a.bounds
    for path, part in parts.items():
        for name, (low, high) in usual(type(part.params)).items():
            value = getattr(part.params, name)
            if not low <= value <= high and value != type(part.params).model_fields[name].default:
                yield warning(
                    f"{path}.{name}",
                    f"{value:g} is outside the usual range of {part.method.name} ({low:g} to "
                    f"{high:g}). Check the digits.",
                )
    ranges = usual(type(a.bounds.params)) if a else {}
    if ranges.get("clip_high") == SEQUENCE and a and a.bounds.params.clip_high >= TOKEN.low:
        yield note(
            "method.clip_high",
            "a sequence-level ratio hardly ever reaches this clip range. Set it to 4e-4, and "
            "`method.clip_low: 3e-4`, as the GSPO paper does.",
        )
    found = run[KL] or 0
    if found > 0.1:
        yield warning(
            KL,
            f"{found:g} holds the policy close to the reference. Set it to 0.001, as the papers "
            "do.",
        )
    elif found >= 0.01 and at(run.written, KL) is None:
        yield note(KL, f"NeMo-RL's default of {found:g} applies. Set 0.001, as the four papers do.")
    path = "grpo.num_generations_per_prompt"
    if a and 1 < run[path] < max(a.base.method.usual_group, a.bounds.method.usual_group):
        yield warning(
            path,
            f"{a.name} estimates statistics from each group, and {run[path]} responses are few "
            "(the papers have 8). Set it to 8 or more.",
        )


def usual(params: type[Params]) -> dict[str, Usual]:
    marks = {k: field.metadata for k, field in params.model_fields.items()}
    return {k: mark for k, found in marks.items() for mark in found if isinstance(mark, Usual)}


def gradient_clip(run: Preflight) -> Iterator[Finding]:
    """A product of ratios needs gradient clipping (docs/methods/quatro.md), by a norm above 0."""
    base = run.algorithm and run.algorithm.base
    if base and base.params.steep and not 0 < (run[NORM] or 0) <= 10:
        yield warning(
            NORM,
            f"gradients of {base.method.name} are steep beyond its trust region, so they need "
            "clipping. Set e.g. 1.0.",
        )
    found = run[NORM]
    if not run.megatron and found is not None and found <= 0:
        what = "makes every gradient 0" if found == 0 else "turns every gradient around"
        yield error(NORM, f"{found:g} {what}. Set it to null, or e.g. 1.0.")


def auxiliary_losses(run: Preflight) -> Iterator[Finding]:
    """Megatron's own losses and updates, which NeMo-RL's example switches off."""
    if not run.megatron:
        return
    routed = run.model is None or run.model.experts
    if routed and run[BALANCE] not in (None, "none"):
        yield warning(BALANCE, f"{run[BALANCE]} adds a loss to the method's loss. Set it to none.")
    if routed and run[BIASES]:
        yield warning(BIASES, "it changes expert biases outside the gradient. Set it to 0.0.")
    if run[MTP] and run[MTP_LOSS] and not run[f"{MEGATRON}.mtp_detach_heads"]:
        yield warning(
            MTP_LOSS,
            "it trains the model to predict its own rollouts, correct or not. Set it to 0.0, or "
            "set `mtp_detach_heads: true`.",
        )


def dropout(run: Preflight) -> Iterator[Finding]:
    """The old log-probs are computed without it."""
    found = list[str]()
    if run[f"{run.adapters}.enabled"] and run[f"{run.adapters}.dropout"]:
        found.append(f"{run.adapters}.dropout")
    for section in ("policy.hf_config_overrides", f"{MEGATRON}.model_overrides"):
        found += _dropped(run[section], section)
    for path in found:
        yield warning(
            path,
            "training applies dropout and the old log-probs do not, so no ratio starts at 1. Set "
            "it to 0.0.",
        )


def _dropped(section: Any, above: str) -> Iterator[str]:
    """The paths of shares above 0: attention_dropout, hidden_dropout, attn_pdrop."""
    if not isinstance(section, Mapping):
        return
    for key, value in section.items():
        yield from _dropped(value, f"{above}.{key}")
        if "drop" in str(key) and isinstance(value, (int, float)) and value > 0:
            yield f"{above}.{key}"


def router_replay(run: Preflight) -> Iterator[Finding]:
    """Replayed are the decoder's routes: not MTP's, not the reference's."""
    if not run[REPLAY]:
        return
    yield from errors(
        (
            not (run.megatron and run.vllm),
            REPLAY,
            "it needs Megatron for training and vLLM for generation. Set it to false.",
        ),
        (
            run["grpo.async_grpo.enabled"] and run["data_plane.enabled"],
            REPLAY,
            "it does not work with asynchronous GRPO over the data plane. Set it or "
            "`data_plane.enabled` to false.",
        ),
        (
            run[MTP],
            MTP,
            "with router replay, the MTP routers would replay routes of decoder layers. Set it to "
            "0.",
        ),
    )
    if run[KL]:
        yield note(
            REPLAY,
            "routes are not replayed in the reference policy, so the KL penalty starts above 0",
        )


def nucleus(run: Preflight) -> Iterator[Finding]:
    """NeMo-RL's mask_out_neg_inf_logprobs writes 0 where a filter leaves a token no probability."""
    for key, off in {"top_p": (None, 1), "top_k": (None, -1, 0)}.items():
        if run[f"{GENERATION}.{key}"] not in off:
            both = "" if run[f"{GENERATION}.val_{key}"] is None else f" and `val_{key}`"
            value = "1.0" if key == "top_p" else "null"
            yield warning(
                f"{GENERATION}.{key}",
                "NeMo-RL's trainer filters its own logits, so its set of kept tokens can differ "
                "from vLLM's. A sampled token outside that set trains with probability 1. Set "
                f"it{both} to {value}, at the latest if '-inf' appears in the log.",
            )


def graded_rewards(run: Preflight) -> Iterator[Finding]:
    """Pass rates, and groups of equal outcomes, need rewards of right and wrong."""
    a = run.algorithm
    readers = success_readers(a) if a else []
    by_part = a and "reward_parts" in a.advantage_needs
    for path, data in datasets(run):
        name = environment(run, data)
        graded = name in GRADED and not _right_or_wrong(run, data)
        if readers and path == "data.train" and graded:
            yield warning(
                f"{path}.env_name",
                f"{name} gives graded rewards, but {' and '.join(readers)} reads them as right or "
                "wrong. Set it to an environment whose rewards are 0 or 1, or choose another "
                "method.",
            )
        if path == "data.train" and graded and run[DYNAMIC] and not by_part:
            yield warning(
                DYNAMIC,
                f"it drops groups of equal rewards, and the graded ones of {name} hardly ever are: "
                "what `grpo.batch_multiplier` adds is generated and thrown away. Set it to false.",
            )


def _right_or_wrong(run: Preflight, data: Mapping[str, Any]) -> bool:
    """Whether the environment of images is given one reward function, of 0 and 1 alone."""
    match run[f"env.{data.get('env_name')}.reward_functions"]:
        case [{"name": "exact_alnum" | "math_expr"}]:
            return True
        case [{"name": "geo3k", "kwargs": {"format_score": 0}}]:
            return True
    return False


def reward_parts(run: Preflight) -> Iterator[Finding]:
    """Parts of the reward come from NeMo-RL's environment of several rewards, or from one's own."""
    a = run.algorithm
    if a is None or not {"reward_parts", "turn_rewards"} & a.needs:
        return
    if uses_gym(run["env"]) and not run.nemo_rl.facts["NeMo Gym gives rewards in parts"]:
        yield warning(
            "env.should_use_nemo_gym",
            f"{a.name} needs several rewards, and this NeMo-RL keeps their sum alone. Take a "
            "newer NeMo-RL.",
        )
    for path, data in datasets(run):
        name = environment(run, data)
        if path == "data.train" and name in ONE_REWARD:
            what = f"{name} gives one reward, but {a.name} needs several"
            cure = "Set it to math_multi_reward, or to an environment of your own."
            if "turn_rewards" in a.needs:
                what = f"{name} does not say what each turn has earned, which {a.name} needs"
                cure = "Set it to an environment of your own with rewards turn_1, turn_2, ..."
            yield error(f"{path}.env_name", f"{what}. {cure}")


def failed_generations(run: Preflight) -> Iterator[Finding]:
    """Asynchronous rollouts print an engine's error and go on."""
    asked = {"vllm": f"{VLLM}.async_engine", "sglang": f"{GENERATION}.use_async_rollouts"}
    own = f"{GENERATION}.mcore_generation_config.async_engine"
    if run[own] is not None:  # a key that newer ones lack, whose Megatron engine always is
        asked["megatron"] = own
    path = asked.get(str(run[f"{GENERATION}.backend"]), f"{GENERATION}.backend")
    if run[path] and not run["env.should_use_nemo_gym"]:
        yield note(
            path,
            "a failed generation stays in its group as an empty response with reward 0. Correct "
            "the error that the log names after 'Error generating response'.",
        )
