"""The memory model against counts by hand, and against what Megatron-LM's tests measured.

[G]: golden values of NVIDIA/Megatron-LM's tests/functional_tests at d98e8a64dd.
"""

from dataclasses import replace

import pytest
from megatron_lm.arguments import training
from megatron_lm.known import Refused

from nemo_algos.preflight.plan import memory, workload
from nemo_algos.preflight.plan.memory import states

TINY = {
    "num-layers": 12,
    "hidden-size": 512,
    "num-attention-heads": 8,
    "micro-batch-size": 4,
    "global-batch-size": 32,
    "seq-length": 1024,
    "max-position-embeddings": 1024,
    "bf16": True,
    "use-distributed-optimizer": True,
}
GPT_15B = {
    "num-layers": 32,
    "hidden-size": 6144,
    "num-attention-heads": 48,
    "group-query-attention": True,
    "num-query-groups": 8,
    "squared-relu": True,
    "disable-bias-linear": True,
    "untie-embeddings-and-output-weights": True,
    "position-embedding-type": "rope",
    "tokenizer-type": "GPTSentencePieceTokenizer",
    "seq-length": 4096,
    "max-position-embeddings": 4096,
    "micro-batch-size": 4,
    "attention-dropout": 0.0,
    "hidden-dropout": 0.0,
    "bf16": True,
    "tensor-model-parallel-size": 8,
    "sequence-parallel": True,
    "use-distributed-optimizer": True,
}
PINNED = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
A100, H100 = 8, 9
T = 4096 * 512 * 2  # bytes of TINY's hidden state, of a micro-batch


def of(args, gpus=8, capability=A100, **more):
    added = {name.replace("_", "-"): value for name, value in more.items()}
    return training({**args, **added}, gpus, capability, PINNED)


def held(run, rank=0):
    return workload.parameters_of_rank(run.network, run.parallel, rank)


def test_parameters_of_a_small_gpt():
    """12 x (12 h^2 + 13 h) + 2 h + (50304 + 1024) h: a vocabulary of 50257 padded to 128."""
    assert sum(held(of(TINY))) == 12 * (12 * 512**2 + 13 * 512) + 1024 + 51328 * 512 == 64_109_568


def test_parameters_of_15b_on_8_ranks():
    """A layer: (48 + 2 x 8) x 128 h of queries, keys, values, h^2 of output, 8 h^2 of MLP."""
    h, run = 6144, of(GPT_15B)
    layer = (64 * 128 * h + h * h + 8 * h * h) // 8
    assert held(run).linear == 32 * layer == 32 * 48_758_784
    assert held(run).other == 32 * 4 * h + 2 * h + 2 * 256_000 * h // 8


def test_two_tied_copies_lie_at_the_pipelines_ends():
    run = of(TINY, pipeline_model_parallel_size=4)
    table = 50304 * 512
    assert [held(run, rank).other for rank in range(4)] == [
        3 * 13 * 512 + n for n in (table + 1024 * 512, 0, 0, table + 1024)
    ]


def test_parameters_of_experts():
    """8 experts of 8 h^2 over EP 2 and ETP 2; outside, attention of 4 h^2 / 2 and the router."""
    moe = {"num-experts": 8, "disable-bias-linear": True}
    run = of(TINY | moe, tensor_model_parallel_size=2, expert_model_parallel_size=2)
    assert held(run).experts == 12 * 4 * 8 * 512**2 / 2
    assert held(run).linear == 12 * (4 * 512**2 / 2 + 512 * 8)
    assert run.parallel.expert_data == 2 and run.parallel.data == 4


def test_parameters_of_latent_attention():
    """DeepSeek-V3's ranks: 187,105,280 of a layer; its weights have 2048 more, two norms."""
    latent = {"multi-latent-attention": True, "q-lora-rank": 1536, "kv-lora-rank": 512}
    run = of(TINY | latent, hidden_size=7168, num_attention_heads=128)
    net = run.network
    queries = 7168 * 1536 + 1536 * 128 * 192
    keys = 7168 * 576 + 512 * 128 * 256
    assert workload.attention(net, run.parallel).linear == queries + keys + 128 * 128 * 7168
    assert queries + keys + 128 * 128 * 7168 == 187_105_280


def test_parameters_of_mamba():
    """z, x: 2 x 2048; B, C: 2 x 8 x 128; dt: 32; a convolution of 4 over x, B, C; 1024 wide."""
    run = of(TINY, hidden_size=1024, num_attention_heads=16, hybrid_layer_pattern="MM-*")
    linear, _, other = workload.mamba(run.network, run.parallel)
    assert linear == 1024 * (4096 + 2048 + 32) + 2048 * 1024
    assert other == 4096 * 5 + 3 * 32 + 2048 + 2 * 1024


@pytest.mark.parametrize(
    ("options", "each"),
    [  # bytes a parameter with one replica: weight, gradient, optimizer
        ({}, (2, 4, 12)),
        ({"grad-reduce-in-bf16": True}, (2, 2, 16)),  # a float32 copy for the optimizer
        ({"bf16": None, "fp16": True}, (2, 2, 16)),
        ({"bf16": None}, (4, 4, 8)),
        ({"use-precision-aware-optimizer": True}, (2, 4, 10)),  # half a master weight
        ({"use-precision-aware-optimizer": True, "exp-avg-dtype": "fp8"}, (2, 4, 7)),
        ({"use-precision-aware-optimizer": True, "main-params-dtype": "fp16"}, (2, 4, 10)),
        ({"optimizer-cpu-offload": True, "optimizer-offload-fraction": 0.5}, (2, 4, 6)),
        ({"optimizer": "sgd"}, (2, 4, 8)),
    ],
)
def test_bytes_of_a_parameter(options, each):
    run = of(TINY | options, gpus=1)
    parts = states(run, 0)
    assert tuple(parts[k] / sum(held(run)) for k in ("weights", "gradients", "optimizer")) == each


def test_what_is_sharded():
    """Over 8 replicas: nothing, the optimizer, half of it (2 instances), everything (FSDP)."""
    number = 64_109_568
    for options, each in (
        ({"use-distributed-optimizer": False}, 18),
        ({}, 6 + 12 / 8),
        ({"num-distributed-optimizer-instances": 2}, 6 + 12 / 4),
        (
            {"use-megatron-fsdp": True, "data-parallel-sharding-strategy": "optim_grads_params"},
            18 / 8,
        ),
    ):
        assert sum(states(of(TINY | options), 0).values()) == pytest.approx(each * number)


def test_muon_keeps_one_moment_of_matrices():
    run = of(TINY | {"optimizer": "muon", "use-distributed-optimizer": False})
    assert states(run, 0)["optimizer"] == 8 * held(run).linear + 12 * held(run).other


@pytest.mark.parametrize(
    ("capability", "options", "copies"),
    [
        (9, {}, 2),  # FP8 along rows and columns beside BF16
        (10, {}, 1),  # Blackwell multiplies without the transpose
        (10, {"fp8-recipe": "mxfp8"}, 2),
        (9, {"fp8-param-gather": True}, 0),  # both in the place of BF16
    ],
)
def test_fp8_weights_of_linear_layers(capability, options, copies):
    fp8 = of(TINY | {"fp8-format": "hybrid"} | options, capability=capability)
    more = states(fp8, 0)["weights"] - states(of(TINY), 0)["weights"]
    assert more == copies * held(fp8).linear


def test_activations_of_a_gpt_layer():
    """In hidden states: 17 with flash attention, and its logarithms; one less with fused.

    Each norm 2, queries, keys and values 3, the scores' output 1 (2 transposed), the MLP 8, each
    dropout's mask 1 / 2. Unfused: 5 bytes a score instead, 168 MB of 8 x 4 x 1024^2.
    """
    sums = 4096 * 8 * 4
    assert memory.layer(of(TINY), "*-") == 18 * T + sums
    assert memory.layer(of(TINY, capability=H100), "*-") == 17 * T + sums
    assert memory.layer(of(TINY, attention_backend="unfused"), "*-") == 17 * T + 5 * 32 * 2**20
    dry = {"attention-dropout": 0.0, "hidden-dropout": 0.0, "attention-backend": "unfused"}
    assert memory.layer(of(TINY | dry), "*-") == 16 * T + 2 * 32 * 2**20


def test_unfused_attention_repeats_keys_and_values():
    """2 groups of 8 heads: 8 + 2 x 2 heads of queries, keys, values; unfused 3 x 8."""
    grouped = {"group-query-attention": True, "num-query-groups": 2}
    unfused = {"attention-backend": "unfused", "attention-dropout": 0.0}
    numbers = 4096 * 64 * 2
    few = memory.layer(of(TINY | grouped, capability=H100), "*") - 4096 * 8 * 4
    many = memory.layer(of(TINY | grouped | unfused), "*") - 2 * 32 * 2**20
    assert many - few == (24 - 12) * numbers


def test_tensor_and_sequence_parallelism_split_activations():
    """TP 2 splits all but norms and masks, 5 hidden states; sequence parallelism these too."""
    half = {"tensor-model-parallel-size": 2, "attention-backend": "fused"}
    sums = 4096 * 4 * 4
    assert memory.layer(of(TINY | half), "*-") == 5 * T + 12 * T / 2 + sums
    assert memory.layer(of(TINY | half, sequence_parallel=True), "*-") == 17 * T / 2 + sums
    both = {"context-parallel-size": 2, "sequence-parallel": True}
    assert memory.layer(of(TINY | half | both), "*-") == 17 * T / 4 + sums / 2


def test_activations_of_experts():
    """2 of 8, GeLU not fused with the weighting: input 1, before, after, weighted 4 each, twice."""
    moe = {"num-experts": 8, "moe-router-topk": 2, "hidden-dropout": 0.0}
    router = 4096 * 3 * 4 * 8
    assert memory.layer(of(TINY | moe), "E") == 2 * T + 2 * 13 * T + router
    fused = {"swiglu": True, "ffn-hidden-size": 2048}
    assert memory.layer(of(TINY | moe | fused), "E") == 2 * T + 2 * 13 * T + router


def test_activations_of_mamba():
    """Norm 2 x 1024; z, x, B, C, dt 6176; the scan's output thrice, 2048; of 2 bytes."""
    run = of(TINY, hidden_size=1024, num_attention_heads=16, hybrid_layer_pattern="M")
    assert memory.layer(run, "M") == 4096 * (2 * (2 * 1024 + 6176 + 3 * 2048) + 1024)


@pytest.mark.parametrize(
    ("options", "layers", "recomputed"),
    [
        ({}, 12 * 17, 0),
        ({"recompute-granularity": "full"}, 12, 17),
        ({"recompute-granularity": "full", "recompute-num-layers": 4}, 3, 4 * 17),
        (
            {
                "recompute-granularity": "full",
                "recompute-method": "block",
                "recompute-num-layers": 2,
            },
            2 + 10 * 17,
            17,
        ),
        ({"recompute-granularity": "selective", "recompute-modules": "[mlp]"}, 12 * 9, 0),
        ({"recompute-granularity": "selective", "recompute-modules": "[layernorm]"}, 12 * 15, 0),
    ],
)
def test_recomputation(options, layers, recomputed):
    """Inputs of the groups, and one group again; selective: what its modules keep is not kept."""
    run = of(TINY | options, capability=H100)
    sums = 4096 * 8 * 4 / T
    kept, again = memory.stage(run, run.network.stages[0])
    assert kept / T == pytest.approx(layers, abs=12 * sums + 1e-9)
    assert again / T == pytest.approx(recomputed, abs=4 * sums + 1e-9)


def test_recomputed_scores():
    selective = of(TINY | {"attention-backend": "unfused", "recompute-activations": True})
    assert memory.layer(selective, "*-") == 17 * T


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({}, 6),  # BF16, and float32 that becomes the softmax
        ({"cross-entropy-loss-fusion": True}, 10),
        ({"defer-embedding-wgrad-compute": True, "wgrad-deferral-limit": 2}, 10),
        ({"bf16": None}, 4),
    ],
)
def test_bytes_of_a_logit(options, most):
    assert memory.logits(of(TINY | options)) == (most * 4096 * 50304, 4 * 4096 * 50304)


def test_whole_layers_that_fsdp_gathers():
    """Two of 12 h^2 + 13 h parameters, in BF16; none where weights are not sharded."""
    fully = {"use-megatron-fsdp": True, "data-parallel-sharding-strategy": "optim_grads_params"}
    layer = 12 * 512**2 + 13 * 512
    assert memory.gathered_weights(of(TINY | fully)) == {"gathered layers": 2 * 2 * layer}
    assert memory.gathered_weights(of(TINY)) == {}


def test_a_prediction_of_a_further_token():
    """In hidden states: a layer's 17, 4 of two more norms; its logits, 4 bytes each."""
    one = of(TINY, capability=H100)
    two = of(TINY, capability=H100, mtp_num_layers=1)
    more = memory.activations(two, 0)["activations"] - memory.activations(one, 0)["activations"]
    assert more == 17 * T + 4096 * 8 * 4 + 4 * T + 4 * 4096 * 50304


@pytest.mark.parametrize(
    ("rank", "chunks", "group", "more", "flight"),
    [
        (0, 1, 0, 0, 4),
        (3, 1, 0, 0, 1),
        (0, 3, 0, 0, 15),
        (3, 3, 0, 0, 9),
        (3, 3, 5, 0, 11),
        (0, 3, 0, 1, 16),
        (3, 3, 5, 1, 12),
    ],
)
def test_micro_batches_in_flight(rank, chunks, group, more, flight):
    """Interleaved: 2 (p - r - 1) + (v - 1) g warm up, and one more before the first backward.

    One more still where the all-to-all of experts overlaps with the next forward.
    """
    each = {"num-layers-per-virtual-pipeline-stage": 12 // 4 // chunks} if chunks > 1 else {}
    groups = {"microbatch-group-size-per-virtual-pipeline-stage": group} if group else {}
    overlap = {"overlap-moe-expert-parallel-comm": True} if more else {}
    sizes = {"pipeline_model_parallel_size": 4, "global_batch_size": 120}
    run = of(TINY | each | groups | overlap, **sizes)
    now = most = 0
    for kind, _ in memory.schedule(run, rank):
        now += 1 if kind == "F" else -1
        most = max(most, now)
    assert (most, now) == (flight, 0)


def test_a_short_pipeline_never_holds_more_than_it_has():
    run = of(TINY, pipeline_model_parallel_size=4)
    few = replace(run, micro_batches=2)
    assert memory.bytes_of_rank(few, 0)["activations"] < memory.bytes_of_rank(run, 0)["activations"]


def test_stages_of_layouts_and_patterns():
    moe = {"num-layers": 14, "num-experts": 64, "moe-layer-freq": "([0]*3+[1]*11)"}
    laid = {"pipeline-model-parallel-layout": "Et*2|(tt|)*5t|tmL", "mtp-num-layers": 1}
    net = of(TINY | moe | laid, pipeline_model_parallel_size=4).network
    assert [len(stage) for stage in net.stages] == [2, 2, 2, 2, 2, 2, 1, 1]
    assert net.stages[1] == ("*-", "*E") and net.mtp == (("*E",),)
    uneven = {"decoder-first-pipeline-num-layers": 2, "decoder-last-pipeline-num-layers": 4}
    stages = of(TINY | uneven, pipeline_model_parallel_size=4).network.stages
    assert [len(stage) for stage in stages] == [2, 3, 3, 4]
    hybrid = of(TINY, hybrid_layer_pattern="M-|M*/*-", pipeline_model_parallel_size=2).network
    assert hybrid.stages == (("M", "-"), ("M", "*")) and hybrid.mtp == (("*", "-"),)


@pytest.mark.parametrize(
    ("args", "gpus", "capability", "steady", "peak"),
    [  # [G]: bytes that stay allocated, and at most, of the last rank
        (TINY | {"attention-backend": "unfused"}, 8, 8, 552.1e6, 4673.1e6),
        (TINY, 8, 9, 581.5e6, 2690.7e6),
        (
            TINY
            | {"pipeline-model-parallel-size": 4, "num-layers-per-virtual-pipeline-stage": 1}
            | {"use-distributed-optimizer": False, "attention-backend": "unfused"},
            8,
            8,
            733.9e6,
            4122.7e6,
        ),
        (
            TINY | {"recompute-granularity": "full", "use-distributed-optimizer": False},
            8,
            8,
            1234.6e6,
            2536.2e6,
        ),
        (
            TINY
            | {"num-experts": 8, "moe-router-topk": 1, "disable-bias-linear": True}
            | {"tensor-model-parallel-size": 2, "expert-model-parallel-size": 2}
            | {"sequence-parallel": True},
            8,
            8,
            863.5e6,
            2133.7e6,
        ),
        (GPT_15B, 128, 9, 13269e6, 28160e6),  # 128 GPUs: the number that its states tell
    ],
)
def test_measured(args, gpus, capability, steady, peak):
    run = of(args, gpus, capability)
    last = run.parallel.pipeline - 1
    left = sum(states(run, last).values()) + run.kernels.workspace
    assert left == pytest.approx(steady, rel=0.045)
    assert sum(memory.bytes_of_rank(run, last).values()) == pytest.approx(peak, rel=0.03)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"flextron": True}, "flextron: elastic widths"),
        ({"new-idea": 3}, "not known here: new-idea"),
        ({"pipeline-model-parallel-size": 5}, "8 GPUs do not divide by 5 of a replica"),
        ({"num-layers": 10, "pipeline-model-parallel-size": 4}, "10 layers do not divide"),
        ({"hybrid-layer-pattern": "MG"}, "hybrid-layer-pattern: layers G"),
        ({"hidden-size": None}, "num-attention-heads and hidden-size are not given"),
    ],
)
def test_what_is_refused(options, reason):
    with pytest.raises(Refused, match=reason):
        of(TINY | options)


def test_what_does_not_matter_is_not_refused():
    lr = {"lr": 1e-4, "log-params-norm": True, "wandb-project": "x", "moe-router-dtype": "fp32"}
    assert of(TINY | lr) == of(TINY)
