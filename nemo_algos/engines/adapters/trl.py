"""The methods in TRL's GRPOTrainer (from 1.16): TRL generates, rewards and steps; the loss is ours.

The driver half is computed once per generation batch, on every process from the rows of all, for a
process may end within a group. TRL shuffles and cuts that batch, and a column of row numbers in it;
the weights of loss terms are scaled to the optimizer batches that come of it.
"""

import copy
import json
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, fields, replace
from functools import wraps
from importlib.metadata import version
from inspect import iscoroutinefunction, signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer

from nemo_algos import (
    Algorithm,
    ConfigError,
    Counts,
    Finding,
    LossConfig,
    Rollouts,
    Signals,
    build,
    policy_loss,
    sampler_changes,
    validate,
    warn_on_policy,
)

LOG = logging.getLogger(__name__)
GIVEN = {  # of all that methods need
    "entropy", "entropy_gradient", "memory", "ref_logprobs", "reward_parts", "turn_rewards",
    "unit_rewards",
}  # fmt: skip
SAMPLING = ("min_p", "repetition_penalty", "top_k", "top_p")  # of args: what vLLM is told
CORRECTION = "vllm_importance_sampling_correction"
REPLACED = {  # by how their names begin
    "beta": "set `loss_fn.reference_policy_kl_penalty`",
    "delta": "set `method.dual_clip`",
    "entropy_": "set `method.terms: {entropy: {coef: ...}}`",
    "epsilon": "set `method.clip_low` and `method.clip_high`",
    "importance_sampling_level": "for sequence ratios set `method.name: gspo` or quatro",
    "loss_type": "set `method.name` and `method.aggregation`",
    "multi_objective_aggregation": "rewards are summed, and the method normalises the sum",
    "off_policy_mask_threshold": "set `loss_fn.truncated_importance_sampling_type`",
    "sapo_": "set `method.name: sapo`",
    "scale_rewards": "set `method.advantage_std`",
    "top_entropy_quantile": "every token is in the loss",
    "use_adaptive_entropy": "set `method.terms: {adaptive_entropy: {target: ...}}`",
    "use_bias_correction_kl": "set `loss_fn.reference_policy_kl_type: unbiased` for True, else k3",
    "use_liger_kernel": "log-probs and entropies come from TRL's own fused head",
    "vespo_": "set `method.name: vespo`",
    "vllm_importance_sampling_cap": "set `loss_fn.truncated_importance_sampling_ratio`",
    "vllm_importance_sampling_clip": "set `loss_fn.truncated_importance_sampling_ratio`",
    "vllm_importance_sampling_mode": "set `loss_fn.truncated_importance_sampling_type`",
}

ASYNCHRONOUS = (
    "TRL's AsyncGRPOTrainer has no adapter: its workers compute the advantages, and its loss gets "
    "them with tokens, without groups, rewards or a reference. Use MethodTrainer with a GRPOConfig "
    "(`num_iterations` and `steps_per_generation` for several updates of a batch), or NeMo-RL's "
    "asynchronous GRPO (`grpo.async_grpo.enabled: true`)."
)
TESTED_TRL = "Install the version that is tested: pip install 'trl>=1.16,<1.17'."
UNBALANCED = Finding("args.router_aux_loss_coef", "the loss cannot balance experts. Set it to 0.")
MEMORY = "nemo_algos_memory"  # its key in trainer_state.json, which TRL saves and loads
HOOKS = (
    "_calculate_rewards", "_compute_loss", "_generate_and_score_completions",
    "_get_per_token_logps_and_entropies", "_prepare_inputs",
)  # fmt: skip
missing = ", ".join(name for name in HOOKS if not hasattr(GRPOTrainer, name))
if missing:
    raise ImportError(f"TRL {version('trl')}: GRPOTrainer has no {missing}. {TESTED_TRL}")
# inputs of an encoder of images: what follows self, model, input_ids, attention_mask,
# logits_to_keep, batch_size, compute_entropy and compute_aux_loss
VISION = [*signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters][8:]


def judge(
    method: Any, loss_fn: Any, args: GRPOConfig, sampled: bool
) -> tuple[Algorithm, LossConfig, GRPOConfig]:
    """The blocks `method:` and `loss_fn:`, and args with beta 1 where TRL must keep a reference.

    sampled: whether a function of the user's gives the sampler's log-probs. Raises ConfigError with
    every finding.
    """
    if not isinstance(args, GRPOConfig):
        kind = type(args).__name__
        more = f" {ASYNCHRONOUS}" if kind == "AsyncGRPOConfig" else ""
        raise ConfigError([Finding("args", f"must be trl's GRPOConfig, got {kind}.{more}")])
    findings: list[Finding] = []
    algorithm = None
    loss = LossConfig()
    try:
        algorithm = build(method).with_max_tokens(args.max_completion_length)
    except ConfigError as error:
        findings += error.findings
    try:
        loss = validate(LossConfig, dict(loss_fn or {}), "loss_fn")
    except ConfigError as error:
        findings += error.findings
    findings += [*misfits(algorithm, args), *_sampler_findings(loss, args, sampled)]
    if findings or algorithm is None:
        raise ConfigError(findings)
    warn_on_policy(algorithm, updates_per_batch(args), "args.num_iterations")
    loss.warn()
    args = copy.copy(args)
    penalty = loss.reference_policy_kl_penalty
    args.beta = float("ref_logprobs" in algorithm.needs or penalty > 0)  # TRL's only switch
    return algorithm, loss, args


def updates_per_batch(args: GRPOConfig) -> int:
    """Optimizer steps on one generation batch."""
    return args.num_iterations * args.steps_per_generation // args.gradient_accumulation_steps


def foretold(args: GRPOConfig, updates: int, scheduler: Any) -> str:
    """What a run of so many optimizer steps will do, as far as its arguments say."""
    each = updates_per_batch(args)
    responses = args.generation_batch_size
    prompts = responses // args.num_generations
    parts = [
        f"This run: {updates / each:.4g} batches of {prompts} prompts x {args.num_generations} "
        f"responses, {each} update{'s' * (each > 1)} of each"
    ]
    factors = getattr(scheduler, "lr_lambdas", None)
    if factors and updates:
        rates = [scheduler.base_lrs[0] * factors[0](step) for step in range(updates)]
        top = max(rates)
        peak = f"{top:.3g} at step {rates.index(top) + 1}"
        parts.append(f"learning rate {rates[0]:.3g}, {peak}, {rates[-1]:.3g} at step {updates}")
    for what, strategy, period in (
        ("saves", args.save_strategy, args.save_steps),
        ("validates", args.eval_strategy, args.eval_steps),
    ):
        when = {"no": "never", "steps": f"every {period} steps", "epoch": "after each epoch"}
        parts.append(f"{what} {when.get(strategy, 'at times of its own')}")
    return "; ".join(parts)


def _sampler_findings(loss: LossConfig, args: GRPOConfig, sampled: bool) -> Iterator[Finding]:
    """Why the sampler's log-probs are missing, or of another distribution than the trainer's."""
    if not loss.use_importance_sampling_correction:
        return
    if not (args.use_vllm or sampled):
        yield Finding(
            "loss_fn.use_importance_sampling_correction",
            "it needs the sampler's log-probs: use_vllm=True or a rollout_func provides them. Use "
            "one of them, or set this to False.",
        )
    told = {name: getattr(args, name) for name in SAMPLING}
    told["structured_outputs"] = args.vllm_structured_outputs_regex
    for name, reason in sampler_changes(told, args.temperature).items():
        key = "vllm_structured_outputs_regex" if name == "structured_outputs" else name
        yield Finding(f"args.{key}", reason)
    for name, reason in sampler_changes(args.generation_kwargs or {}, args.temperature).items():
        yield Finding(f"args.generation_kwargs.{name}", reason)


def misfits(algorithm: Algorithm | None, args: GRPOConfig) -> Iterator[Finding]:
    """Each with what to do about it. algorithm: None where the method is wrong by itself."""
    missing = sorted(algorithm.needs - GIVEN) if algorithm else []
    if algorithm and missing:
        yield Finding(
            "method", f"{algorithm.name} needs {', '.join(missing)}, which TRL does not provide"
        )
    for field in fields(GRPOConfig):
        advice = next((v for k, v in REPLACED.items() if field.name.startswith(k)), None)
        if advice and getattr(args, field.name) != field.default:
            yield Finding(
                f"args.{field.name}",
                f"it only applies to TRL's loss, which the method replaces. Remove it; {advice}",
            )
    if args.use_vllm and getattr(args, CORRECTION):
        yield Finding(
            f"args.{CORRECTION}",
            "it only applies to TRL's loss, which the method replaces. Set it to False, and set "
            "`loss_fn.use_importance_sampling_correction` instead.",
        )
    if args.steps_per_generation % args.gradient_accumulation_steps:
        found = args.steps_per_generation
        unit = args.gradient_accumulation_steps
        yield Finding(
            "args.steps_per_generation",
            f"{found} must be a multiple of `gradient_accumulation_steps: {unit}`. Change one of "
            "them.",
        )


def unnamed_rewards(algorithm: Algorithm, names: list[str]) -> Iterator[Finding]:
    """Where the method reads rewards by name, and the functions have no such names."""
    known = ", ".join(names)
    for key, part in algorithm.columns.items():
        if part not in names:
            yield Finding(key, f"no reward function is called {part}. There are: {known}.")
    read = algorithm.needs & {"reward_parts", "turn_rewards"}
    if read and len({*names}) < len(names):
        yield Finding(
            "reward_funcs",
            f"{algorithm.name} reads each of them by its name, but two have the same: {known}. "
            "Rename one (its `__name__`).",
        )


def finite(function: Callable[..., Any]) -> Callable[..., Any]:
    """The reward function, which may return None, but raises ValueError where it returns NaN.

    TRL writes NaN for None, so that it would take a broken reward for one that was not given.
    """
    name = getattr(function, "__name__", type(function).__name__)

    def checked(rewards: list[Any]) -> list[Any]:
        for number, reward in enumerate(rewards):
            if reward is not None and not math.isfinite(reward):
                raise ValueError(
                    f"the reward function {name} returned {reward} for completion {number}. Return "
                    "a number, or None where it has nothing to say."
                )
        return rewards

    @wraps(function)
    def judged(*given: Any, **named: Any) -> list[Any]:
        return checked(function(*given, **named))

    @wraps(function)
    async def awaited(*given: Any, **named: Any) -> list[Any]:
        return checked(await function(*given, **named))

    own = iscoroutinefunction(function) or iscoroutinefunction(function.__call__)
    return awaited if own else judged


class MethodTrainer(GRPOTrainer):
    """GRPOTrainer with our `method:` and `loss_fn:` blocks; its other arguments are TRL's.

    Raises ConfigError with all that is wrong in the blocks, and in args beside them.
    """

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        if "AsyncGRPOTrainer" in [kind.__name__ for kind in cls.__mro__]:
            raise TypeError(ASYNCHRONOUS)

    def __init__(
        self, *given: Any, args: GRPOConfig, method: Any, loss_fn: Any = None, **named: Any
    ) -> None:
        self.algorithm, self.loss_config, args = judge(
            method, loss_fn, args, named.get("rollout_func") is not None
        )
        super().__init__(*given, args=args, **named)
        functions = []
        for function in self.reward_funcs:
            model = isinstance(function, torch.nn.Module)
            functions.append(function if model else finite(function))
        self.reward_funcs = functions
        # `judge` set it so that TRL loads a reference. TRL has copied it to self.beta, which stays,
        # and asks the reference in every generation; what is recorded are the user's args: 0
        args.beta = 0.0
        if self.aux_loss_enabled:  # by the model's own coefficient, where none is written
            raise ConfigError([UNBALANCED])
        self._blocks = {"method": method, "loss_fn": loss_fn or {}}
        self._updates = updates_per_batch(args)
        self._warn()
        findings = [*unnamed_rewards(self.algorithm, self.reward_func_names)]
        if findings:
            raise ConfigError(findings)
        self._stats = None
        self._is_ours = False  # whether TRL has asked for our loss in this step
        # by mode: evaluations come between a batch's steps
        self._own = {}
        self._coefficients = {}

    def _warn(self) -> None:
        """Of what makes ratios or resumed runs another thing than they seem."""
        active = list[str]()
        for name, module in self.model.named_modules():
            functional = getattr(module, "attention_dropout", 0.0)
            if isinstance(module, torch.nn.Dropout) and module.p > 0:
                active.append(name.rpartition("lora_dropout")[1] or name)
            elif isinstance(functional, float) and functional > 0:
                active.append("attention_dropout")
        if active and self._updates > 1:
            warnings.warn(
                f"{', '.join(dict.fromkeys(active))}: each forward pass draws another dropout "
                "mask, so ratios differ from 1 before the first update, and bounds clip noise. Set "
                "the dropout to 0.",
                stacklevel=3,
            )
        period = self.args.save_steps if self.args.save_strategy == "steps" else 0
        if period >= 1 and period % self._updates:
            warnings.warn(
                f"args.save_steps: a checkpoint after {period:g} steps lies within a generation "
                f"batch of {self._updates} updates, and a run that goes on from it generates "
                f"another one. Set it to a multiple of {self._updates}.",
                stacklevel=3,
            )

    def train(self, *given: Any, **named: Any) -> Any:
        """TRL's, once the run is recorded."""
        if self.accelerator.is_main_process:
            self._record(self._blocks)
        return super().train(*given, **named)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """TRL's, once the run is foretold."""
        scheduler = super().create_scheduler(num_training_steps, optimizer)
        if self.accelerator.is_main_process:
            LOG.info("%s", foretold(self.args, num_training_steps, scheduler))
        return scheduler

    def _record(self, blocks: dict[str, Any]) -> None:
        """nemo_algos.json in the output folder, for `nemo-algos report`: TRL has no such file."""
        own = {"seed", "data_seed", "output_dir", "logging_dir", "run_name"}  # differ between seeds
        arguments = {}
        for k, v in self.args.to_sanitized_dict().items():
            if k not in own:
                arguments[k] = v
        method = blocks["method"]
        written = blocks | {"method": {"name": method} if isinstance(method, str) else method}
        config = written | {"grpo": {"seed": self.args.seed}, "trl": arguments}
        folder = Path(self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(
            {"config": config}, indent=2, default=lambda x: getattr(x, "name", str(x))
        )
        (folder / "nemo_algos.json").write_text(text)

    def training_step(self, *args: Any, **named: Any) -> Tensor:
        """TRL's. Raises ConfigError where it trains with another loss than ours."""
        self._is_ours = False
        loss = super().training_step(*args, **named)
        if not self._is_ours:
            raise ConfigError(
                [
                    Finding(
                        "",
                        f"TRL {version('trl')} computes its loss without asking for the method's. "
                        f"{TESTED_TRL}",
                    )
                ]
            )
        return loss

    def _calculate_rewards(self, *args: Any) -> Tensor:
        self._rewards = super()._calculate_rewards(*args)  # [N, functions], of all processes
        return self._rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super()._generate_and_score_completions(inputs)
        rows = torch.arange(len(batch["completion_mask"]), device=self.accelerator.device)
        numbers = rows + len(rows) * self.accelerator.process_index  # among all processes'
        own = self._rollouts(batch, numbers)
        given = {f.name: getattr(own, f.name) for f in fields(own)}
        named = {}
        for k, x in given.items():
            if x is not None:
                named[k] = self._everyones(x)
        parts = self._rewards.nan_to_num().unbind(1)
        by_name = dict(zip(self.reward_func_names, parts, strict=True))
        weights = dict(zip(self.reward_func_names, self.reward_weights.tolist(), strict=True))
        whole = Rollouts(**named, reward_parts=by_name, reward_weights=weights)
        if self.model.training and self.state.global_step == 0:
            remark = self.algorithm.success_remark(whole)
            if remark:
                warnings.warn(f"step 1: {remark}", stacklevel=2)
        kept = self.state.stateful_callbacks
        signals = self.algorithm.signals(whole, kept.get(MEMORY, {}))
        # an entry that is empty would have transformers look for a callback of its name, and warn
        if self.model.training and signals.memory:
            kept[MEMORY] = signals.memory
        exact = {}
        if whole.entropy is not None:
            exact["entropy/exact"] = float(whole.entropy[whole.mask].mean())
        self._log({**exact, **signals.metrics})
        self._coefficients[self.model.training] = self._term_weights(whole, signals)
        shown = (signals.advantages * whole.mask).sum(1) / whole.lengths.clamp(min=1)
        log = self._logs["advantages"]
        for _ in range(min(len(whole), len(log))):
            log.pop()  # TRL's
        log.extend(shown.tolist())
        # The loss reads no reports. A mark tells rows apart by their old log-probs, for which
        # `_compute_loss` may take those of its own forward: it would find these rows to be others.
        signals = replace(signals, reports={}, mark=None)[numbers][:, : own.mask.shape[1]]
        self._own[self.model.training] = own, signals
        return batch | {"rows": rows}

    def _rollouts(self, batch: dict[str, Any], numbers: Tensor) -> Rollouts:
        """Of this process, whose rows these are; a group is consecutive rows of all processes'."""
        completion = batch["completion_mask"]
        train = self.model.training
        rewards = self._rewards[numbers]
        old = batch.get("old_per_token_logps")
        entropy = None
        correct = self.loss_config.use_importance_sampling_correction
        total = (rewards * self.reward_weights.to(rewards)).nansum(1)
        if old is None or "entropy" in self.algorithm.needs:
            with torch.no_grad():
                old, entropy = self._score(self.model, batch, self._train_batch_size)
        return Rollouts(
            group=numbers // (self.num_generations if train else self.num_generations_eval),
            rewards=total.where(
                ~rewards.isnan().all(1), torch.nan
            ),  # given by no function: refused
            mask=(completion * batch.get("tool_mask", 1)).bool(),
            old_logprobs=old,
            ref_logprobs=batch.get("ref_per_token_logps"),
            entropy=entropy,
            gen_logprobs=batch.get("sampling_per_token_logps") if correct else None,
            sample_mask=completion.any(1) if self.mask_truncated_completions else None,
        )

    def _score(self, model: Any, batch: dict[str, Any], size: int | None = None) -> Any:
        """Log-probs and exact entropies of the completions, [B,S] each."""
        names = ("ids", "mask")
        keep = batch["completion_ids"].shape[1]
        both = (torch.cat([batch[f"prompt_{n}"], batch[f"completion_{n}"]], 1) for n in names)
        vision = {}
        for k in VISION:
            if k in batch:
                vision[k] = batch[k]
        score = self._get_per_token_logps_and_entropies
        return score(model, *both, keep, size, compute_entropy=True, **vision)[:2]

    def _everyones(self, x: Tensor) -> Tensor:
        """The rows [B] or [B,S] of all processes, S being the longest of them."""
        numbers = x if x.is_floating_point() else x.long()  # padding makes int64 of bool
        # one number for a row has no dimension 1, and is returned as it is
        padded = self.accelerator.pad_across_processes(numbers, dim=1)
        return self.accelerator.gather(padded).to(x.dtype)

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        inputs = super()._prepare_inputs(generation_batch)
        train = self.model.training
        steps = self.args.gradient_accumulation_steps
        # the micro-batches of this optimizer step, of those that a generation batch is cut into
        window = [inputs]
        if train:
            start = self._step % self.args.steps_per_generation // steps * steps
            window = self._buffered_inputs[start : start + steps]
        rows = torch.cat([x["rows"] for x in window])
        own, signals = (x[rows] for x in self._own[train])
        numbers = torch.tensor(astuple(Counts.of(own.mask)), device=own.mask.device)
        reduce = self.accelerator.reduce
        self._counts = Counts(*reduce(numbers).tolist())  # of the optimizer batch
        shares = reduce(self._term_weights(own, signals))
        # what makes the terms' weights, made for the generation batch, add up to coef over this one
        self._term_factors = (self._coefficients[train] / shares).where(shares > 0, 0.0)
        return inputs

    def _term_weights(self, rollouts: Rollouts, signals: Signals) -> Tensor:
        """What each term's weights add up to over these tokens: over its own batch, coef."""
        tokens = rollouts.lengths[:, None]
        sums = []
        for each in self.algorithm.terms:
            sums.append((signals.extras[each.key] * tokens).sum())
        if sums:
            return torch.stack(sums)
        return torch.zeros(0, device=tokens.device)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        known = self._own.get(self.model.training)
        if known is None or "rows" not in inputs:
            raise ConfigError(
                [
                    Finding(
                        "",
                        f"TRL {version('trl')} trains on batches that the method has not seen. "
                        f"{TESTED_TRL}",
                    )
                ]
            )
        self._is_ours = True
        rollouts, signals = (x[inputs["rows"]] for x in known)
        terms = zip(self.algorithm.terms, self._term_factors, strict=True)
        own = {each.key: signals.extras[each.key] * factor for each, factor in terms}
        signals = replace(signals, extras={**signals.extras, **own})
        logprobs, entropy = self._score(model, inputs)
        if self._updates == 1 and self.model.training:  # another forward may draw another dropout
            rollouts = replace(rollouts, old_logprobs=logprobs.detach())
        batch = (logprobs, rollouts, signals, self._counts)
        loss = policy_loss(self.algorithm, *batch, self.loss_config, entropy)
        stats = loss.stats if self._stats is None else self._stats + loss.stats
        self._stats = stats
        if self.accelerator.sync_gradients:
            reduce = self.accelerator.reduce
            top = self._everyones(stats.max_log_ratio[None]).max()
            sums = dict(zip(stats.sums, reduce(torch.stack([*stats.sums.values()])), strict=True))
            stats = replace(stats, sums=sums, histogram=reduce(stats.histogram), max_log_ratio=top)
            self._log({k: v for k, v in stats.summary().items() if k != "loss"})  # TRL has its own
            self._stats = None
        return loss.value * self.accelerator.num_processes  # which average their gradients

    def _log(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._metrics["train" if self.model.training else "eval"][name].append(value)
