"""micro_batches: every row once, and never more tokens than configured."""

from itertools import pairwise

import pytest
import small_llama
import torch

from nemo_algos.engines.local.experience import Experience
from nemo_algos.engines.local.prompt_sharing import micro_batches


def experience_of(prompt_lengths, response_lengths, group):
    """An experience of these lengths, nothing else known."""
    p, r = torch.tensor(prompt_lengths), torch.tensor(response_lengths)
    prompt_mask = torch.arange(int(p.max())).flip(0) < p[:, None]
    mask = torch.arange(int(r.max())) < r[:, None]
    of = torch.arange(len(p)).repeat_interleave(group)
    zeros = torch.zeros(mask.shape)
    return Experience(prompt_mask.long(), prompt_mask, of, mask.long(), mask, zeros, zeros, zeros)


@pytest.mark.parametrize("limit", [1, 40, 64, 150, 10_000])
def test_dynamic_batches_keep_to_their_tokens_and_cover_every_row_once(limit):
    rng = torch.Generator().manual_seed(limit)
    prompts, responses = (torch.randint(1, 30, (n,), generator=rng).tolist() for n in (20, 60))
    experience = experience_of(prompts, responses, 3)
    dynamic = {"enabled": True, "train_mb_tokens": limit}
    rows = torch.randperm(60, generator=rng)[:50]
    batches = micro_batches(
        experience, rows, small_llama.section("any", dynamic_batching=dynamic), 0
    )
    assert sorted(torch.cat(batches).tolist()) == sorted(rows.tolist())

    def cost(batch):
        width = max(prompts[i // 3] + responses[i] for i in batch)
        return len(batch) * width

    assert all(len(batch) == 1 or cost(batch) <= limit for batch in batches)
    for batch, after in pairwise(batches):  # and none has room left
        assert cost([*batch, after[0]]) > limit
    if limit == 10_000:
        assert len(batches) == 1


def test_fixed_batches_and_no_rows():
    experience, section = experience_of([3, 4], [5, 6, 7, 8], 2), small_llama.section("any")
    batches = micro_batches(experience, torch.tensor([3, 1, 0, 2, 1]), section, 0)
    assert [b.tolist() for b in batches] == [[3, 1, 0, 2], [1]]
    for enabled in (True, False):
        section = small_llama.section("any", dynamic_batching={"enabled": enabled})
        assert micro_batches(experience, torch.tensor([], dtype=torch.long), section, 0) == []
