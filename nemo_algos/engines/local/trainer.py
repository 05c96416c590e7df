"""The training loop: generate, score, driver statistics once, several clipped updates."""

import time
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.algorithms.extensions.correction import sampler_metrics
from nemo_algos.algorithms.rollouts import Rollouts
from nemo_algos.engines.data.tasks import Task
from nemo_algos.engines.local.evaluation import attempts
from nemo_algos.engines.local.experience import Experience, Policy, Score
from nemo_algos.engines.local.lora import load_trained, trainable_state
from nemo_algos.engines.local.observer import (
    Observer,
    cut_share,
    reward_metrics,
    reward_parts,
    rollout_metrics,
)
from nemo_algos.engines.local.schema import EMULATED, SHAPES, LocalConfig
from nemo_algos.engines.local.updates import Batch, Updates
from nemo_algos.engines.remarks import Remarks
from nemo_algos.engines.rewards import Verdict


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
        self.config = config
        self.algorithm = algorithm
        self.policy = policy
        self.task = task
        self.reference = reference
        self.update = Updates(config, algorithm, policy)
        device = self.update.parameters[0].device
        self.generator = torch.Generator(device).manual_seed(config.grpo.seed)
        self.sampler = self.build_sampler()
        self.step_number = 0
        self.needs, self.memory = algorithm.needs, dict[str, Any]()  # as of the last signals
        self.verdicts: list[Verdict] = []  # on the responses of the last batch
        grpo = config.grpo
        self.remarks = Remarks(
            grpo.num_generations_per_prompt,
            grpo.num_prompts_per_step * grpo.num_generations_per_prompt,
            config.policy.generation.max_new_tokens,
            planned=grpo.max_num_steps,
        )
        self.observer = Observer(self.update, self.sampler)
        self.said: list[str] = []  # of the last step
        self.traces: list[dict[str, Any]] = []  # of the last step, where it is traced

    def build_sampler(self) -> Policy:
        """Who generates what is trained on: the policy, or a copy where it trains in low precision.

        Evaluations sample from the policy itself.
        """
        emulated = self.config.policy.precision in EMULATED
        if not (emulated and self.config.policy.model_name in SHAPES):
            return self.policy
        from nemo_algos.engines.local.tiny_policy import (
            SeparateSampler,  # few runs have one
            TinyPolicy,
        )

        assert isinstance(self.policy, TinyPolicy)
        return SeparateSampler(self.policy)

    def step(self) -> dict[str, float]:
        """One rollout batch and its updates; returns the step's metrics.

        Raises FloatingPointError for a sampler far from the trainer, and where a log-prob, an
        entropy or a gradient is not finite.
        """
        start = time.perf_counter()
        number = self.step_number + 1
        experience, rollouts = self.collect()
        generated = time.perf_counter()
        mismatch, apart = self.observer.mismatch(number, experience)
        moved, arrives = self.observer.probed(number, experience)
        corrected, correction = self.algorithm.correct(rollouts)
        correction |= self._weights(rollouts)
        rows = self.config.policy.train_global_batch_size
        signals = self.algorithm.signals(corrected, self.memory, rows)
        stats, norms = self.update(Batch(experience, corrected, signals))
        self.memory = {**signals.memory, **self._drift(experience)}
        rate = self.update.optimizer.param_groups[0]["lr"]
        self.update.scheduler.step()
        self.step_number = number
        self.traces = self.observer.traces(number, experience, corrected, signals)
        seconds = time.perf_counter() - start
        metrics = {
            **rollout_metrics(rollouts, signals),
            **stats.summary(updates=len(norms)),
            **signals.metrics,
            **mismatch,
            **moved,
            **experience.distances,
            **correction,
            **reward_metrics(self.verdicts),
            "length/cut_share": cut_share(experience, self.policy.ends),
            "grad_norm": fmean(norms),
            "lr": rate,
            "time/seconds": seconds,
            "time/generate": generated - start,
            "tokens_per_second": int(rollouts.lengths.sum()) / seconds,
        }
        failed = []
        for v in self.verdicts:
            if v.status != "ok":
                failed.append(v.detail or v.status)
        self.said = self.remarks.of(number, metrics, "".join(failed[-1:]))
        success = self.algorithm.success_remark(rollouts) if number == 1 else ""
        self.said += self.remarks.note(number, (apart, arrives, success))
        return metrics

    def collect(self) -> tuple[Experience, Rollouts]:
        """A rollout batch with rewards, and reference log-probs where they are needed."""
        grpo = self.config.grpo
        correct = self.config.loss_fn.use_importance_sampling_correction
        sampled = correct or "gen_logprobs" in self.algorithm.needs
        examples = self.task.examples(self.step_number, grpo.num_prompts_per_step)
        experience, _, _, self.verdicts = attempts(
            self.sampler,
            self.task,
            examples,
            samples=grpo.num_generations_per_prompt,
            generator=self.generator,
        )
        if self.config.loss_fn.on_nonfinite == "error":
            experience.check_finite()
        experience, ref_logprobs = self._with_reference(experience)
        by_name = (
            reward_parts(self.verdicts) if self.needs & {"reward_parts", "turn_rewards"} else {}
        )
        weights = {}
        for k, f in self.config.data.functions.items():
            if k in by_name:
                weights[k] = f.weight
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

    def _weights(self, rollouts: Rollouts) -> dict[str, float]:
        """Of `loss_fn.use_importance_sampling_correction`, {} without."""
        loss = self.config.loss_fn
        sampled = rollouts.gen_logprobs
        if sampled is None or not loss.use_importance_sampling_correction:
            return {}
        return sampler_metrics(
            self.algorithm.base.method,
            loss.cut,
            rollouts.old_logprobs,
            gen=sampled,
            mask=rollouts.mask,
            turn=rollouts.turn,
        )

    def _drift(self, experience: Experience) -> dict[str, float]:
        """How far the updates moved the log-probs of these responses, where that is asked for."""
        if "drift" not in self.needs:
            return {}
        every = torch.arange(len(experience.group))
        after = self.update.logprobs(self.policy.logprobs, experience, every)
        moved = (after - experience.logprobs)[experience.mask].abs().double()
        return {"drift": float(moved.mean()) if len(moved) else 0.0}

    def _with_reference(self, experience: Experience) -> tuple[Experience, Tensor | None]:
        """Both log-probs by one forward: ERPO's z-scores of their gap would amplify rounding.

        So those of responses with turns, which the sampler has seen in parts. None with
        old_policy: sampler.
        """
        every = torch.arange(len(experience.group))
        bypass = self.algorithm.correction.bypass_mode
        if (self.reference or self.task.turns) and not bypass:
            old = self.update.logprobs(self.policy.logprobs, experience, every)
            experience = replace(experience, logprobs=old)
        if self.reference is None:
            return experience, None
        return experience, self.update.logprobs(self.reference, experience, every)

    def state(self) -> dict[str, Any]:
        """Everything that the next step depends on."""
        return {
            "step": self.step_number,
            "model": trainable_state(self.policy.model),
            **self.update.state(),
            "generator": self.generator.get_state(),
            "memory": self.memory,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a state.

        Another learning rate or schedule counts from here on, as if it had been there all the time;
        on another kind of device other responses are drawn.
        """
        self.step_number, self.memory = state["step"], state.get("memory", {})
        load_trained(self.policy.model, state["model"])
        self.update.load(state)
        if state["generator"].shape == self.generator.get_state().shape:
            self.generator.set_state(state["generator"])
        else:
            self.generator.manual_seed(self.config.grpo.seed + self.step_number)
