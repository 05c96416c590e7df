"""Rules about what a config names: files, functions, classes, a device, a model on disk."""

import inspect
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from nemo_algos.config import ConfigError, Finding
from nemo_algos.local.math_problems import MathProblems, read
from nemo_algos.local.schema import TINY, LocalConfig, PolicySection
from nemo_algos.local.tasks import Countdown, Task
from nemo_algos.local.trackers import enabled

OURS: dict[str, type[Task]] = {"countdown": Countdown, "math": MathProblems}


def named(name: str, key: str) -> Any:
    """The object of `package.module:NAME`. Raises ConfigError at the key."""
    try:
        if not all(name.partition(":")):
            raise ValueError("write it as package.module:NAME")
        return resolve_name(name)
    except Exception as error:  # whatever the module does when it is imported
        reason = f"cannot import {name}: {type(error).__name__}: {error}"
        raise ConfigError([Finding(key, reason)]) from None


def found(look: Callable[..., object], *args: Any) -> list[Finding]:
    """What `look` raises."""
    try:
        look(*args)
    except ConfigError as error:
        return error.findings
    return []


def verifier(name: str, key: str) -> None:
    """Raises ConfigError for what cannot be called with a response and an answer."""
    function = named(name, key)
    if not callable(function):
        raise ConfigError([Finding(key, f"{name} is no function")])
    try:
        inspect.signature(function).bind("response", "answer")
    except TypeError as error:
        reason = f"{name} cannot be called with (response, answer): {error}"
        raise ConfigError([Finding(key, reason)]) from None
    except ValueError:  # of a function in C, which has no signature
        return


def data_files(c: LocalConfig) -> Iterator[Finding]:
    """Both files are there, can be read and have the named fields."""
    for name in ("train", "validation"):
        split = getattr(c.data, name)
        try:
            if split and c.data.task == "math":
                read(split)
        except ValueError as error:
            yield Finding(f"data.{name}.data_path", str(error))


def math_verifier(c: LocalConfig) -> Iterator[Finding]:
    """It judges a response by an answer."""
    yield from found(verifier, c.data.verifier, "data.verifier")


def own_task(c: LocalConfig) -> Iterator[Finding]:
    """It is a subclass of Task that says all that Task leaves open."""
    name = c.data.task
    try:
        kind = OURS.get(name) or named(name, "data.task")
    except ConfigError as error:
        yield from error.findings
        return
    if not (isinstance(kind, type) and issubclass(kind, Task)):
        yield Finding("data.task", f"{name} is no subclass of nemo_algos.local.tasks.Task")
    elif kind.__abstractmethods__:
        lacking = ", ".join(sorted(kind.__abstractmethods__))
        yield Finding("data.task", f"{name} lacks {lacking}")
    elif c.data.max_input_seq_length and kind.keep is Task.keep:
        yield Finding("data.max_input_seq_length", f"{name} cannot leave prompts out")


def prompt_lengths(c: LocalConfig) -> Iterator[Finding]:
    """Some prompt fits, as far as a tokenizer on disk tells."""
    limit = c.data.max_input_seq_length
    if c.data.task != "math" or not limit or not Path(c.policy.model_name).is_dir():
        return
    from nemo_algos.local import hf

    try:
        tokenizer = hf.load_tokenizer(c.policy)
        task = MathProblems(c.data, c.grpo.seed)
    except ValueError:  # said by data_files and model
        return
    try:
        task.keep(lambda e: len(hf.chat(tokenizer, task.prompt(e), task.prefix(e))) <= limit)
    except ValueError as error:
        yield Finding("data.max_input_seq_length", str(error))


def optimizer(c: LocalConfig) -> Iterator[Finding]:
    """Optimizer and scheduler can be made, and take a step."""
    from nemo_algos.local.optimizer import rehearse

    yield from rehearse(c.policy.optimizer, c.policy.scheduler)


def device(policy: PolicySection) -> list[Finding]:
    """This machine has it."""
    return [] if policy.device == "cpu" else found(device_named, policy.device)


def device_named(name: str) -> Any:
    """A torch.device: cpu, cuda, mps or auto. Raises ConfigError where it is not there."""
    import torch

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next((d for d, available in there.items() if available), "cpu")
    if not there.get(name, True):
        reason = f"{name} is not available here; use cpu or auto"
        raise ConfigError([Finding("policy.device", reason)])
    return torch.device(name)


def model(policy: PolicySection) -> list[Finding]:
    """A folder or file holds a model's config, weights and tokenizer; hub names are not asked."""
    name = policy.model_name
    on_disk = name.startswith(("/", ".", "~")) or name.endswith(".gguf") or Path(name).is_dir()
    if name == TINY or not on_disk:
        return []
    from transformers import AutoConfig

    from nemo_algos.local import hf

    key = "policy.model_name"
    if name.endswith(".gguf"):
        there = hf.gguf_path(name).exists()
        return [] if there else [Finding(key, f"cannot load {name}: {hf.NO_GGUF}")]
    findings = found(hf.from_pretrained, AutoConfig, key, name)
    if Path(name).is_dir() and not any(Path(name).glob("*.safetensors")):
        reason = f"{name} holds no .safetensors (pickles are not read): save it so"
        findings.append(Finding(key, reason))
    return findings or found(hf.load_tokenizer, policy)


def trackers(c: LocalConfig) -> Iterator[Finding]:
    """The libraries of those that are enabled are there."""
    for name in enabled(c.logger):
        if find_spec(name) is None:
            reason = f"{name} is not installed: uv pip install 'nemo-algos[{name}]'"
            yield Finding(f"logger.{name}_enabled", reason)


RULES: dict[Callable[[LocalConfig], Iterator[Finding]], tuple[str, ...]] = {
    data_files: ("data.task", "data.train", "data.validation"),
    math_verifier: ("data.verifier",),
    own_task: ("data.task", "data.max_input_seq_length"),
    prompt_lengths: ("data", "policy.model_name", "policy.tokenizer"),
    trackers: ("logger",),
    optimizer: ("policy.optimizer", "policy.scheduler"),
    lambda c: iter(device(c.policy)): ("policy.device",),
    lambda c: iter(model(c.policy)): ("policy.model_name", "policy.tokenizer"),
}
