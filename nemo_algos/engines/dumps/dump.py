"""Sampler and trainer log-probs of the same tokens, on disk: .npz, or .jsonl, a response a line.

A file may come from anyone: it is data, never code, and what it lacks is said in a sentence. What
NeMo-RL, verl and TRL call the same columns is known, and how to make them record both sides.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nemo_algos.findings import first_line
from nemo_algos.jsonl import read_lines

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
COLUMNS = {
    column for names in FRAMEWORKS.values() for column in chain.from_iterable(names.values())
}
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
Array = np.ndarray
INTEGERS = ("tokens", "prompt_length", "weights_version", "step")
PER_RESPONSE = ("prompt_length", "weights_version")
WRITE = ". Write the file with `mismatch.dump`, or save these arrays with numpy.savez"
NEEDED = ("tokens", "sampler_logprobs", "trainer_logprobs")


def rename_columns(arrays: dict[str, Any]) -> dict[str, Any]:
    """Ours by name, where the columns are a framework's; else the arrays as they are."""
    for names in FRAMEWORKS.values():
        if names["tokens"][0] in arrays and "tokens" not in arrays:
            ours = dict[str, Any]()
            for name, columns in names.items():
                ours[name] = _product([arrays[column] for column in columns if column in arrays])
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
    of_tokens = {}
    for k, v in {**ours, "mask": mask}.items():
        if np.shape(v) == tokens.shape:
            of_tokens[k] = v
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
    if "token_ids" in arrays and mask is not None:
        return np.asarray(mask).argmax(1)
    return None


def unpack_row(row: dict[str, Any]) -> dict[str, Any]:
    """A line of NeMo-RL's, which are batches of one."""
    if "token_ids" not in row:
        return row
    unpacked = {}
    for name, value in row.items():
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        unpacked[name] = value
    return unpacked


class TooLarge(ValueError):
    """A file's arrays need more than LARGEST bytes."""


def refuse_large(numbers: int) -> None:
    """Raises TooLarge: a header may claim any size, and a stride of 0 takes no room on disk."""
    size = numbers * BYTES
    if size > LARGEST:
        raise TooLarge(f"needs {size / 2**30:.0f} GiB of memory. Write fewer responses per file.")


def tensors(path: Path) -> dict[str, Any]:
    """The columns of a file of torch's that holds a dictionary of tensors; it runs no code."""
    import torch

    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
        if isinstance(loaded, dict):
            columns = {}
            for k, v in loaded.items():
                if isinstance(v, torch.Tensor):
                    columns[str(k)] = v
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


@dataclass(frozen=True)
class Dump:
    """One rollout batch of B responses and S positions, with prompts among them or without.

    tokens [B,S] int; mask [B,S] bool, on the response's tokens; sampler_logprobs,
    trainer_logprobs [B,S], nats, each of its own token, read on the mask alone; entropy [B,S]: of
    the trainer's distribution; top_logprobs [B,S,K]: the sampler's highest; weights_version [B] or
    [B,S]: of the weights that sampled; prompt_length [B], tokens; step: the trainer's version.
    Raises ValueError where they do not fit together.
    """

    tokens: Array
    mask: Array
    sampler_logprobs: Array
    trainer_logprobs: Array
    entropy: Array | None = None
    top_logprobs: Array | None = None
    weights_version: Array | None = None
    prompt_length: Array | None = None
    step: Array | None = None

    def __post_init__(self) -> None:
        shape = self.tokens.shape
        if len(shape) != 2:
            raise ValueError(f"tokens has shape {list(shape)}. It needs [responses, positions].")
        top = self.top_logprobs
        others = {
            "step": [()],
            "prompt_length": [shape[:1]],
            "weights_version": [shape[:1], shape],
            "top_logprobs": [() if top is None else (*shape, *top.shape[2:3])],
        }
        for name, array in self.arrays().items():
            sizes = others.get(name, [shape])
            if array.shape not in sizes:
                wanted = " or ".join(str(list(size)) for size in sizes)
                raise ValueError(f"{name} has shape {list(array.shape)}. It needs {wanted}.")
            if array.dtype.kind not in "biuf":
                raise ValueError(f"{name} has dtype {array.dtype}. It needs numbers.")
        if not self.mask.any():
            raise ValueError(
                "mask is empty, so no token can be compared. Set it to 1 on the responses' tokens."
            )
        if (self.tokens[self.mask] < 0).any():
            raise ValueError("tokens has ids below 0 on the mask. Give the ids of the vocabulary.")
        for name in ("sampler_logprobs", "trainer_logprobs"):
            if (getattr(self, name)[self.mask] > 1e-3).any():
                raise ValueError(f"{name} has values above 0. Give log-probs in nats.")

    def arrays(self) -> dict[str, Array]:
        """By name, those that are there."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


def from_arrays(arrays: dict[str, Any]) -> Dump:
    """Of arrays by name, ours or another framework's; without a mask all tokens are responses'."""
    ours = rename_columns(arrays)
    lacking = [name for name in NEEDED if name not in ours]
    if lacking:
        has = ", ".join(sorted(ours)[:12]) or "nothing"
        raise ValueError(f"lacks {', '.join(lacking)}; it has {has}{remedy(arrays) or WRITE}")
    known = {}
    for f in fields(Dump):
        if f.name in ours:
            known[f.name] = np.asarray(ours[f.name])
    known.setdefault("mask", np.ones(known["tokens"].shape, dtype=bool))
    numbers = {name for name, array in known.items() if array.dtype.kind in "biuf"}
    for name in numbers.intersection(INTEGERS):
        if not (np.abs(known[name].astype(np.float64)) < 2**53).all():
            raise ValueError(
                f"{name} has NaN, infinity or numbers beyond 2^53. Give integers, or omit it."
            )
        known[name] = known[name].astype(np.int64)
    for name in numbers.intersection(PER_RESPONSE):
        if known[name].ndim == 0:
            known[name] = np.full(len(known["tokens"]), known[name])
    if "step" in numbers and known["step"].size:
        known["step"] = known["step"].max()
    if "mask" in numbers:
        if not np.isin(known["mask"], (0, 1)).all():
            raise ValueError("mask has values other than 0 and 1. Set it to 1 on response tokens.")
        known["mask"] = known["mask"] > 0
    return Dump(**known)


def read(path: Path) -> Dump:
    """A file of ours, or of NeMo-RL, verl or TRL. Raises ValueError that says what is wrong."""
    kinds: dict[str, Callable[[Path], dict[str, Any]]] = {
        ".npz": _npz,
        ".jsonl": _jsonl,
        ".pt": tensors,
    }
    if path.suffix not in kinds:
        names = ", ".join(kinds)
        cure = remedy({}, path.suffix) or ". A run with `mismatch.dump: N` writes some."
        raise ValueError(f"{path} is not a dump ({names}){cure}")
    if not path.is_file():
        raise ValueError(f"{path} does not exist. Name a dump file.")
    try:
        return from_arrays(kinds[path.suffix](path))
    except ValueError as error:
        text = str(error)
        raise ValueError(text if text.startswith(str(path)) else f"{path}: {text}") from None


def _npz(path: Path) -> dict[str, Any]:
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        refuse_large(size // BYTES)
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except TooLarge:
        raise
    except Exception as error:  # what bytes of anyone's do to numpy's reader is not listed anywhere
        raise ValueError(f"cannot be read as .npz: {first_line(error)}{WRITE}") from None
    other = []
    for name, array in found.items():
        if not isinstance(array, np.ndarray):
            other.append(name)
    if other:
        raise ValueError(f"cannot be read as .npz: {other[0]} is not an array{WRITE}")
    refuse_large(sum(array.size for array in found.values()))
    return found


def _jsonl(path: Path) -> dict[str, Any]:
    """Rows of several lengths are filled up behind their end, off the mask."""
    rows = [unpack_row(row) for row in read_lines(path)]
    if not rows:
        raise ValueError("is empty. Write one response a line.")
    columns = {}
    for name in rows[0]:
        if _in_all(name, rows):
            columns[name] = [row[name] for row in rows]
    ids = columns.get("tokens", columns.get("token_ids"))
    if ids is None:
        return dict.fromkeys(rows[0])
    lengths = []
    for row in ids:
        lengths.append(len(row) if isinstance(row, list) else 0)
    arrays: dict[str, Any] = {"mask": np.arange(max(lengths)) < np.array(lengths)[:, None]}
    for name, column in columns.items():
        arrays[name] = _column(name, column, lengths)
    return arrays


def _in_all(name: str, rows: list[dict[str, Any]]) -> bool:
    known = {field.name for field in fields(Dump)} | COLUMNS
    return name in known and all(name in row for row in rows)


def _column(name: str, values: list[Any], lengths: list[int]) -> Array:
    """[B,S,...] of lists, [B] of numbers."""
    try:
        rows = [np.asarray(row, dtype=np.float64) for row in values]
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} has values other than numbers and lists of numbers") from None
    if all(row.ndim == 0 for row in rows):
        return np.array(rows)
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True), 1):
        if row.ndim != rows[0].ndim or len(row) != length or row.shape[1:] != rows[0].shape[1:]:
            raise ValueError(
                f"line {i}: {name} has shape {list(row.shape)}, but tokens has [{length}]"
            )
    out = np.zeros((len(rows), max(lengths), *rows[0].shape[1:]))
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out


def write(path: Path, dump: Dump) -> None:
    """As .npz, at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".tmp")
    with open(partial, "wb") as file:
        np.savez_compressed(file, allow_pickle=False, **dump.arrays())
    partial.replace(path)
