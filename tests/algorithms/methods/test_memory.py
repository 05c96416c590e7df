"""What methods remember between batches: SPO's tracker and a running baseline, by hand."""

import json
import math
from dataclasses import replace

import pytest
import torch
from batches import close, make
from says import Says

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.kernel import DriverOutput, Method
from nemo_algos.algorithms.record import ClipParams
from nemo_algos.algorithms.rollouts import Rollouts, prompt_key

REMEMBERING = [{"name": "spo"}, {"name": "ema_baseline"}, {"name": "etr", "advantages": "spo"}]


def rollouts(prompt, rewards, drift=0.0, **more):
    """A batch of sequences of one token."""
    ones = torch.ones(len(rewards), 1)
    group, moved = (
        torch.arange(len(rewards)),
        torch.tensor([drift] * len(rewards), dtype=torch.float64),
    )
    given = {"prompt": torch.tensor(prompt), "drift": moved, **more}
    return Rollouts(group, rewards, ones.bool(), -ones, **given)


def standardized(values):
    """By the sample standard deviation."""
    mean = sum(values) / len(values)
    std = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
    return torch.tensor([(v - mean) / (std + 1e-6) for v in values], dtype=torch.float64)


def test_spo_by_hand():
    """Two visits of prompt 7, one of 9: rho = 2^(-0.006 / 0.06) = 0.933, within [.875, .96]."""
    spo = build({"name": "spo"})
    first = spo.signals(rollouts([7, 9], [1, 0]), {})
    close(first.advantages[:, 0], standardized([1 - 0.5, 0 - 0.5]))
    tracked = {k: v[:2] for k, v in first.memory["advantages"]["prompts"].items()}
    want = {"7": [0.96 * 0.5 + 1, 0.96 * 0.5], "9": [0.96 * 0.5, 0.96 * 0.5 + 1]}
    assert tracked == {k: pytest.approx(v, rel=1e-15) for k, v in want.items()}
    second = spo.signals(rollouts([7, 7, 8], [0, 1, 1], drift=0.006), first.memory)
    v = 1.48 / (1.48 + 0.48)
    close(second.advantages[:, 0], standardized([0 - v, 1 - v, 1 - 0.5]))
    rho, prompts = 2**-0.1, second.memory["advantages"]["prompts"]
    assert prompts["7"][:2] == pytest.approx([rho * 1.48 + 1, rho * 0.48 + 1], rel=1e-14)
    assert prompts["9"] == first.memory["advantages"]["prompts"]["9"]
    assert second.metrics["spo/known_prompts"] == 0.5
    assert second.metrics["spo/rho"] == pytest.approx((rho + 0.96) / 2)


@pytest.mark.parametrize(
    ("moves", "rho"), [((0.0, 0.0), 0.96), ((0.004, 0.005), 2**-0.15), ((0.1, 0.2), 0.875)]
)
def test_a_prompt_forgets_by_the_moves_since_its_last_visit(moves, rho):
    spo, memory = build({"name": "spo", "prior": 2.0}), {}
    memory = spo.signals(rollouts([1, 2], [1, 0], drift=0.7), memory).memory  # before it was known
    memory = spo.signals(rollouts([2, 3], [1, 0], drift=moves[0]), memory).memory
    memory = spo.signals(rollouts([1, 3], [1, 0], drift=moves[1]), memory).memory
    got = memory["advantages"]["prompts"]["1"][:2]
    assert got == pytest.approx([rho * (0.96 * 2 + 1) + 1, rho * 0.96 * 2], rel=1e-14)
    again = spo.signals(rollouts([3, 3], [1, 0]), memory)  # no move since its second visit
    assert again.metrics["spo/rho"] == pytest.approx(0.96)


def test_constant_forgetting_needs_no_drift():
    spo = build({"name": "spo", "forgetting": "constant", "rho_max": 0.9})
    assert "drift" not in spo.needs and "drift" in build("spo").needs
    batch = replace(rollouts([1, 2], [1, 0]), drift=None)
    memory = spo.signals(batch, {}).memory
    memory = spo.signals(batch, memory).memory
    want = [0.9 * (0.9 * 0.5 + 1) + 1, 0.9 * 0.9 * 0.5]
    assert memory["advantages"]["prompts"]["1"][:2] == pytest.approx(want, rel=1e-15)
    with pytest.raises(ValueError, match=r"^spo .*\bdrift\b"):
        build("spo").signals(batch, {})


def test_rows_that_are_masked_out_teach_nothing():
    kept = torch.tensor([True, True, False])
    spo = build("spo")
    got = spo.signals(rollouts([1, 2, 2], [1, 0, 1], sample_mask=kept), {})
    want = spo.signals(rollouts([1, 2], [1, 0]), {})
    close(got.advantages[:2], want.advantages)
    assert got.memory == want.memory


def test_a_running_baseline_by_hand():
    ema = build({"name": "ema_baseline", "decay": 0.75})
    first = ema.signals(rollouts([1, 1], [1, 0]), {})
    close(first.advantages[:, 0], torch.tensor([0.5, -0.5]))
    second = ema.signals(rollouts([1, 1], [1, 1]), first.memory)
    close(second.advantages[:, 0], 0.5)
    third = ema.signals(rollouts([1, 1], [0, 0]), second.memory)
    close(third.advantages[:, 0], -(0.75 * 0.5 + 0.25))
    scaled = build({"name": "ema_baseline", "advantage_std": "population"})
    got = scaled.signals(rollouts([1, 1, 1], [1, 0, 0]), {"advantages": {"baseline": 0.25}})
    std = math.sqrt(2) / 3 + 1e-6
    close(got.advantages[:, 0], torch.tensor([0.75, -0.25, -0.25], dtype=torch.float64) / std)


@pytest.mark.parametrize("block", REMEMBERING, ids=str)
def test_a_memory_is_what_json_holds_and_goes_on_bit_equal(block):
    algorithm, batches = build(block), [make(seed=i).rollouts for i in range(3)]
    whole, memory = [], {}
    for batch in batches:
        signals = algorithm.signals(batch, memory)
        whole.append(signals)
        memory = signals.memory
    again = json.loads(json.dumps(whole[1].memory))
    assert torch.equal(algorithm.signals(batches[2], again).advantages, whole[2].advantages)
    anew = algorithm.signals(batches[2], {})
    assert not torch.equal(anew.advantages, whole[2].advantages)


@pytest.mark.parametrize("block", REMEMBERING, ids=str)
def test_signals_change_no_memory_that_they_are_given(block):
    algorithm, batch = build(block), make().rollouts
    before = algorithm.signals(batch, {}).memory
    copy = json.dumps(before)
    once, twice = (algorithm.signals(batch, before) for _ in range(2))
    assert json.dumps(before) == copy and once.memory == twice.memory
    assert torch.equal(once.advantages, twice.advantages)


def test_a_memory_must_be_given():
    with pytest.raises(ValueError) as error:
        build("spo").signals(rollouts([1], [1]))
    assert str(error.value) == Says("spo `Algorithm.signals` memory {}")
    build("etr").signals(rollouts([1], [1]))  # remembers nothing
    with pytest.raises(ValueError, match=r"^spo .*\bprompt\b.*prompt_key"):
        build("spo").signals(replace(rollouts([1], [1]), prompt=None), {})
    with pytest.raises(ValueError, match=r"spo\+etr .*\[0, 1\].*sequence 0\b"):
        build({"advantages": "spo", "bounds": "etr"}).signals(rollouts([1], [2]), {})


def test_what_a_method_needs_goes_with_its_part():
    assert build({"advantages": "spo", "bounds": "etr"}).needs == build("spo").needs
    assert not build({"name": "gspo", "bounds": {"name": "spo", "clip_low": 0.1}}).needs


def test_a_record_must_take_its_memory():
    def forgets(rollouts, params):
        return DriverOutput(rollouts.rewards)

    def remembers(rollouts, params, memory):
        seen = memory.get("seen", 0) + 1
        return DriverOutput(rollouts.rewards * seen, memory={"seen": seen})

    for function, needs, number in ((forgets, {"memory"}, 3), (remembers, set(), 2)):
        with pytest.raises(ValueError, match=rf"^own: advantages .*\b{number}\b"):
            Method("own", "-", ClipParams, function, needs=frozenset(needs))
    own = build(Method("own", "-", ClipParams, remembers, needs=frozenset({"memory"})))
    first = own.signals(rollouts([1], [3]), {})
    assert float(own.signals(rollouts([1], [3]), first.memory).advantages) == 6


def test_prompt_keys():
    """The same everywhere and always: they are in checkpoints."""
    assert prompt_key([1, 2, 3]) == prompt_key([1, 2, 3]) == -5405627362230748553
    assert len({prompt_key([i, j]) for i in range(50) for j in range(50)}) == 2500
    assert prompt_key([]) != prompt_key([0]) != prompt_key([0, 0])


def test_equal_rewards_are_not_divided_by_a_spread_that_is_not_there():
    """An all-wrong batch beside a baseline of 1/2."""
    algorithm = build({"name": "ema_baseline", "advantage_std": "sample"})
    memory = algorithm.signals(rollouts([1, 2], [0, 1]), {}).memory
    wrong = algorithm.signals(rollouts([3, 4], [0, 0]), memory)
    close(wrong.advantages, -0.5)
