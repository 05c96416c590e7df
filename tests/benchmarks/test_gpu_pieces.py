"""benchmarks/gpu: what its pieces make of batches, logs and figures, by numbers made by hand."""

import json
import math
import os
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.distributed import checkpoint
from torch.utils.tensorboard import SummaryWriter

from nemo_algos.engines.local import low_precision

sys.path.append(str(Path(__file__).parents[2] / "benchmarks/gpu"))
import layers
import nemo_run
import options
import piece
import programs
import quantisers
import same
import trainings
from rehearsal import machine

A = 0.5 / (math.sqrt(0.5) + 1e-6)  # GRPO's of two responses, one of them right
MOVED = 0.3  # nats; e^0.3 is beyond 1.2
VOCABULARY = 4


def kept(loss=0.0, grad_norm=0.0):
    """Four responses of two tokens behind prompts of one; one ratio of the first is clipped."""
    mask = torch.tensor([[0.0, 1.0, 1.0]]).repeat(4, 1)
    ids = torch.tensor([[0, 1, 2], [0, 2, 3], [1, 3, 0], [1, 1, 1]])
    prev = -math.log(VOCABULARY) * mask  # of a model that knows nothing
    old = prev.clone()
    old[0, 1] -= MOVED
    advantages = torch.tensor([A, -A, A, -A])[:, None].expand(4, 3)
    columns = {"token_mask": mask, "sample_mask": torch.ones(4), "input_ids": ids}
    columns |= {"prev_logprobs": prev, "generation_logprobs": prev, "advantages": advantages}
    return {
        "method": "grpo",
        "loss_fn": {},
        "batch_size": 4,
        "rollouts": {
            "group": torch.tensor([5, 5, 7, 7]),
            "rewards": torch.tensor([1.0, 0.0, 1.0, 0.0]),
        },
        "columns": columns,
        "old_logprobs": old,
        "loss": torch.tensor([loss]),
        "grad_norm": torch.tensor(grad_norm),
    }


CLIPPED = -(1.2 - 1) * A / 8  # of the one token; the others cancel
UNCLIPPED = -(math.exp(MOVED) - 1) * A / 8


def test_the_same_loss_is_the_same():
    found = same.Batch(kept(CLIPPED)).figures()
    assert found["loss, embedded"] == pytest.approx(CLIPPED, rel=1e-5)
    assert found["loss, difference over the mean size of A"] < 1e-6
    assert found["advantages, difference over the mean size of A"] < 1e-6


def test_the_loss_weighs_by_the_sampler_where_the_run_does():
    """Weights exp(old - sampler): 2 of the second response's first token, e^-0.3 of the moved."""
    batch = kept()
    batch["columns"]["generation_logprobs"] = batch["columns"]["prev_logprobs"].clone()
    batch["columns"]["generation_logprobs"][1, 1] -= math.log(2)
    batch["loss_fn"] = {"use_importance_sampling_correction": True}
    wanted = -(1.2 * math.exp(-MOVED) * A + A - 2 * A - A) / 8
    found = same.Batch(batch).figures()
    assert found["loss, embedded"] == pytest.approx(wanted, rel=1e-5)


def test_a_loss_without_its_clip_and_an_advantage_of_another_row_are_seen():
    batch = kept(UNCLIPPED)
    batch["columns"]["advantages"] = batch["columns"]["advantages"].roll(1, 0)
    found = same.Batch(batch).figures()
    wanted = (math.exp(MOVED) - 1.2) / 8
    assert found["loss, difference over the mean size of A"] == pytest.approx(wanted, rel=1e-4)
    assert found["advantages, difference over the mean size of A"] == pytest.approx(2, rel=1e-5)


class Bigrams(torch.nn.Module):
    """Logits of the next token by the present one."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(VOCABULARY, VOCABULARY))

    def forward(self, input_ids):
        return SimpleNamespace(logits=self.table[input_ids])


def test_the_gradient_norm_is_that_of_the_model():
    """dL/d table[s] sums -A r (onehot(a) - 1/4) / 8 over tokens; the clipped token has none."""
    batch = kept()
    wanted = torch.zeros(VOCABULARY, VOCABULARY)
    for row, advantage in enumerate((A, -A, A, -A)):
        for position in (1, 2):
            if (row, position) == (0, 1):
                continue
            before, token = batch["columns"]["input_ids"][row, position - 1 : position + 1]
            wanted[before] += advantage / 8 / VOCABULARY
            wanted[before, token] -= advantage / 8
    norm = float(wanted.norm())
    batch["grad_norm"] = torch.tensor(2 * norm)
    found = same.Batch(batch).gradient(Bigrams())
    assert found["gradient norm, float32"] == pytest.approx(norm, rel=1e-5)
    assert found["gradient norm, relative difference"] == pytest.approx(1, rel=1e-5)
    assert found["log-probs, largest difference"] < 1e-6


def test_a_piece_whose_time_is_over_writes_what_it_knows(tmp_path):
    one = piece.Piece("slow", tmp_path, 1)
    with pytest.raises(TimeoutError), piece.measured(one, needs_gpu=False):
        one.figures["known"] = [0.125, 2]
        time.sleep(60)
    found = json.loads((tmp_path / "slow.json").read_text())
    assert found["figures"]["known"] == [0.125, 2] and "size" not in found["figures"]
    assert found["figures"]["ended by"] == "TimeoutError: its time was over"
    assert found["versions"]["torch"] == torch.__version__ and found["commit"]
    assert "| known | 0.125, 2 |" in "\n".join(piece.table(tmp_path))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_a_piece_says_so_and_writes_nothing(tmp_path):
    one = piece.Piece("fp8", tmp_path, 10)
    with pytest.raises(ValueError, match="no CUDA device"), piece.measured(one, needs_gpu=True):
        raise AssertionError("it began")
    assert not list(tmp_path.iterdir())


def test_a_run_keeps_curves_phases_and_memory(tmp_path):
    folder = tmp_path / "r"
    with SummaryWriter(str(folder / "logs/exp_001/tensorboard/x")) as events:
        for step, loss in ((1, 0.5), (2, 0.25)):
            events.add_scalar("train/loss", loss, step)
            events.add_scalar("train/other", loss, step)
    run = nemo_run.Run(piece.Piece("p", tmp_path, 10, on_cpu=True), "r", "fp8")
    run.log.write_text("Connected to Ray cluster\n")  # of an attempt before
    run._read = run.log.stat().st_size
    said = "GPU Memory after refit complete: 1.50GB allocated, 2.00GB reserved"
    says = f"print('Setting up compute cluster'); print('{said}')"
    with run.log.open("a") as log:
        done = subprocess.Popen([sys.executable, "-c", says], stdout=log)
        done.wait()
    run._watch(SimpleNamespace(process=done))
    assert list(run.seen) == ["data, environment"]
    run.keep("again: ")
    found = run.piece.figures
    assert found["r: again: train/loss"] == [0.5, 0.25]
    assert "r: again: train/other" not in found
    assert found["r: again: torch's memory, GB allocated and reserved"] == [1.5, 2.0]
    assert "r: again: seconds of data, environment" in found


def ended(run, part, says, status):
    """The part, with a program that prints this and ends so in place of NeMo-RL's."""
    words = f"import sys; print({says!r}); sys.exit({status})"
    attempt = run._attempt(os.environ | {machine.MARK: str(run.folder)}, ("-c", words))
    run._through(attempt, part, {})


def test_an_attempt_that_the_monitor_ends_is_what_the_piece_wants(tmp_path):
    run = nemo_run.Run(piece.Piece("p", tmp_path, 10, on_cpu=True), "r", "bf16")
    for step in ("step_1", "tmp_step_2"):
        (run.folder / "results" / step).mkdir(parents=True)
    part = nemo_run.Part(label="first: ", stops_by="stop_above")
    said = "=== Step 1/3 ===\n=== Step 2/3 ===\nFloatingPointError: mismatch.stop_above=0.05"
    ended(run, part, said, 1)
    found = run.piece.figures
    assert found["r: first: exit status, reason"][0] == 1
    assert found["r: first: checkpoints"] == ["step_1"]
    assert found["r: first: steps begun"] == [1, 2]
    ended(run, nemo_run.Part(label="then: "), "=== Step 2/3 ===", 0)
    assert found["r: then: steps begun"] == [2]
    for other, status in (("RuntimeError: no memory", 1), (said, 0)):
        with pytest.raises(ValueError, match=f"ended with status {status}"):
            ended(run, part, other, status)
    with pytest.raises(ValueError, match="ended with status 1"):
        ended(run, nemo_run.Part(), said, 1)


def test_counts_of_a_log_that_was_cut():
    log = "\n".join(
        [
            "[gw0] [ 10%] PASSED tests/real/gpu/test_engine.py::test_a[etr]",
            "[gw1] [ 20%] FAILED tests/real/gpu/test_engine.py::test_a[m2po] ",
            "[gw0] [ 30%] PASSED tests/real/gpu/test_kernels.py::test_b",
            "tests/real/gpu/test_kernels.py::test_c ",
        ]
    )
    names = ["tests/real/gpu/test_engine.py::test_a[m2po]"]
    assert programs.counts(log) == {"passed": 2, "failed": 1, "names": names}


def test_means_of_the_runs_that_did_not_fail(tmp_path):
    file = tmp_path / "results.csv"
    file.write_text(
        "method,failed,pass@1,pass@16,entropy/exact\n"
        "GRPO,,0.25,0.5,1\nGRPO,,0.75,1,2\nGRPO,diverged,9,9,9\nETR,,0.5,0.5,0.5\n"
    )
    found = programs.means(file)
    assert found["GRPO, pass@1"] == 0.5 and found["ETR, pass@1"] == 0.5
    assert found["GRPO, entropy/exact"] == 1.5 and len(found) == 6


def test_the_plan_beside_what_was_measured():
    planned = {
        "training_bytes": {"weights": 1e9, "workspace": 4e9, "sleeping engine": 2e9},
        "step_seconds": 3.0,
        "seconds": {"training": 0.5},
    }
    measured = {"fp8: timing/train/policy_training": [1.0], "fp8: train/loss": [0.0]}
    assert trainings.beside("fp8", planned, measured) == {
        "fp8: planned, GB": 7.0,
        "fp8: planned without workspace and sleeping engine, GB": 1.0,
        "fp8: planned, s a step": 3.0,
        "fp8: planned, s of training": 0.5,
        "measured, fp8: timing/train/policy_training": [1.0],
    }


def test_what_our_code_adds_to_a_step():
    """Medians of the steps after the third: 0.5 s of updates instead of 0.4, of a step of 2 s."""

    def curves(advantages, update):
        parts = {"advantage_calculation": advantages, "training_prep": 0.1}
        parts |= {"policy_training": update, "total_step_time": 2.0}
        early = {1: 9.0, 2: 9.0, 3: 9.0}
        return {f"timing/train/{k}": early | {4: v, 5: v, 6: 7.0} for k, v in parts.items()}

    found = trainings.differences(curves(0.03, 0.5), curves(0.05, 0.4))
    assert found["added, % of a step"] == pytest.approx(4.0)
    assert found["policy_training, s: ours, NeMo-RL's"] == [0.5, 0.4]


def test_what_the_sampler_as_old_policy_saves():
    """0.5 s of log-probs and 0.25 s of making ready, of 4 s; 0.125 s come back in training."""

    def curves(step, **parts):
        return {f"timing/train/{k}": {4: v, 5: v} for k, v in parts.items()} | {
            "timing/train/total_step_time": {4: step, 5: step}
        }

    trainer = curves(
        4.0, policy_and_reference_logprobs=0.5, logprob_inference_prep=0.25, training_prep=0.0
    )
    sampler = curves(3.5, policy_and_reference_logprobs=0.0, training_prep=0.125)
    found = options.saved(trainer, sampler)
    assert found["saved, s"] == pytest.approx(0.625)
    assert found["saved, % of a step"] == pytest.approx(100 * 0.625 / 4)
    assert found["total_step_time, s: trainer, sampler"] == [4.0, 3.5]


def test_the_numbers_that_train_are_those_of_adapters(tmp_path):
    adapter = torch.zeros(2, 8, 3)
    state = {"a.adapter.linear_in.weight": adapter, "a.adapter.linear_out.weight": adapter}
    state |= {f"optimizer.state.exp_avg.{name}": adapter for name in list(state)}
    state |= {"a.weight": adapter}
    checkpoint.save(state, checkpoint_id=tmp_path / "megatron/iter_0", no_dist=True)
    assert options.trained(tmp_path / "megatron") == 2 * 48
    (tmp_path / "peft").mkdir()
    save_file({"x.lora_A.weight": adapter}, tmp_path / "peft/adapter_model.safetensors")
    assert options.trained(tmp_path) == 48


def test_mxfp8_ends_with_a_sentence_on_a_hopper(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100")
    with pytest.raises(ValueError, match=r"NVIDIA H100 has compute capability 9\.0"):
        options.mxfp8(piece.Piece("mxfp8", tmp_path, 10))


def alone(q, k, v):
    """Causal attention of one row [S,H,D], in place of cuDNN's."""
    q, k, v = (x.transpose(0, 1).double() for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out.transpose(0, 1).bfloat16()


def packed(q, k, v, cu_seqlens_q, cu_seqlens_kv, max_seqlen_q, max_seqlen_kv, shift=0):
    """As Transformer Engine's thd; a boundary that is `shift` tokens late mixes two responses."""
    assert torch.equal(cu_seqlens_q, cu_seqlens_kv) and max_seqlen_q == max_seqlen_kv == 5
    sizes = cu_seqlens_q.diff().tolist()
    sizes = [sizes[0] + shift, sizes[1] - shift, *sizes[2:]]
    rows = zip(q.split(sizes), k.split(sizes), v.split(sizes), strict=True)
    return torch.cat([alone(*row) for row in rows]).flatten(1)


def test_packed_attention_is_compared_row_by_row(tmp_path, monkeypatch):
    monkeypatch.setattr(layers, "WIDTH", 32)
    monkeypatch.setattr(layers, "HEADS", 4)
    monkeypatch.setattr(layers, "GROUPS", 2)
    name = "attention, packed against padded: relative of y, dq, dk, dv"
    one = piece.Piece("te", tmp_path, 10, on_cpu=True)
    padded = lambda q, k, v: torch.stack([alone(*row) for row in zip(q, k, v, strict=True)])  # noqa: E731
    layers.of_attention(one, packed, padded, lengths=(5, 3, 4))
    assert max(one.figures[name]) < 1e-6
    late = lambda *qkv, **words: packed(*qkv, shift=1, **words)  # noqa: E731
    layers.of_attention(one, late, padded, lengths=(5, 3, 4))
    assert min(one.figures[name]) > 0.01


def test_errors_of_a_layer_are_those_of_its_recipe(tmp_path):
    """In place of FP8: a weight that is larger by a quarter within the context."""
    layer = torch.nn.Linear(8, 16, bias=False)

    @contextmanager
    def larger():
        with torch.no_grad():
            layer.weight *= 1.25
        yield
        # autograd takes the weight that the forward had

    one = piece.Piece("te", tmp_path, 10, on_cpu=True)
    x = torch.randn(2, 3, 8)
    layers.of_layer(one, "linear", layer, x=x, contexts={"bf16": nullcontext, "fp8": larger})
    errors = "relative error of y, dx, the worst dw"
    assert one.figures[f"linear, bf16: {errors}"] == [0, 0, 0]
    assert one.figures[f"linear, fp8: {errors}"] == pytest.approx([0.25, 0.25, 0], abs=1e-6)
    assert one.figures["linear, fp8: TFLOP/s"] > 0


def test_a_quantiser_that_differs_in_one_number_is_seen(tmp_path, monkeypatch):
    """In place of kernels: our own rounding, but for one number of each wide input."""

    def kernels(x, rows, pow2):
        recipe = low_precision.RECIPES["fp8_blockwise"]
        ours = recipe.activation if rows == 1 else recipe.weight
        found = ours(x) if pow2 else low_precision.e4m3(128, x, rows == 128)
        if len(x) == 512:
            found[500, 7] *= 1.25
        return found

    monkeypatch.setattr(quantisers.te_numbers, "by_kernels", kernels)
    monkeypatch.setattr(quantisers, "whole", lambda x, dtype: low_precision.whole(dtype)(x))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    one = piece.Piece("quantisers", tmp_path, 10)
    quantisers.compare(one)
    size = 512 * 1024
    wide = {name: found for name, found in one.figures.items() if "x128, wide" in name}
    assert len(wide) == 4
    assert all(found == [1, size, pytest.approx(0.25)] for found in wide.values())
    assert all(found[0] == 0 for name, found in one.figures.items() if name not in wide)
    golden = Path(__file__).parents[1] / "golden/te_numbers.npz"
    with np.load(tmp_path / "te_numbers.npz") as made, np.load(golden) as shipped:
        assert str(made["source"]) == "a card" and made.files == shipped.files
