"""What a method decides of NeMo-RL's config, and for which GRPO script of NeMo-RL it is."""

from collections.abc import Iterator, Mapping
from typing import Any

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.algorithms.kernel import keep_advantages, token_log_ratio
from nemo_algos.algorithms.record import TOKEN_INPUTS
from nemo_algos.findings import Section, at, sections_of, set_at, validate

SHARED = ("mismatch", "old_policy", "rollout_correction")  # that both engines read alike
OURS = ("engine", "method", "nemo_rl", *SHARED)
# ours, among NeMo-RL's keys
EPOCHS = "grpo.num_update_epochs"
TRACE = "logger.trace_period"
TRACED = "logger.traced_prompts"
NONFINITE = "loss_fn.on_nonfinite"  # read by `AlgorithmLoss`
AMONG = (EPOCHS, TRACE, TRACED, NONFINITE)
SELF_TEST = "nemo_rl.self_test"
DEFAULT = "grpo_math_1B.yaml"  # of NeMo-RL's own, below its examples/configs
# a class path; a NeMo-RL that takes none refuses it as a name, so that no path can run its GRPO
ESTIMATOR = "nemo_algos.engines.nemo.patches.given"
TINY_KL = 1e-8  # of a penalty that only makes NeMo-RL load the reference
GYM = "env.nemo_gym"
SERVED = {"async_engine": True, "expose_http_server": True}  # as NeMo-RL sets for NeMo Gym
# of a loss whose terms we weigh by the sampler ourselves
UNWEIGHTED = {
    "use_importance_sampling_correction": False,
    "truncated_importance_sampling_type": None,
    "truncated_importance_sampling_ratio": None,
    "truncated_importance_sampling_ratio_min": None,
}
# what the method decides of a base config's other loss or estimator; a user's own is refused
DECIDED = {
    "loss_fn.disable_ppo_ratio": False,
    "loss_fn.use_cispo": False,
    "loss_fn.positive_example_nll_weight": 0.0,
    "grpo.normalize_rewards": True,
}


def weighs(algorithm: Algorithm) -> bool:
    """Whether our loss weighs by the sampler: NeMo-RL's knows tokens, and a sequence's product."""
    return algorithm.correction.active or algorithm.base.method.ratio != "token"


def is_ratioless(algorithm: Algorithm) -> bool:
    """Whether nothing of it reads the old policy's log-probs."""
    method = algorithm.base.method
    score = algorithm.base.form == "logprob" and method.log_ratio is token_log_ratio
    plain = score and method.reweight is keep_advantages
    return plain and not algorithm.correction.active and not algorithm.needs & TOKEN_INPUTS


def method_keys(algorithm: Algorithm) -> dict[str, Any]:
    """The keys of `loss_fn` that the method decides, of NeMo-RL's loss."""
    return {
        "token_level_loss": algorithm.mean == "token",
        "sequence_level_importance_ratios": algorithm.base.method.ratio == "sequence",
        "disable_ppo_ratio": algorithm.base.form == "logprob",
        "ratio_clip_min": getattr(algorithm.bounds.params, "clip_low", 0.2),
        "ratio_clip_max": getattr(algorithm.bounds.params, "clip_high", 0.2),
        "ratio_clip_c": algorithm.base.params.dual_clip,
    }


def derive(plain: dict[str, Any], algorithm: Algorithm) -> None:
    """Set what the method decides, in place."""
    loss = plain["loss_fn"]
    grpo = plain["grpo"]
    for path, value in DECIDED.items():
        if at(plain, path) is not None:
            set_at(plain, path, value)
    loss |= method_keys(algorithm)
    if loss.get("force_on_policy_ratio") and not is_ratioless(algorithm):
        loss["force_on_policy_ratio"] = False
    generation = plain["policy"]["generation"]
    if uses_gym(plain.get("env")) and generation["backend"] == "vllm":
        generation["vllm_cfg"] |= SERVED
    if algorithm.correction.active:
        # what NeMo-RL asserts of asynchronous and FP8 rollouts; our loss weighs by itself
        loss["use_importance_sampling_correction"] = True
    grpo["adv_estimator"] = {**(grpo.get("adv_estimator") or {}), "name": ESTIMATOR}
    # only NeMo-RL's filter of flat groups reads it: a group's one right response would seem flat
    grpo["use_leave_one_out_baseline"] = False
    if "ref_logprobs" in algorithm.needs:
        grpo["skip_reference_policy_logprobs_calculation"] = False
        if not loss["reference_policy_kl_penalty"]:
            # a reference is loaded only for a penalty; of the reward, it is not in the loss
            loss |= {"reference_policy_kl_penalty": TINY_KL, "use_kl_in_reward": True}
    elif plain.get("async_rl") is not None and not loss["reference_policy_kl_penalty"]:
        # the single controller would ask a reference that no penalty has loaded
        grpo["skip_reference_policy_logprobs_calculation"] = True


class Base(Section):
    """What a run goes over."""

    config: str = DEFAULT
    """NeMo-RL's own config below yours: a file name below its examples/configs."""
    self_test: bool = True
    """Whether NeMo-RL's own trainer first runs a step of known loss, before Ray starts."""


def base_of(written: Mapping[Any, Any]) -> Base:
    """The section `nemo_rl`. Raises ConfigError where it is wrong."""
    return validate(Base, written.get("nemo_rl") or {}, "nemo_rl")


PICTURED = "vlm_hf_data_processor"  # takes the model's processor, of images and sounds, as well


def is_vlm(data: Any) -> bool:
    """Whether `data` is for NeMo-RL's examples/run_vlm_grpo.py: prompts with images or sounds."""
    return any(one.get("processor") == PICTURED for one in data_sets(data))


def uses_gym(env: Any) -> bool:
    """Whether `env` is for examples/nemo_gym/run_grpo_nemo_gym.py: NeMo Gym's servers roll out."""
    return isinstance(env, Mapping) and bool(env.get("should_use_nemo_gym"))


def data_sets(data: Any) -> Iterator[Mapping[str, Any]]:
    """The sections of `data` that name or describe a data set."""
    if isinstance(data, Mapping):
        for name in ("default", "train", "validation"):
            yield from sections_of(data.get(name))
