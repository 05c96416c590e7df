"""The networks that the trainer and the sampler compute, against each other and the checkpoint."""

from collections.abc import Iterator, Mapping
from typing import Any

from nemo_algos.config import Finding, at, did_you_mean
from nemo_algos.preflight.forecast.planned import Planned, error, warning

BOTH = "policy.hf_config_overrides"  # NeMo-RL gives it to the trainer and to vLLM
CORE = "policy.megatron_cfg"
TRAINERS = f"{CORE}.model_overrides"
ENGINE = "policy.generation.vllm_kwargs"
# fields of config.json that change no number of a forward pass
HARMLESS = (
    "max_position_embeddings", "use_cache", "initializer_range", "dtype", "torch_dtype", "id2label",
    "architectures", "label2id", "problem_type", "transformers_version", "name_or_path",
    "router_aux_loss_coef", "output_router_logits", "output_hidden_states", "output_attentions",
    "return_dict", "attn_implementation", "chunk_size_feed_forward", "quantization_config",
    "num_nextn_predict_layers", "use_return_dict", "tokenizer_class", "torchscript",
)  # fmt: skip
ROTARY = ("rope_scaling", "rope_parameters", "rope_theta")
# kinds of rotary embedding that transformers builds, and the fields that each needs
ROPES: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "mrope": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "proportional": (),
    "longrope": ("short_factor", "long_factor"),
    "llama3": (
        "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
    ),
}  # fmt: skip
YARN = "fields of YaRN"
# fields of Megatron's models that change the network, by the name of config.json, if it has one
NETWORK = {
    "rotary_base": "rope_theta", "rotary_percent": "partial_rotary_factor",
    "layernorm_epsilon": "rms_norm_eps", "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size", "ffn_hidden_size": "intermediate_size",
    "num_attention_heads": "num_attention_heads", "num_query_groups": "num_key_value_heads",
    "kv_channels": "head_dim", "vocab_size": "vocab_size", "num_moe_experts": "num_experts",
    "moe_ffn_hidden_size": "moe_intermediate_size", "moe_router_topk": "num_experts_per_tok",
    "moe_router_num_groups": "n_group", "moe_router_group_topk": "topk_group",
    "moe_router_topk_scaling_factor": "routed_scaling_factor",
    "share_embeddings_and_output_weights": "tie_word_embeddings", "window_size": "sliding_window",
    "activation_func": "hidden_act", "add_qkv_bias": "attention_bias", "qk_layernorm": "",
    "moe_router_score_function": "scoring_func", "moe_router_pre_softmax": "",
    "moe_router_enable_expert_bias": "", "moe_shared_expert_intermediate_size": "",
    "moe_shared_expert_gate": "", "moe_expert_capacity_factor": "", "moe_input_jitter_eps": "",
    "moe_router_force_load_balancing": "", "moe_router_force_biased": "", "moe_layer_freq": "",
    "moe_apply_probs_on_input": "", "multi_latent_attention": "", "position_embedding_type": "",
    "rotary_interleaved": "", "rotary_scaling_factor": "", "seq_len_interpolation_factor": "",
    "rope_scaling": "", "rope_scaling_factor": "", "rope_type": "", "normalization": "",
    "layernorm_zero_centered_gamma": "", "gated_linear_unit": "", "add_bias_linear": "",
    "softmax_scale": "", "softmax_type": "", "apply_query_key_layer_scaling": "",
    "apply_residual_connection_post_layernorm": "", "qk_l2_norm": "", "no_rope_freq": "",
    "activation_func_clamp_value": "", "glu_linear_offset": "", "attention_output_gate": "",
    "window_attn_skip_freq": "", "attn_logit_softcapping": "", "final_logit_softcapping": "",
    "query_pre_attn_scalar": "", "mscale": "", "mscale_all_dim": "", "rotary_base_per_layer": "",
}  # fmt: skip
# arguments of vLLM that change its network or weights alone
SAMPLERS = ("disable_sliding_window", "hf_config_path", "quantization", "config_format")
BALANCE = f"{CORE}.moe_router_load_balancing_type"
LARGEST_SCALE = 64  # alpha / dim of adapters; the papers have 0.5 to 32


def overrides(run: Planned) -> Iterator[Finding]:
    """What both sides change is a field of the model, and has the checkpoint's value."""
    kind = run.model.model_type if run.model else ""
    fields = run.nemo_rl.fields
    own = {*fields.get(f"model {kind}", ()), *run.checkpoint}
    anywhere = {one for name in fields if name.startswith("model ") for one in fields[name]} | own
    for key, value in _section(run[BOTH]).items():
        path = f"{BOTH}.{key}"
        trained = run.checkpoint.get(key, False if isinstance(value, bool) else None)
        if key in ROTARY or isinstance(value, Mapping):
            continue
        if key not in anywhere:
            near = did_you_mean(key, sorted(own or anywhere))
            yield error(
                path, f"transformers' configs have no such field{near}: it would have no effect."
            )
        elif f"model {kind}" in fields and key not in own and key not in HARMLESS:
            yield warning(
                path, f"the config of {kind} has no such field{did_you_mean(key, sorted(own))}."
            )
        elif key not in HARMLESS and not key.endswith("_token_id") and "drop" not in key:
            if trained is None:
                yield warning(
                    path,
                    "trainer and sampler would compute another network than the checkpoint's, "
                    "unless its config.json says the same. Remove it.",
                )
            elif trained != value:
                yield error(
                    path,
                    f"the checkpoint was trained with {trained}: with {value}, trainer and "
                    "sampler compute another network. Remove it.",
                )


def _section(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def positions(run: Planned) -> Iterator[Finding]:
    """The trainer's backend builds the rotary embedding, with all of its fields."""
    given = _section(run[BOTH])
    if "rope_theta" in given:
        yield warning(
            f"{BOTH}.rope_theta",
            "transformers 5 has it in rope_parameters, and drops it here: no effect. Set "
            "`rope_parameters: {rope_type: default, rope_theta: ...}`.",
        )
    for key in ROTARY[:2]:
        rope = _section(given.get(key))
        path = f"{BOTH}.{key}"
        kind = rope.get("rope_type", rope.get("type", "default"))
        if not rope:
            continue
        needed = list(ROPES.get(kind, ()))
        if kind == "yarn" and run.megatron and key == "rope_scaling":
            needed = [*run.nemo_rl.libraries["NeMo-RL"].names.get(YARN, needed)]
        missing = [field for field in [*needed, "rope_theta"] if rope.get(field) is None]
        refused = not run.megatron and run.nemo_rl.facts["DTensor refuses YaRN"]
        if kind not in ROPES:
            near = did_you_mean(str(kind), [*ROPES])
            yield error(f"{path}.rope_type", f"unknown rotary embedding {kind}{near}")
        elif kind == "yarn" and refused:
            yield error(
                f"{path}.rope_type",
                f"DTensor's trainer refuses YaRN. Train with `{CORE}.enabled: true`, or remove it.",
            )
        elif missing:
            yield error(
                path,
                f"it replaces all of the checkpoint's, and {kind} needs "
                f"{' and '.join(dict.fromkeys(missing))} too. Add what is missing.",
            )


def trainer_alone(run: Planned) -> Iterator[Finding]:
    """What Megatron's model changes is a field of it, and the sampler has the same value."""
    if not run.megatron:
        return
    known = run.nemo_rl.fields.get("Megatron Bridge", ())
    changed = {f"{CORE}.{key}": key for key in _section(at(run.written, CORE)) if key in NETWORK}
    for key in _section(run[TRAINERS]):
        path = f"{TRAINERS}.{key}"
        if f"{CORE}.{key}" in run.nemo_rl.schema or key in _section(run[CORE]):
            yield error(path, f"NeMo-RL refuses it here. Set `{CORE}.{key}` instead.")
        elif known and key not in known:
            near = did_you_mean(key, known)
            yield error(path, f"Megatron's models have no such field{near}. Correct the name.")
        elif key in NETWORK:
            changed[path] = key
    for path, key in changed.items():
        same = NETWORK[key]
        theirs = {**run.checkpoint, **_section(run[BOTH])}.get(same)
        if run[path] is None or run[path] == theirs:
            continue
        has = f" ({theirs})" if theirs is not None else ""
        cure = f"Set `{BOTH}.{same}`, which both read, or remove it" if same else "Remove it"
        yield error(
            path,
            f"{run[path]} changes the trainer's network alone: the sampler keeps the checkpoint's"
            f"{has}, so that their log-probs differ. {cure}.",
        )


def sampler_alone(run: Planned) -> Iterator[Finding]:
    """The sampler computes no other network than the trainer."""
    given = _section(run[ENGINE]) if run["policy.generation.backend"] == "vllm" else {}
    if given.get("hf_overrides") and given["hf_overrides"] != run[BOTH]:
        yield error(
            f"{ENGINE}.hf_overrides",
            f"NeMo-RL puts `{BOTH}` in its place, so that the sampler is not another network than "
            "the trainer. Set that, or remove this.",
        )
    for key in SAMPLERS:
        if given.get(key):
            yield error(
                f"{ENGINE}.{key}",
                "it changes the sampler's network alone, whose log-probs then differ from the "
                "trainer's. Remove it.",
            )


def added_losses(run: Planned) -> Iterator[Finding]:
    """A coefficient of Megatron's balancing loss is not without that loss."""
    path = f"{TRAINERS}.moe_aux_loss_coeff"
    if run.megatron and run[path] and run[BALANCE] in (None, "none"):
        yield warning(
            path,
            f"no effect with `{BALANCE}: none`, which computes no such loss. Remove it.",
        )


def adapters(run: Planned) -> Iterator[Finding]:
    """A gradient reaches the adapters, and their scale is no multiple of the model."""
    path = f"{CORE}.peft" if run.megatron else "policy.dtensor_cfg.lora_cfg"
    if not run[f"{path}.enabled"]:
        return
    start = f"{path}.lora_A_init_method"
    if (
        run.megatron
        and run[start] == "zero"
        and run[f"{path}.lora_B_init_method"] in (None, "zero")
    ):
        yield error(start, "A and B are both 0, so neither gets a gradient. Set it to xavier.")
    scale = (run[f"{path}.alpha"] or 0) / (run[f"{path}.dim"] or 1)
    if scale > LARGEST_SCALE:
        yield warning(
            f"{path}.alpha",
            f"the adapters are multiplied by alpha / dim, which is {scale:g}, so that a step of "
            "the usual learning rate destroys the model. Set e.g. twice `dim`.",
        )
