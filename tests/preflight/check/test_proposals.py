"""The numbers that `nemo-algos check` proposes: set as proposed, none makes another error."""

import re
from itertools import product

import pytest
from mistakes import MISTAKES
from test_check import path_of

from nemo_algos.preflight.check.judge import check
from nemo_algos.preflight.check.rules.index import SIZES

NUMBER = re.compile(r"Set it to (\d+)((?:, and `\S+: \S+`)*)[.,]")
GLOBAL, GROUP = "policy.train_global_batch_size", "grpo.num_generations_per_prompt"
DT, VLLM, APART = "policy.dtensor_cfg", "policy.generation.vllm_cfg", "policy.generation.colocated"
OF_SIZES = [m for m in MISTAKES if m.rule in {rule.__name__ for rule in SIZES}]
GRID = [
    ("nemo_rl.yaml", [f"cluster.gpus_per_node={gpus}", f"{DT}.tensor_parallel_size={tensor}",
     f"{GROUP}={group}", f"{GLOBAL}={size}", "policy.sequence_packing.enabled=false",
     "policy.train_micro_batch_size=3"])
    for gpus, tensor, group, size in product((6, 7, 8), (4, 8), (8, 12), (96, 128))
]  # fmt: skip
GRID += [
    ("nemo_rl.yaml", ["cluster.gpus_per_node=8", f"{APART}.enabled=false",
     f"{VLLM}.tensor_parallel_size={tensor}", f"{APART}.resources.gpus_per_node={own}"])
    for own, tensor in product((0, 1, 8), (1, 2, 8))
]  # fmt: skip
GRID += [
    ("controller.yaml", [f"cluster.gpus_per_node={gpus}", f"{GLOBAL}=100",
     f"async_rl.min_groups_for_streaming_train={chunk}",
     f"policy.sequence_packing.enabled={packed}"])
    for gpus, chunk, packed in product((2, 4, 8), (8, 32), ("true", "false"))
]  # fmt: skip


def wrong(config, overrides):
    found = check(path_of(config), overrides, "main")
    return {f.path: f.message for f in reversed(found) if f.severity != "note"}


def proposed(path, message):
    """What `Set it to 4, and `other.key: 8`.` would change."""
    number, others = NUMBER.search(message).groups()
    return [f"{path}={number}", *(f"{k}={v}" for k, v in re.findall(r"`(\S+): (\S+)`", others))]


@pytest.mark.parametrize(("config", "overrides"), [(m.config, m.overrides) for m in OF_SIZES])
def test_a_proposed_number_makes_no_other_error(config, overrides):
    follow(config, overrides)


@pytest.mark.parametrize(("config", "overrides"), GRID)
def test_proposals_followed_one_by_one_come_to_an_end(config, overrides):
    assert follow(config, overrides) <= 5


def follow(config, overrides):
    """How many proposals there were, each followed, one after another."""
    overrides, steps, said = [*overrides], 0, wrong(config, overrides)
    while found := [(path, said[path]) for path in said if NUMBER.search(said[path])]:
        path, message = found[0]
        overrides += proposed(path, message)
        after = wrong(config, overrides)
        assert after.keys() <= said.keys(), message
        assert after.get(path) != message
        said, steps = after, steps + 1
        assert steps < 9
    return steps


def test_the_number_fits_heads_gpus_and_batch():
    """12 heads and 2 key-value heads on 8 GPUs: 6 was a divisor of the heads alone."""
    key = f"{DT}.tensor_parallel_size"
    said = wrong("nemo_rl.yaml", ["cluster.gpus_per_node=8", f"{key}=8"])
    assert proposed(key, said[key]) == [f"{key}=2"]


def test_seven_ranks_get_other_prompts_too():
    said = wrong("nemo_rl.yaml", ["cluster.gpus_per_node=7"])
    assert proposed(GLOBAL, said[GLOBAL]) == [f"{GLOBAL}=126", "grpo.num_prompts_per_step=63"]
