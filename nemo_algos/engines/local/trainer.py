"""The training loop: generate, score, driver statistics once, several clipped updates."""

import time
import warnings
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.algorithms.core.metrics import Stats
from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.kernel import Signals
from nemo_algos.algorithms.loss import policy_loss
from nemo_algos.algorithms.riders import off_policy
from nemo_algos.algorithms.rollouts import Rollouts
from nemo_algos.engines import trace
from nemo_algos.engines.data.tasks import Task
from nemo_algos.engines.local.evaluation import attempts
from nemo_algos.engines.local.experience import Experience, Policy, Score
from nemo_algos.engines.local.lora import load_trained, trainable_state
from nemo_algos.engines.local.optimizer import optimizer_of, scheduler_of
from nemo_algos.engines.local.prompt_sharing import micro_batches
from nemo_algos.engines.local.schema import LocalConfig
from nemo_algos.engines.local.screen import Remarks
from nemo_algos.engines.mismatch.checksums import checksums
from nemo_algos.engines.mismatch.watch import Watch
from nemo_algos.engines.rewards import Verdict
from nemo_algos.engines.rewards.weighted import parts

if TYPE_CHECKING:
    from nemo_algos.engines.local.simulated_mismatch import PlantedSampler


PROBED = 16  # responses


class Trainer:
    """One run's state: policy, optimizer, scheduler, random states, step."""

    def __init__(
        self,
        config: LocalConfig,
        algorithm: Algorithm,
        policy: Policy,
        task: Task,
        reference: Score | None,
    ) -> None:
        self.config, self.algorithm, self.policy, self.task = config, algorithm, policy, task
        self.reference = reference
        self.parameters = [p for p in policy.model.parameters() if p.requires_grad]
        self.optimizer = optimizer_of(config.policy.optimizer, self.parameters)
        self.scheduler = scheduler_of(config.policy.scheduler, self.optimizer)
        self.generator = torch.Generator(self.parameters[0].device).manual_seed(config.grpo.seed)
        self.planted = self._build_sampler()
        self.step_number = 0
        self.needs, self.memory = algorithm.needs, dict[str, Any]()  # as of the last signals
        self.verdicts: list[Verdict] = []  # on the responses of the last batch
        self.remarks = Remarks(policy.ends, config.policy.generation.max_new_tokens)
        self.watch = Watch(config.mismatch)
        self.probe: Experience | None = None  # the first batch, of which some is asked again
        self.said: list[str] = []  # of the last step
        self.traces: list[dict[str, Any]] = []  # of the last step, where it is traced

    def _build_sampler(self) -> "PlantedSampler | None":
        """Who generates in the policy's place what it is trained on, where that is asked for."""
        if not self.config.policy.own_sampler:
            return None
        from nemo_algos.engines.local.simulated_mismatch import build_sampler  # few runs have one

        return build_sampler(self.policy, self.config, self.optimizer)

    def step(self) -> dict[str, float]:
        """One rollout batch and its updates; returns the step's metrics.

        Raises FloatingPointError for a sampler far from the trainer, and where a log-prob, an
        entropy or a gradient is not finite.
        """
        start = time.perf_counter()
        experience, rollouts = self.collect()
        generated = time.perf_counter()
        mismatch, rises = self._mismatch(experience)
        moved, arrives = self._probed(experience)
        corrected, correction = self.algorithm.correct(rollouts)
        correction |= self._weights(rollouts)
        rows = self.config.policy.train_global_batch_size
        signals = self.algorithm.signals(corrected, self.memory, rows)
        stats, grad_norm = self.update(experience, corrected, signals)
        self.memory = {**signals.memory, **self._update_drift(experience)}
        rate = self.optimizer.param_groups[0]["lr"]
        self.scheduler.step()
        self.step_number += 1
        self.traces = self._traces(experience, corrected, signals)
        self.said = self.remarks.of(self.step_number, self.verdicts, experience)
        remarks = (rises, arrives, self.watch.weights(correction))
        self.said += [f"step {self.step_number}: {remark}" for remark in remarks if remark]
        seconds = time.perf_counter() - start
        return {
            **rollout_metrics(rollouts, signals),
            "loss": 0.0,  # where every group is flat and nothing was trained
            **stats.summary(),
            **signals.metrics,
            **mismatch,
            **moved,
            **experience.distances,
            **correction,
            **reward_metrics(self.verdicts),
            "grad_norm": grad_norm,
            "lr": rate,
            "time/seconds": seconds,
            "time/generate": generated - start,
            "tokens_per_second": int(rollouts.lengths.sum()) / seconds,
        }

    def collect(self) -> tuple[Experience, Rollouts]:
        """A rollout batch with rewards, and reference log-probs where they are needed."""
        grpo, correct = self.config.grpo, self.config.loss_fn.use_importance_sampling_correction
        sampled = correct or "gen_logprobs" in self.algorithm.needs
        examples = self.task.examples(self.step_number, grpo.num_prompts_per_step)
        asked = examples, grpo.num_generations_per_prompt, self.generator
        experience, *_, self.verdicts = attempts(self.planted or self.policy, self.task, *asked)
        if self.config.loss_fn.on_nonfinite == "error":
            experience.check_finite()
        experience, ref_logprobs = self._with_reference(experience)
        by_name = reward_parts(self.verdicts)
        weights = {k: f.weight for k, f in self.config.data.functions.items() if k in by_name}
        rewards = torch.tensor([v.reward for v in self.verdicts], dtype=torch.float64)
        rollouts = Rollouts(
            group=experience.group,
            rewards=rewards,
            mask=experience.mask,
            old_logprobs=experience.logprobs,
            ref_logprobs=ref_logprobs,
            entropy=experience.entropy,
            gen_logprobs=experience.gen_logprobs if sampled else None,
            reward_parts=by_name,
            reward_weights=weights,
            prompt=experience.prompt_keys() if "prompt" in self.needs else None,
            drift=rewards.new_full(rewards.shape, self.memory.get("drift", 0.0)),
        )
        return experience, rollouts

    def _mismatch(self, experience: Experience) -> tuple[dict[str, float], str]:
        """As the watch's, where the trainer has log-probs of its own."""
        if self.algorithm.correction.bypass_mode:
            return {}, ""
        ask = partial(self._ask, experience)
        return self.watch.of(self.step_number + 1, self._columns(experience), ask)

    def _probed(self, experience: Experience) -> tuple[dict[str, float], str]:
        """As the watch's."""
        step = self.step_number + 1
        return self.watch.probed(step, *self._ask(experience)) if self.watch.due(step) else ({}, "")

    @torch.no_grad()
    def _ask(self, experience: Experience) -> tuple[dict[str, Tensor], dict[str, float]]:
        """A probe: some of the first responses, each twice, which shows rounding; checksums."""
        self.probe = self.probe or experience
        rows = torch.arange(min(PROBED, len(self.probe.group))).repeat(2)
        columns = {k: x[rows] if x.dim() else x for k, x in self._columns(self.probe).items()}
        sampler = self.planted or self.policy
        for name, policy in (("sampler_logprobs", sampler), ("trainer_logprobs", self.policy)):
            found = policy.logprobs(self.probe, rows).where(self.probe.mask[rows], 0.0).cpu()
            columns[name] = F.pad(found, (self.probe.prompts.shape[1], 0))
        sums = checksums(self.planted.model) if self.planted else {}
        return columns | {"step": torch.tensor(self.step_number)}, sums

    def _weights(self, rollouts: Rollouts) -> dict[str, float]:
        """Of `loss_fn.use_importance_sampling_correction`, {} without."""
        loss, sampled = self.config.loss_fn, rollouts.gen_logprobs
        if sampled is None or not loss.use_importance_sampling_correction:
            return {}
        pair = rollouts.old_logprobs, sampled
        return off_policy.sampler_metrics(
            self.algorithm.base.method, loss.cut, *pair, rollouts.mask
        )

    def _columns(self, experience: Experience) -> dict[str, Tensor]:
        """As a `Dump` has them, behind their prompts; the sampler has the trainer's weights."""
        version = torch.tensor(self.step_number)
        prompts = experience.prompts[experience.group]
        columns = {
            "mask": experience.mask,
            "sampler_logprobs": experience.gen_logprobs,
            "trainer_logprobs": experience.logprobs,
            "entropy": experience.entropy,
        }
        return {
            **{name: F.pad(values, (prompts.shape[1], 0)) for name, values in columns.items()},
            "tokens": torch.cat((prompts, experience.tokens), 1),
            "prompt_length": experience.prompt_mask.sum(1)[experience.group],
            "weights_version": version,
            "step": version,
        }

    def _update_drift(self, experience: Experience) -> dict[str, float]:
        """How far the updates moved the log-probs of these responses, where that is asked for."""
        if "drift" not in self.needs:
            return {}
        after = self._logprobs(
            self.policy.logprobs, experience, torch.arange(len(experience.group))
        )
        moved = (after - experience.logprobs)[experience.mask].abs().double()
        return {"drift": float(moved.mean()) if len(moved) else 0.0}

    def _with_reference(self, experience: Experience) -> tuple[Experience, Tensor | None]:
        """Both log-probs by one forward: ERPO's z-scores of their gap would amplify rounding.

        So those of responses with turns, which the sampler has seen in parts. None with
        old := sampler.
        """
        every = torch.arange(len(experience.group))
        bypass = self.algorithm.correction.bypass_mode
        if (self.reference or self.task.turns) and not bypass:
            old = self._logprobs(self.policy.logprobs, experience, every)
            experience = replace(experience, logprobs=old)
        if self.reference is None:
            return experience, None
        return experience, self._logprobs(self.reference, experience, every)

    @torch.no_grad()
    def _logprobs(self, score: Score, experience: Experience, rows: Tensor) -> Tensor:
        """Of the responses `rows`; [B,S], 0 elsewhere."""
        out = torch.zeros_like(experience.logprobs)
        for micro in self._micro_batches(experience, rows):
            out[micro] = score(experience, micro)
        return out.where(experience.mask, 0.0)

    def _micro_batches(self, experience: Experience, rows: Tensor) -> list[Tensor]:
        width = self.policy.tree_width(experience)
        return micro_batches(experience, rows, self.config.policy, width)

    def _traces(
        self, experience: Experience, rollouts: Rollouts, signals: Signals
    ) -> list[dict[str, Any]]:
        settings, step = self.config.logger, self.step_number
        if not trace.due(step, settings.trace_period, self.config.grpo.max_num_steps):
            return []
        rows = trace.traced_rows(experience.group, settings.traced_prompts)
        after = self._logprobs(self.policy.logprobs, experience, rows)[rows]
        part = rollouts[rows]
        given = part.mask, part.old_logprobs, signals[rows], after
        tokens = trace.tokens_of(self.algorithm, *given)
        return [
            trace.line(
                self._about(step, row, experience, rollouts),
                experience.mask[row],
                experience.entropy[row],
                {name: x[i] for name, x in tokens.items()},
            )
            for i, row in enumerate(rows.tolist())
        ]

    def _about(
        self, step: int, row: int, experience: Experience, rollouts: Rollouts
    ) -> dict[str, Any]:
        text, group = self.policy.decode, int(experience.group[row])
        prompt = experience.prompts[group][experience.prompt_mask[group]]
        return {
            "step": step,
            "group": group,
            "prompt": text(prompt.tolist()),
            "tokens": [text([t]) for t in experience.tokens[row][experience.mask[row]].tolist()],
            "reward": float(rollouts.rewards[row]),
        }

    def update(
        self, experience: Experience, rollouts: Rollouts, signals: Signals
    ) -> tuple[Stats, float]:
        """All optimizer steps on this batch; statistics added up, and the last gradient norm.

        Inert sequences are skipped, but count in every mean and in the number of optimizer steps.
        """
        every = torch.arange(len(rollouts))
        penalty = self.config.loss_fn.reference_policy_kl_penalty
        live = ~self.algorithm.inert_rows(signals) | (penalty > 0)
        total, norm = Stats.empty(), 0.0
        for _ in range(self.config.grpo.num_update_epochs):
            for rows in every.split(self.config.policy.train_global_batch_size):
                counts, rows = Counts.of(rollouts.mask[rows]), rows[live[rows]]
                total += self._accumulate(rows, experience, rollouts, signals, counts)
                norm = self._optimizer_step()
        return total, norm

    def _accumulate(
        self,
        rows: Tensor,
        experience: Experience,
        rollouts: Rollouts,
        signals: Signals,
        counts: Counts,
    ) -> Stats:
        """Gradients of these rows [N], micro-batch by micro-batch; zero where there are none."""
        total = Stats.empty()
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        for micro in self._micro_batches(experience, rows):
            logprobs, entropy = self._score(experience, micro)
            batch = rollouts[micro], signals[micro], counts, self.config.loss_fn, entropy
            loss = policy_loss(self.algorithm, logprobs, *batch)
            loss.value.backward()
            total += loss.stats
        return total

    def _score(self, experience: Experience, micro: Tensor) -> tuple[Tensor, Tensor | None]:
        """Log-probs with gradient, and entropies where their gradient is asked for."""
        if "entropy_gradient" in self.needs:
            return self.policy.logprobs_and_entropy(experience, micro)
        return self.policy.logprobs(experience, micro), None

    def _optimizer_step(self) -> float:
        limit = self.config.policy.max_grad_norm
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, limit)
        if not norm.isfinite():
            raise FloatingPointError(
                f"the gradient norm is {float(norm)} at step {self.step_number + 1}, so this "
                "minibatch was not applied. Lower the learning rate."
            )
        self.optimizer.step()
        return float(norm)

    def state(self) -> dict[str, Any]:
        """Everything that the next step depends on."""
        return {
            "step": self.step_number,
            "model": trainable_state(self.policy.model),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "generator": self.generator.get_state(),
            "memory": self.memory,
            "rates": self._rates(),
            "planted": self.planted.state() if self.planted else {},
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a state.

        Another learning rate or schedule counts from here on, as if it had been there all the time;
        on another kind of device other responses are drawn.
        """
        self.step_number, optimizer = state["step"], state["optimizer"]
        self.memory = state.get("memory", {})
        load_trained(self.policy.model, state["model"])
        if self.planted:
            self.planted.load(state["planted"])
        if state["rates"] == self._rates():
            self.scheduler.load_state_dict(state["scheduler"])
        else:
            with warnings.catch_warnings(action="ignore"):  # no step of the optimizer goes before
                for _ in range(self.step_number):
                    self.scheduler.step()
            groups = self.optimizer.state_dict()["param_groups"]
            optimizer = {**optimizer, "param_groups": groups}
        self.optimizer.load_state_dict(optimizer)
        if state["generator"].shape == self.generator.get_state().shape:
            self.generator.set_state(state["generator"])
        else:
            self.generator.manual_seed(self.config.grpo.seed + self.step_number)

    def _rates(self) -> dict[str, Any]:
        return self.config.policy.model_dump(mode="json", include={"optimizer", "scheduler"})


def reward_parts(verdicts: list[Verdict]) -> dict[str, Tensor]:
    """[B] float64 by name: the parts that every reward is made of."""
    whole = {k: v for k, v in parts(verdicts).items() if len(v) == len(verdicts)}
    rewards = {name: [verdict.reward for verdict in of] for name, of in whole.items()}
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in rewards.items()}


def reward_metrics(verdicts: list[Verdict]) -> dict[str, float]:
    """Responses that could not be judged; each named reward's mean, unweighted, and its own."""
    out: dict[str, float] = {"reward/unverified": sum(v.status != "ok" for v in verdicts)}
    for name, judged in parts(verdicts).items():
        out[f"reward/{name}"] = fmean(part.reward for part in judged)
        out[f"unverified/{name}"] = sum(part.status != "ok" for part in judged)
    return out


def rollout_metrics(rollouts: Rollouts, signals: Signals) -> dict[str, float]:
    """A rollout batch's statistics before any update; entropy in nats, lengths in tokens."""
    groups, rewards = rollouts.groups, rollouts.rewards
    lengths = rollouts.lengths.double()
    spread = signals.advantages.double().expand_as(rollouts.mask)[rollouts.mask]
    out = {
        "reward/mean": float(rewards.mean()),
        "reward/positive_share": float((rewards > 0).double().mean()),
        "groups/flat_share": float(groups.flat(rewards).double().mean()),
        "length/mean": float(lengths.mean()),
        "length/max": float(lengths.max()),
        "length/empty_share": float((lengths == 0).double().mean()),
        "advantage/mean": float(spread.mean()),
        "advantage/std": float(spread.std(correction=0)),
        "advantage/max": float(spread.abs().max()),
    }
    if rollouts.entropy is not None:
        out["entropy/exact"] = float(rollouts.entropy[rollouts.mask].mean())
    return out
