"""The FP8 blocks on NeMo-RL's real configs, and what is refused of them."""

from pathlib import Path

import pytest
from asked_conflicts import conflicts
from nemo_rl.utils.config import load_config, register_omegaconf_resolvers

from nemo_algos import config as strict
from nemo_algos.algorithms.build import build
from nemo_algos.config import ConfigError, at
from nemo_algos.engines.nemo import versions
from nemo_algos.preflight.check import launcher
from nemo_algos.preflight.check.layout import MEGATRON, VLLM
from nemo_algos.preflight.check.rule import CORRECTION
from nemo_algos.preflight.check.rules.fp8 import DIVISOR, FP8

CONFIGS = Path(__file__).parents[3] / "examples" / "configs"


def compose(name, *overrides):
    """On eight GPUs."""
    keys = ["cluster.gpus_per_node=8", *overrides]
    return launcher.compose(strict.apply_overrides(strict.read(CONFIGS / name), keys))


def refused(name, *overrides):
    """What is wrong, by key."""
    with pytest.raises(ConfigError) as error:
        compose(name, *overrides)
    return {p.path: p.message for p in error.value.findings}


def test_the_hopper_block_trains_and_samples_in_fp8():
    sizes = [f"{MEGATRON}.tensor_model_parallel_size=2"]
    master = compose("fp8_hopper.yaml", *sizes).master_config
    policy = master.policy
    megatron, vllm = policy["megatron_cfg"], policy["generation"]["vllm_cfg"]
    assert megatron["fp8_cfg"] == {
        "enabled": True,
        "fp8": "e4m3",
        "fp8_recipe": "blockwise",
        "fp8_param": False,
    }
    assert megatron["enabled"] and not policy["dtensor_cfg"]["enabled"]
    assert megatron["env_vars"] == {"NVTE_FP8_BLOCK_SCALING_FP32_SCALES": "1"}
    assert megatron["optimizer"]["use_precision_aware_optimizer"] is False
    assert policy["make_sequence_length_divisible_by"] == 2
    assert policy["sequence_packing"]["enabled"] and policy["precision"] == "bfloat16"
    assert (vllm["precision"], vllm["use_deep_gemm"]) == ("fp8", True)
    assert master.loss_fn.use_importance_sampling_correction


def test_the_blackwell_block_trains_in_bf16_and_samples_in_mxfp8(ref):
    if ref == "v0.7.0":  # it would ignore is_mx
        assert "unknown key" in refused("mxfp8_blackwell.yaml")[f"{VLLM}.is_mx"]
        return
    master = compose("mxfp8_blackwell.yaml").master_config
    megatron, vllm = master.policy["megatron_cfg"], master.policy["generation"]["vllm_cfg"]
    assert megatron["enabled"] and not megatron["fp8_cfg"]["enabled"]
    assert not master.policy["dtensor_cfg"]["enabled"]
    assert (vllm["precision"], vllm["is_mx"]) == ("fp8", True)
    assert vllm["quantization_ignored_layer_kws"] == ["q_proj", "k_proj", "v_proj", "o_proj"]
    assert master.loss_fn.use_importance_sampling_correction


UNPACKED = "policy.sequence_packing.enabled=false"
SPLIT = [f"{MEGATRON}.tensor_model_parallel_size=4", f"{MEGATRON}.sequence_parallel=true"]
KV_CACHE = f"{VLLM}.kv_cache_dtype=fp8"


def test_mxfp8_that_vllm_would_not_read(ref):
    if ref == "v0.7.0":
        pytest.skip("no is_mx there")
    block, pow2 = "mxfp8_blackwell.yaml", f"{VLLM}.pow2_weight_scaling_factors"
    assert set(refused(block, f"{VLLM}.precision=bfloat16")) == {f"{VLLM}.is_mx"}
    assert set(refused(block, f"{pow2}=false")) == {pow2}
    compose(block, f"{pow2}=true")


def test_every_problem_at_once():
    found = refused(
        "fp8_hopper.yaml", f"{FP8}.fp8=x", f"{CORRECTION}=false", "mismatch.stop_abov=1"
    )
    assert set(found) == {f"{FP8}.fp8", CORRECTION, "mismatch.stop_abov"}
    assert "did you mean stop_above?" in found["mismatch.stop_abov"]


@pytest.mark.parametrize(
    "overrides",
    [
        [f"{FP8}.fp8=hybrid", f"{FP8}.fp8_recipe=tensorwise"],
        [f"{FP8}.fp8_recipe=mxfp8"],
        [UNPACKED, f"{DIVISOR}=16"],
        [UNPACKED, *SPLIT, f"{DIVISOR}=32"],
        [KV_CACHE],
        [f"{MEGATRON}.transformer_impl=transformer_engine"],
        [f"{FP8}.force_clear_fp8_caches=true", "mismatch.stop_above=0.05"],
        [f"{VLLM}.precision=bfloat16", f"{CORRECTION}=false"],
    ],
)
def test_what_works_is_not_refused(overrides):
    compose("fp8_hopper.yaml", *overrides)


def test_without_fp8_nothing_is_asked():
    compose("nemo_rl.yaml", UNPACKED, f"{FP8}.fp8_recipe=bogus")


def test_no_fp8_recipe_of_nemo_rl_is_refused():
    register_omegaconf_resolvers()
    recipes = sorted((versions.EXAMPLES / "configs").rglob("grpo*fp8*.yaml"))
    plain = [strict.resolve(load_config(path)) for path in recipes]
    assert len(plain) >= 8
    assert sum(bool(at(p, f"{FP8}.enabled")) for p in plain) >= 5
    for one in plain:
        found = conflicts(one, {}, build("grpo"))
        assert not [f for f in found if f.path.startswith((FP8, VLLM, CORRECTION, DIVISOR))]


def test_the_limit_reaches_the_policy():
    assert compose("nemo_rl.yaml")[2].stop_above is None
    assert compose("nemo_rl.yaml", "mismatch.stop_above=0.05")[2].stop_above == 0.05
