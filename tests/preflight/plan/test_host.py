"""What a node's host holds: every key that offloads moves bytes there, and there is a limit."""

import json
import lzma
import re
from dataclasses import replace
from pathlib import Path

import pytest
from planned import OFFLOADED, planned

from nemo_algos.preflight.check import release
from nemo_algos.preflight.check.layout import MEGATRON

QWEN = "grpo_math_qwen30ba3b_megatron.yaml"
ONE_NODE = {
    f"{MEGATRON}.sequence_parallel": False,
    f"{MEGATRON}.tensor_model_parallel_size": 1,
    f"{MEGATRON}.pipeline_model_parallel_size": 1,
    f"{MEGATRON}.expert_model_parallel_size": 8,
    "cluster.num_nodes": 1,
    "cluster.gpus_per_node": 8,
}
APART = {
    "policy.generation.colocated.enabled": False,
    "policy.generation.colocated.resources": {"num_nodes": 1, "gpus_per_node": 8},
    "cluster.num_nodes": 2,
}
VLLM_ARGUMENTS = "policy.generation.vllm_kwargs"
# every key of NeMo-RL's or of vLLM's that offloads: where it does, and what else it needs
OFFLOADS = {
    "optimizer_cpu_offload": (QWEN, OFFLOADED),
    "optimizer_offload_fraction": (QWEN, OFFLOADED),
    "offload_optimizer_for_logprob": (QWEN, APART | {"policy.offload_optimizer_for_logprob": True}),
    "fine_grained_activation_offloading": (
        QWEN,
        {
            f"{MEGATRON}.fine_grained_activation_offloading": True,
            f"{MEGATRON}.offload_modules": ["core_attn", "attn_proj", "expert_fc1", "moe_act"],
        },
    ),
    "cpu_offload": ("grpo_math_8B.yaml", {"policy.dtensor_cfg.cpu_offload": True}),
    "cpu_offload_gb": (QWEN, {f"{VLLM_ARGUMENTS}.cpu_offload_gb": 4}),
    "kv_offloading_size": (QWEN, {f"{VLLM_ARGUMENTS}.kv_offloading_size": 64}),
}
OFFLOADS["offload_modules"] = OFFLOADS["fine_grained_activation_offloading"]
# of the export of a checkpoint, of NeMo Gym's judges, and of vLLM's which loads layers ahead
NO_BYTES_OF_A_STEP = {"real_quant_export_cpu_offload", "needs_offload"}
NO_BYTES_OF_A_STEP |= {"cpu_offload_params", "kv_offloading_backend", "offload_backend"}
NO_BYTES_OF_A_STEP |= {"offload_group_size", "offload_num_in_group", "offload_params"}
NO_BYTES_OF_A_STEP |= {"offload_prefetch_step"}


def test_every_key_that_offloads_is_known():
    file = Path(release.__file__).with_name("nemo_rl.json.xz")
    kept = json.loads(lzma.decompress(file.read_bytes()))
    del kept["fields"]  # of models' configs, and names of choices
    del kept["names"]
    text = json.dumps(kept)
    assert {*re.findall(r'"(\w*offload\w*)"', text)} == OFFLOADS.keys() | NO_BYTES_OF_A_STEP


@pytest.mark.parametrize("key", OFFLOADS)
def test_what_is_offloaded_moves_from_the_gpu_to_the_host(key):
    config, change = OFFLOADS[key]
    base = ONE_NODE if config == QWEN else {}
    plain = planned(config, **base | {k: v for k, v in change.items() if k in APART})
    moved = planned(config, **base | change)
    more = sum(moved.host.values()) - sum(plain.host.values())
    assert more > 0
    if key == "kv_offloading_size":  # the cache on the GPU stays
        assert more == 64 * 2**30 * 8 / plain.run.layout.generation_tensor
        return
    gpu = [
        sum(p.training.values()) + sum(p.log_probs.values()) + p.generation["weights"]
        for p in (plain, moved)
    ]
    assert gpu[1] < gpu[0]


def test_bytes_on_the_host_of_megatron_and_fsdp():
    """Megatron: moments, and float32 copies of weights and gradients; FSDP: all 16, sharded."""
    half = {  # gradients in BF16, of which the optimizer has a float32 copy wherever it is
        f"{MEGATRON}.distributed_data_parallel_config.grad_reduce_in_fp32": False,
        f"{MEGATRON}.optimizer.use_precision_aware_optimizer": False,
    }
    for change in ({}, half):
        p = planned(QWEN, **ONE_NODE, **OFFLOADED, **change)
        assert p.host["optimizer"] == pytest.approx(16 * p.run.model.parameters, rel=0.05)
    config = {"policy.dtensor_cfg.cpu_offload": True}
    p = planned("grpo_math_8B.yaml", **config)
    held = ("weights", "gradients", "optimizer")
    assert sum(p.training[name] for name in held) == 0
    node = p.run.layout.gpus_per_node / p.run.layout.train_gpus
    expected = 16 * p.run.model.parameters * node
    assert sum(p.host[name] for name in held) == pytest.approx(expected, rel=0.05)


def test_a_host_that_is_too_small_is_a_misfit():
    p = planned(QWEN, **ONE_NODE, **OFFLOADED)
    assert not p.misfits
    small = p.run.gpu._replace(host=0.5e12)
    (said,) = p._replace(run=replace(p.run, gpu=small)).misfits
    assert "host" in said
