"""The mismatch of sampler and trainer in NeMo-RL's grpo_train: logged, and a stop at the limit.

The sampler here says e^-|o| times the probability that it draws with, o by the row.
"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.utils.logger import Logger
from no_ray import Done
from plugged import METHODS, OFFSETS, Plugged, off

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.extensions.loss_config import MismatchConfig
from nemo_algos.engines.dumps.dump import read as read_dump
from nemo_algos.engines.dumps.watch import Watch, checksums
from nemo_algos.engines.nemo.estimator import Estimator, tensor_of
from nemo_algos.engines.nemo.policy import DataPlaneProxy, PolicyProxy
from nemo_algos.engines.nemo.probe import Probe

pytestmark = pytest.mark.usefixtures("in_process")


def plugged(path: Path, config: MismatchConfig, overrides: list[str]) -> Plugged:
    made = Plugged(path, METHODS["etr"], overrides)
    made.proxy._watch = Watch(config)
    return made


def test_every_step_logs_the_distance(tmp_path: Path) -> None:
    made = plugged(tmp_path, MismatchConfig(threshold=0.5), ["grpo.max_num_steps=2"])
    made.run.generation.generate = off(made.run.generation.generate)
    made.train()
    for step, batch in enumerate(made.proxy.batches, start=1):
        kept = made.run.logger.kept["train"][step]
        mask = (batch["token_mask"] * batch["sample_mask"][:, None])[:, 1:] > 0
        tokens = mask.sum(1).tolist()
        gaps = sorted(OFFSETS[row % 4] for row, n in enumerate(tokens) for _ in range(n))
        got = {k.removeprefix("mismatch/"): v for k, v in kept.items() if "mismatch" in k}
        assert got == pytest.approx(
            {
                "mean": sum(gaps) / len(gaps),
                "p99": gaps[math.ceil(len(gaps) * 99 / 100) - 1],
                "max": 1.0,
                "share_above": sum(gap > 0.5 for gap in gaps) / len(gaps),
                "nonfinite": 0.0,
            },
            abs=1e-4,
        )
        assert 0.4 < got["mean"] < 0.6 and len(gaps) > 50


def test_masked_sequences_do_not_count(tmp_path: Path) -> None:
    """NeMo-RL drops sequences whose mean e^|d| is above the threshold, here all but OFFSETS 0."""
    drop = ["grpo.max_num_steps=1", "grpo.seq_logprob_error_threshold=1.1"]
    made = plugged(tmp_path, MismatchConfig(), drop)
    made.run.generation.generate = off(made.run.generation.generate)
    made.train()
    (batch,) = made.proxy.batches
    assert batch["sample_mask"].tolist() == [1.0, 0.0, 0.0, 0.0] * 4
    assert made.series("train", "mismatch/max")[0] < 1e-4


def test_beyond_the_limit_training_ends_with_the_last_checkpoint(tmp_path: Path) -> None:
    """The sampler goes wrong after the first step, whose checkpoint stands."""
    made = plugged(tmp_path, MismatchConfig(stop_above=0.05), ["checkpointing.save_period=1"])
    generation, train = made.run.generation, made.run.policy.train
    after: list[torch.Tensor] = []

    def then_off(*args: Any, **kwargs: Any) -> Any:
        results = train(*args, **kwargs)
        after.append(made.weights())
        generation.generate = off(generation.generate)
        return results

    made.run.policy.train = then_off
    with pytest.raises(FloatingPointError, match=r"stop_above=0\.05.*mean 0\.[45]"):
        made.train()
    assert len(after) == 1 and torch.equal(made.weights(), after[0])
    if hasattr(made.run.checkpointer, "shutdown"):
        made.run.checkpointer.shutdown()  # as launch.py
    again = Plugged(tmp_path, METHODS["etr"], [])
    assert torch.equal(again.weights(), after[0])
    assert made.run.logger.kept["train"][1]["mismatch/mean"] < 1e-4


class Queue:
    """A TQPolicy's two calls."""

    def __init__(self, columns: dict[str, torch.Tensor]) -> None:
        self.columns, self.written = columns, []

    def read_from_dataplane(self, meta: Any, *, select_fields: list[str], **_: Any) -> Any:
        return BatchedDataDict({k: self.columns[k] for k in select_fields})

    def write_to_dataplane(self, meta: Any, fields: dict[str, Any]) -> None:
        self.written.append(set(fields))


COLUMNS = {
    "input_ids": torch.tensor([[5, 6, 7], [5, 8, 9]]),
    "generation_logprobs": torch.tensor([[9.0, -1.0, -2.0], [9.0, -3.0, -4.0]]),
    "prev_logprobs": torch.tensor([[0.0, -1.5, -2.0], [0.0, -5.0, -5.0]]),
    "token_mask": torch.tensor([[0, 1, 1], [0, 1, 1]]),
    "sample_mask": torch.tensor([1.0, 0.0]),
}


def written(proxy: DataPlaneProxy, estimator: Estimator, read: Any, sample_mask: Any) -> None:
    """The queue's driver has read a batch, and writes its advantages."""
    masked = read["token_mask"] * sample_mask[:, None]
    prompts, rewards = torch.tensor([[1], [1]]), torch.zeros(2)
    advantages = tensor_of(
        estimator.compute_advantage(prompts, rewards, masked, logprobs_policy=read["prev_logprobs"])
    )
    proxy.write_to_dataplane(None, {"advantages": advantages, "sample_mask": sample_mask})


@pytest.mark.parametrize("limit", [0.3, 0.2])
def test_the_data_plane_compares_what_the_driver_reads_and_writes(limit: float) -> None:
    columns = {k: COLUMNS[k] for k in ("generation_logprobs", "prev_logprobs", "token_mask")}
    columns["sample_mask"] = torch.ones(2)
    queue, estimator = Queue(columns), Estimator(build({"name": "grpo"}))
    proxy = DataPlaneProxy(queue, estimator, MismatchConfig(stop_above=limit))
    wanted = [name for name in columns if name != "sample_mask"]
    read = proxy.read_from_dataplane(None, select_fields=wanted)
    assert list(read) == wanted  # the trainer's own mask of the rows is another one
    sample_mask = torch.tensor([1.0, 0.0])
    if limit < 0.25:
        with pytest.raises(FloatingPointError, match=r"mean 0\.25"):
            written(proxy, estimator, read, sample_mask)
        assert queue.written == []
    else:
        written(proxy, estimator, read, sample_mask)
        assert estimator.step.metrics["rollouts/masked_share"] == 0.5
        assert len(queue.written) == 1 and proxy.seen["mismatch/mean"] == 0.25


def test_a_dump_of_nemo_rls_batch_is_named_by_step(tmp_path: Path) -> None:
    """Of the queue's columns and of grpo_train's batch alike; the trainer sees no column more."""
    settings, estimator = MismatchConfig(dump=2), Estimator(build({"name": "grpo"}))
    for number, made in enumerate((PolicyProxy, DataPlaneProxy)):
        folder = tmp_path / str(number)
        proxy = made(Queue(COLUMNS), estimator, settings, folder=folder, step=4)
        for _ in range(2):
            if made is DataPlaneProxy:
                wanted = ["generation_logprobs", "prev_logprobs", "token_mask"]
                read = proxy.read_from_dataplane(None, select_fields=wanted)
                assert list(read) == wanted
                written(proxy, estimator, read, COLUMNS["sample_mask"])
            else:
                proxy._begin_step(COLUMNS)
        assert [path.name for path in (folder / "mismatch").iterdir()] == ["step_000006.npz"]
        dump = read_dump(folder / "mismatch" / "step_000006.npz")
        assert dump.tokens.tolist() == [[5, 6, 7], [5, 8, 9]] and dump.prompt_length[0] == 1
        assert dump.mask.tolist() == [[False, True, True], [False] * 3]
        assert dump.trainer_logprobs[0, 1:].tolist() == [-1.5, -2.0]


def test_nemo_rls_own_log_of_a_step_is_read(tmp_path: Path) -> None:
    """What its logger writes of the columns that grpo_train gives it."""
    logger = Logger.__new__(Logger)
    logger.base_log_dir = str(tmp_path)
    columns = {"content": ["a", "b"], "rewards": [1.0, 0.0], "input_lengths": [3, 3]}
    renamed = {"input_ids": "token_ids"}
    renamed |= {"token_mask": "token_loss_mask", "sample_mask": "sample_loss_mask"}
    columns |= {renamed.get(name, name): values.tolist() for name, values in COLUMNS.items()}
    logger.log_batched_dict_as_jsonl(columns, "train_data_step1.jsonl")
    dump = read_dump(tmp_path / "train_data_step1.jsonl")
    assert dump.tokens.tolist() == columns["token_ids"] and dump.prompt_length[0] == 1
    assert dump.mask.tolist() == [[False, True, True], [False] * 3]
    assert dump.sampler_logprobs.tolist() == columns["generation_logprobs"]
    assert dump.trainer_logprobs.tolist() == columns["prev_logprobs"]


def probing(tmp_path: Path, settings: MismatchConfig, arrives: bool) -> Any:
    """NeMo-RL's run of two steps, whose engine gets each refit, or the first alone."""
    made = plugged(tmp_path, settings, ["grpo.max_num_steps=2"])
    proxy, generation = made.proxy, made.run.generation
    drawn, refit = generation.generate, generation.update_weights_via_ipc_zmq
    middle = torch.full((generation.cfg["max_new_tokens"],), 0.5)

    def generate(data: Any, greedy: bool = False) -> Any:
        if not greedy:
            return drawn(data)
        generation._random = lambda prompt: middle
        try:
            return drawn(data)
        finally:
            del generation._random

    def first_alone() -> Any:
        return refit() if arrives or generation.refits == 0 else [Done(True)]

    generation.generate, generation.update_weights_via_ipc_zmq = generate, first_alone
    due = lambda: proxy._watch.due(proxy._step + 1)  # noqa: E731
    proxy._probe = Probe(generation, due, lambda g: checksums(g.model))
    return made


@pytest.mark.parametrize("arrives", [True, False])
def test_a_probe_says_in_the_second_step_that_no_refit_arrives(
    arrives: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = probing(tmp_path, MismatchConfig(probe=1), arrives)
    made.train()
    lines = capsys.readouterr().out.splitlines()  # the monitor tells the level besides
    said = [line for line in lines if "warning: step" in line and "do not reach" in line]
    assert [line.split(":")[1].strip() for line in said] == ([] if arrives else ["step 2"])
    every = len([*made.run.generation.model.parameters()])
    assert all(f"{every} of the sampler's {every} " in line for line in said)
    kept = made.run.logger.kept["train"][2]
    assert kept["mismatch/probe_trainer"] > 1e-4
    assert (kept["mismatch/probe_sampler"] > 1e-4) == arrives


def test_a_probe_at_the_stop_wakes_the_engine_and_says_that_no_refit_arrives(
    tmp_path: Path,
) -> None:
    made = probing(tmp_path, MismatchConfig(probe="on_stop", stop_above=1e-4), arrives=False)
    calls, generation = [], made.run.generation
    made.run.policy.offload_after_refit = lambda: calls.append("offload")
    generation.cfg["colocated"] = {"enabled": True}
    wake = generation.prepare_for_generation
    generation.prepare_for_generation = lambda **given: calls.append("wake") or wake(**given)
    with pytest.raises(FloatingPointError, match=r"stop_above.* do not reach"):
        made.train()
    assert calls[-2:] == ["offload", "wake"]
