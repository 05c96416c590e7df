"""Seconds of a training iteration: arithmetic at a share of the data sheet, or kernel launches.

SHARES are assumptions, of published runs; the latencies are fitted on the half of Megatron-LM's
functional tests that docs/plan.md names (H100, and factors of other systems), medians of log error.
"""

from nemo_algos.plan.gpus import GPU
from nemo_algos.plan.parameters import of_layers
from nemo_algos.plan.shapes import Training

DENSE, EXPERTS = 0.40, 0.12  # share of the data sheet's FLOP/s reached, dense and with experts
PART = 1.44e-3  # fitted: forward and backward of attention, MLP or Mamba in a micro-batch
MIXTURE = 5.2e-3  # fitted: of a layer of experts
SPLIT = 1.5  # fitted: times as long with tensor parallelism
MICRO_BATCH = 5.3e-3  # fitted: data, loss and pipeline messages of a micro-batch
ITERATION = 36e-3  # fitted: optimizer, gradients' reduction, logging
SYSTEM = {"A100": 1.27, "GB200": 1.25}  # fitted: latencies, in those of an H100's system


def flops(run: Training) -> float:
    """Of a micro-batch on a GPU, forward and backward, causal attention; what is recomputed too."""
    net, p, a = run.network, run.parallel, run.network.attention
    layers = tuple(parts for stage in net.stages for parts in stage)
    held = of_layers(net, p, layers)
    met = net.experts.chosen / net.experts.number * p.expert * p.expert_tensor if net.experts else 0
    weights = held.linear + met * held.experts / p.tensor
    scores = sum("*" in parts for parts in layers) * run.sequence * a.heads * a.size / p.tensor
    forward = 2 * weights + 2 * scores
    logits = 2 * net.vocabulary * net.hidden / p.tensor
    again = 1 if run.recompute.layers else 0
    return run.tokens * ((3 + again) * forward + 3 * logits) / p.pipeline


def latency(run: Training, gpu: GPU) -> float:
    """Seconds that a micro-batch's kernels take to launch on a GPU, however small they are."""
    parts = "".join(parts for stage in run.network.stages for parts in stage)
    experts = parts.count("E")
    each = PART * (len(parts) - experts) * (4 / 3 if run.recompute.layers else 1)
    split = SPLIT if run.parallel.tensor > 1 else 1
    return SYSTEM.get(gpu.name, 1) * split * (each + MIXTURE * experts) / run.parallel.pipeline


def seconds(run: Training, gpu: GPU) -> float:
    """Of an iteration; micro-batches beside the pipeline's filling, (p - 1) / chunks of them."""
    p, net = run.parallel, run.network
    share = EXPERTS if net.experts else DENSE
    each = max(flops(run) / (share * gpu.flops), latency(run, gpu))
    filling = (p.pipeline - 1) / (len(net.stages) / p.pipeline)
    return (run.micro_batches + filling) * each + run.micro_batches * MICRO_BATCH + ITERATION
