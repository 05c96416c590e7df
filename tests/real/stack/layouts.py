"""What methods run on, a row each: backend, model and options are the words of its name."""

import os

import configs
from models import KINDS

from nemo_algos.algorithms.methods import STUDIED

EVERY = STUDIED
FEW = ("erpo", "quatro")  # entropies and token bounds; sequences
# METHOD-SETTING of settings.py: corrections and terms are the loss's, whatever the layout
ASKED = (
    *(f"{method}-corrected" for method in EVERY),
    *(f"{method}-rejecting" for method in EVERY),
    *(f"{method}-bypass" for method in EVERY if method not in ("erpo", "gpg")),  # no ratio, entropy
    *(f"{method}-weighed" for method in FEW),
)
SOME_ASKED = ("gspo-corrected", "apmpo-corrected", "erpo-rejecting", "quatro-bypass")
BONUS = ("grpo-bonus", "quatro-bonus")  # NeMo-RL's own surrogate, and ours; means of both kinds
LONG = ("etr", "erpo", "apmpo", "gspo-corrected", "gmpo-corrected")  # a sum of 1,000 is steep
BF16 = ("etr", "erpo", "apmpo-corrected", "gspo-bypass", "etr-bonus")
LAYOUTS = {
    "dtensor-plain": EVERY + BONUS,
    "dtensor-packed": EVERY + ASKED + BONUS,
    "dtensor-dynamic": EVERY + BONUS,
    "dtensor-tp": FEW + BONUS,
    "dtensor-tp-packed": FEW + BONUS,
    "dtensor-tp-fsdp-sequence": FEW + BONUS,
    "dtensor-tp-chunks": FEW + BONUS,
    "dtensor-tp-tied": FEW,
    "dtensor-temperature": FEW + BONUS,
    "dtensor-qwen2-packed": FEW,
    "dtensor-grouped-packed": FEW,
    "dtensor-odd": FEW + BONUS,
    "dtensor-lora": FEW,
    "dtensor-long-packed": LONG,
    "dtensor-bf16": BF16,
    "dtensor-hf-latent": FEW,
    "dtensor-packed-ray": ("erpo",),
    "megatron-plain": EVERY + BONUS,
    "megatron-packed": EVERY + SOME_ASKED + BONUS,
    "megatron-dynamic": EVERY + BONUS,
    "megatron-tp": FEW + BONUS,
    "megatron-pp": FEW + BONUS,
    "megatron-tp-pp-packed": FEW + BONUS,
    "megatron-temperature-packed": FEW + BONUS,
    "megatron-pp-tied": FEW,
    "megatron-tp-qwen2": FEW,
    "megatron-grouped-packed": FEW,
    "megatron-odd": FEW + BONUS,
    "megatron-tp-sequence": FEW,
    "megatron-tp-sequence-packed": FEW + BONUS,
    "megatron-cp-packed": FEW + BONUS,
    "megatron-tp-cp-sequence-packed": FEW + BONUS,
    "megatron-tp-lora": FEW,
    "megatron-experts": FEW,
    "megatron-experts-packed": FEW,
    "megatron-experts-balanced": FEW,
    "megatron-experts-replayed": ("quatro",),  # ERPO refuses it
    "megatron-long-packed": LONG,
    "megatron-bf16": BF16,
    "megatron-cp-pp-packed": FEW,
    "megatron-pp-dp-experts": FEW,
    "megatron-packed-joined": ("erpo", *BONUS),
    "megatron-tp-cp-packed-joined": BONUS,
    "megatron-packed-ray": ("erpo",),
}
if os.environ["NEMO_RL_REF"] == "main":  # v0.7.0 has another fusion of the loss alone
    LAYOUTS["megatron-fused"] = FEW

COMMON = configs.BATCHING | {
    "temperature": ("policy.generation.temperature=0.7",),
    "chunks": ("policy.logprob_chunk_size=5",),
    "long": ("policy.max_total_sequence_length=1024",),
    "bf16": ("policy.precision=bfloat16",),
}
OPTIONS = {
    "dtensor": COMMON
    | {
        "tp": ("policy.dtensor_cfg.tensor_parallel_size=2",),
        "sequence": ("policy.dtensor_cfg.sequence_parallel=true",),
        "lora": (
            "policy.dtensor_cfg.lora_cfg.enabled=true",
            "policy.dtensor_cfg.lora_cfg.alpha=8",
            "++policy.dtensor_cfg.automodel_kwargs.force_hf=true",  # its own model joins q, k and v
        ),
        "proj": (
            "policy.dtensor_cfg.lora_cfg.match_all_linear=false",
            'policy.dtensor_cfg.lora_cfg.target_modules=["*_proj"]',
        ),
        "hf": ("++policy.dtensor_cfg.automodel_kwargs.force_hf=true",),
    },
    "megatron": COMMON
    | {
        "bf16": ("policy.precision=bfloat16", "policy.megatron_cfg.optimizer.bf16=true"),
        "tp": ("policy.megatron_cfg.tensor_model_parallel_size=2",),
        "pp": ("policy.megatron_cfg.pipeline_model_parallel_size=2",),
        "cp": (
            "policy.megatron_cfg.context_parallel_size=2",
            "policy.make_sequence_length_divisible_by=8",
        ),
        "sequence": ("policy.megatron_cfg.sequence_parallel=true",),
        "joined": ("++policy.sequence_packing.fuse_loss=true",),
        "lora": (
            "policy.megatron_cfg.peft.enabled=true",
            "policy.megatron_cfg.peft.alpha=8",
            "policy.megatron_cfg.peft.target_modules=[linear_qkv,linear_proj,linear_fc1,linear_fc2]",
            "policy.megatron_cfg.peft.lora_dtype=null",
        ),
        "all": ("policy.megatron_cfg.peft.target_modules=[]",),  # of lora: every linear layer
        "experts": (
            "policy.megatron_cfg.expert_model_parallel_size=2",
            "policy.megatron_cfg.freeze_moe_router=false",
        ),
        "balanced": ("policy.megatron_cfg.moe_router_load_balancing_type=aux_loss",),
        "replayed": ("++policy.router_replay.enabled=true",),
        "fused": (
            "++policy.megatron_cfg.use_fused_linear_logprobs=true",
            "++policy.megatron_cfg.fused_linear_logprobs_chunk_size=8",
        ),
    },
}
TWO = {"tp", "pp", "cp", "fsdp", "dp"}  # ranks; of data parallelism where there is nothing else


class Layout:
    def __init__(self, name: str) -> None:
        self.backend, *words = name.split("-")
        known = dict.fromkeys((*KINDS, "plain", "fsdp", "dp", "ray"), ()) | OPTIONS[self.backend]
        self.overrides = tuple(text for word in words for text in known[word])
        self.kind = next((word for word in words if word in KINDS), "llama")
        self.ranks = max(2, 2 ** len(TWO.intersection(words)))
        self.ray = "ray" in words
