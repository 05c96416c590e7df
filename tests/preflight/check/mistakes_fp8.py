"""Planted mistakes of FP8 and of mixtures, and what is close to them and right."""

from mistakes import IS, MCORE, MOE, VLLM, E, N, W

HOPPER, MX = "fp8_hopper.yaml", "mxfp8_blackwell.yaml"
WORDS, ROLLOUTS = f"{VLLM}.quantization_ignored_layer_kws", [f"{VLLM}.precision=fp8", f"{IS}=true"]
FP8, FIRST = f"{MCORE}.fp8_cfg", f"{VLLM}.num_first_layers_in_bf16"
POWERS = f"{VLLM}.pow2_activation_scaling_factors"
V3 = "policy.model_name=deepseek-ai/DeepSeek-V3"
NANO = "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"
MISTAKES = [
    ("keywords", HOPPER, [f"{WORDS}=[q_proj]"], E, WORDS, "some parts of self_attn.qkv_proj only"),
    ("keywords", HOPPER, [f"{WORDS}=[mlp.gate]"], E, WORDS, "some parts of mlp.gate_up_proj only"),
    ("keywords", HOPPER, [f"{WORDS}=[qproj]"], W, WORDS, "did you mean q_proj?"),
    (
        "keywords",
        MOE,
        [*ROLLOUTS, f"{WORDS}=[gate]"],
        W,
        WORDS,
        "in BF16 anyway, and in mlp.experts",
    ),
    ("keywords", HOPPER, [V3, f"{WORDS}=[mlp.gate]"], E, WORDS, "some parts of mlp.g"),
    (
        "keywords",
        HOPPER,
        [V3, f"{WORDS}=[q_a_proj]"],
        E,
        WORDS,
        "some parts of self_attn.fused_qkv_a_proj only",
    ),
    (
        "quantised_alike",
        HOPPER,
        [f"{WORDS}=[o_proj]"],
        W,
        WORDS,
        "(self_attn.o_proj of 28 layers)",
    ),
    ("quantised_alike", HOPPER, [f"{FIRST}=2"], W, FIRST, "mlp.down_proj of 2 layers"),
    (
        "quantised_alike",
        MX,
        [f"{VLLM}.num_last_layers_in_bf16=3"],
        N,
        WORDS,
        "self_attn.o_proj of 28 layers, mlp.gate_up_proj of 3 layers",
    ),
    ("precision_pairs", HOPPER, [f"{VLLM}.precision=bfloat16"], W, f"{VLLM}.pre", "trained in FP8"),
    (
        "precision_pairs",
        HOPPER,
        [f"{FP8}.fp8_recipe=delayed"],
        W,
        FP8,
        "whole tensors and rollouts",
    ),
    ("precision_pairs", HOPPER, [f"{VLLM}.is_mx=true"], W, FP8, "128 and rollouts blocks of 32"),
    ("precision_pairs", HOPPER, [f"{POWERS}=true"], W, POWERS, "any float32"),
    (
        "precision_pairs",
        HOPPER,
        [f"{MCORE}.env_vars=null", f"{VLLM}.pow2_weight_scaling_factors=true"],
        W,
        POWERS,
        "powers of 2",
    ),
    ("old_quantisation", HOPPER, [f"{FIRST}=2"], E, FIRST, "matches no layer"),
    ("old_quantisation", HOPPER, [f"{POWERS}=true"], E, POWERS, "TypeError"),
    (
        "diverging_experts",
        MOE,
        [f"policy.model_name={NANO}"],
        W,
        f"{MCORE}.expert",
        "eight updates",
    ),
    ("routes", MOE, [], N, "policy.router_replay.enabled", "other experts"),
]
OF = {"old_quantisation": "v0.7.0"}  # the version of a rule's mistakes, else main
RIGHT = [
    (HOPPER, []),
    (HOPPER, [f"{WORDS}=[visual]"]),  # of a model that has one
    (HOPPER, [f"{VLLM}.use_deep_gemm=false", f"{FIRST}=0"]),
    (
        HOPPER,
        [f"{MCORE}.env_vars=null", f"{VLLM}.pow2_weight_scaling_factors=true", f"{POWERS}=true"],
    ),
    (MX, [f"{WORDS}=[q_proj,k_proj,v_proj,mlp.gate_proj,mlp.up_proj]"]),
    (MX, [f"{WORDS}=[self_attn]"]),
    (MOE, [*ROLLOUTS, f"{WORDS}=[mlp.gate]"]),
    (MOE, [*ROLLOUTS, f"{WORDS}=[experts.down_proj]"]),
    (MOE, [f"policy.model_name={NANO}", f"{MCORE}.expert_model_parallel_size=1"]),
    (MOE, ["policy.router_replay.enabled=true"]),
]
