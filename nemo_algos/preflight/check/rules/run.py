"""The run's surroundings: model files, checkpoints, the clock, logs."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from glob import escape
from operator import mul
from pathlib import Path

from nemo_algos.engines.nemo.derived_config import TRACE, TRACED
from nemo_algos.findings import Finding, at
from nemo_algos.preflight.check.known_models import home, hub
from nemo_algos.preflight.check.layout import DTENSOR, VLLM
from nemo_algos.preflight.check.rule import AnyRun, Preflight, error, note, warning

NAME = "policy.model_name"
FOLDER = "checkpointing.checkpoint_dir"
MUST_SAVE = "checkpointing.checkpoint_must_save_by"
# Share of ids that may differ, for a model's variants give names to reserved ids. A choice: Llama 3
# reserves 256 of 128,256, which are 0.2 %.
SOME = 0.01
# bytes of a parameter in a checkpoint: BF16 weights; FP32 weights and two moments of Adam
WEIGHTS = 2
OPTIMIZER = 12
SECONDS = (86400, 3600, 60, 1)  # of DD:HH:MM:SS
SOON = 900  # seconds in which a run of a real model hardly begins


def traces(run: Preflight) -> Iterator[Finding]:
    """Token traces have whole numbers, and none is of experts replayed through a data plane."""
    for key, least in ((TRACE, 0), (TRACED, 1)):
        value = run[key]
        if value is not None and (not isinstance(value, int) or value < least):
            yield error(key, f"must be a whole number from {least}, got {value!r}")
            return
    # A trace asks for log-probs after the update. With router replay a training step sends tokens
    # to the experts that the sampler chose. Through the data plane a trace does not get these, so
    # that its log-probs would be those of other experts.
    if run[TRACE] and run["data_plane.enabled"] and run["policy.router_replay.enabled"]:
        yield error(
            TRACE,
            "the replayed experts stay in the data plane, and a trace asks without them: set 0",
        )


def probes(run: Preflight) -> Iterator[Finding]:
    """The mismatch probe needs vLLM's synchronous engine on the driver, without a data plane."""
    others = {
        "policy.generation.backend": not run.vllm,
        f"{VLLM}.async_engine": run[f"{VLLM}.async_engine"],
        "data_plane.enabled": run["data_plane.enabled"],
        "async_rl": run.controlled,
    }
    excluded = [key for key, wrong in others.items() if wrong]
    if run["mismatch.probe"] and excluded:
        yield error(
            "mismatch.probe",
            f"it asks vLLM's synchronous engine on the driver, which {excluded[0]} excludes. Set "
            "it to 0, and use `mismatch.dump`.",
        )


def model_there(run: Preflight) -> Iterator[Finding]:
    """The model is a folder that exists or a name of the hub, and its sizes are known."""
    name = str(run[NAME])
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "TRUE", "YES")
    if not os.path.isdir(name):
        if name.startswith(("/", ".", "~")):
            yield warning(
                NAME,
                f"folder {name} not found on this machine. Correct the path, or mount it in the "
                "job.",
            )
        elif not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
            yield error(
                NAME, f"{name!r} is neither a folder nor a Hugging Face hub name. Correct it."
            )
        elif offline and not (hub() / f"models--{name.replace('/', '--')}").exists():
            yield warning(
                NAME, f"HF_HUB_OFFLINE is set, and {name} is not in {hub()}: download it first"
            )
    if run.model is None:
        yield note(
            NAME,
            "this model is unknown here, so its heads, layers and experts are not checked. Name a "
            "folder with its config.json to check them.",
        )


def own_tokenizer(run: AnyRun) -> Iterator[Finding]:
    """The ids that the model reads are those of its own tokenizer, in either engine."""
    path = "policy.tokenizer.name"
    model = str(run[NAME])
    name = str(run[path])
    if run[path] is None or name == model:
        return
    cure = f"Set it to {model}, or remove it."
    both = [_vocabulary(one) for one in (model, name)]
    if all(both):
        own, given = both
        # an id that the given tokenizer lacks is never written, so that it cannot be another token
        others = sum(given.get(number, token) != token for number, token in own.items())
        if others > SOME * len(own):
            yield error(
                path,
                f"in {name}, {others:,} of {len(own):,} ids are other tokens than in {model}, so "
                f"the model would read noise. {cure}",
            )
    elif _family(name) is None or _family(name) != _family(model):
        yield warning(
            path,
            "it is not the model's own, and the model reads noise unless both have one "
            f"vocabulary. {cure}",
        )


def _family(name: str) -> str | None:
    """What stands before a name's size, in small letters, or None: `qwen2.5` of Qwen2.5-1.5B.

    Where no tokenizer is here to compare, models of one such name are taken to share theirs.
    """
    # maybe a folder; letters, digits, dots, dashes; a dash and a size such as 7B, 1.5B, 360M
    found = re.match(r"(?:.*/)?([A-Za-z][\w.-]*?)-\d+(?:\.\d+)?[BbMm](?![A-Za-z])", name)
    return found and found[1].lower()


def _vocabulary(name: str) -> dict[int, str]:
    """Tokens by id, of a folder's or the hub cache's tokenizer.json; none where none is here.

    Of several snapshots in the cache any: a model's revisions keep its vocabulary.
    """
    cached = hub() / f"models--{name.replace('/', '--')}" / "snapshots"
    for folder, pattern in ((Path(name), ""), (cached, "*/")):
        try:
            read = json.loads(next(folder.glob(f"{pattern}tokenizer.json")).read_text())
            found = read["model"]["vocab"]
            pairs = (
                found.items()
                if isinstance(found, dict)
                else ((t, n) for n, (t, _) in enumerate(found))
            )
            added = {}
            for token in read.get("added_tokens") or []:
                added[token["id"]] = token["content"]
            return {number: token for token, number in pairs} | added
        except (OSError, ValueError, LookupError, TypeError, AttributeError, StopIteration):
            continue
    return {}


def converted_model(run: Preflight) -> Iterator[Finding]:
    """Megatron starts from NeMo-RL's conversion of a folder where there is one, however old."""
    name = str(run[NAME])
    again = "policy.megatron_cfg.force_reconvert_from_hf"
    taken = run["policy.pretrained_checkpoint"] or run[again]
    if not run.megatron or taken or not os.path.isdir(name):
        return
    copies = Path(os.environ.get("NRL_MEGATRON_CHECKPOINT_DIR") or home() / "nemo_rl")
    # NeMo-RL ends the name with this and a hash where the config overrides the model's config.json
    changed = "__hfovr_*" if run["policy.hf_config_overrides"] else ""
    newest = max((p.stat().st_mtime for p in Path(name).iterdir()), default=0.0)
    for copy in copies.glob(f"model_{escape(name.replace('/', '_'))}{changed}/iter_0000000"):
        if copy.stat().st_mtime < newest:
            yield warning(
                NAME,
                f"the run would start from {copy.parent}, which is older than the model. Delete "
                f"that folder, or set `{again}: true`.",
            )


def save_time(run: Preflight) -> Iterator[Finding]:
    """The last save comes before the job's end."""
    found = run[MUST_SAVE]
    limit = run.seconds
    parts = str(found).split(":")
    if found is None:
        if limit is not None:
            yield warning(
                MUST_SAVE,
                "when the job ends, the work since the last checkpoint is lost. Set it to less "
                "than the job's time, as DD:HH:MM:SS.",
            )
    elif len(parts) != 4 or not all(p.isdecimal() for p in parts):
        yield error(MUST_SAVE, f"must be DD:HH:MM:SS, such as 00:03:45:00, got {found!r}")
        return
    seconds = sum(map(mul, map(int, parts), SECONDS)) if found is not None else SOON
    if limit is not None and found is not None and seconds >= limit:
        yield error(
            MUST_SAVE,
            f"{found} is not before the job's end after {limit} s. Set it to less, as DD:HH:MM:SS.",
        )
    elif seconds < SOON:
        yield warning(
            MUST_SAVE,
            f"the run saves and ends after {seconds / 60:g} minutes: {found} is DD:HH:MM:SS. Set "
            "e.g. 00:03:45:00.",
        )


def checkpoint_space(run: Preflight) -> Iterator[Finding]:
    """Checkpoints and the one being written fit the disk, in a folder of the run's own."""
    adapters = run["policy.dtensor_cfg.lora_cfg.enabled"] or run["policy.megatron_cfg.peft.enabled"]
    if run.model is not None and not adapters and run["checkpointing.enabled"]:
        folder = Path(str(run[FOLDER]))
        keep = run["checkpointing.keep_top_k"] or 1
        optimizer = 0 if run["checkpointing.save_optimizer"] is False else OPTIMIZER
        needed = run.model.parameters * (WEIGHTS + optimizer) * (keep + 1)
        there = next(p for p in (folder, *folder.absolute().parents) if os.path.exists(p))
        free = shutil.disk_usage(there).free
        if needed > free:
            say = warning if folder.is_absolute() else note
            yield say(
                FOLDER,
                f"{keep} checkpoints and a new one need about {needed / 1e9:.0f} GB, but "
                f"{free / 1e9:.0f} GB are free on this machine. Choose another disk, or lower "
                "`checkpointing.keep_top_k`.",
            )
    if run["checkpointing.enabled"] and at(run.written, FOLDER) is None:
        yield note(
            FOLDER,
            "this is NeMo-RL's default folder, so the run would resume any other run there. Set "
            "one folder per run.",
        )


def save_format(run: Preflight) -> Iterator[Finding]:
    """The converter to Hugging Face's format reads what torch_save writes."""
    path = "checkpointing.model_save_format"
    adapter = run[f"{DTENSOR}.lora_cfg.enabled"]
    sharded = run[f"{DTENSOR}.enabled"] and run[f"{DTENSOR}._v2"] and not adapter
    whole = run["checkpointing.save_consolidated"]
    if run["checkpointing.enabled"] and sharded and not whole and run[path] == "safetensors":
        yield note(
            path,
            "NeMo-RL's convert_dcp_to_hf.py cannot read it. Set it to torch_save if you want to "
            "evaluate checkpoints.",
        )


def wandb(run: Preflight) -> Iterator[Finding]:
    """Weights & Biases asks for a key when nobody is there to answer."""
    mode = os.environ.get("WANDB_MODE")
    netrc = Path.home() / ".netrc"
    known = os.environ.get("WANDB_API_KEY") or (netrc.exists() and "wandb" in netrc.read_text())
    if run["logger.wandb_enabled"] and mode not in ("offline", "disabled") and not known:
        yield warning(
            "logger.wandb_enabled",
            "W&B needs WANDB_API_KEY, which is not set. Set it, or set WANDB_MODE=offline.",
        )
