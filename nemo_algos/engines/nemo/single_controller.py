"""NeMo-RL's single controller with a method plugged in.

The steps are those of NeMo-RL's examples/run_grpo_single_controller.py: the driver builds
everything and sends it to one actor, which samples, computes advantages and trains. It takes the
groups of a step in one chunk or in several (`async_rl.min_groups_for_streaming_train`), and all
chunks are one optimizer step. Tensors travel through TransferQueue, by name.
"""

import functools
import inspect
import runpy
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import ray
import torch
import torch.nn.functional as F
from nemo_rl.algorithms import single_controller
from nemo_rl.algorithms.async_utils import staleness_sampler
from nemo_rl.algorithms.single_controller_utils import setup, utils
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from torch import Tensor

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.algorithms.extensions.loss_config import MismatchConfig
from nemo_algos.algorithms.rollouts import Rollouts
from nemo_algos.algorithms.shapes import Mask
from nemo_algos.engines.nemo import columns, environment, nonfinite, versions
from nemo_algos.engines.nemo.estimator import Estimator, Forward, keep_memory, restore_memory
from nemo_algos.engines.nemo.loss import AlgorithmLoss
from nemo_algos.engines.nemo.patches import shut_down
from nemo_algos.engines.nemo.policy import (
    ENTROPY,
    PolicyProxy,
    fetched_fields,
    listen,
    registrations,
)
from nemo_algos.engines.nemo.trace import Traced
from nemo_algos.findings import Finding

WATCH = "_run_with_controller_liveness_watch"
SCRIPT = versions.EXAMPLES / "run_grpo_single_controller.py"
PAD = 0  # fills up the shorter rows that the controller reads from the queue, prompts too
SAMPLER = "async_rl.sampler"
# the class that NeMo-RL's @ray.remote wraps: only that one can be derived from
wrapped = single_controller.SingleControllerActor.__ray_metadata__.modified_class
Stock: Any = wrapped.__ray_actor_class__


class StepProxy(PolicyProxy):
    """A TQPolicy of the single controller: compares and logs when all chunks of a step are in."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._chunks: list[Any] = []

    def take(self, chunk: dict[str, Tensor], written: dict[str, Tensor]) -> None:
        """Keep a chunk's columns [B,S], read and written, and the method's metrics of it."""
        estimator = self._estimator
        assert estimator.step
        self._chunks.append((chunk, written, estimator.step))

    def train_microbatches_from_meta(self, *args: Any, **kwargs: Any) -> Any:
        """As the policy's, which may fetch the columns by name."""
        train = self._policy.train_microbatches_from_meta
        return train(*args, **kwargs | fetched_fields(train, self._estimator, kwargs))

    def finish_train_step(self) -> dict[str, Any]:
        """Compare, log and finish the step. Raises FloatingPointError as `PolicyProxy.train`."""
        chunks, written, steps = zip(*self._chunks, strict=True)
        self._chunks.clear()
        metrics = [step.metrics for step in steps]
        self.seen |= mean(metrics, [len(chunk["input_ids"]) for chunk in chunks])
        joined = join(chunks)
        self._begin_step(joined)
        self._require_finite(nonfinite.in_batch(joined))
        results = self._logged(self._policy.finish_train_step())
        if self._due:
            trained = [read | own for read, own in zip(chunks, written, strict=True)]
            self._trace(BatchedDataDict(join(trained)), whole([step.rollouts for step in steps]))
        return results


class ControllerImpl(Stock):
    """NeMo-RL's actor; with its advantages come the method's other signals.

    watched: the arguments of StepProxy by name, but for policy and estimator.
    """

    def __init__(self, *args: Any, watched: dict[str, Any]) -> None:
        super().__init__(*args)
        estimator: Estimator = self._advantage_estimator
        estimator.keep = functools.partial(keep_memory, self._save_state)
        estimator.memory = restore_memory(self._checkpointer)
        self._algorithm = estimator.algorithm
        self._trainer = StepProxy(self._trainer, estimator, **watched)
        self._policy_logprobs_required &= not self._algorithm.correction.bypass_mode
        listen(self._logger, self._trainer.remarks)
        environment.log_statuses(self._logger, self._env_handles)
        for module, name, value in registrations(estimator):  # for the life of this process
            setattr(module, name, value)

    async def run(self) -> dict[str, Any]:
        """As NeMo-RL's; with last words."""
        try:
            return await super().run()
        finally:
            self._trainer.remarks.end()

    async def _advantage_stage(self, meta: Any) -> tuple[Any, bool]:
        """As NeMo-RL's; reads what the estimator needs, and writes what the workers read."""
        estimator: Estimator = self._advantage_estimator
        read = await self._read(meta, self._fields)
        estimator.forward = Forward(
            entropy=read.pop(ENTROPY, None),
            masks=(read["token_mask"], read["sample_mask"]),
            sampled=read["generation_logprobs"],
            prompts=prompts(read["input_ids"], read["token_mask"]),
        )
        sampled = {}
        if self._algorithm.correction.bypass_mode:
            # nobody else writes prev_logprobs, which the stage may read
            sampled["prev_logprobs"] = read["generation_logprobs"]
            await self._write(meta, sampled)
        meta, trained = await super()._advantage_stage(meta)
        if trained:
            reread = ["sample_mask"]  # the stage may have masked out rows
            if self._trainer.traces:
                reread.append("advantages")
            read |= await self._read(meta, reread)
            written = self._written(read)
            self._trainer.take(read, written | sampled)
            await self._write(meta, written)
        return meta, trained

    def _written(self, read: dict[str, Tensor]) -> dict[str, Tensor]:
        """A chunk's columns for the workers."""
        estimator: Estimator = self._advantage_estimator
        masks = estimator.masks_for(read["token_mask"], read["sample_mask"])
        own = columns.widen(estimator.signals_for(), read["token_mask"].shape)
        for each in self._algorithm.terms:
            # a term's weights already are a mean's: undo the workers' division by the step's count
            own[columns.PREFIX + each.key] *= self._divisor(read | masks)
        return own | masks

    def _divisor(self, data: dict[str, Tensor]) -> Tensor:
        """The chunk's part of the count by which the workers divide a whole step's gradient."""
        if self._algorithm.mean == "token":
            return (data["token_mask"][:, 1:] * data["sample_mask"][:, None]).sum()
        return data["sample_mask"].sum()

    @property
    def _fields(self) -> list[str]:
        """The columns that the method, the monitor, its dumps and traces read."""
        names = ["input_ids", "generation_logprobs", "token_mask", "sample_mask"]
        if not self._algorithm.correction.bypass_mode:
            names.append("prev_logprobs")
        if self._trainer.traces:
            names.append("input_lengths")
        if "entropy" in self._algorithm.needs:
            names.append(ENTROPY)
        return names

    async def _read(self, meta: Any, fields: list[str]) -> dict[str, Tensor]:
        data = await self._call_dp("get_samples", **_place(meta), select_fields=fields)
        found = {name: utils.tensor_field(data, name) for name in fields}
        return {name: utils.squeeze_trailing_unit_dim(x) for name, x in found.items()}

    async def _write(self, meta: Any, fields: dict[str, Tensor]) -> None:
        packed = utils.fields_for_put(meta, fields)
        await self._call_dp("put_samples", **_place(meta), fields=packed)


Controller = ray.remote(num_cpus=1, num_gpus=0)(ControllerImpl)


@functools.cache
def watch() -> Callable[[Any, Any], Any]:
    """NeMo-RL's own loop of the driver: runs an actor, given the section stall_watchdog."""
    return runpy.run_path(str(SCRIPT))[WATCH]


def rehearse(master_config: Any, tokenizer: Any, policy: Any) -> None:
    """What `train` asks of NeMo-RL, without Ray. Raises what differs there."""
    try:
        inspect.signature(watch()).bind(None, None)
    except Exception as error:  # whatever a script raises
        raise ImportError(f"{SCRIPT.name} has no {WATCH}(actor, section): {error!r}") from error
    with versions.replace_attributes(*_places(None, None, policy)):
        inspect.signature(setup.setup_single_controller).bind(master_config, tokenizer)


def _places(estimator: Any, loss: Any, policy: Any) -> list[tuple[Any, str, Any]]:
    """What stands in for NeMo-RL's own during its setup."""
    ours = {
        "_create_advantage_estimator": lambda config: estimator,
        "ClippedPGLossFn": lambda config: loss,
        "TQPolicy": policy,
    }
    return [(setup, name, value) for name, value in ours.items()]


def sampler_faults(section: Any) -> Iterator[Finding]:
    """What NeMo-RL's create_sampler would raise of a CustomSamplerConfig, asked before Ray starts.

    NeMo-RL first asks it in the actor, once all models are loaded.
    """
    try:
        sampler = resolve_name(section.target)
    except (ImportError, AttributeError) as problem:
        yield Finding(
            f"{SAMPLER}.target",
            f"{section.target} cannot be imported: {problem}. Put its folder on PYTHONPATH.",
        )
        return
    protocol = vars(staleness_sampler.PromptGroupSampler)
    asked = []
    for name in protocol:
        if not name.startswith("_") and not hasattr(sampler, name):
            asked.append(name)
    if asked:
        yield Finding(
            f"{SAMPLER}.target",
            f"{section.target} lacks {', '.join(asked)}, which the controller calls. Add what "
            "NeMo-RL's PromptGroupSampler has.",
        )
    try:
        inspect.signature(sampler).bind("the buffer", **section.model_extra)
    except TypeError as problem:
        yield Finding(
            SAMPLER,
            f"{section.target} gets all other keys of the section: {problem}. Correct them "
            "(`async_rl._override_: true` drops those of the base config).",
        )


def train(
    master_config: Any,
    algorithm: Algorithm,
    loss: AlgorithmLoss,
    mismatch: MismatchConfig,
    tokenizer: Any,
    policy: Any,
    traced: Traced,
    **watched: Any,
) -> None:
    """Set up and run NeMo-RL's actor to the end of training.

    policy: stands in for TQPolicy; watched: more arguments of StepProxy. Raises
    what the actor raises.
    """
    # absolute: the actor that writes there runs in a working directory of Ray's
    folders = {"log_dir": master_config.logger, "checkpoint_dir": master_config.checkpointing}
    for key, section in folders.items():
        section[key] = str(Path(section[key]).absolute())
    group_size = master_config.grpo.num_generations_per_prompt
    step_size = master_config.policy["train_global_batch_size"]
    estimator = Estimator(algorithm, group_size, step_size, pad=PAD)
    with versions.replace_attributes(*_places(estimator, loss, policy)):
        args, timings = setup.setup_single_controller(master_config, tokenizer)
    try:
        watched |= {
            "mismatch": mismatch,
            "folder": Path(master_config.logger["log_dir"]),
            "step": args.save_state.current_step,
            "loss": loss.config,
            "traced": traced,
        }
        actor = Controller.remote(master_config, args, timings, watched=watched)
        watch()(actor, master_config.async_rl.stall_watchdog)
    finally:
        shut_down((args.gen_handle, args.trainer_handle), args.env_handles, {})


def prompts(input_ids: Tensor, token_mask: Mask) -> Tensor:
    """[B,S] tokens before the first that the model wrote, PAD behind them.

    A newer controller only tells the estimator which rows of a batch have the same prompt.
    """
    return input_ids.where(token_mask.cumsum(1) == 0, PAD)


def join(chunks: Any) -> dict[str, Tensor]:
    """The columns [B] and [B,S] of all chunks, as wide as the widest."""
    width = 0
    for chunk in chunks:
        for column in chunk.values():
            if column.dim() == 2:
                width = max(width, column.shape[1])
    joined = {}
    for name in chunks[0]:
        joined[name] = torch.cat([_pad(chunk[name], width) for chunk in chunks])
    return joined


def whole(parts: Any) -> Rollouts:
    """One Rollouts of all chunks, with the fields that a trace reads."""
    chunks = []
    for part in parts:
        fields = {}
        for name in ("group", "rewards", "mask", "old_logprobs", "entropy"):
            value = getattr(part, name)
            if value is not None:
                fields[name] = value
        chunks.append(fields)
    given: Any = join(chunks)
    return Rollouts(**given)


def mean(metrics: Any, rows: list[int]) -> dict[str, float]:
    """Each metric's mean over the chunks that have it, weighted by their rows."""
    totals = defaultdict[str, float](float)
    counts = defaultdict[str, int](int)
    for chunk, n in zip(metrics, rows, strict=True):
        for name, value in chunk.items():
            totals[name] += value * n
            counts[name] += n
    return {name: total / counts[name] for name, total in totals.items()}


def _place(meta: Any) -> dict[str, Any]:
    return {"sample_ids": meta.sample_ids, "partition_id": meta.partition_id}


def _pad(column: Tensor, width: int) -> Tensor:
    if column.dim() == 1:
        return column
    return F.pad(column, (0, width - column.shape[1]))
