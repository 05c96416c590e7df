"""Real updates between the versions of a world: REINFORCE on the model's own rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def update(model: Any, optimizer: Any, prompts: list[list[int]], pad: int, seed: int) -> None:
    """One step of the optimizer on six responses with advantages of both signs."""
    ids, mask, start = _sample(model, prompts, pad, seed)
    logits = model(input_ids=ids, attention_mask=mask).logits[:, start - 1 : -1]
    taken = logits.log_softmax(-1).gather(-1, ids[:, start:, None])[..., 0]
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 0.5, -0.5])[:, None]
    optimizer.zero_grad()
    (-(advantages * taken).mean()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


@torch.no_grad()
def _sample(model: Any, prompts: list[list[int]], pad: int, seed: int, length: int = 32) -> Any:
    """Ids [6,N], mask [6,N] and the place of the first response token."""
    torch.manual_seed(seed)
    chosen = [prompts[i] for i in torch.randperm(len(prompts))[:6].tolist()]
    width = max(map(len, chosen))
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in chosen])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in chosen])
    out = model.generate(
        input_ids=ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
        max_new_tokens=length, min_new_tokens=length, pad_token_id=pad,
    )  # fmt: skip
    mask = torch.cat([mask, torch.ones(6, out.shape[1] - width, dtype=mask.dtype)], 1)
    return out, mask, width


def train_adapter(model: Any, prompts: list[list[int]], pad: int, folder: Path) -> None:
    """Six steps of a LoRA of rank 8 on q and v, saved by PEFT."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(7)
    lora = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"])
    adapted = get_peft_model(model, lora)
    trained = [weight for weight in adapted.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-3)
    for seed in range(6):
        update(adapted, optimizer, prompts, pad, seed=100 + seed)
    adapted.save_pretrained(str(folder))
