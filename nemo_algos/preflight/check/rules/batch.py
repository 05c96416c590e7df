"""Batches, micro batches and sequence lengths."""

from collections.abc import Iterator

from nemo_algos.engines.nemo.derived_config import EPOCHS
from nemo_algos.findings import Finding, at
from nemo_algos.preflight.check.both_engines import GLOBAL, GROUP, PROMPTS
from nemo_algos.preflight.check.rule import Preflight, divisors, error, near, warning

CHUNK = "async_rl.min_groups_for_streaming_train"


def updates(run: Preflight) -> Iterator[Finding]:
    """The rollouts of a step are whole global batches, each of which is split over the ranks."""
    if run.rollouts % run[GLOBAL]:
        yield error(
            GLOBAL,
            f"{run[GLOBAL]} does not divide the {run.rollouts} rollouts of a step (prompts x "
            f"generations). {global_batches(run)}",
        )
    ranks = run.layout.data
    if ranks and run[GLOBAL] % ranks:
        yield error(
            GLOBAL,
            f"{run[GLOBAL]} is not a multiple of the {ranks} data-parallel ranks. "
            f"{global_batches(run)}",
        )


def global_batches(run: Preflight) -> str:
    """The sizes that divide the rollouts of a step and are multiples of the data-parallel ranks."""
    ranks = max(run.layout.data, 1)
    sizes = [size for size in divisors(run.rollouts) if size % ranks == 0]
    if sizes:
        return f"Set it to {near(run[GLOBAL], sizes)}."
    return (
        f"No multiple of the {ranks} data-parallel ranks divides {run.rollouts}: choose "
        f"`{PROMPTS}` x `{GROUP}` to be one, or other GPUs."
    )


def update_epochs(run: Preflight) -> Iterator[Finding]:
    """Passes over a batch: the driver repeats it, where it holds the batch."""
    epochs = run[EPOCHS]
    if epochs is None or epochs == 1:
        return
    if not isinstance(epochs, int) or epochs < 1:
        yield error(EPOCHS, f"must be a whole number from 1, got {epochs!r}")
    elif run["async_rl"] is not None:
        yield error(
            EPOCHS,
            f"it is {epochs}, but the single controller makes one update per rollout batch. "
            "Remove it.",
        )
    elif run["loss_fn.force_on_policy_ratio"]:
        yield error(
            EPOCHS,
            f"it is {epochs}, but `loss_fn.force_on_policy_ratio` sets every ratio to 1, in later "
            "passes too. Remove one of them.",
        )
    elif run["data_plane.enabled"]:
        yield error(
            EPOCHS,
            "the driver repeats the batch, but the data plane keeps batches off the driver. Set "
            "`data_plane.enabled: false`.",
        )


def micro_batches(run: Preflight) -> Iterator[Finding]:
    """Without packing, a rank's share is whole micro batches, in training and for log-probs.

    A chunk of the single controller is of any number of groups: of those that were ready.
    """
    group = run[GROUP]
    streams = run.controlled and run.chunk < run[PROMPTS]
    ranks = max(run.layout.data, 1)
    batches = (group, group) if streams else (run[GLOBAL], run.rollouts)
    keys = ("train_micro_batch_size", "logprob_batch_size")
    for key, batch in zip(keys, batches, strict=True):
        size = run[f"policy.{key}"]
        if not run.packing and batch % (ranks * size) and (streams or batch % ranks == 0):
            share = f"{batch}/{ranks}" if batch % ranks else batch // ranks
            of = " of one group, and groups may arrive one at a time" if streams else ""
            cure = f"Set it to {near(size, divisors(batch // ranks))}." if batch >= ranks else ""
            whole = f"Or set `{CHUNK}: {run[PROMPTS]}`." if streams else ""
            yield error(
                f"policy.{key}",
                f"{size} does not divide a rank's {share} sequences{of}. {cure} {whole}".rstrip(),
            )


def packing(run: Preflight) -> Iterator[Finding]:
    """Dynamic batching is an alternative to packing; the longest sequence fits a micro batch."""
    path = "policy.dynamic_batching.enabled"
    if run[path] and run["policy.sequence_packing.enabled"]:
        yield error(
            path, "it excludes `policy.sequence_packing.enabled`. Set one of them to false."
        )
    if run[path] and run.layout.pipeline > 1:
        yield error(path, "it does not work with pipeline parallelism. Set it to false.")
    longest = run["policy.max_total_sequence_length"]
    for key in ("train_mb_tokens", "logprob_mb_tokens") if run.packing else ():
        path = f"policy.{run.packing}.{key}"
        if run[path] is not None and run[path] < longest:
            yield warning(
                path,
                f"a micro-batch takes {run[path]} tokens, but one sequence may have {longest}, "
                f"which would stop the run. Set it to {longest} "
                "(`policy.max_total_sequence_length`) or more.",
            )


def lengths(run: Preflight) -> Iterator[Finding]:
    """The engine writes what training reads and the model has positions for; prompts leave room."""
    path = "policy.generation.vllm_cfg.max_model_len"
    longest = run["policy.max_total_sequence_length"]
    if run.vllm and (run[path] or longest) > longest:
        yield error(
            path, f"{run[path]} exceeds `policy.max_total_sequence_length`. Set it to {longest}."
        )
    prompts = run["data.max_input_seq_length"] or 0
    own = "policy.generation.sglang_cfg.context_length"
    if run["policy.generation.backend"] == "sglang" and (run[own] or longest) < longest:
        yield warning(
            own,
            f"the engine ends a prompt and its response at {run[own]} tokens, so that the "
            f"{longest} of `policy.max_total_sequence_length` are never reached. Set it to "
            f"{longest}.",
        )
    whole = "policy.max_total_sequence_length"
    if run.vllm and at(run.written, whole) and (run[path] or longest) < longest:
        yield warning(
            whole,
            f"the engine ends a prompt and its response at {run[path]} tokens "
            f"(`{path}`), so that {longest} are never reached. Set both.",
        )
    elif run.vllm and (run[path] or longest) < min(longest, prompts):
        yield warning(
            path,
            f"it is shorter than the longest allowed prompt ({prompts} tokens). Raise it, or "
            "lower `data.max_input_seq_length`.",
        )
    new = "policy.generation.max_new_tokens"
    if (run[new] or 0) > longest:
        yield warning(
            new,
            f"{run[new]} exceeds `policy.max_total_sequence_length: {longest}`. Set it to less.",
        )
    path = "policy.max_total_sequence_length"
    scaled = run["policy.hf_config_overrides.rope_scaling"]
    if run.model and not scaled and run[path] > run.model.max_position_embeddings:
        limit = run.model.max_position_embeddings
        own = "policy.hf_config_overrides.max_position_embeddings"
        yield error(
            path if run[own] is None else own,
            f"the model has {limit} positions, and vLLM refuses longer sequences. Set it to "
            f"{limit} or less, or set `policy.hf_config_overrides.rope_scaling`.",
        )
    path = "data.max_input_seq_length"
    if run[path] is None and not run["env.should_use_nemo_gym"]:
        yield warning(path, f"NeMo-RL's prompt processors fail if it is null. Set it to {longest}.")
    if (run[path] or 0) > longest:
        yield warning(
            path,
            f"such prompts leave no room for a response in sequences of {longest} tokens. Set it "
            f"below {longest}.",
        )


def dataloaders(run: Preflight) -> Iterator[Finding]:
    """More prompts are drawn for dynamic sampling only; several dataloaders take turns."""
    if not run["grpo.use_dynamic_sampling"] and (run["grpo.batch_multiplier"] or 1) != 1:
        yield error(
            "grpo.batch_multiplier",
            "it only applies with `grpo.use_dynamic_sampling: true` (dynamic sampling). Set that, "
            "or set this to 1.",
        )
    path = "data.num_prompts_per_dataloader"
    prompts = run[PROMPTS]
    if run["data.use_multiple_dataloader"] and prompts % (run[path] or prompts + 1):
        found = near(run[path] or prompts, divisors(prompts))
        yield error(path, f"it does not divide the {prompts} prompts of a step. Set it to {found}.")


def stored(run: Preflight) -> Iterator[Finding]:
    """The data plane holds the rollouts of a step."""
    path = "data_plane.storage_capacity"
    if run["data_plane.enabled"] and 0 < (run[path] or 0) < run.rollouts:
        yield error(
            path,
            f"it holds {run[path]} samples, and a step has {run.rollouts} rollouts: the first one "
            f"would fail. Set it to {2 * run.rollouts} or more.",
        )
