"""What the plug-in binds of NeMo-RL exists in this version, with these parameters."""

import importlib
import inspect
from typing import Any

import pytest
from cpu_run import OVERRIDES, load_config

ALGORITHMS, MODELS = "nemo_rl.algorithms", "nemo_rl.models"
WORKERS = f"{MODELS}.policy.workers"
LOSS_CALL = "self {} data global_valid_seqs global_valid_toks"
PARALLEL = "vocab_parallel_rank= vocab_parallel_group= context_parallel_group="
WRAPPER = f"self loss_fn prepare_fn cu_seqlens_q cu_seqlens_q_padded= {PARALLEL}"
RUN = (
    "tokenizer loss_fn task_to_env val_task_to_env logger checkpointer grpo_save_state "
    "master_config"
)
SYNC = f"policy policy_generation wrapped_dataloader val_dataloader {RUN}"
ASYNC = (
    f"policy policy_generation dataloader val_dataloader {RUN} max_trajectory_age_steps= "
    "teacher_worker_groups= alias_to_group_alias="
)
POLICY = (
    "self cluster config tokenizer name_prefix= workers_per_node= init_optimizer= weights_path= "
    "optimizer_path= init_reference_model= processor= worker_extension_cls_fqn="
)
TRAIN_FROM_META = "self meta loss_fn eval_mode= gbs= mbs= timer="

# name: parameters, "=" for one with a default
BOTH = {
    f"{ALGORITHMS}.loss:ClippedPGLossFn.__call__": LOSS_CALL.format("next_token_logprobs"),
    f"{ALGORITHMS}.loss:SequencePackingLossWrapper.__init__": WRAPPER,
    f"{ALGORITHMS}.loss:SequencePackingLossWrapper.__call__": LOSS_CALL.format("next_token_logits"),
    f"{ALGORITHMS}.loss:SequencePackingFusionLossWrapper.__init__": WRAPPER,
    f"{ALGORITHMS}.loss:SequencePackingFusionLossWrapper.__call__": LOSS_CALL.format(
        "next_token_logits"
    ),
    f"{ALGORITHMS}.loss:prepare_loss_input": (
        f"logits data loss_fn {PARALLEL} sampling_params= d2t= chunk_size="
    ),
    f"{ALGORITHMS}.loss:prepare_packed_loss_input": (
        f"logits data loss_fn cu_seqlens_q cu_seqlens_q_padded {PARALLEL} "
        "sampling_params= chunk_size="
    ),
    f"{ALGORITHMS}.grpo:setup": (
        "master_config tokenizer dataset val_dataset processor= policy_factory="
    ),
    f"{ALGORITHMS}.grpo:_create_advantage_estimator": "master_config",
    f"{ALGORITHMS}.grpo_sync:_create_advantage_estimator": "master_config",
    f"{ALGORITHMS}.grpo_sync:grpo_train_sync": SYNC,
    f"{ALGORITHMS}.advantage_estimator:GRPOAdvantageEstimator.__init__": (
        "self estimator_config loss_config"
    ),
    f"{ALGORITHMS}.advantage_estimator:GRPOAdvantageEstimator.compute_advantage": (
        "self prompt_ids rewards mask **kwargs"
    ),
    f"{ALGORITHMS}.utils:get_tokenizer": "tokenizer_config get_processor=",
    f"{MODELS}.megatron.train:LogprobsPostProcessor.__call__": (
        "self data_dict input_ids cu_seqlens_padded"
    ),
    f"{MODELS}.automodel.train:LogprobsPostProcessor.__init__": (
        "self cfg device_mesh cp_mesh tp_mesh cp_size enable_seq_packing= sampling_params="
    ),
    f"{MODELS}.automodel.train:LogprobsPostProcessor.__call__": (
        "self logits data_dict processed_inputs original_batch_size original_seq_len sequence_dim="
    ),
    f"{MODELS}.generation:configure_generation_config": (
        "config tokenizer is_eval= has_refit_draft_weights= trains_mtp="
    ),
    f"{MODELS}.policy.lm_policy:Policy.get_logprobs": "self data timer=",
    f"{MODELS}.policy.lm_policy:Policy.get_reference_policy_logprobs": (
        "self data micro_batch_size= timer="
    ),
    f"{MODELS}.policy.lm_policy:Policy.train": (
        "self data loss_fn eval_mode= gbs= mbs= timer= check_dim_skip_keys="
    ),
    f"{MODELS}.policy.tq_policy:TQPolicy.get_logprobs_from_meta": (
        "self meta micro_batch_size= timer="
    ),
    f"{MODELS}.policy.tq_policy:TQPolicy.prepare_step": "self num_samples group_size=",
    f"{MODELS}.policy.utils:get_runtime_env_for_policy_worker": "policy_worker_name",
    "nemo_rl.data.utils:setup_response_data": "tokenizer data_config env_configs= is_vlm=",
    "nemo_rl.distributed.model_utils:ChunkedDistributedEntropy.forward": (
        "ctx vocab_parallel_logits chunk_size tp_group inference_only="
    ),
    "nemo_rl.distributed.model_utils:allgather_cp_sharded_tensor": "tensor cp_group seq_dim=",
    "nemo_rl.distributed.ray_actor_environment_registry:get_actor_python_env": "actor_class_fqn",
    "nemo_rl.distributed.virtual_cluster:init_ray": "log_dir=",
    "nemo_rl.utils.config:load_config": "config_path",
    "nemo_rl.utils.config:parse_hydra_overrides": "cfg overrides",
    "nemo_rl.utils.config:register_omegaconf_resolvers": "",
}
ONLY = {
    "v0.7.0": {
        f"{ALGORITHMS}.loss:ClippedPGLossFn.__init__": "self cfg",
        f"{ALGORITHMS}.grpo:grpo_train": SYNC,
        f"{ALGORITHMS}.grpo:async_grpo_train": ASYNC,
        f"{MODELS}.megatron.train:LogprobsPostProcessor.__init__": (
            "self cfg sampling_params= use_linear_ce_fusion="
        ),
        f"{MODELS}.policy.lm_policy:Policy.__init__": POLICY,
        f"{MODELS}.policy.tq_policy:TQPolicy.train_from_meta": TRAIN_FROM_META,
    },
    "main": {
        f"{ALGORITHMS}.loss:ClippedPGLossFn.__init__": "self cfg use_fused_linear_logprobs=",
        f"{ALGORITHMS}.grpo:grpo_train": f"{SYNC} processor=",
        f"{ALGORITHMS}.grpo:async_grpo_train": f"{ASYNC} processor=",
        f"{ALGORITHMS}.single_controller_utils.setup:_create_advantage_estimator": "master_config",
        f"{MODELS}.megatron.train:LogprobsPostProcessor.__init__": (
            "self cfg sampling_params= use_fused_linear_logprobs="
        ),
        f"{MODELS}.policy.lm_policy:Policy.__init__": f"{POLICY} skip_weight_load=",
        f"{MODELS}.policy.tq_policy:TQPolicy.train_from_meta": f"{TRAIN_FROM_META} train_fields=",
    },
}
LOSS_FIELDS = (
    "disable_ppo_ratio token_level_loss sequence_level_importance_ratios ratio_clip_min "
    "ratio_clip_max ratio_clip_c reference_policy_kl_penalty reference_policy_kl_type "
    "kl_input_clamp_value kl_output_clamp_value use_kl_in_reward "
    "use_importance_sampling_correction truncated_importance_sampling_type "
    "truncated_importance_sampling_ratio truncated_importance_sampling_ratio_min "
    "use_on_policy_kl_approximation force_on_policy_ratio use_cispo positive_example_nll_weight"
)


def find(name: str) -> Any:
    module, _, path = name.partition(":")
    found = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def parameters(function: Any) -> str:
    """As the tables above: `a b= *args **kwargs`."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return " ".join(
        stars.get(p.kind, "") + p.name + ("" if p.default is p.empty else "=")
        for p in inspect.signature(function).parameters.values()
    )


@pytest.mark.parametrize("name", sorted({*BOTH, *ONLY["v0.7.0"], *ONLY["main"]}))
def test_parameters(name: str, ref: str) -> None:
    expected = (BOTH | ONLY[ref]).get(name)
    if expected is None:
        with pytest.raises(ModuleNotFoundError):
            find(name)
    else:
        assert parameters(find(name)) == expected


def test_loss(ref: str) -> None:
    config = find(f"{ALGORITHMS}.loss.loss_functions:ClippedPGLossConfig")
    assert " ".join(config.model_fields) == LOSS_FIELDS
    kinds = find(f"{ALGORITHMS}.loss.interfaces:LossInputType")
    loss = find(f"{ALGORITHMS}.loss:ClippedPGLossFn")(config())
    assert loss.input_type is kinds.LOGPROB
    assert loss.loss_type.name == "TOKEN_LEVEL"
    assert loss.reference_policy_kl_penalty == 0.01
    for name in ("metric_normalizations", "use_fused_linear_logprobs"):
        assert hasattr(loss, name) == (ref == "main")


def test_estimator_factories(ref: str) -> None:
    """The other modules import the factory by name; an unknown estimator raises."""
    factory = find(f"{ALGORITHMS}.grpo:_create_advantage_estimator")
    copies = ["grpo_sync", *(["single_controller_utils.setup"] if ref == "main" else [])]
    for module in copies:
        assert find(f"{ALGORITHMS}.{module}:_create_advantage_estimator") is factory
    with pytest.raises(ValueError, match="Invalid adv_estimator name"):
        factory(load_config([*OVERRIDES, "grpo.adv_estimator.name=nemo_algos"]))


def test_config_keeps_unknown_keys(ref: str) -> None:
    extra = ["+nemo_algos.method=etr", "+grpo.nemo_algos.x=1", "+loss_fn.nemo_algos_x=2"]
    config = load_config([*OVERRIDES, *extra])
    assert isinstance(config, find(f"{ALGORITHMS}.grpo:MasterConfig"))
    assert config.nemo_algos == {"method": "etr"}
    assert config.loss_fn.nemo_algos_x == 2
    assert isinstance(config.grpo, dict) == (ref == "v0.7.0")
    grpo = config.grpo["nemo_algos"] if ref == "v0.7.0" else config.grpo.nemo_algos
    assert grpo == {"x": 1}


def test_workers() -> None:
    registry = find("nemo_rl.distributed.ray_actor_environment_registry:ACTOR_ENVIRONMENT_REGISTRY")
    executables = find("nemo_rl.distributed.virtual_cluster:PY_EXECUTABLES")
    for module, worker, extra in (
        ("megatron_policy_worker", "MegatronPolicyWorker", executables.MCORE),
        ("dtensor_policy_worker_v2", "DTensorPolicyWorkerV2", executables.AUTOMODEL),
    ):
        assert registry[f"{WORKERS}.{module}.{worker}"] == extra
        assert callable(find(f"{WORKERS}.{module}:{worker}Impl.get_logprobs"))
        backend = "megatron" if module.startswith("megatron") else "automodel"
        processor = find(f"{MODELS}.{backend}.train:LogprobsPostProcessor")
        assert find(f"{WORKERS}.{module}:LogprobsPostProcessor") is processor


def test_data_plane_fields() -> None:
    fields = find(f"{MODELS}.policy.tq_policy:DP_TRAIN_FIELDS")
    assert "advantages" in fields and "entropies" not in fields
    assert set(fields) - {"input_lengths", "sample_mask"} <= set(
        find("nemo_rl.data_plane.column_io:TOKEN_ALIGNED_FIELDS")
    )
