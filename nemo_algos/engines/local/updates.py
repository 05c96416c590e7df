"""The optimizer steps on a rollout batch, micro-batch by micro-batch.

Optimizers and schedulers have the full names of their classes, as NeMo-RL's configs name them.
"""

import warnings
from collections.abc import Iterator, Sequence
from math import isfinite
from pkgutil import resolve_name
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ConstantLR, LRScheduler, SequentialLR

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.algorithms.core.metrics import Stats
from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.kernel import Signals
from nemo_algos.algorithms.loss import Heads, Loss, policy_loss
from nemo_algos.algorithms.rollouts import Rollouts
from nemo_algos.engines.local.experience import Experience, Policy, Score
from nemo_algos.engines.local.prompt_sharing import micro_batches
from nemo_algos.engines.local.schema import LocalConfig, Milestones, TorchClass
from nemo_algos.findings import ConfigError, Finding

OPTIMIZER = "policy.optimizer"
SCHEDULER = "policy.scheduler"


class Batch(NamedTuple):
    """What is trained on: the responses as a policy reads them, and as a method does."""

    experience: Experience
    rollouts: Rollouts
    signals: Signals


class Updates:
    """A policy's optimizer and its schedule."""

    def __init__(self, config: LocalConfig, algorithm: Algorithm, policy: Policy) -> None:
        self.config = config
        self.algorithm = algorithm
        self.policy = policy
        self.parameters = [p for p in policy.model.parameters() if p.requires_grad]
        self.optimizer = optimizer_of(config.policy.optimizer, self.parameters)
        self.scheduler = scheduler_of(config.policy.scheduler, self.optimizer)

    def __call__(self, batch: Batch) -> tuple[Stats, list[float]]:
        """All optimizer steps on this batch: statistics of all its tokens, each gradient's norm.

        Inert sequences have no gradient, so they go through the model without one; they count in
        every mean, in the statistics and in the number of optimizer steps. Raises
        FloatingPointError where a gradient is not finite, or no response token's log-prob is.
        """
        mask = batch.rollouts.mask
        every = torch.arange(len(mask))
        penalty = self.config.loss_fn.reference_policy_kl_penalty
        live = ~self.algorithm.inert_rows(batch.signals) | (penalty > 0)
        total = Stats.empty()
        norms = list[float]()
        for _ in range(self.config.grpo.num_update_epochs):
            for rows in every.split(self.config.policy.train_global_batch_size):
                counts = Counts.of(mask[rows])
                moving = rows[live[rows]]
                still = rows[~live[rows]]
                total += self.accumulate(moving, batch, counts)
                if norms or self.algorithm.correction.bypass_mode:
                    total += self._observe(still, batch, counts)
                elif len(still):  # before the first update the policy is pi_old
                    total += self._observe_old(still, batch, counts)
                norms.append(self._step())
        if mask.any() and not total.sums["tokens"]:
            raise FloatingPointError(
                f"no response token has a finite log-prob at step {self._number()}, so nothing "
                "can be learned. Lower the learning rate, and resume from an earlier checkpoint."
            )
        return total, norms

    def accumulate(self, rows: Tensor, batch: Batch, counts: Counts) -> Stats:
        """Gradients of these rows [N], micro-batch by micro-batch; zero where there are none."""
        total = Stats.empty()
        self.optimizer.zero_grad()
        for loss in self._losses(rows, batch, counts):
            loss.value.backward()
            total += loss.stats
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return total

    @torch.no_grad()
    def _observe(self, rows: Tensor, batch: Batch, counts: Counts) -> Stats:
        """Statistics of these rows [N], without a gradient."""
        losses = self._losses(rows, batch, counts)
        return sum((loss.stats for loss in losses), Stats.empty())

    @torch.no_grad()
    def _observe_old(self, rows: Tensor, batch: Batch, counts: Counts) -> Stats:
        """Statistics of these rows [N] under the policy that sampled them."""
        rollouts = batch.rollouts[rows]
        return policy_loss(
            self.algorithm,
            rollouts.old_logprobs,
            rollouts=rollouts,
            signals=batch.signals[rows],
            counts=counts,
            config=self.config.loss_fn,
            entropy=rollouts.entropy if "entropy_gradient" in self.algorithm.needs else None,
        ).stats

    def _losses(self, rows: Tensor, batch: Batch, counts: Counts) -> Iterator[Loss]:
        """The loss of each micro-batch of these rows [N]."""
        for micro in self._micro_batches(batch.experience, rows):
            logprobs, entropy, heads = self._score(batch.experience, micro)
            yield policy_loss(
                self.algorithm,
                logprobs,
                rollouts=batch.rollouts[micro],
                signals=batch.signals[micro],
                counts=counts,
                config=self.config.loss_fn,
                entropy=entropy,
                heads=heads,
            )

    def _score(
        self, experience: Experience, micro: Tensor
    ) -> tuple[Tensor, Tensor | None, Heads | None]:
        """Log-probs with gradient, and entropies and heads where theirs are asked for."""
        asked = "entropy_gradient" in self.algorithm.needs
        if not self.config.loss_fn.score_centering:
            if asked:
                return *self.policy.logprobs_and_entropy(experience, micro), None
            return self.policy.logprobs(experience, micro), None, None
        assert experience.likeliest_logprobs is not None
        entropy = self.policy.logprobs_and_entropy(experience, micro)[1] if asked else None
        logprobs, ours = self.policy.logprobs_and_heads(experience, micro)
        return logprobs, entropy, (ours, experience.likeliest_logprobs[micro])

    def _step(self) -> float:
        limit = self.config.policy.max_grad_norm
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, limit)
        if not norm.isfinite():
            raise FloatingPointError(
                f"the gradient norm is {float(norm)} at step {self._number()}, so this "
                "minibatch was not applied. Lower the learning rate."
            )
        self.optimizer.step()
        return float(norm)

    def _number(self) -> int:
        """The step's; the scheduler takes one per batch."""
        return self.scheduler.last_epoch + 1

    @torch.no_grad()
    def logprobs(self, score: Score, experience: Experience, rows: Tensor) -> Tensor:
        """Of the responses `rows` [N], in micro-batches; [B,S], 0 elsewhere."""
        out = torch.zeros_like(experience.logprobs)
        for micro in self._micro_batches(experience, rows):
            out[micro] = score(experience, micro)
        return out.where(experience.mask, 0.0)

    def _micro_batches(self, experience: Experience, rows: Tensor) -> list[Tensor]:
        width = self.policy.tree_width(experience)
        return micro_batches(experience, rows, self.config.policy, width)

    def state(self) -> dict[str, Any]:
        return {
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "rates": self._rates(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a state.

        Another learning rate or schedule counts from here on, as if it had been there all the time.
        """
        optimizer = state["optimizer"]
        if state["rates"] == self._rates():
            self.scheduler.load_state_dict(state["scheduler"])
        else:
            with warnings.catch_warnings(action="ignore"):  # no step of the optimizer goes before
                for _ in range(state["step"]):
                    self.scheduler.step()
            groups = self.optimizer.state_dict()["param_groups"]
            optimizer = {**optimizer, "param_groups": groups}
        self.optimizer.load_state_dict(optimizer)

    def _rates(self) -> dict[str, Any]:
        return self.config.policy.model_dump(mode="json", include={"optimizer", "scheduler"})


def optimizer_of(component: TorchClass, parameters: Sequence[torch.nn.Parameter]) -> Optimizer:
    """The optimizer of these parameters. Raises ConfigError."""
    return _make(component, OPTIMIZER, Optimizer, parameters)


def scheduler_of(entries: Sequence[TorchClass | Milestones], optimizer: Optimizer) -> LRScheduler:
    """NeMo-RL's list: schedulers by name, then the milestones at which the next takes over.

    It takes one step per batch. Raises ConfigError with all that is wrong.
    """
    milestones = []
    for e in entries:
        if isinstance(e, Milestones):
            milestones += e.milestones
    made = list[LRScheduler]()
    findings = list[Finding]()
    named = [entry for entry in entries if isinstance(entry, TorchClass)]
    for entry in named:
        try:
            made.append(_make(entry, SCHEDULER, LRScheduler, optimizer))
        except ConfigError as error:
            findings += error.findings
    if named and (len(milestones) != len(named) - 1 or milestones != sorted(set(milestones))):
        findings.append(
            Finding(
                SCHEDULER,
                f"{len(named)} schedulers need {len(named) - 1} ascending milestones, got "
                f"{milestones}",
            )
        )
    if findings:
        raise ConfigError(findings)
    if not made:
        return ConstantLR(optimizer, factor=1.0)
    try:
        return SequentialLR(optimizer, made, milestones)
    except ValueError as error:
        raise ConfigError([Finding(SCHEDULER, str(error))]) from None


def _make(component: TorchClass, key: str, base: type, argument: Any) -> Any:
    module, _, name = component.name.rpartition(".")
    if not module:
        example = "torch.optim.AdamW" if base is Optimizer else "torch.optim.lr_scheduler.LinearLR"
        raise ConfigError(
            [
                Finding(
                    key,
                    f"{component.name} has no module. Name the class in full, such as {example}.",
                )
            ]
        )
    try:
        kind = resolve_name(f"{module}:{name}")
        if not (isinstance(kind, type) and issubclass(kind, base)):
            raise TypeError(f"it is not a subclass of {base.__name__}")
        return kind(argument, **component.kwargs)
    except Exception as error:  # of the class: its own kinds
        raise ConfigError(
            [Finding(key, f"{component.name} cannot be built with {component.kwargs}: {error}")]
        ) from None


def rehearse(optimizer: TorchClass, scheduler: Sequence[TorchClass | Milestones]) -> list[Finding]:
    """Findings of one step of both on parameters of a few numbers."""
    findings = []
    for name, value in optimizer.kwargs.items():
        infinite = isinstance(value, float) and not isfinite(value)
        if infinite or (name == "lr" and isinstance(value, str)):
            path = f"{OPTIMIZER}.kwargs.{name}"
            findings.append(Finding(path, f"must be a finite number, got {value}"))
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in (2, (2, 2))]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    stepped: Optimizer = torch.optim.AdamW(parameters)
    try:
        stepped = stepped if findings else optimizer_of(optimizer, parameters)
    except ConfigError as error:
        findings += error.findings
    rates = [group.get("lr", 1.0) for group in stepped.param_groups]
    if not findings and not all(rate > 0 for rate in rates):
        findings.append(Finding(f"{OPTIMIZER}.kwargs.lr", f"must be above 0, got {rates[0]}"))
    each: Any = stepped
    try:
        made = scheduler_of(scheduler, stepped)
        for each in (stepped, made):
            each.step()
    except ConfigError as error:
        findings += error.findings
    except Exception as error:  # such as LBFGS, which wants a function
        key = OPTIMIZER if each is stepped else SCHEDULER
        findings.append(Finding(key, f"a step of {type(each).__name__} fails: {error}"))
    return findings
