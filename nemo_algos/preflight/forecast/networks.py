"""The networks that the trainer and the sampler compute, against each other and the checkpoint."""

from collections.abc import Iterator, Mapping

from nemo_algos.findings import Finding, at, did_you_mean
from nemo_algos.preflight.forecast.planned import InNeMoRL, error, errors, warning

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
SAMPLERS = (
    "hf_overrides",
    "disable_sliding_window",
    "hf_config_path",
    "quantization",
    "config_format",
)
BALANCE = f"{CORE}.moe_router_load_balancing_type"


def overrides(run: InNeMoRL) -> Iterator[Finding]:
    """What both sides change is a field of the model, and has the checkpoint's value."""
    kind = f"model {run.model.model_type}" if run.model else ""
    fields = run.nemo_rl.fields
    own = {*fields.get(kind, ()), *run.checkpoint}
    anywhere = set()
    for name in fields:
        if name.startswith("model "):
            anywhere.update(fields[name])
    for key, value in (run[BOTH] or {}).items():
        unknown = key not in own and (kind in fields or key not in anywhere)
        trained = run.checkpoint.get(key, False if isinstance(value, bool) else None)
        was = "as its config.json says" if trained is None else f"with {trained}"
        said = (
            f"the checkpoint was trained {was}: with {value}, trainer and sampler would compute "
            "another network. Remove it."
        )
        if unknown:
            near = did_you_mean(key, sorted(own or anywhere))
            said = f"the model's config has no such field{near}, so that it has no effect."
        fine = key.endswith("_token_id") or "drop" in key or trained == value
        sure = key not in anywhere if unknown else trained is not None
        judged = key not in (*ROTARY, *HARMLESS) and not isinstance(value, Mapping)
        if judged and (unknown or not fine):
            yield (error if sure else warning)(f"{BOTH}.{key}", said)


def positions(run: InNeMoRL) -> Iterator[Finding]:
    """The trainer's backend builds the rotary embedding, with all of its fields."""
    given = run[BOTH] or {}
    if "rope_theta" in given:
        yield warning(
            f"{BOTH}.rope_theta",
            "transformers 5 has it in rope_parameters, and drops it here: no effect. Set "
            "`rope_parameters: {rope_type: default, rope_theta: ...}`.",
        )
    for key in ROTARY[:2]:
        rope = given.get(key) or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        of_yarn = run.nemo_rl.names["NeMo-RL"].get("fields of YaRN", ())
        megatrons = of_yarn if kind == "yarn" and run.megatron else ()
        needed = dict.fromkeys([*megatrons, *ROPES.get(kind, ()), "rope_theta"])
        missing = " and ".join(field for field in needed if rope.get(field) is None)
        said = missing and (
            f"it replaces the checkpoint's, and {kind} needs {missing} too. Add what is missing."
        )
        if kind not in ROPES:
            said = f"unknown rotary embedding {kind}{did_you_mean(str(kind), [*ROPES])}"
        if kind == "yarn" and not run.megatron and run.nemo_rl.facts["DTensor refuses YaRN"]:
            said = f"DTensor's trainer refuses YaRN. Set `{CORE}.enabled: true`, or remove it."
        yield from errors((rope and said, f"{BOTH}.{key}", said))


def trainer_alone(run: InNeMoRL) -> Iterator[Finding]:
    """What Megatron's model changes is a field of it, and the sampler has the same value."""
    known = run.nemo_rl.fields["Megatron Bridge"]
    written = [f"{CORE}.{key}" for key in NETWORK if at(run.written, f"{CORE}.{key}") is not None]
    paths = [*written, *(f"{TRAINERS}.{key}" for key in run[TRAINERS] or {})]
    for path in paths if run.megatron else ():
        key = path.rpartition(".")[2]
        inside = path.startswith(TRAINERS)
        same = NETWORK.get(key)
        theirs = {**run.checkpoint, **(run[BOTH] or {})}.get(str(same))
        cure = f"Set `{BOTH}.{same}`, which both read, or remove it" if same else "Remove it"
        if inside and (f"{CORE}.{key}" in run.nemo_rl.schema or key in run[CORE]):
            yield error(path, f"NeMo-RL refuses it here. Set `{CORE}.{key}` instead.")
        elif inside and key not in known:
            yield error(path, f"Megatron's models have no such field{did_you_mean(key, known)}")
        elif same is not None and run[path] not in (None, theirs):
            yield error(
                path,
                f"{run[path]} changes the trainer's network alone, and the sampler's has what the "
                f"checkpoint has{f' ({theirs})' if theirs else ''}: log-probs differ. {cure}.",
            )
        elif key == "moe_aux_loss_coeff" and run[BALANCE] in (None, "none"):
            yield warning(path, f"no effect with `{BALANCE}: none`, without this loss. Remove it.")


def sampler_alone(run: InNeMoRL) -> Iterator[Finding]:
    """The sampler computes no other network than the trainer."""
    given = run[ENGINE] or {}
    yield from errors(
        *(
            (
                run["policy.generation.backend"] == "vllm"
                and given.get(key) not in (None, run[BOTH]),
                f"{ENGINE}.{key}",
                "it is for the sampler's network alone, which has to be the trainer's (NeMo-RL "
                f"overwrites hf_overrides). Remove it, or set `{BOTH}` for both.",
            )
            for key in SAMPLERS
        )
    )


def adapters(run: InNeMoRL) -> Iterator[Finding]:
    """A gradient reaches the adapters, and their scale alpha / dim is at most 64."""
    path = f"{CORE}.peft" if run.megatron else "policy.dtensor_cfg.lora_cfg"
    scale = (run[f"{path}.alpha"] or 0) / (run[f"{path}.dim"] or 1) * bool(run[f"{path}.enabled"])
    starts = [run[f"{path}.lora_{matrix}_init_method"] for matrix in "AB"]
    if scale and starts in (["zero", None], ["zero", "zero"]):
        yield error(
            f"{path}.lora_A_init_method",
            "A and B are both 0, so neither gets a gradient. Set it to xavier.",
        )
    elif scale and starts[1] not in (None, "zero"):
        yield warning(
            f"{path}.lora_B_init_method",
            "the adapters then begin as a random change of the model, which is no longer the one "
            "that the checkpoint has. Set it to zero.",
        )
    elif scale > 64:  # the papers have 0.5 to 32
        yield warning(
            f"{path}.alpha",
            f"the adapters are multiplied by alpha / dim, which is {scale:g}: one step at the "
            "usual learning rate destroys the model. Set e.g. twice `dim`.",
        )


def frozen(run: InNeMoRL) -> Iterator[Finding]:
    """A part of the model that the data reaches is trained."""
    path = "policy.dtensor_cfg.automodel_kwargs.freeze_config"
    flags = run[path] or {}
    pictured = any("vlm" in str(data.get("processor")) for _, data in run.data_sets)
    language = f"{path}.freeze_language_model"
    if run[language] and not run.megatron and (all(flags.values()) or not pictured):
        yield error(language, "no part that the data reaches would be trained. Set it to false.")
