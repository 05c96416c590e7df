"""Every key of NeMo-RL's loss_fn, grpo and policy is honoured, decided, refused or neutral.

And what is said of it is so. A key that is missing here is one that nobody has thought about.
"""

from fnmatch import fnmatchcase
from typing import Any

import checkout
import pytest
from nemo_rl.algorithms import grpo
from nemo_rl.algorithms.loss import ClippedPGLossConfig
from shipped_run import compose

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.methods import STUDIED
from nemo_algos.engines.nemo import trial
from nemo_algos.engines.nemo.estimator import Estimator
from nemo_algos.engines.nemo.loss import AlgorithmLoss
from nemo_algos.findings import ConfigError
from nemo_algos.preflight.check import keys as nemo_rls
from nemo_algos.preflight.check.judge import check

SECTIONS = ("loss_fn", "grpo", "policy")
BASES = ("grpo_math_1B.yaml", "grpo_math_1B_megatron.yaml")

# read by NeMo-RL's loss, which ours calls: two settings that differ by the key, with two losses
KL = {"reference_policy_kl_penalty": 0.1, "reference_policy_kl_type": "k3"}
CORRECTED = {"reference_policy_kl_penalty": 0.0, "use_importance_sampling_correction": True}
TRUNCATED = {
    "truncated_importance_sampling_type": "tis",
    "truncated_importance_sampling_ratio": 1.05,
    "truncated_importance_sampling_ratio_min": 0.95,
} | CORRECTED
HONOURED = {
    "loss_fn.reference_policy_kl_penalty": (KL, {"reference_policy_kl_penalty": 0.5}),
    "loss_fn.reference_policy_kl_type": (KL, {"reference_policy_kl_type": "k1"}),
    "loss_fn.kl_input_clamp_value": (KL, {"kl_input_clamp_value": 0.01}),
    "loss_fn.kl_output_clamp_value": (KL, {"kl_output_clamp_value": 0.001}),
    "loss_fn.use_on_policy_kl_approximation": (KL, {"use_on_policy_kl_approximation": True}),
    "loss_fn.use_importance_sampling_correction": (
        CORRECTED,
        {"use_importance_sampling_correction": False},
    ),
    "loss_fn.truncated_importance_sampling_type": (
        TRUNCATED,
        {"truncated_importance_sampling_type": "icepop"},
    ),
    "loss_fn.truncated_importance_sampling_ratio": (
        TRUNCATED,
        {"truncated_importance_sampling_ratio": 1.5},
    ),
    "loss_fn.truncated_importance_sampling_ratio_min": (
        TRUNCATED,
        {"truncated_importance_sampling_ratio_min": 0.5},
    ),
}
# set by `derive`; written by a user they are refused with the name to use
DECIDED = {
    "loss_fn.ratio_clip_min": 0.1,
    "loss_fn.ratio_clip_max": 0.1,
    "loss_fn.ratio_clip_c": 3.0,
    "loss_fn.token_level_loss": True,
    "loss_fn.sequence_level_importance_ratios": True,
}
SPO = "method={name: spo, forgetting: constant}"
# key: overrides that must be refused at it
REFUSED = {
    "loss_fn.disable_ppo_ratio": ["loss_fn.disable_ppo_ratio=true"],
    "loss_fn.force_on_policy_ratio": ["loss_fn.force_on_policy_ratio=true"],
    "loss_fn.name": ["loss_fn.name=a.b"],
    "loss_fn.use_cispo": ["loss_fn.use_cispo=true"],
    "loss_fn.positive_example_nll_weight": ["loss_fn.positive_example_nll_weight=0.1"],
    "loss_fn.use_kl_in_reward": ["loss_fn.use_kl_in_reward=true"],
    "grpo.normalize_rewards": ["grpo.normalize_rewards=false"],
    "grpo.use_leave_one_out_baseline": ["grpo.use_leave_one_out_baseline=true"],
    "grpo.adv_estimator": ["grpo.adv_estimator.name=gdpo"],
    "grpo.adv_estimator.name": ["grpo.adv_estimator.name=reinforce_plus_plus"],
    "grpo.adv_estimator.minus_baseline": ["grpo.adv_estimator.minus_baseline=false"],
    "grpo.adv_estimator.normalize_rewards": ["grpo.adv_estimator.normalize_rewards=false"],
    "grpo.adv_estimator.use_leave_one_out_baseline": [
        "grpo.adv_estimator.use_leave_one_out_baseline=true"
    ],
    "grpo.adv_estimator.reward_weights": ["grpo.adv_estimator.reward_weights=[1,2]"],
    "grpo.invalid_tool_call_advantage": ["grpo.invalid_tool_call_advantage=-5"],
    "grpo.malformed_thinking_advantage": ["grpo.malformed_thinking_advantage=-5"],
    "grpo.skip_reference_policy_logprobs_calculation": [
        "grpo.skip_reference_policy_logprobs_calculation=true"
    ],
    "grpo.reward_scaling.enabled": [SPO, "grpo.reward_scaling.enabled=true"],
    "grpo.reward_shaping.enabled": [SPO, "grpo.reward_shaping.enabled=true"],
    "grpo.use_dynamic_sampling": ["method.name=quatro", "grpo.use_dynamic_sampling=true"],
    "policy.dtensor_cfg._v2": ["method.name=erpo", "policy.dtensor_cfg._v2=false"],
    "policy.generation.top_p": ["method.name=erpo", "policy.generation.top_p=0.9"],
    "policy.generation.top_k": ["method.name=erpo", "policy.generation.top_k=20"],
    "policy.generation.vllm_cfg.logprobs_mode": [
        "policy.generation.vllm_cfg.logprobs_mode=raw_logprobs",
        "policy.generation.temperature=0.7",
    ],
    "policy.megatron_cfg.use_fused_linear_logprobs": [
        "policy.megatron_cfg.use_fused_linear_logprobs=true",
        "policy.generation.temperature=0.9",
    ],
    "policy.megatron_cfg.use_linear_ce_fusion_loss": [
        "policy.megatron_cfg.use_linear_ce_fusion_loss=true"
    ],
    "policy.router_replay.enabled": ["method.name=erpo", "policy.router_replay.enabled=true"],
    "policy.reward_model_cfg.enabled": ["policy.reward_model_cfg.enabled=true"],
}
# fnmatch pattern: reason
NEUTRAL = {
    "grpo.advantage_clip_*": "NeMo-RL's clip of the method's advantages: test_penalties.py",
    "grpo.async_grpo*": "how old rollouts may be; without the correction for it, refused",
    "grpo.batch_multiplier": "prompts generated at a time, for dynamic sampling",
    "grpo.calculate_advantages_on_gpu": "where NeMo-RL's own baseline is computed, a metric here",
    "grpo.debug_payload_metrics": "metrics",
    "grpo.deduplicate_multimodal_data": "transport",
    "grpo.dynamic_sampling_max_gen_batches": "when dynamic sampling gives up",
    "grpo.max_num_epochs": "length of the run",
    "grpo.max_num_steps": "length of the run",
    "grpo.max_rollout_turns": "the environment's; responses of several turns are masked",
    "grpo.max_val_samples": "validation",
    "grpo.num_generations_per_prompt": "group size, which the estimator holds every group to",
    "grpo.num_prompts_per_step": "batch size",
    "grpo.overlong_filtering": "masks rows, which are then in no statistic",
    "grpo.reward_scaling.[st]*": "of a scaling: successes are told before it (spo: refused)",
    "grpo.reward_shaping.[!e]*": "of a shaping: successes are told before it (spo: refused)",
    "grpo.seed": "the sampler's and the data's order",
    "grpo.seq_logprob_error_threshold": "masks rows, which are then in no statistic",
    "grpo.stop_at_validation_*": "length of the run",
    "grpo.val_*": "validation",
    "policy.*batch_size": "NeMo-RL's sharding; nothing of ours depends on the cut",
    "policy.disable_modelopt_layer_spec": "the model's layers",
    "policy.draft*": "a draft model with a loss of its own, beside the policy's",
    "policy.dtensor_cfg.[!_]*": "layout, memory, LoRA: which parameters, and where",
    "policy.dynamic_batching*": "cuts micro-batches between sequences",
    "policy.generation.[!t]*": "the sampler; the monitor compares it with the trainer",
    "policy.generation.temperature": "of policy, reference and entropies alike",
    "policy.hf_config_overrides*": "the model",
    "policy.is_vlm": "the model",
    "policy.logprob_chunk_size": "memory",
    "policy.make_sequence_length_divisible_by": "padding, masked",
    "policy.max_grad_norm": "the optimizer",
    "policy.max_total_sequence_length": "longer prompts are masked rows",
    "policy.megatron_cfg.[!um]*": "layout, precision, optimizer, memory",
    "policy.megatron_cfg.model_overrides*": "the model",
    "policy.megatron_cfg.moe_*": "experts; of losses of a router's own check warns",
    "policy.megatron_cfg.mtp_*": "heads with a loss of their own; check warns of it",
    "policy.megatron_cfg.use_fused_weighted_squared_relu": "a kernel",
    "policy.megatron_cfg.use_gloo_process_groups": "transport",
    "policy.model_name": "the model",
    "policy.offload_optimizer_for_logprob": "memory",
    "policy.optimizer*": "the optimizer",
    "policy.precision": "the model's; losses are float32",
    "policy.pretrained_checkpoint*": "the model",
    "policy.quant_*": "the model's fake quantisation, in every forward alike",
    "policy.refit_buffer_size_gb": "transport",
    "policy.reward_model_cfg.reward_model_type": "of a reward model, refused",
    "policy.scheduler*": "the optimizer",
    "policy.sequence_packing*": "cuts micro-batches between sequences, fused or not",
    "policy.tokenizer*": "the tokenizer",
}


def keys() -> set[str]:
    """What this NeMo-RL declares, what its example configs have, and what its code reads beside."""
    release = checkout.release()
    found = {*release.declared, *nemo_rls.UNDECLARED}
    for name in BASES:
        found |= set(nemo_rls._paths(release.configs[name]))  # pyright: ignore
    sections = {path.rpartition(".")[0] for path in found}
    return {key for key in found - sections if key.partition(".")[0] in SECTIONS}


def verdicts(key: str) -> list[str]:
    exact = [name for name in ("HONOURED", "DECIDED", "REFUSED") if key in globals()[name]]
    return exact or [p for p in NEUTRAL if fnmatchcase(key, p)]


def test_every_key_has_a_verdict(ref: str) -> None:
    found = {key: verdicts(key) for key in keys()}
    assert len(found) > 300
    assert {k: v for k, v in found.items() if not v} == {}
    used = {v for of in found.values() for v in of}
    assert ref != "main" or not set(NEUTRAL) - used
    assert set(HONOURED) | set(DECIDED) <= set(found)


@pytest.mark.parametrize("key", REFUSED)
def test_a_refused_key_is_refused_by_the_launcher_and_by_check(key: str) -> None:
    with pytest.raises(ConfigError) as error:
        compose(*REFUSED[key])
    problems = {(problem.path, problem.message) for problem in error.value.findings}
    problems = {(path, m) for path, m in problems if not m.startswith("unknown key")}  # in v0.7.0
    paths = {path for path, _ in problems}
    wanted = {key, key.rpartition(".")[0], *(o.partition("=")[0] for o in REFUSED[key])}
    assert paths & wanted, error.value
    found = check("nemo_rl.yaml", REFUSED[key], checkout.release())
    assert problems <= {(f.path, f.message) for f in found if f.severity == "error"}


@pytest.mark.parametrize("key", DECIDED)
def test_a_key_that_the_method_decides_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: the method"):
        compose(f"{key}={str(DECIDED[key]).lower()}")


def value(name: str, settings: dict[str, Any]) -> float:
    """The loss of a method under these keys; the sampler is not the trainer here."""
    algorithm = build(name)
    loss = AlgorithmLoss(ClippedPGLossConfig(**settings), algorithm)
    return trial.step(grpo.grpo_train, Estimator(algorithm), loss)[0]


@pytest.mark.parametrize("key", HONOURED)
@pytest.mark.parametrize("name", STUDIED)
def test_an_honoured_key_changes_every_methods_loss(name: str, key: str) -> None:
    base, change = HONOURED[key]
    assert value(name, base) != pytest.approx(value(name, base | change), rel=1e-4)
