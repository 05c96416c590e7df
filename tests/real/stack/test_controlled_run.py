"""The program under NeMo-RL's single controller: its actor, TransferQueue, Megatron, async vLLM."""

import json
import math
import os
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from runs import CONTROLLER, OWN, ROLLOUTS, STEPS, Env, Run, kill_after_step_2, own

from nemo_algos.engines.nemo.estimator import MEMORY

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("main_alone")]
CORRECTED = ("old_policy=trainer", "loss_fn.use_importance_sampling_correction=true")


def at(rate: float) -> list[str]:
    """The learning rate of every step."""
    keys = ("optimizer.lr", "optimizer.min_lr", "scheduler.lr_warmup_init")
    return [f"policy.megatron_cfg.{key}={rate}" for key in keys]


LEARNING = at(1e-3)  # two updates leave the bounds
STREAMING = ("async_rl.sampler.name=windowed", "async_rl.sampler.max_staleness_versions=2")
STREAMING += ("async_rl.min_groups_for_streaming_train=4", "async_rl.max_buffered_rollouts=48")
STREAMING += ("policy.train_micro_batch_size=16", "policy.logprob_batch_size=16")  # of a group


@pytest.mark.parametrize("asked", [(), STREAMING], ids=["in_order", "streaming"])
def test_the_single_controller(place: tuple[Path, Env], asked: tuple[str, ...]) -> None:
    """The old policy is the sampler, which is behind: ratios leave 1, and bounds clip."""
    name = f"controller{len(asked)}"
    overrides = ("grpo.max_num_steps=4", CONTROLLER, *LEARNING, *asked)
    run = Run(place, name, "etr", *overrides).whole()
    assert len(run.curve("reward")) == 4
    assert set(own(run)) == OWN["etr"]
    assert sum(run.curve("verifier/ok")) >= 4 * ROLLOUTS
    assert all(map(math.isfinite, run.curve("loss") + run.curve("grad_norm")))
    assert max(run.curve("probs_ratio_max")) > 1.2
    assert max(run.curve("clip/fraction")) > 0


@pytest.mark.parametrize("sampler", ["weight_fifo", "ready_first"])
def test_the_controllers_other_samplers(place: tuple[Path, Env], sampler: str) -> None:
    """They may sample a step ahead: the second step's rollouts are of the first weights."""
    asked = (f"async_rl.sampler={{name: {sampler}, max_staleness_versions: 1}}", *LEARNING)
    run = Run(place, sampler, "etr", "grpo.max_num_steps=2", CONTROLLER, *asked).whole()
    assert len(run.curve("reward")) == 2 and set(own(run)) == OWN["etr"]
    assert sum(run.curve("verifier/ok")) >= 2 * ROLLOUTS
    assert all(map(math.isfinite, run.curve("loss") + run.curve("grad_norm")))
    first, second = run.curve("probs_ratio_max")
    assert first < 1.001 < second


@pytest.mark.parametrize("method", ["quatro", "erpo", "apmpo", "grpo"])
def test_the_single_controllers_methods(place: tuple[Path, Env], method: str) -> None:
    """ERPO needs the forward of the old log-probs, for its entropies."""
    asked = CORRECTED if method == "erpo" else ()
    overrides = ("grpo.max_num_steps=2", CONTROLLER, *asked)
    run = Run(place, f"controlled_{method}", method, *overrides).whole()
    found = own(run)
    assert set(found) == OWN[method]
    assert all(len(x) == 2 and all(map(math.isfinite, x)) for x in found.values())


def test_a_policy_that_its_rate_destroys_is_told(place: tuple[Path, Env]) -> None:
    overrides = ("grpo.max_num_steps=5", CONTROLLER, *at(0.3))
    run = Run(place, "destroyed", "etr", *overrides).whole()
    rewards = run.curve("reward")
    assert rewards[0] > 0 and rewards[2:] == [0, 0, 0]
    warned = [line for line in run.said().splitlines() if "warning: step 5: since step" in line]
    assert len(warned) == 1 and "the mean reward is 0, and it was up to" in warned[0]
    assert "This run trained 5 steps, 1 to 5 of 5 planned." in run.said()


DUMPED = ("mismatch.dump=1", "checkpointing.save_period=2", CONTROLLER, *CORRECTED)


@pytest.mark.parametrize("ahead", [0, 1])
def test_the_controller_is_killed_and_the_same_command_goes_on(
    place: tuple[Path, Env], ahead: int
) -> None:
    """None is trained on twice; NeMo-RL skips those in flight at its save (upstream.md)."""
    asked = f"async_rl.sampler.max_lookahead_versions={ahead}"
    run = Run(place, f"controller_killed{ahead}", "etr", *DUMPED, asked)
    kill_after_step_2(run, "ControllerImpl")
    run.whole()
    prompts = [dumped_prompts(run, step) for step in range(1, STEPS + 1)]
    lines = (run.folder / "start" / "train.jsonl").read_text().splitlines()
    drawn = [json.loads(line)["problem"] for line in lines[: 16 * (STEPS + 1 + ahead)]]
    problems = [*map(encoded(run), drawn)]
    assert prompts[:2] == [sorted(problems[:16]), sorted(problems[16:32])]
    assert [len(step) for step in prompts] == [16] * STEPS
    # no oftener than they stand there; skipped are those of the steps that were being sampled
    assert Counter(chain.from_iterable(prompts)) <= Counter(problems)


def test_a_killed_controllers_memory_goes_on(place: tuple[Path, Env]) -> None:
    """SPO's values of the prompts of steps 1 and 2, which the resumed process has not seen."""
    asked = ("checkpointing.save_period=2", "method.forgetting=constant", CONTROLLER)
    run = Run(place, "controller_memory", "spo", *asked)
    kill_after_step_2(run, "ControllerImpl")
    before = memory_of(run, 2)
    run.whole()
    after = memory_of(run, STEPS)
    assert len(before) >= 16 and {*before} <= {*after} and len(after) >= len(before) + 16
    kept = [key for key in before if after[key] == before[key]]
    assert len(kept) >= 16  # no step drew them again


def memory_of(run: Run, step: int) -> dict[str, Any]:
    """SPO's, by prompt."""
    info = json.loads((run.results / f"step_{step}" / "training_info.json").read_text())
    return info[MEMORY]["advantages"]["prompts"]


def encoded(run: Run) -> Callable[[str], tuple[int, ...]]:
    """The ids of a problem."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(run.folder / "start" / "model")
    return lambda text: tuple(tokenizer(text)["input_ids"])


def dumped_prompts(run: Run, step: int) -> list[tuple[int, ...]]:
    """The prompts that a step was trained on, of its last attempt."""
    files = sorted(run.folder.glob(f"logs/**/mismatch/step_{step:06d}.npz"), key=os.path.getmtime)
    dump = np.load(files[-1])
    rows = zip(dump["tokens"].tolist(), dump["prompt_length"].tolist(), strict=True)
    prompts = Counter(tuple(tokens[:length]) for tokens, length in rows)
    return sorted(p for p, count in prompts.items() for _ in range(count // 16))
