"""Which of Megatron-LM's arguments memory does not follow from, and which are not modelled."""

import re
from collections.abc import Iterable

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
# read only where another argument makes them matter
_SOMETIMES = """
    decoder-first decoder-last exp-avg ffn-hidden fp8-param fp8-recipe kv- main-params mamba- max-position
    microbatch-group moe-ffn moe-grouped moe-latent moe-layer moe-shared mtp- no-bias-swiglu no-use-layer num- pipeline-model-parallel-layout
    q-lora qk- recompute- squared-relu swiglu tokenizer use-fused-weighted v-head wgrad-deferral
"""
_BEGINNINGS = """
    accumulate adam adaptive-muon adlr- align- apply- app-tag async- attention-softmax auto- batch-
    beta- budget- calc- calculate- check- chat- ckpt- clip- clone- config-logger cp-comm create-
    cross-entropy-fusion cuda-graph data- dataloader ddp- decoupled- deallocate decrease- defer-wgrad
    delay- deterministic disable-gloo disable-jit disable-msc disable-straggler disable-symmetric
    dist- distrib- distributed- dump- embedding-init empty- enable-experimental enable-ft enable-msc
    end-weight eod- error- eval- exit- export- filter- fim- finalize finetune first-last flash-attention
    flight- fp8-amax fp8-interval fp8-margin fp8-wgrad fp16-lm ft- full-validation fully- global-batch
    gpu-sniff grad-norm grad-scale gradient-reduce head-lr hierarchical high-priority hysteresis
    init- initial- inprocess- is-hybrid iter keep-fp8 langrl layernorm lazy- lion load local-rank
    log- logging loss- lr manual- mask- max-tokens megatron-fsdp memory-snapshot merge- mid-level min-
    mock- moe-aux moe-deepep moe-enable moe-flex moe-hybridep moe-input moe-per moe-permute moe-router
    moe-shared-expert-gate moe-shared-expert-overlap moe-token-d moe-z most- mscale mtp-detach mtp-loss
    multiple- muon- mup- nccl no-align no-bias-dropout no-bias-gelu no-check no-create no-gradient
    no-load no-mmap no-one no-overlap no-persist no-pin no-rope no-save no-use-tokenizer no-weight
    non-persistent norm- null- num-dataset num-layers-at num-workers nvtx object- one- openai- otel
    outer-dp override overlap- padded- per- phase- pin- pretrained profil- pytorch- query- record-
    rerun replication reset- result- reuse- rope- rotary- run- save sequence-parallel-size seed sgd
    sharp short- skip- soap softmax spec special split start- step-batch store- straggler strict-
    suggested- symmetric symmetric- te- tensorboard test- throughput tik timing tok tp-comm train
    trust- use-checkpoint use-cpu-init use-dist-ckpt use-fl use-gloo use-layer use-mcore use-mp use-nccl
    use-nsys use-one use-persist use-pytorch use-ring use-rope use-same use-sharp use-te use-tok
    use-tp-pp valid variable- verify vocab-file wandb warmup wd- weight- yaml yarn
"""
IRRELEVANT = re.compile("|".join((_BEGINNINGS + _SOMETIMES).split()))


def unknown(names: Iterable[str]) -> list[str]:
    """Those that may change memory in a way nobody has looked at."""
    return sorted(name for name in names if not IRRELEVANT.match(name))
