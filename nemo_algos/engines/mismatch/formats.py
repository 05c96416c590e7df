"""What NeMo-RL, verl and TRL call the same columns, and what their own files lack."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

# a framework's columns by ours; of several the mask is the product
NEMO_RL = {
    "tokens": ("token_ids",),
    "mask": ("token_loss_mask", "sample_loss_mask"),
    "sampler_logprobs": ("generation_logprobs",),
    "trainer_logprobs": ("prev_logprobs",),
}
VERL = {
    "tokens": ("responses",),
    "mask": ("response_mask",),
    "sampler_logprobs": ("rollout_log_probs",),
    "trainer_logprobs": ("old_log_probs",),
    "entropy": ("entropys",),
}
TRL = {
    "tokens": ("completion_ids",),
    "mask": ("completion_mask", "tool_mask"),
    "sampler_logprobs": ("sampling_per_token_logps",),
    "trainer_logprobs": ("old_per_token_logps",),
}
FRAMEWORKS = {"NeMo-RL": NEMO_RL, "verl": VERL, "TRL": TRL}
PROMPTS = {"responses": "prompts", "completion_ids": "prompt_ids"}  # by the tokens' column
COLUMNS = {column for names in FRAMEWORKS.values() for own in names.values() for column in own}
# bytes of a file's arrays in memory, and of a number there
LARGEST = 2**32
BYTES = 8
SAVED = "torch.save({k: v for k, v in %s.items() if hasattr(v, 'shape')}, 'step.pt')"
VERL_TEXTS = "verl's rollout_data_dir has only texts. Save the batch: " + SAVED % "batch.batch"
TRL_TEXTS = "TRL's completions have only texts. Save the inputs: " + SAVED % "inputs"
RECORDING = {  # by a column that is always there: what makes a framework record both sides
    "token_loss_mask": "Did NeMo-RL's vLLM return log-probs?",
    "responses": "verl: set actor_rollout_ref.rollout.calculate_log_probs=true",
    "completion_ids": "TRL records the sampler's with use_vllm, or if a rollout_func returns them; "
    "the trainer's if num_iterations is 2 or more, or with vllm_importance_sampling_correction",
}


def rename_columns(arrays: dict[str, Any]) -> dict[str, Any]:
    """Ours by name, where the columns are a framework's; else the arrays as they are."""
    for names in FRAMEWORKS.values():
        if names["tokens"][0] in arrays and "tokens" not in arrays:
            ours = {k: _product([arrays[n] for n in v if n in arrays]) for k, v in names.items()}
            lengths = {"prompt_length": _prompt_length(arrays, ours.get("mask"))}
            ours = _behind(arrays.get(PROMPTS.get(names["tokens"][0], "")), ours)
            return {k: v for k, v in (ours | lengths).items() if v is not None}
    return arrays


def _behind(prompts: Any, ours: dict[str, Any]) -> dict[str, Any]:
    """The columns [B,S] behind the prompts [B,P], where the file holds these: [B,P+S]."""
    tokens = np.asarray(ours["tokens"])
    prompts = np.asarray(prompts)
    if prompts.ndim != 2 or tokens.ndim != 2 or len(prompts) != len(tokens):
        return ours
    mask = np.ones(tokens.shape) if ours["mask"] is None else ours["mask"]  # not of the prompts
    of_tokens = {k: v for k, v in {**ours, "mask": mask}.items() if np.shape(v) == tokens.shape}
    before = np.zeros_like(prompts)
    longer = {k: np.concatenate([before, v], 1) for k, v in of_tokens.items()}
    return {**ours, **longer, "tokens": np.concatenate([prompts, tokens], 1)}


def _product(columns: list[Any]) -> Any:
    out = None
    for column in map(np.asarray, columns):
        column = column[:, None] if out is not None and column.ndim < out.ndim else column
        out = column if out is None else out * column
    return out


def _prompt_length(arrays: dict[str, Any], mask: Any) -> Any:
    """[B]: of NeMo-RL's rows what lies before the mask; verl and TRL pad prompts on the left."""
    if "prompt_mask" in arrays:
        return np.asarray(arrays["prompt_mask"]).sum(1)
    if "prompts" in arrays and "attention_mask" in arrays:
        return np.asarray(arrays["attention_mask"])[:, : np.shape(arrays["prompts"])[1]].sum(1)
    return np.asarray(mask).argmax(1) if "token_ids" in arrays and mask is not None else None


def unpack_row(row: dict[str, Any]) -> dict[str, Any]:
    """A line of NeMo-RL's, which are batches of one."""
    if "token_ids" not in row:
        return row
    return {k: v[0] if isinstance(v, list) and len(v) == 1 else v for k, v in row.items()}


class TooLarge(ValueError):
    """A file's arrays need more than LARGEST bytes."""


def refuse_large(numbers: int) -> None:
    """Raises TooLarge: a header may claim any size, and a stride of 0 takes no room on disk."""
    if (size := numbers * BYTES) > LARGEST:
        raise TooLarge(f"needs {size / 2**30:.0f} GiB of memory. Write fewer responses per file.")


def tensors(path: Path) -> dict[str, Any]:
    """The columns of a file of torch's that holds a dictionary of tensors; it runs no code."""
    import torch

    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
        if isinstance(loaded, dict):
            columns = {str(k): v for k, v in loaded.items() if isinstance(v, torch.Tensor)}
            refuse_large(sum(v.numel() for v in columns.values()))
            return {k: _array(v) for k, v in columns.items()}
    except TooLarge:
        raise
    except Exception:  # what bytes of anyone's do to torch's reader is not listed anywhere
        cure = SAVED % "batch.batch"
        raise ValueError(f"is not a dictionary of dense tensors. Write it with {cure}") from None
    raise ValueError(f"contains a {type(loaded).__name__}. Write it with {SAVED % 'batch.batch'}")


def _array(column: Tensor) -> np.ndarray:
    """Of bfloat16 and FP8, which numpy has not, in float32."""
    small = column.is_floating_point() and column.element_size() < 4
    return (column.float() if small else column).detach().numpy()


def remedy(arrays: dict[str, Any], suffix: str = "") -> str:
    """What a file of another framework without log-probs asks for."""
    if suffix == ".parquet" or "completion" in arrays:
        return f". {TRL_TEXTS}"
    if "output" in arrays or "gts" in arrays or {"score", "step"} <= {*arrays}:
        return f". {VERL_TEXTS}"
    return next((f". {text}" for column, text in RECORDING.items() if column in arrays), "")
