"""Every parameter in every place it can be written: it changes what is trained, or is refused.

And every combination of two methods: it differs from both, or is refused.
"""

from functools import cache
from itertools import product
from types import UnionType
from typing import Literal, get_args, get_origin

import pytest
import torch
from batches import Batch, change, make
from matrix import some_of
from says import Says

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.loss import policy_loss
from nemo_algos.algorithms.methods import METHODS
from nemo_algos.findings import ConfigError


def rarer(batch):
    """With fewer successes, a sampler further away, and a policy that has moved."""
    old, gen = batch.rollouts.old_logprobs, batch.rollouts.gen_logprobs
    rewards, drift = batch.rollouts.rewards**8, torch.full_like(batch.rollouts.rewards, 0.05)
    return change(batch, rewards=rewards, drift=drift, gen_logprobs=old + 3 * (gen - old))


# ratios near bounds, beyond them, beyond max_log_ratio
BATCHES = (
    make(1, positions=64, spread=0.2, large=False),
    rarer(make(2, positions=64, spread=0.4)),
    make(3),
    *(make(seed, positions=4, spread=0.3) for seed in (4, 5)),
    rarer(make(6, positions=64, spread=0.3)),
)
# without which some keys or bounds hardly act
COMPANIONS = {"kl_cov": {"share": 0.3}, "quatro": {"delta": 1.0}}
OF_ENGINES = {("opd", "teacher")}  # tests/engines/local/test_two_policies.py
SLOTS = ("advantages", "bounds")
PARTNERS = {"advantages": ({"name": "grpo", "advantage_std": "none"}, "erpo"), "bounds": ("etr",)}
BY_NAME = {
    "success_reward": ["brief", "right"],
    "dual_clip": [1.2],
    "reward_weights": [{"right": 2.0}, [1.0, 2.0]],
    "max_log_ratio": [0.1],
    "ratio_upper": [1.2],
    "cap": [1.1],
    "advantage_std": ["sample", "population", "none"],
}


def trained(block):
    """What the method's loss does to the policy: the gradients, batch by batch, when asked for."""
    algorithm, memory = build(block), {}
    for batch in BATCHES:
        signals = algorithm.signals(batch.rollouts, memory)
        memory = signals.memory
        yield gradient(algorithm, batch, signals)


def gradient(algorithm, batch: Batch, signals):
    leaf = batch.logprobs.clone().requires_grad_()
    counts = Counts.of(batch.rollouts.mask)
    entropy = leaf.exp() if "entropy_gradient" in algorithm.needs else None
    policy_loss(algorithm, leaf, batch.rollouts, signals, counts, entropy=entropy).value.backward()
    assert leaf.grad is not None
    return leaf.grad


class Trained:
    """What a block trains, computed as far as a comparison reads, once."""

    def __init__(self, block):
        self.rest, self.known = trained(block), []

    def __iter__(self):
        yield from self.known
        for grad in self.rest:
            self.known.append(grad)
            yield grad

    def differs(self, other):
        return any(not torch.equal(a, b) for a, b in zip(self, other, strict=True))


def own(name):
    return {"name": name, **COMPANIONS.get(name, {})}


@cache
def alone(name):
    return Trained(own(name))


def refused(block):
    """The findings where it is refused, else none."""
    try:
        build(block)
    except ConfigError as error:
        return error.findings
    return []


def others(key, field):
    """Values that the parameter may have instead of its default."""
    kind = field.annotation
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    default = field.get_default(call_default_factory=True)
    if key in BY_NAME:
        found = BY_NAME[key]
    elif get_origin(kind) is Literal:
        found = get_args(kind)
    elif bool in kinds:
        found = (not default,)
    elif int in kinds:
        found = (default + 3, max(1, default // 2))
    else:
        found = (*(default * x for x in (0.01, 0.3, 0.7, 1.3, 20)), default + 0.3)
    return [value for value in found if value != default]


def written(place, partner, name, key, value):
    """The block with the key in the method's own block, or in a component's."""
    block = {**own(name), key: value}
    return {**block, **partner} if place == "base" else {"name": "grpo", **partner, place: block}


PLACES = [("base", {}), *(("base", {s: p}) for s in SLOTS for p in PARTNERS[s])]
PLACES += [(slot, {}) for slot in SLOTS]


@pytest.mark.parametrize("name", METHODS)
def test_a_key_changes_what_is_trained_or_is_refused(name):
    for (place, partner), key in product(PLACES, METHODS[name].params.model_fields):
        without = written(place, partner, name, "name", name)
        if refused(without) or (name, key) in OF_ENGINES:
            continue
        values = others(key, METHODS[name].params.model_fields[key])
        blocks = [written(place, partner, name, key, value) for value in values]
        kept = [block for block in blocks if not refused(block)]
        if kept:
            before = Trained(without)
            assert any(before.differs(trained(block)) for block in kept), (
                name,
                place,
                partner,
                key,
            )
        else:
            findings = [str(f) for block in blocks for f in refused(block)]
            path = f"method.{key}" if place == "base" else f"method.{place}.{key}"
            assert all(path in f or key in f for f in findings), findings


@pytest.mark.parametrize("slot", SLOTS)
@pytest.mark.parametrize("share", some_of(range(4), 1))
def test_a_combination_differs_from_both_or_is_refused(slot, share):
    """But grpo, which is the plain surrogate: what stands beside it makes the method."""
    accepted = 0
    for base, part in [*product(METHODS, METHODS)][share::4]:
        block = {**own(base), slot: own(part)}
        if base == part or "grpo" in (base, part) or refused(block):
            continue
        accepted += 1
        got = Trained(block)
        assert got.differs(alone(base)) and got.differs(alone(part)), block
    assert accepted > 25


@pytest.mark.parametrize("slot", SLOTS)
def test_beside_grpo_a_part_is_not_grpo(slot):
    for part in METHODS.keys() - {"grpo"}:
        block = {"name": "grpo", slot: own(part)}
        if not refused(block):
            assert alone("grpo").differs(trained(block)), block


@pytest.mark.parametrize(
    ("block", "path", "words"),
    [
        ({"name": "grpo", "clip_high": 0.5, "bounds": "etr"}, "method.clip_high", "bounds etr"),
        (
            {"name": "grpo", "advantage_std": "none", "advantages": "lite_ppo"},
            "method.advantage_std",
            "lite_ppo",
        ),
        (
            {"name": "grpo", "advantages": {"name": "rloo", "aggregation": "sequence"}},
            "method.advantages.aggregation",
            "rloo method",
        ),
        (
            {"advantages": {"name": "high_entropy", "clip_high": 0.9}, "bounds": "etr"},
            "method.advantages.clip_high",
            "etr",
        ),
        ({"name": "quatro", "delta": 0.5, "advantages": "grpo"}, "method.delta", "grpo"),
        ({"name": "gpg", "max_log_ratio": 5}, "method.max_log_ratio", "gpg ratio"),
        ({"name": "reinforce_pp", "advantage_std": "sample"}, "method", "advantage_std"),
        ({"name": "opd", "advantage_std": "sample"}, "method", "advantage_std"),
        ({"name": "m2po", "advantages": "rloo"}, "method", "m2po method.name"),
        ({"name": "luspo", "advantages": "grpo"}, "method", "luspo method.name"),
        ({"name": "etr", "bounds": "grpo"}, "method", "etr method.name"),
        ({"name": "gspo", "bounds": "dppo_tv"}, "method", "dppo_tv gspo token"),
        ({"name": "apmpo", "bounds": "dppo_tv"}, "method", "dppo_tv apmpo token"),
    ],
)
def test_found_once(block, path, words):
    found = refused(block)
    assert any(f.path.startswith(path) and f.message == Says(words) for f in found), found


IDEAS = "high_entropy clip_cov m2po maxrl luspo dr_grpo spo gdpo opd erpo lite_ppo"


@pytest.mark.parametrize("name", IDEAS.split())
def test_a_base_without_its_idea_is_refused(name):
    found = refused({"name": name, "advantages": "grpo"})
    assert str(found[0]) == Says(f"method: {name} method.name")
