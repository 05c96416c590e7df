"""What e4m3 blocks in a policy's linear layers do to each method: ratios, clips, gradients.

    uv run benchmarks/fp8_study.py

Emulated on the CPU: operands of the three products of a linear layer are rounded to e4m3 in blocks
with a float32 scale each (weights n x n; activations and output gradients 1 x n along the dimension
that is summed); sums are float32. Embedding, norms, attention and output head stay float32.

pi_old: the countdown model after `steps` GRPO steps of 8 updates; pi: after one more, the same for
all methods. Judged are fresh responses to that last step's prompts. Trainer and sampler round the
same float32 weights. Shapes: B responses of S tokens, T tokens in all, N parameters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple, cast

import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from torch import Tensor

from nemo_algos import config
from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.surrogate import Counts, log1p
from nemo_algos.algorithms.extensions.loss_config import LossConfig
from nemo_algos.algorithms.loss import policy_loss
from nemo_algos.algorithms.methods import STUDIED
from nemo_algos.algorithms.rollouts import Rollouts
from nemo_algos.engines.local.build import build_trainer
from nemo_algos.engines.local.experience import Experience
from nemo_algos.engines.local.low_precision import Recipe, e4m3, emulate
from nemo_algos.engines.local.tiny import Tiny
from nemo_algos.engines.local.tiny_policy import TinyPolicy
from nemo_algos.engines.local.trainer import Trainer
from nemo_algos.engines.local.updates import Batch
from nemo_algos.preflight.check.local.judge import parse

CONFIG = Path(__file__).parents[1] / "examples" / "configs" / "grpo.yaml"
TIS = LossConfig(
    use_importance_sampling_correction=True,
    truncated_importance_sampling_type="tis",
    truncated_importance_sampling_ratio=2.0,
)
Rounding = Callable[..., Tensor]  # (matrix, square: in n x n blocks, else 1 x n)


ROUNDINGS: dict[str, Rounding] = {
    "bf16": lambda x, square: x.bfloat16().to(x.dtype),
    "e4m3 128": partial(e4m3, 128),
    "e4m3 32": partial(e4m3, 32),
}
# columns: quantity, case
TRAINER = [("clip %", "float32"), ("clip %", "e4m3 128"), *(("flips %", k) for k in ROUNDINGS)]
TRAINER += [("cosine", k) for k in (*ROUNDINGS, "e4m3 128 at pi_old")]
TRAINER += [("norm", k) for k in ROUNDINGS]
SAMPLER = [("clip %", "sampler"), ("clip %", "both"), ("flips %", "both")]
SAMPLER += [("cosine", k) for k in ("sampler", "sampler, tis", "both", "redrawn")]
SAMPLER += [("norm", k) for k in ("sampler", "sampler, tis", "both", "redrawn")]


def rounded(model: Tiny, rounding: Rounding) -> Tiny:
    """A copy whose linear layers round."""
    rows, squares = partial(rounding, square=False), partial(rounding, square=True)
    emulate(model := deepcopy(model), Recipe(rows, squares, rows))
    return model


class Policies(NamedTuple):
    """Weights, and how a trainer computes with them."""

    reference: Tiny
    old: Tiny
    new: Tiny

    def rounded(self, rounding: Rounding) -> Policies:
        return Policies(*(rounded(model, rounding) for model in self))


class Judged(NamedTuple):
    """Responses as a trainer sees them. tokens [B,S]; new [B,S]: log pi, with graph."""

    tokens: Tensor
    rollouts: Rollouts
    new: Tensor
    parameters: list[Tensor]

    @property
    def log_ratio(self) -> Tensor:
        """[B,S], 0 off the mask."""
        return (self.new.detach() - self.rollouts.old_logprobs).where(self.rollouts.mask, 0.0)


class Case(NamedTuple):
    """Responses, the same in a float32 trainer, and the loss."""

    judged: Judged
    float32: Judged
    loss: LossConfig = LossConfig()


def trained(seed: int, steps: int) -> tuple[Trainer, Policies]:
    """The policies, and their trainer within its last step."""
    overrides = [f"grpo.seed={seed}", "grpo.num_update_epochs=2"]
    trainer = build_trainer(*parse(config.load(CONFIG, overrides)), Console(quiet=True))
    reference = deepcopy(trainer.policy.model)
    for _ in range(steps):
        trainer.step()
    old, (experience, rollouts) = deepcopy(trainer.policy.model), trainer.collect()
    trainer.update(Batch(experience, rollouts, trainer.algorithm.signals(rollouts)))
    return trainer, Policies(*(cast(Tiny, m) for m in (reference, old, trainer.policy.model)))


def draw(trainer: Trainer, sampler: Tiny, seed: int) -> tuple[Experience, Tensor]:
    """Responses and their rewards [B]."""
    trainer.sampler = TinyPolicy(sampler, trainer.config.policy.generation)
    trainer.generator.manual_seed(seed)
    experience, rollouts = trainer.collect()
    return experience, rollouts.rewards


def logprobs(model: Tiny, experience: Experience) -> tuple[Tensor, Tensor]:
    """Of the tokens, and the entropy; each [B,S], nats."""
    logits = model.response_logits(experience.prompts, experience.group, experience.tokens)
    logp = logits.log_softmax(-1)
    return logp.gather(-1, experience.tokens[..., None])[..., 0], -(logp.exp() * logp).sum(-1)


def judge(policies: Policies, experience: Experience, rewards: Tensor) -> Judged:
    """The trainer computes every log-prob and the entropy anew."""
    e = experience
    with torch.no_grad():
        old, entropy = logprobs(policies.old, e)
        reference, _ = logprobs(policies.reference, e)
    rollouts = Rollouts(e.group, rewards, e.mask, old, reference, entropy, e.gen_logprobs)
    return Judged(e.tokens, rollouts, logprobs(policies.new, e)[0], [*policies.new.parameters()])


def gradient(a: Algorithm, judged: Judged, loss: LossConfig = LossConfig()) -> Tensor:
    """Of the loss, [N]."""
    rollouts, counts = judged.rollouts, Counts.of(judged.rollouts.mask)
    value = policy_loss(a, judged.new, rollouts, a.signals(rollouts, {}), counts, loss).value
    grads = torch.autograd.grad(value, judged.parameters, retain_graph=True)
    return torch.cat([g.flatten() for g in grads])


def clipped(a: Algorithm, judged: Judged) -> Tensor:
    """float [T]: 1 for the tokens that `clip/fraction` counts."""
    mask, signals = judged.rollouts.mask, a.signals(judged.rollouts, {})
    shaped = a.transform(judged.log_ratio, mask, signals)
    above = (shaped.clip_sign > 0) & (shaped.clip_log_ratio > log1p(shaped.high, torch.float32))
    below = (shaped.clip_sign < 0) & (shaped.clip_log_ratio < log1p(-shaped.low, torch.float32))
    return (above | below).expand_as(mask)[mask].float()


def compare(a: Algorithm, case: Case, reference: Tensor) -> dict[str, float]:
    """With the gradient reference [N]; flips: tokens clipped only here or only in float32."""
    clips, grad = clipped(a, case.judged), gradient(a, case.judged, case.loss)
    return {
        "clip %": 100 * float(clips.mean()),
        "flips %": 100 * float((clips - clipped(a, case.float32)).abs().mean()),
        "cosine": float(F.cosine_similarity(grad, reference, dim=0)),
        "norm": float(grad.norm() / reference.norm()),
    }


def sizes(gap: Tensor, mask: Tensor) -> dict[str, float]:
    """Mean and largest size of a gap [B,S]: of tokens, and of responses' sums and means."""
    sums = gap.where(mask, 0.0).sum(1).abs()
    parts = {"tokens": gap[mask].abs(), "sums": sums, "means": sums / mask.sum(1)}
    means = {f"mean of {k}": float(x.mean()) for k, x in parts.items()}
    return means | {f"max of {k}": float(x.max()) for k, x in parts.items()}


def cases(trainer: Trainer, policies: Policies) -> dict[str, Case]:
    """Sampler cases draw with the random numbers of the float32 sampler."""
    eight = policies.rounded(ROUNDINGS["e4m3 128"])
    responses, again = (draw(trainer, policies.old, seed) for seed in (0, 1))
    drawn = draw(trainer, eight.old, 0)
    exact, redrawn, sampler = (judge(policies, *d) for d in (responses, again, drawn))
    first, first_low = (judge(p._replace(new=p.old), *responses) for p in (policies, eight))
    low = {k: Case(judge(policies.rounded(r), *responses), exact) for k, r in ROUNDINGS.items()}
    return {
        "float32": Case(exact, exact),
        **low,
        "e4m3 128 at pi_old": Case(first_low, first),
        "sampler": Case(sampler, sampler),
        "sampler, tis": Case(sampler, sampler, TIS),
        "both": Case(judge(eight, *drawn), sampler),
        "redrawn": Case(redrawn, redrawn),
    }


def ratios(cases: dict[str, Case]) -> dict[str, dict[str, float]]:
    """Sizes of the log-ratio, of what a trainer's rounding adds, and of log pi_old - log pi_gen."""
    exact = cases["float32"].judged
    gaps = {"log-ratio, float32": (exact.log_ratio, exact)}
    for k, low in ((k, cases[k].judged) for k in ROUNDINGS):
        gaps[f"its error, {k} trainer"] = low.log_ratio - exact.log_ratio, low
    for k, drawn in ((k, cases[k].judged) for k in ("sampler", "both")):
        assert drawn.rollouts.gen_logprobs is not None
        gaps[f"mismatch, {k}"] = drawn.rollouts.old_logprobs - drawn.rollouts.gen_logprobs, drawn
    return {row: sizes(gap, judged.rollouts.mask) for row, (gap, judged) in gaps.items()}


def measure(seed: int, steps: int) -> Iterator[tuple[tuple[str, ...], float]]:
    """(row, column...), value."""
    every = cases(*trained(seed, steps))
    for name in STUDIED:
        a = build(name)
        exact = gradient(a, every["float32"].judged)
        for k, case in every.items():
            reference = gradient(a, case.float32) if k == "e4m3 128 at pi_old" else exact
            yield from (((name, q, k), v) for q, v in compare(a, case, reference).items())
    for row, columns in ratios(every).items():
        yield from (((row, column), v) for column, v in columns.items())
    tokens, others = (every[k].judged.tokens for k in ("float32", "sampler"))
    yield ("e4m3 128 sampler", "changed %"), 100 * float((tokens != others).any(1).float().mean())


def table(
    values: dict[tuple[str, ...], list[float]], columns: list[tuple[str, ...]], digits: int = 2
) -> None:
    """Print mean ± standard deviation over the seeds, of the rows that have the first column."""
    print("| |", " | ".join(": ".join(column) for column in columns), "|")
    print("|---" * (len(columns) + 1) + "|")
    for row in (key[0] for key in values if key[1:] == columns[0]):
        cells = [torch.tensor(values[row, *column]) for column in columns]
        texts = [[f"{x:.{digits}f}".removeprefix("0") for x in (c.mean(), c.std())] for c in cells]
        print("|", row, "|", " | ".join(" ± ".join(pair) for pair in texts), "|")
    print()


def main(
    seeds: int = 5, steps: Annotated[int, typer.Option(help="GRPO steps before pi_old")] = 20
) -> None:
    torch.set_num_threads(1)
    values: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for seed in range(seeds):
        for key, value in measure(seed, steps):
            values[key].append(value)
    parts = ("tokens", "sums", "means")
    table(values, [(f"{f} of {k}",) for k in parts for f in ("mean", "max")], digits=4)
    table(values, [("changed %",)])
    table(values, TRAINER)
    table(values, SAMPLER)


if __name__ == "__main__":
    main.__doc__ = __doc__  # with its commands, for --help
    typer.run(main)
