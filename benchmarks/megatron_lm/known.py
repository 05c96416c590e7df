"""Megatron-LM's arguments: those not modelled, and those that no memory follows from."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

NOT_MODELLED = {
    "cpu-offloading": "activations on the host",
    "distribute-saved-activations": "activations split over tensor-parallel ranks",
    "enable-mhc-connections": "several residual streams",
    "experimental-attention-variant": "attention other than softmax",
    "fine-grained-activation-offloading": "activations on the host",
    "flextron": "elastic widths",
    "fp32-residual-connection": "a residual stream in float32",
    "fp4-format": "FP4",
    "gtp-weight-remat-size": "weights gathered for each use",
    "heterogeneous-layers-config-encoded-json": "layers of different shapes",
    "heterogeneous-layers-config-path": "layers of different shapes",
    "inference-dynamic-batching": "an engine generates on the same GPU",
    "linear-attention-freq": "linear attention",
    "moe-pad-expert-input-to-capacity": "experts padded to a capacity",
    "perform-rl-step": "an engine generates on the same GPU",
    "rampup-batch-size": "a batch that grows",
    "use-torch-fsdp2": "PyTorch's FSDP",
}
BYTES = {"32": 4, "16": 2, "8": 1}
# read only where another argument makes them matter
_SOMETIMES = """
    decoder-first decoder-last exp-avg ffn-hidden fp8-param fp8-recipe kv- main-params mamba-
    max-position microbatch-group moe-ffn moe-grouped moe-latent moe-layer moe-shared mtp-
    no-bias-swiglu no-position no-use-layer num- pipeline-model-parallel-layout q-lora qk-
    recompute- squared-relu swiglu tokenizer use-fused-weighted use-rotary v-head wgrad-deferral
"""
_BEGINNINGS = """
    accumulate activation-func adam adaptive-muon adlr- align- app-tag apply- async-
    attention-softmax auto- batch- beta- bias-dropout budget- calc- calculate- chat- check-
    ckpt- clip- clone- config-logger cp-comm create- cross-entropy-fusion cuda-graph data-
    dataloader ddp- deallocate decoupled- decrease- defer-wgrad delay- deterministic
    disable-bf16 disable-gloo disable-jit disable-msc disable-parameter disable-straggler
    disable-symmetric dist- distrib- distributed- dump- embedding-init empty- enable-cuda
    enable-experimental enable-ft enable-full enable-msc end-weight eod- ep-overlap error- eval-
    exit- export- external-cuda-graph filter- fim- finalize finetune first-last flash-attention
    flight- fp16-lm fp8-amax fp8-interval fp8-margin fp8-wgrad fsdp- ft- full-validation fully-
    fused- global-batch glu- gpu-sniff grad-norm grad-scale gradient-reduce head-lr hierarchical
    high-priority hysteresis init- initial- inprocess- is-hybrid iter keep-fp8 langrl layernorm
    lazy- lion load local-rank log- logging loss- lr main-grads manual- mask- max-tokens
    megatron-fsdp memory-snapshot merge- mid-level min- mock- moe-apply moe-aux moe-deepep
    moe-enable moe-expert-cap moe-flex moe-hybridep moe-input moe-mlp-glu moe-ncclep
    moe-pad-experts moe-per moe-router moe-shared-expert-gate moe-shared-expert-overlap
    moe-single moe-token-d moe-use-grouped moe-z most- mscale mtp-detach mtp-loss multiple-
    muon- mup- nccl no-align no-bias-dropout no-bias-gelu no-check no-create no-gradient no-load
    no-mmap no-one no-overlap no-persist no-pin no-rope no-save no-use-tokenizer no-weight
    non-persistent norm- null- num-dataset num-layers-at num-workers nvtx object- offset- one-
    openai- optimizer-cuda otel outer-dp output-layer-init overlap- override pad- padded-
    params-dtype per- perform-init persist- phase- pin- pipeline-dtype
    pipeline-model-parallel-comm pretrained profil- pytorch- query- record- reduce-scatter
    replication rerun reset- result- reuse- rope- rotary- run- runtime- save seed
    sequence-parallel-size set-level sft sgd sharp short- skip- soap softmax spec split start-
    step-batch store- straggler strict- suggested- symmetric te- tensorboard test- throughput
    tik timing tok tp-comm train trust- use-checkpoint use-cpu-init use-dist-ckpt use-fl
    use-gigatoken use-gloo use-grouped use-inference use-layer use-mamba use-mcore use-mp
    use-mup use-nccl use-nsys use-one use-persist use-pytorch use-ring use-rope use-same
    use-sharp use-te use-tok use-tp-pp use-transformer-engine valid variable- verify vocab-extra
    vocab-file wandb warmup wd- weight- window- yaml yarn
"""
IRRELEVANT = re.compile("|".join((_BEGINNINGS + _SOMETIMES).split()))


def unknown(names: Iterable[str]) -> list[str]:
    """Those that may change memory in a way nobody has looked at."""
    return sorted(name for name in names if not IRRELEVANT.match(name))


class Refused(ValueError):
    """A configuration that this model does not cover; the message is the reason."""


class Arguments:
    """Access by name; `unread` are those that nobody has asked for."""

    def __init__(self, args: Mapping[str, Any]) -> None:
        self._args = args
        self.unread = set(args)

    def __getitem__(self, name: str) -> Any:
        self.unread.discard(name)
        return self._args.get(name)

    def number(self, name: str, default: float = 0) -> int:
        """An integer argument."""
        value = self[name]
        return int(default if value is None else value)

    def probability(self, name: str) -> float:
        """Of a dropout, .1 by default."""
        value = self[name]
        return 0.1 if value is None else float(value)

    def size(self, name: str, default: int) -> int:
        """Bytes of a number of this type."""
        return next((n for t, n in BYTES.items() if t in str(self[name])), default)
