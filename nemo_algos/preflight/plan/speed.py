"""FLOPs of a GRPO step, and an estimate of its time by phase. Every assumption is a constant here.

Model FLOPs a token (Narayanan et al. 2021, Megatron-LM, eq. 3, causal): forward 2 N + 2 L s a d, of
N active parameters without the input embedding, L layers, a heads of size d, sequences of s tokens;
backward twice that; full recomputation another forward.
"""

import re
from math import log2

from nemo_algos.engines.nemo.derived_config import EPOCHS
from nemo_algos.preflight.plan.memory import cached_sequences, on_host, sequence_bytes, weight_bytes
from nemo_algos.preflight.plan.nemo_rl_arguments import GPU, Setup, micro_batch_tokens, training
from nemo_algos.preflight.plan.workload import Training

LENGTH = 0.7  # of max_total_sequence_length: a sequence's mean, where --mean-tokens is not given
# share of the data sheet's BF16 FLOP/s that kernels reach, dense and with experts
DENSE = 0.40
EXPERTS = 0.20
BLACKWELL = {"GB200": 0.88, "B200": 0.88}  # of these, smaller
FP8 = 1.28  # times as fast in FP8
# seconds of launching the kernels, fitted on half of Megatron-LM's functional tests (docs/plan.md)
# forward and backward of attention, MLP or Mamba; of experts
PART = 1.44e-3
MIXTURE = 5.2e-3
SPLIT = 1.5  # times as long with tensor parallelism
SYSTEM = {"A100": 1.27, "GB200": 1.25}  # times an H100's system
SPLITTING = 0.95  # kept of it by each doubling of TP, CP, and of EP beyond NVLink
READING = 0.6  # share of the data sheet's memory bandwidth that decoding reaches
LAUNCHING = 4e-3  # seconds of a decoding step besides reading: scheduler, sampling, kernel launches
REDUCING = 15e-6  # of each of a layer's two all-reduces within NVLink
# and for each doubling of hosts, over InfiniBand or a rack's NVLink
BETWEEN = 60e-6
RACK = 25e-6
ACCEPTED = 0.8  # of the drafts of speculative decoding, each after an accepted one; an assumption
TAIL = 3  # times the mean: the longest response of a model that was taught to end its answers
CHAT = re.compile(r"instruct|chat|-it\b", re.IGNORECASE)  # in the name of such a model
OFFLOADING = 20e9  # bytes per second between a GPU and its host, PCIe
CPU_ADAM = 1e9  # parameters per second of a node: 200 bytes each of its memory at 200 GB/s
# seconds of a layer, and bytes per second of all weights, which every engine's GPU sees; fitted on
# five refits that NeMo-RL published (docs/plan.md)
REFIT_LAYER = 0.14
REFIT = 48.2e9
# seconds: waking, sleeping, data; of a sample's reward and advantage
FIXED = 2.0
SAMPLE = 3.4e-3


def forward_flops(run: Setup, tokens: float) -> float:
    """FLOPs of one token in sequences of `tokens`."""
    m = run.model
    a = run.model.attention
    weights = m.active_parameters - m.vocab_size * m.hidden_size * (not m.tied)
    # of the tokens before it: all with attention (*), the last with attention in a window (W)
    seen = m.having("*") * tokens / 2 + m.having("W") * min(tokens / 2, m.window)
    return 2 * weights + 2 * seen * a.heads * (a.size + a.rotary + a.value_size)


def training_flops(run: Setup, tokens: float) -> float:
    """FLOPs of one token: forward, backward, and what is recomputed."""
    whole = run.backend("recompute_granularity") != "selective"
    recomputed = bool(run.backend("activation_checkpointing")) and whole
    return (3 + recomputed) * forward_flops(run, tokens)


def share(experts: bool, gpu: GPU, fp8: bool) -> float:
    """Of the data sheet's BF16 FLOP/s."""
    return (EXPERTS if experts else DENSE) * BLACKWELL.get(gpu.name, 1) * (FP8 if fp8 else 1)


def _reached(run: Setup, micro_batches: float) -> float:
    """FLOP/s of all training GPUs, less what splitting and the bubble, (p - 1) / m, cost."""
    p = run.layout
    kept = share(run.model.experts > 0, run.gpu, bool(run.backend("fp8_cfg.enabled")))
    kept *= SPLITTING ** log2(p.tensor * p.context * max(1, p.expert / nvlink_domain(run)))
    bubble = 1 + (p.pipeline - 1) / max(1.0, micro_batches)
    return p.train_gpus * run.gpu.flops * kept / bubble


def micro_batches(run: Setup, tokens: float) -> float:
    """Micro-batches of an optimizer step on each data-parallel rank."""
    sequences = run["policy.train_global_batch_size"] / max(1, run.layout.data)
    if run.packing:
        return sequences * tokens / (micro_batch_tokens(run) * run.layout.context)
    return sequences / run["policy.train_micro_batch_size"]


def nvlink_domain(run: Setup) -> int:
    """GPUs that NVLink joins: a node's, or the rack's of GB200 NVL72."""
    if run.gpu.name == "GB200":
        return 64
    return run.layout.gpus_per_node


def decoding_step(run: Setup, sequences: float, tokens: float) -> float:
    """Seconds of a token of `sequences` at once on an engine, `tokens` / 2 of each in the cache."""
    p = run.layout
    e = run.model.mixture
    met = 1 - (1 - e.chosen / e.number) ** sequences if e else 1.0
    read = weight_bytes(run, met) + sequences * sequence_bytes(run, tokens / 2)
    hosts = max(1.0, p.generation_tensor / p.gpus_per_node)
    hop = BETWEEN if nvlink_domain(run) == p.gpus_per_node else RACK
    each = (REDUCING + hop * log2(hosts)) * (p.generation_tensor > 1)
    reducing = 2 * len(run.model.layers) * each
    return read / (READING * run.gpu.bandwidth) + reducing + LAUNCHING


def generation_seconds(run: Setup, tokens: float) -> float:
    """Seconds of a step's sequences, in waves of what the KV cache holds.

    The longest response ends the last wave. Where samples may be `age` steps old, so many steps'
    sequences are generated together.
    """
    age = max(1, run.staleness)
    sampled = run.oversampling * run.rollouts
    sequences = age * sampled / max(1, run.layout.generation_replicas)
    allowed = run["policy.generation.vllm_kwargs.max_num_seqs"] or sequences
    at_once = min(sequences, allowed, max(1.0, cached_sequences(run, tokens)))
    rest = (sequences / at_once - 1) * tokens
    steps = (longest(run, tokens) + rest) / drafted(run)
    return decoding_step(run, at_once, tokens) * steps


def drafted(run: Setup) -> float:
    """Tokens of a decoding step: one, and the drafts that the model accepts."""
    drafts = run["policy.generation.vllm_kwargs.speculative_config.num_speculative_tokens"] or 0
    return sum(ACCEPTED**n for n in range(drafts + 1))


def longest(run: Setup, tokens: float) -> float:
    """Tokens of the longest sequence of a step: of a base model some run to the limit."""
    limit = run["policy.max_total_sequence_length"]
    if ends_answers(run):
        return min(limit, TAIL * tokens)
    return limit


def ends_answers(run: Setup) -> bool:
    """Whether the model's name says that it was taught to end its answers."""
    return bool(CHAT.search(str(run["policy.model_name"])))


def latency(run: Training, gpu: GPU) -> float:
    """Seconds that a micro-batch's kernels take to launch on a GPU, however small they are."""
    parts = "".join(parts for stage in run.network.stages for parts in stage)
    experts = parts.count("E")
    each = PART * (len(parts) - experts) * (4 / 3 if run.recompute.layers else 1)
    split = SPLIT if run.parallel.tensor > 1 else 1
    return SYSTEM.get(gpu.name, 1) * split * (each + MIXTURE * experts) / run.parallel.pipeline


def launches(run: Setup, tokens: float) -> float:
    """Seconds below which a step's forwards and backwards cannot come, however small the model."""
    steps = run.rollouts / run["policy.train_global_batch_size"]
    rounds = micro_batches(run, tokens) + run.layout.pipeline - 1
    return steps * rounds * latency(training(run), run.gpu)


def compute_seconds(run: Setup, tokens: float) -> tuple[float, float]:
    """Seconds of a forward of all samples, and of training; padded to the longest if not packed."""
    each = tokens if run.packing else longest(run, tokens)
    least = launches(run, tokens)
    reached = _reached(run, micro_batches(run, tokens))
    forward = run.rollouts * each * forward_flops(run, each) / reached
    trained = forward * training_flops(run, each) / forward_flops(run, each)
    return (
        bound(run.model.experts > 0, forward, least / 3),
        bound(run.model.experts > 0, trained, least) * passes(run),
    )


def skips_log_probs(run: Setup) -> bool:
    """Whether no pass computes the trainer's log-probs before the first update."""
    forced = run["loss_fn.force_on_policy_ratio"] and not run["grpo.seq_logprob_error_threshold"]
    return bool(forced or run.bypass_mode)


def passes(run: Setup) -> int:
    return run[EPOCHS] or 1


def bound(experts: bool, computing: float, launching: float) -> float:
    """Kernels are launched while others compute, but experts wait for the host to count tokens."""
    if experts:
        return computing + launching
    return max(computing, launching)


def updating(run: Setup) -> float:
    """Seconds of a step's optimizer on the host: gradients there, AdamW, new weights back."""
    made = training(run).states
    nodes = run.layout.train_gpus / run.layout.gpus_per_node
    updated = made.on_host * made.trained * run.model.parameters / nodes
    moved = updated / run.layout.gpus_per_node * (made.gradient + made.weight)
    updates = passes(run) * run.rollouts / run["policy.train_global_batch_size"]
    return updates * (moved / OFFLOADING + updated / CPU_ADAM)


def phases(run: Setup, tokens: float) -> dict[str, float]:
    """Seconds of a step by phase; sequences of `tokens` on average."""
    forward, trained = compute_seconds(run, tokens)
    compared = bool(run["loss_fn.reference_policy_kl_penalty"])
    left = on_host(run)["offloaded while generating"] / run.layout.gpus_per_node
    return {
        "generation": generation_seconds(run, tokens),
        "log-probs": (not skips_log_probs(run)) * forward,
        "reference log-probs": compared * forward,
        "training": trained,
        "optimizer on the host": updating(run),
        "refit": REFIT_LAYER * len(run.model.layers) + 2 * run.model.parameters / REFIT,
        "offloading": 2 * left / OFFLOADING,
        "fixed": FIXED + SAMPLE * run.rollouts,
    }
