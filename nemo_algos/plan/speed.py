"""FLOPs of a GRPO step, and an estimate of its time by phase. Every assumption is a constant here.

Model FLOPs a token (Narayanan et al. 2021, Megatron-LM, eq. 3, causal): forward 2 N + 2 L s a d, of
N active parameters without the input embedding, L layers, a heads of size d, sequences of s tokens;
backward twice that; full recomputation another forward.
"""

from math import log2

from nemo_algos.plan.generation import cached_sequences, on_host, sequence_bytes, weight_bytes
from nemo_algos.plan.gpus import GPU
from nemo_algos.plan.nemo_rl_arguments import Setup, micro_batch_tokens, training
from nemo_algos.plan.shapes import Training

LENGTH = 0.7  # of max_total_sequence_length: a sequence's mean, where --mean-tokens is not given
DENSE, EXPERTS = 0.40, 0.12  # share of the data sheet's FLOP/s reached, dense and with experts
# seconds of launching the kernels, fitted on half of Megatron-LM's functional tests (docs/plan.md)
PART, MIXTURE = 1.44e-3, 5.2e-3  # forward and backward of attention, MLP or Mamba; of experts
SPLIT = 1.5  # times as long with tensor parallelism
SYSTEM = {"A100": 1.27, "GB200": 1.25}  # times an H100's system
SPLITTING = 0.95  # kept of it by each doubling of TP, CP, and of EP beyond a node
READING = 0.6  # share of the data sheet's memory bandwidth that decoding reaches
LAUNCHING = 4e-3  # seconds of a decoding step besides reading: scheduler, sampling, kernel launches
REDUCING = 15e-6  # of each of a layer's two all-reduces, within a node; BETWEEN nodes instead
BETWEEN = 60e-6
TAIL = 4  # times the mean: the longest response, where that may be so long
OFFLOADING = 20e9  # bytes per second between a GPU and its host, PCIe
REFIT = 3.4e9  # bytes per second of new weights into each engine's GPU
FIXED, SAMPLE = 3.3, 3.4e-3  # seconds: waking, sleeping, data; of a sample's reward and advantage


def forward_flops(run: Setup, tokens: float) -> float:
    """FLOPs of one token in sequences of `tokens`."""
    m, a = run.model, run.model.attention
    weights = m.active_parameters - m.vocab_size * m.hidden_size * (not m.tied)
    seen = m.having("*") * tokens / 2 + m.having("W") * min(tokens / 2, m.window)
    return 2 * weights + 2 * seen * a.heads * (a.size + a.rotary + a.value_size)


def training_flops(run: Setup, tokens: float) -> float:
    """FLOPs of one token: forward, backward, and what is recomputed."""
    whole = run.backend("recompute_granularity") != "selective"
    recomputed = bool(run.backend("activation_checkpointing")) and whole
    return (3 + recomputed) * forward_flops(run, tokens)


def _reached(run: Setup, micro_batches: float) -> float:
    """FLOP/s of all training GPUs, less what splitting and the bubble, (p - 1) / m, cost."""
    p = run.layout
    share = EXPERTS if run.model.experts else DENSE
    share *= SPLITTING ** log2(p.tensor * p.context * max(1, p.expert / p.gpus_per_node))
    bubble = 1 + (p.pipeline - 1) / max(1.0, micro_batches)
    return p.train_gpus * run.gpu.flops * share / bubble


def micro_batches(run: Setup, tokens: float) -> float:
    """Micro-batches of an optimizer step on each data-parallel rank."""
    sequences = run["policy.train_global_batch_size"] / max(1, run.layout.data)
    if run["policy.sequence_packing.enabled"]:
        return sequences * tokens / (micro_batch_tokens(run) * run.layout.context)
    return sequences / run["policy.train_micro_batch_size"]


def decoding_step(run: Setup, sequences: float, tokens: float) -> float:
    """Seconds of a token of `sequences` at once on an engine, `tokens` / 2 of each in the cache."""
    p, e = run.layout, run.model.mixture
    met = 1 - (1 - e.chosen / e.number) ** sequences if e else 1.0
    read = weight_bytes(run, met) + sequences * sequence_bytes(run, tokens / 2)
    each = REDUCING if p.generation_tensor <= p.gpus_per_node else BETWEEN
    reducing = 2 * run.model.num_hidden_layers * each * (p.generation_tensor > 1)
    return read / (READING * run.gpu.bandwidth) + reducing + LAUNCHING


def generation_seconds(run: Setup, tokens: float) -> float:
    """Seconds of a step's sequences, in waves of what the KV cache holds.

    The longest response ends the last wave; async engines go on with other steps' meanwhile.
    """
    sequences = run.rollouts / max(1, run.layout.generation_replicas)
    room = max(1.0, cached_sequences(run, tokens))
    if run["grpo.async_grpo.enabled"]:
        age = run["grpo.async_grpo.max_trajectory_age_steps"] or 1
        at_once = min(sequences * age, room)
        return decoding_step(run, at_once, tokens) * tokens * sequences / at_once
    at_once = min(sequences, room)
    longest = min(run["policy.max_total_sequence_length"], TAIL * tokens)
    step = decoding_step(run, at_once, tokens)
    return step * (longest + (sequences / at_once - 1) * tokens)


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


def phases(run: Setup, tokens: float) -> dict[str, float]:
    """Seconds of a step by phase; sequences of `tokens` on average."""
    total, least = run.rollouts * tokens, launches(run, tokens)
    reached = _reached(run, micro_batches(run, tokens))
    forward = max(total * forward_flops(run, tokens) / reached, least / 3)
    compared = bool(run["loss_fn.reference_policy_kl_penalty"])
    engine = run.layout.generation_tensor * run.layout.generation_pipeline
    left = on_host(run)["offloaded while generating"] / run.layout.gpus_per_node
    return {
        "generation": generation_seconds(run, tokens),
        "log-probs": (not run.bypass_mode) * forward,
        "reference log-probs": compared * forward,
        "training": max(total * training_flops(run, tokens) / reached, least),
        "refit": 2 * run.model.parameters / engine / REFIT,
        "offloading": 2 * left / OFFLOADING,
        "fixed": FIXED + SAMPLE * run.rollouts,
    }
