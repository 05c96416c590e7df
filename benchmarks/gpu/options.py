"""Pieces that train with an option: the sampler as old policy, the monitor's stop, LoRA, MXFP8."""

from pathlib import Path

import torch
from nemo_run import PLAIN, STALE, Part, Run
from piece import Piece
from safetensors.torch import load_file
from torch.distributed.checkpoint import FileSystemReader
from trainings import LONG, TIMES, Curves, each, pairs, settled, widen

# of these the sampler's run has less: its model is made ready once, for training
LOGPROBS = ("logprob_inference_prep", "policy_and_reference_logprobs", "training_prep")
LIMIT = 0.05  # nats: docs/mismatch.md
MEGATRON = "policy.megatron_cfg"
FAST = (  # ten times the usual rate at once: a step is far beyond what bf16 explains
    f"{MEGATRON}.optimizer.lr=2.0e-3",
    f"{MEGATRON}.optimizer.min_lr=2.0e-3",
    f"{MEGATRON}.scheduler.lr_warmup_init=2.0e-3",
)
PEFT = f"{MEGATRON}.peft"
ADAPTED = (
    f"{PEFT}.enabled=true",
    f"{PEFT}.target_modules=[linear_qkv,linear_proj,linear_fc1,linear_fc2]",  # the head is tied
    f"{PEFT}.lora_dtype=null",
    f"{MEGATRON}.optimizer.lr=5.0e-3",
    f"{MEGATRON}.optimizer.min_lr=5.0e-3",
)
SAVED = ("checkpointing.enabled=true", "checkpointing.checkpoint_dir=results")
MX = (10, 0)  # compute capability


def sampler(piece: Piece) -> None:
    """Steps of `large` with the trainer's log-probs and with `old_policy: sampler`, seconds."""
    widen(piece)
    # long responses would take a CPU minutes a step
    words = ("grpo.max_num_steps=5",) if piece.on_cpu else (*LONG, "grpo.max_num_steps=8")
    trainer = Run(piece, "s_trainer", "bf16", *words, start="wide")
    spared = Run(piece, "s_sampler", "bf16", *words, "old_policy=sampler", start="wide")
    each(piece, (trainer, spared), program=PLAIN)
    if spared.done.exists():
        piece.figures |= saved(trainer.curves(), spared.curves())


def saved(trainer: Curves, spared: Curves) -> dict[str, object]:
    """Seconds of a step that the log-probs took; medians of its parts in both runs."""
    spent = [
        sum(settled(run[TIMES + part]) for part in LOGPROBS if TIMES + part in run)
        for run in (trainer, spared)
    ]
    found = pairs(trainer, spared)
    least: dict[str, object] = {
        "saved, s": spent[0] - spent[1],
        "saved, % of a step": 100 * (spent[0] - spent[1]) / found["total_step_time"][0],
    }
    return least | {f"{name}, s: trainer, sampler": pair for name, pair in found.items()}


def stop(piece: Piece) -> None:
    """A sampler misses its second refit: the monitor ends the run, the same command goes on."""
    words = (*SAVED, "checkpointing.save_period=1", f"mismatch.stop_above={LIMIT}")
    stale = Part(STALE, label="until the stop: ", stops_by="mismatch.stop_above")
    words += (*FAST, "grpo.max_num_steps=3")
    Run(piece, "stop", "bf16", *words).run(stale, Part(PLAIN, label="resumed: "))


def lora(piece: Piece) -> None:
    """ETR with adapters of Megatron, then of DTensor, on a tied head; goes on where it ended."""
    words = (*SAVED, "checkpointing.save_period=3", "grpo.max_num_steps=3")
    megatron = Run(piece, "a_mcore", "bf16", *ADAPTED, *words)
    dtensor = Run(piece, "a_dtensor", "lora_dtensor", *words)
    each(piece, (megatron, dtensor), program=PLAIN)
    for run in (megatron, dtensor):
        if run.done.exists():
            run.figure("numbers that train", trained(run.folder / "results/step_3"))


def trained(checkpoint: Path) -> int:
    """Numbers of a checkpoint's adapters, in peft's format or in Megatron's."""
    for file in checkpoint.rglob("adapter_model.safetensors"):
        return sum(adapter.numel() for adapter in load_file(file).values())
    (file,) = checkpoint.rglob(".metadata")
    entries = FileSystemReader(file.parent).read_metadata().state_dict_metadata
    return sum(
        entry.size.numel()
        for name, entry in entries.items()
        if ".adapter." in name and not name.startswith("optimizer")
    )


def mxfp8(piece: Piece) -> None:
    """ETR in MXFP8, training and rollouts, 4 steps; a Blackwell's."""
    if not piece.on_cpu and (found := torch.cuda.get_device_capability()) < MX:
        name = torch.cuda.get_device_name()
        raise ValueError(f"{name} has compute capability {found[0]}.{found[1]}; MXFP8 needs 10.0")
    Run(piece, "mxfp8", "mxfp8", "grpo.max_num_steps=4").run(Part())
