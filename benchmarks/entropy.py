"""Log-probs and entropies from bf16 logits: ours, `log_softmax`, NeMo-RL's two functions.

    uv run benchmarks/entropy.py                    CPU, 2048 positions, vocabulary 151936, 1 thread
    uv run benchmarks/entropy.py --device cuda      8192 positions; with torch.compile and a plain
    copy, whose bandwidth is the limit

NeMo-RL's route is there where nemo_rl can be imported (the environment of make test-nemo, with
PYTHONPATH=NEMO_RL_CHECKOUT:.). Extra memory is the process's or the card's above what it was.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import timing
import torch
import torch.distributed as dist
import typer
from torch import Tensor

from nemo_algos.algorithms.core.entropy import token_logprobs_and_entropy

Route = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
CHUNK = 256  # positions, of NeMo-RL's functions


def log_softmax(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    scores = logits.float().log_softmax(-1)
    return scores.gather(-1, tokens[:, None])[:, 0], -(scores.exp() * scores).sum(-1)


def nemo_rl() -> dict[str, Route]:
    """Empty where it is not installed."""
    try:
        from nemo_rl.distributed import model_utils  # pyright: ignore
    except ImportError:
        return {}
    dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
    group = dist.group.WORLD

    def route(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        logits, tokens, inference = logits[None], tokens[None], not logits.requires_grad
        logprob, entropy = (
            model_utils.ChunkedDistributedLogprob,
            model_utils.ChunkedDistributedEntropy,
        )
        of_tokens = logprob.apply(logits, tokens, 0, logits.shape[-1], CHUNK, group, inference)
        return of_tokens[0], -entropy.apply(logits, CHUNK, group, inference)[0]

    return {"NeMo-RL": route}


def backward(route: Route, logits: Tensor, tokens: Tensor) -> Tensor:
    """The gradient of the log-probs, as in training."""
    logits = logits.detach().requires_grad_()
    (grad,) = torch.autograd.grad(route(logits, tokens)[0].sum(), logits)
    return grad


def cuda_seconds(function: Callable[[], object], times: int = 20) -> float:
    """Median of a call's time where calls follow each other, as in training; three warm up."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(times + 4)]
    for event in events:
        event.record()
        function()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) / 1e3 for a, b in pairwise(events[3:]))


def cuda_extra(function: Callable[[], object]) -> int:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    function()
    return torch.cuda.max_memory_allocated() - before


def on_cuda(calls: dict[str, Callable[[], object]], logits: Tensor) -> dict[str, float]:
    """Shares of a copy's bandwidth: a copy reads and writes what the forward only reads."""
    size = logits.numel() * logits.element_size()
    copy = 2 * size / cuda_seconds(logits.clone)
    print(f"{torch.cuda.get_device_name()}, a plain copy: {copy / 1e12:.2f} TB/s")
    figures = {"a plain copy, TB/s": copy / 1e12}
    for name, call in calls.items():
        seconds = cuda_seconds(call)
        moved = size * (1 if "forward" in name else 3)  # backward: read again, and written
        print(
            f"{name:28} {1e3 * seconds:8.3f} ms   {moved / seconds / 1e12:5.2f} TB/s "
            f"({moved / seconds / copy:.0%} of a copy)   {cuda_extra(call) / 2**20:8.1f} MiB"
        )
        figures |= {f"{name}, ms": 1e3 * seconds, f"{name}, of a copy": moved / seconds / copy}
    return figures


def on_cpu(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    extra = {name: timing.peak_memory(call) for name, call in calls.items()}
    times = timing.interleaved(calls, rounds)
    print(timing.machine())
    for name in calls:
        ours = "ours, " + name.split(", ")[1]
        middle, low, high = timing.ratio(times, name, ours)
        print(
            f"{name:28} {timing.milliseconds(times, name):8.0f} ms   {middle:5.2f} x ours "
            f"[{low:.2f}, {high:.2f}]   {extra[name] / 2**20:8.1f} MiB extra"
        )
    return {f"{name}, ms": timing.milliseconds(times, name) for name in calls}


def main(
    device: str = "cpu",
    positions: int = 0,
    vocabulary: int = 151_936,
    rounds: Annotated[int, typer.Option(help="CPU")] = 5,
    json: Path | None = None,
) -> None:
    """Prints one line a route and pass; a file gets their figures."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    positions = positions or (2048 if device == "cpu" else 8192)
    logits = (3 * torch.randn(positions, vocabulary, dtype=torch.bfloat16)).to(device)
    tokens = torch.randint(vocabulary, (positions,), device=device)
    routes = {"ours": token_logprobs_and_entropy, "log_softmax": log_softmax, **nemo_rl()}
    if device == "cuda":
        routes["torch.compile"] = torch.compile(log_softmax)
    calls: dict[str, Callable[[], object]] = {}
    for name, route in routes.items():
        calls[f"{name}, forward"] = lambda r=route: r(logits, tokens)
        calls[f"{name}, with backward"] = lambda r=route: backward(r, logits, tokens)
    timing.save(json, on_cuda(calls, logits) if device == "cuda" else on_cpu(calls, rounds))


if __name__ == "__main__":
    main.__doc__ = __doc__  # with its commands, for --help
    typer.run(main)
