"""Incidents of a mismatch: dumps of a small random model, or of numbers alone."""

from __future__ import annotations

import functools
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from incident import Mismatch
from measured import Measured
from transformers import LlamaConfig, LlamaForCausalLM

from nemo_algos.engines.dumps.dump import from_arrays, read
from nemo_algos.lab.mismatch.examination import examine
from nemo_algos.lab.mismatch.verdict import diagnose, with_model

BENCH = Path(__file__).parents[1] / "mismatch"
sys.path.append(str(BENCH))

import incidents as bench  # noqa: E402
from kinds import Kind, write  # noqa: E402
from plant import Planter  # noqa: E402
from updates import train_adapter  # noqa: E402
from worlds import BOS, EOS, PAD, VOCABULARY, World, _prompts, _tokenizer  # noqa: E402

ROWS, LENGTH = 32, 24  # of a dump of numbers
CHAT = "{% for m in messages %}<user> {{ m['content'] }} {% endfor %}<assistant>"
FOLDER = tempfile.TemporaryDirectory(prefix="incidents-")  # it goes with this process


def numbers(seed: int = 0, noise: float = 0.03) -> dict[str, Any]:
    """Two sides of the same tokens, apart by noise."""
    draws = np.random.default_rng(seed)
    trainer = -draws.exponential(1.5, (ROWS, LENGTH))
    sampler = np.minimum(trainer + noise * draws.normal(size=trainer.shape), 0)
    tokens = draws.integers(3, 90, trainer.shape)
    return {"tokens": tokens, "sampler_logprobs": sampler, "trainer_logprobs": trainer}


@functools.cache
def world() -> World:
    """A Llama of two layers with random weights and peaked logits, an older one, an adapter."""
    folder = Path(FOLDER.name) / "world"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight *= 20
        for name, weight in model.named_parameters():
            if "proj" in name:
                weight *= 4
    tokenizer = _tokenizer()
    tokenizer.chat_template = CHAT
    _save(model, tokenizer, folder / "model")
    older = LlamaForCausalLM(config).eval()
    older.load_state_dict(model.state_dict())
    with torch.no_grad():
        for weight in older.parameters():
            weight += 0.05 * weight.std() * torch.randn_like(weight)
    _save(older, tokenizer, folder / "previous" / "v1")
    prompts = _prompts("llama", tokenizer)
    trained = LlamaForCausalLM(config).eval()
    trained.load_state_dict(model.state_dict())
    train_adapter(trained, prompts, PAD, folder / "adapter")
    return World("incidents", folder, model, tokenizer, prompts, torch.float32, length=32)


def _save(model: Any, tokenizer: Any, folder: Path) -> None:
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))


@functools.cache
def planter() -> Planter:
    """Kinds with a correct sampler share its rollouts."""
    return Planter(world(), 0)


def measure_mismatch(row: Mismatch) -> Measured:
    """The cause that the command names, alone; or the place that it shows."""
    plant = row.folder / "plant.py"
    made = runpy.run_path(str(plant)) if plant.exists() else {}
    if "change" in made:
        arrays = numbers()
        made["change"](arrays)
        found = diagnose([from_arrays(arrays)])
    else:
        found = _examined(row, made.get("KIND") or _kind(str(row.kind)))
    names = [cause.name for cause in found.causes] or [found.verdict]
    places = [bucket.by for bucket in found.where]
    said = f"{' + '.join(names)}; where: {', '.join(places) or 'nowhere'}"
    if found.candidates:
        said += f"; it may be: {', '.join(found.candidates)}"
    return Measured(_state(row, found.verdict, set(names), places, set(found.candidates)), said)


def _state(row: Mismatch, verdict: str, names: set[str], places: list[str], may: set[str]) -> str:
    """whole: each wanted cause and no other, or the wanted place; part: some, or a place."""
    wanted = row.expected
    causes = [{one.strip() for one in cause.split("|")} for cause in wanted.causes]
    accepted = set().union(*causes)
    if causes and names <= accepted and all(names & cause for cause in causes):
        return "whole"
    if not causes and verdict == "unknown" and wanted.where in places:
        return "whole"
    located = verdict == "unknown" and places
    return "part" if (names | may) & accepted or located else "missed"


def _kind(name: str) -> Kind:
    """Of benchmarks/mismatch's incidents."""
    for kind in bench.KINDS:
        if kind.name == name:
            return kind
    raise ValueError(f"{name}: benchmarks/mismatch/incidents.py has no such kind")


def _examined(row: Mismatch, kind: Kind) -> Any:
    here = world()
    rollout = planter().rollout(kind)
    file = here.folder / f"{row.folder.name}.npz"
    write(file, rollout, here, 0)
    dumps = [read(file)]
    previous = [here.folder / "previous" / "v1"] if row.previous else []
    adapter = here.folder / "adapter" if row.adapter or kind.adapted else None
    return with_model(dumps, examine(dumps, here.folder / "model", previous, adapter, 32))
