"""Log-probs over kept sets against SkyRL 0.4.0's sample_support_scores, as it stands."""

from types import SimpleNamespace

import pytest
import torch
from sources import NEWER, take

from nemo_algos.algorithms.core.entropy import token_logprobs_and_entropy
from nemo_algos.engines.local.sampling import support

FILE = "skyrl/backends/skyrl_train/utils/sample_support_replay.py"
CASES = {
    "top_p": {"top_p": 0.9},
    "top_k": {"top_k": 4},
    "min_p": {"min_p": 0.2},
    "all": {"top_p": 0.8, "top_k": 9, "min_p": 0.01},
}


def skyrls(logits, tokens, kept):
    """kept as SkyRL has it: ids, -1 after the last."""
    rows = [row.nonzero()[:, 0].int() for row in kept.flatten(0, 1)]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
    names = {"torch": torch, "SampleSupportScores": SimpleNamespace}
    names["SAMPLE_SUPPORT_TORCH_DTYPE"] = torch.int32
    score = take(FILE, "sample_support_scores", names, NEWER)["sample_support_scores"]
    whole = {"vocab_start_index": 0, "vocab_end_index": logits.shape[-1], "tp_group": None}
    support_ids = ids.view(*tokens.shape, -1)
    return score(logits, tokens, support_ids, **whole).logprobs


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("filters", CASES.values(), ids=CASES)
def test_values_and_gradients_are_skyrls(filters, temperature):
    rng = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(6, 5, 40, generator=rng, dtype=torch.float64)).requires_grad_()
    sampler = logits.detach() + 0.5 * torch.randn(6, 5, 40, generator=rng, dtype=torch.float64)
    kept = support((sampler / temperature).softmax(-1), **filters)
    tokens = torch.multinomial(kept.flatten(0, 1).double(), 1, generator=rng).view(6, 5)
    weights = torch.randn(6, 5, generator=rng, dtype=torch.float64)
    theirs = skyrls(logits / temperature, tokens, kept)
    ours, _ = token_logprobs_and_entropy(logits, tokens, temperature, kept=kept)
    grads = [torch.autograd.grad((weights * x).sum(), logits)[0] for x in (theirs, ours)]
    assert kept.sum(-1).max() > 2 and ours.min() < -1
    for want, got in ((theirs, ours), grads):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
