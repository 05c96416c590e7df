"""The Triton kernels on a GPU, at the sizes of real vocabularies, against float64 on the CPU."""

import pytest
import torch

from nemo_algos.algorithms.core.entropy import token_logprobs_and_entropy

VOCABULARIES = (151_936, 128_256, 50_257, 4_096, 37)  # Qwen, Llama, GPT-2, a block, less than one
TYPES = (torch.float32, torch.bfloat16, torch.float16)
ROWS, TEMPERATURE, PADDING = 24, 0.7, 5


def exact(logits, tokens):
    """Log-probs, entropies and the gradient of what `scalar` weighs, in float64 on the CPU.

    d log p(a) / dx_v = 1[v = a] - p_v;  dH / dx_v = -p_v (log p_v + H); 0 where p_v is.
    """
    wide, tokens = logits.detach().cpu().double(), tokens.cpu()[:, None]
    log_p = (wide[:, : wide.shape[1] - PADDING] / TEMPERATURE).log_softmax(-1)
    p = log_p.exp()
    entropy = torch.special.entr(p).sum(-1)
    weights = [w[:, None] for w in weighted(entropy)]
    here = torch.zeros_like(p).scatter_(1, tokens, 1.0)
    slope = (p * (log_p + entropy[:, None])).where(p > 0, 0.0)
    grad = torch.zeros_like(wide)
    grad[:, : p.shape[1]] = (weights[0] * (here - p) - weights[1] * slope) / TEMPERATURE
    return log_p.gather(1, tokens)[:, 0], entropy, grad


def weighted(like):
    """What the sum weighs log-probs and entropies by, [ROWS] each."""
    weight = torch.linspace(-1, 2, ROWS, dtype=like.dtype, device=like.device)
    return weight, weight.flip(0)


@pytest.mark.parametrize("apart", [False, True], ids=["dense", "rows_apart"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_log_probs_entropies_and_gradients_are_exact(vocabulary, dtype, apart):
    torch.manual_seed(vocabulary)
    width = vocabulary + PADDING
    logits = (4 * torch.randn(ROWS, width + 3 * apart, device="cuda")).to(dtype)[:, :width]
    logits[0, 1:-PADDING] = -torch.inf  # one token is certain
    logits[1, ::2] = -torch.inf
    logits = logits.detach().requires_grad_()
    tokens = torch.randint(vocabulary, (ROWS,), device="cuda")
    tokens[:2] = torch.tensor([0, 1])
    logprobs, entropy = token_logprobs_and_entropy(
        logits, tokens, TEMPERATURE, vocabulary=vocabulary
    )
    weights = weighted(entropy)
    (weights[0] * logprobs + weights[1] * entropy).sum().backward()
    want = exact(logits, tokens)
    assert logprobs.is_cuda and logits.grad.dtype == dtype
    torch.testing.assert_close(logprobs.double().cpu(), want[0], rtol=2e-6, atol=2e-5)
    torch.testing.assert_close(entropy.double().cpu(), want[1], rtol=2e-6, atol=2e-5)
    eps = torch.finfo(dtype).eps
    got = logits.grad.double().cpu()
    torch.testing.assert_close(got, want[2], rtol=max(eps, 3e-5), atol=1e-6)
    assert not got[:, vocabulary:].any()


def test_a_nan_stays_in_its_row():
    logits = torch.randn(4, 1000, device="cuda", dtype=torch.bfloat16)
    logits[2, 500] = torch.nan
    logits.requires_grad_()
    got = token_logprobs_and_entropy(logits, torch.zeros(4, dtype=torch.long, device="cuda"))
    sum(x.sum() for x in got).backward()
    assert [x.isnan().tolist() for x in got] == [[False, False, True, False]] * 2
    assert logits.grad.isnan().any(1).tolist() == [False, False, True, False]


def test_no_copy_of_the_logits_is_made():
    logits = torch.randn(512, 151_936, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    tokens = torch.randint(151_936, (512,), device="cuda")
    size = logits.numel() * logits.element_size()
    token_logprobs_and_entropy(logits, tokens)[0].sum().backward()  # compiled from here on
    logits.grad = None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    logprobs, entropy = token_logprobs_and_entropy(logits, tokens)
    assert torch.cuda.max_memory_allocated() - before < 1 << 18
    (logprobs.sum() + entropy.sum()).backward()
    assert torch.cuda.max_memory_allocated() - before < size + (1 << 20)
