"""Plans of NeMo-RL's own configs, with changes."""

import functools

from model_facts import facts_of
from omegaconf import OmegaConf
from releases import MAIN

from nemo_algos.preflight.check.compose import compose
from nemo_algos.preflight.check.layout import MEGATRON
from nemo_algos.preflight.plan.layouts import gpu_of, plan, with_keys
from nemo_algos.preflight.plan.nemo_rl_arguments import GPUS

OFFLOADED = {
    f"{MEGATRON}.optimizer.{k}": v
    for k, v in {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 1.0}.items()
}


EXAMPLE = "recipes/llm/performance/grpo-qwen3-30ba3b-4n8g.yaml"


@functools.cache
def composed(config):
    """To be read alone."""
    own = {"engine": "nemo_rl", "nemo_rl": {"config": config}, "method": {"name": "grpo"}}
    return compose(OmegaConf.create(own), MAIN).plain


def planned(config, tokens=None, **change):
    plain = with_keys(composed(config), change)
    known = facts_of(config, plain)
    assert known is not None
    return plan(plain, known, GPUS[gpu_of(plain)], tokens)
