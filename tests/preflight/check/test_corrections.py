"""`rollout_correction:` in a NeMo-RL run: what contradicts it, and what it takes the place of."""

import pytest
from releases import MAIN
from says import Says

from nemo_algos.preflight.check.judge import check

WEIGHED = "loss_fn.use_importance_sampling_correction"
BYPASS = "rollout_correction.bypass_mode=true"
FP8 = ["policy.generation.vllm_cfg.precision=fp8"]
ASYNC = ["grpo.async_grpo.enabled=true", "policy.generation.vllm_cfg.async_engine=true"]


def errors(overrides):
    return [str(f) for f in check("nemo_rl.yaml", overrides, MAIN) if f.severity == "error"]


@pytest.mark.parametrize("given", [FP8, ASYNC], ids=["fp8", "asynchronous"])
@pytest.mark.parametrize("correction", ["preset=decoupled_token_is", "bypass_mode=true"])
def test_what_asks_for_a_correction_takes_either(given, correction):
    asked = [e for e in errors(given) if e.startswith(WEIGHED)]
    assert len(asked) == 1 and asked[0] == Says("rollout_correction.preset")
    found = errors([*given, f"rollout_correction.{correction}"])
    assert not [e for e in found if e.startswith(WEIGHED)]


@pytest.mark.parametrize(("given", "warned"), [([], True), ([BYPASS], False)])
def test_two_precisions_are_corrected_for(given, warned):
    half = "policy.generation.vllm_cfg.precision=float16"
    found = [f.path for f in check("nemo_rl.yaml", [half, *given], MAIN)]
    assert ("policy.generation.vllm_cfg.precision" in found) == warned
