"""The driver half of every method against NeMo-RL's and verl's group statistics.

On the same rewards; 1 thread, CPU.

    uv run benchmarks/driver_statistics.py
    uv run --no-project --isolated --python 3.11 \
        --with-requirements tests/real/peers/requirements.txt \
        --with-editable '.[lab]' benchmarks/driver_statistics.py       # with verl too

Per sequence, goal: 1/50 of NeMo-RL's `calculate_baseline_and_std_per_prompt` (256-token prompts)
and 1/20 of verl's `compute_grpo_outcome_advantage` (here on [B,1] rewards: its loop alone). Ours is
everything from labels and rewards to `Signals`: Rollouts with its checks, the groups, advantages,
bounds, constants, metrics. Response lengths are no part: no per-sequence statistic reads them.
`known` is the same on Rollouts that know their groups already. ERPO's token statistics, goal: 30
torch.sigmoid over the same [B,S]; all positions are response tokens (the dearest case).
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import timing
import torch
import typer

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.methods import STUDIED
from nemo_algos.algorithms.rollouts import Rollouts

NEMO_RL = Path(os.environ.get("NEMO_RL_DIR", "~/.cache/nemo_algos/nemo-rl")).expanduser()
GET_NEMO_RL = f"git clone --depth 1 https://github.com/NVIDIA-NeMo/RL {NEMO_RL}"


def nemo_rl() -> Callable[..., Any] | None:
    """NeMo-RL's own function, out of a checkout whose other imports are not installed here."""
    source, name = NEMO_RL / "nemo_rl/algorithms/utils.py", "calculate_baseline_and_std_per_prompt"
    if not source.exists():
        return print(f"left out: NeMo-RL. {GET_NEMO_RL}")
    tree = ast.parse(source.read_text())
    tree.body = [x for x in tree.body if isinstance(x, ast.FunctionDef) and x.name == name]
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(tree, str(source), "exec"), scope)
    return scope[name]


def verl() -> Callable[..., Any] | None:
    try:
        from verl.trainer.ppo import core_algos  # pyright: ignore[reportMissingImports]
    except ImportError:
        return print("left out: verl is not installed here (see the command above)")
    return core_algos.compute_grpo_outcome_advantage


def per_sequence(prompts: int, responses: int, rounds: int) -> None:
    group = torch.arange(prompts).repeat_interleave(responses)
    rng = torch.Generator().manual_seed(0)
    rewards = torch.randint(0, 2, group.shape, generator=rng).float()
    ones = torch.ones_like(rewards)
    tokens = torch.randint(150_000, (prompts, 256), generator=rng)[group]
    wide = torch.zeros(len(group), 1)
    rollouts = Rollouts(group, rewards, wide.bool(), wide)
    calls: dict[str, Callable[[], object]] = {}
    if theirs := nemo_rl():
        calls["NeMo-RL"] = lambda: theirs(tokens, rewards, ones)
        calls["NeMo-RL, prompts of 1 token"] = lambda: theirs(tokens[:, :1], rewards, ones)
    if loop := verl():
        calls["verl"] = lambda: loop(rewards[:, None], ones[:, None], group.numpy())
    peers = list(calls)
    for name in (x for x in STUDIED if x != "erpo"):
        a = build(name)
        calls[name] = lambda a=a: a.signals(Rollouts(group, rewards, wide.bool(), wide))
        calls[f"{name}, known"] = lambda a=a: a.signals(rollouts)
    times = timing.interleaved(calls, rounds)
    print(f"per sequence, {prompts} x {responses}: ms of CPU; of the peers' time [quartiles]")
    for name in calls:
        shares = (timing.ratio(times, peer, name) for peer in peers if name not in peers)
        cells = (f"1/{m:.0f} [1/{low:.0f} 1/{high:.0f}]" for m, low, high in shares)
        print(f"{name:28}{timing.milliseconds(times, name):9.2f}", *cells, sep="  ")


def erpo(sequences: int, positions: int, rounds: int) -> None:
    rng = torch.Generator().manual_seed(1)
    group = torch.arange(sequences) // 16
    old, ref, entropy = (torch.rand(sequences, positions, generator=rng) for _ in range(3))
    old = -old
    ref = -ref
    rewards = torch.randint(0, 2, (sequences,), generator=rng)
    rollouts = Rollouts(group, rewards, torch.ones_like(old).bool(), old, ref, entropy)
    ready, algorithm = torch.empty_like(old), build("erpo")
    calls: dict[str, Callable[[], object]] = {
        "torch.sigmoid(x)": lambda: torch.sigmoid(entropy),
        "torch.sigmoid(x, out=ready)": lambda: torch.sigmoid(entropy, out=ready),
        "erpo": lambda: algorithm.signals(rollouts),
    }
    peak = timing.peak_memory(calls["erpo"]) / (old.numel() * old.element_size())
    times = timing.interleaved(calls, rounds)
    print(f"erpo, [{sequences}, {positions}]: ms of CPU; erpo's ratio to it [quartiles]")
    for name in calls:
        m, low, high = timing.ratio(times, "erpo", name)
        print(f"{name:28}{timing.milliseconds(times, name):9.1f}  {m:.1f} [{low:.1f} {high:.1f}]")
    print(f"peak extra memory of erpo, its result included: {peak:.2f} float32 [B,S]")


def main(
    prompts: int = 512,
    responses: int = 16,
    positions: int = 2048,
    rounds: int = 15,
    keep_pages: Annotated[bool, typer.Option(help="Tell malloc to keep freed memory")] = False,
) -> None:
    torch.set_num_threads(1)
    if keep_pages:
        timing.keep_pages()
    print(f"{timing.machine()}, {rounds} rounds, {keep_pages=}")
    erpo(prompts * responses, positions, rounds)
    per_sequence(prompts, responses, rounds)


if __name__ == "__main__":
    main.__doc__ = __doc__  # with its commands, for --help
    typer.run(main)
