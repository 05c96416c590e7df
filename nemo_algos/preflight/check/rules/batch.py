"""Batches, micro batches and sequence lengths."""

from collections.abc import Iterator

from nemo_algos.config import Finding
from nemo_algos.engines.nemo.decided import EPOCHS
from nemo_algos.preflight.check.nemo_run import Preflight
from nemo_algos.preflight.check.rule import error, warning

GLOBAL = "policy.train_global_batch_size"


def updates(run: Preflight) -> Iterator[Finding]:
    """The rollouts of a step are whole global batches."""
    if run.rollouts % run[GLOBAL]:
        what = f"does not divide the {run.rollouts} rollouts of a step"
        yield error(GLOBAL, f"{what} (prompts x generations): choose a divisor")


def update_epochs(run: Preflight) -> Iterator[Finding]:
    """Passes over a batch: the driver repeats it, where it holds the batch."""
    epochs = run[EPOCHS]
    if epochs is None or epochs == 1:
        return
    if not isinstance(epochs, int) or epochs < 1:
        yield error(EPOCHS, f"must be a whole number from 1, got {epochs!r}")
    elif run["async_rl"] is not None:
        reason = "the single controller makes one update per rollout batch"
        yield error(EPOCHS, f"is {epochs}, but {reason}: remove it")
    elif run["loss_fn.force_on_policy_ratio"]:
        reason = "loss_fn.force_on_policy_ratio takes every ratio for 1, of later passes too"
        yield error(EPOCHS, f"is {epochs}, but {reason}: remove one of them")
    elif run["data_plane.enabled"]:
        reason = "repeats a batch on the driver, and the data plane's batches are not there"
        yield error(EPOCHS, f"{reason}: set data_plane.enabled: false")


def data_parallel(run: Preflight) -> Iterator[Finding]:
    """A global batch is split over the data-parallel ranks."""
    ranks = run.layout.data
    if ranks and run[GLOBAL] % ranks:
        yield error(GLOBAL, f"must be a multiple of the {ranks} data-parallel ranks: change it")


def micro_batches(run: Preflight) -> Iterator[Finding]:
    """Without packing, a rank's share is whole micro batches, in training and for log-probs.

    A chunk of the single controller is of any number of groups: of those that were ready.
    """
    group = run["grpo.num_generations_per_prompt"]
    streams = run.controlled and run.chunk < run["grpo.num_prompts_per_step"]
    batches = (group, group) if streams else (run[GLOBAL], run.rollouts)
    keys = ("train_micro_batch_size", "logprob_batch_size")
    for key, batch in zip(keys, batches, strict=True):
        if not run.packing and batch % (max(run.layout.data, 1) * run[f"policy.{key}"]):
            share = f"{batch // max(run.layout.data, 1)} sequences"
            of = f"{share} of a group, which may come alone" if streams else share
            yield error(f"policy.{key}", f"does not divide a rank's {of}: choose a divisor")


def exclusive_packing(run: Preflight) -> Iterator[Finding]:
    """Dynamic batching is an alternative to packing, without pipelines."""
    path = "policy.dynamic_batching.enabled"
    if run[path] and run["policy.sequence_packing.enabled"]:
        yield error(path, "excludes policy.sequence_packing: disable one of them")
    if run[path] and run.layout.pipeline > 1:
        yield error(path, "works without pipeline parallelism only: set it to false")


def packed_length(run: Preflight) -> Iterator[Finding]:
    """The longest sequence fits a micro batch of tokens."""
    longest = run["policy.max_total_sequence_length"]
    for key in ("train_mb_tokens", "logprob_mb_tokens") if run.packing else ():
        path = f"policy.{run.packing}.{key}"
        if run[path] is not None and run[path] < longest:
            reason = f"a sequence of {longest} tokens would not fit and stop the run"
            yield warning(path, f"{reason}: set at least policy.max_total_sequence_length")


def engine_length(run: Preflight) -> Iterator[Finding]:
    """The engine writes sequences that training can read."""
    path = "policy.generation.vllm_cfg.max_model_len"
    longest = run["policy.max_total_sequence_length"]
    if run.vllm and (run[path] or longest) > longest:
        yield error(path, f"exceeds policy.max_total_sequence_length: set it to {longest}")
    prompts = run["data.max_input_seq_length"] or 0
    if run.vllm and (run[path] or longest) < min(longest, prompts):
        reason = f"prompts of up to {prompts} tokens are allowed, and the engine answers none as"
        yield warning(path, f"{reason} long: raise it, or lower data.max_input_seq_length")
    new = "policy.generation.max_new_tokens"
    if (run[new] or 0) > longest:
        yield warning(new, f"exceeds policy.max_total_sequence_length, {longest}: lower it")


def positions(run: Preflight) -> Iterator[Finding]:
    """The model knows the positions of its longest sequence."""
    path = "policy.max_total_sequence_length"
    scaled = run["policy.hf_config_overrides.rope_scaling"]
    if run.model and not scaled and run[path] > run.model.max_position_embeddings:
        limit = run.model.max_position_embeddings
        what = f"the model has {limit} positions, and vLLM refuses more"
        yield error(path, f"{what}: lower it, or set policy.hf_config_overrides.rope_scaling")


def prompt_length(run: Preflight) -> Iterator[Finding]:
    """Prompts leave room for a response, and their length is compared with a number."""
    path, longest = "data.max_input_seq_length", run["policy.max_total_sequence_length"]
    if run[path] is None and not run["env.should_use_nemo_gym"]:
        yield warning(path, f"NeMo-RL's processors of prompts stop at null: set it to {longest}")
    if (run[path] or 0) > longest:
        yield warning(path, f"prompts up to it leave no room in {longest} tokens: lower it")


def batch_multiplier(run: Preflight) -> Iterator[Finding]:
    """More prompts are drawn for dynamic sampling only."""
    if not run["grpo.use_dynamic_sampling"] and (run["grpo.batch_multiplier"] or 1) != 1:
        reason = "is for dynamic sampling"
        yield error("grpo.batch_multiplier", f"{reason}: set 1, or grpo.use_dynamic_sampling: true")


def dataloaders(run: Preflight) -> Iterator[Finding]:
    """Several dataloaders take turns in whole batches."""
    path, prompts = "data.num_prompts_per_dataloader", run["grpo.num_prompts_per_step"]
    if run["data.use_multiple_dataloader"] and prompts % (run[path] or prompts + 1):
        yield error(path, f"must divide the {prompts} prompts of a step: choose a divisor")
