"""Rules about what a config names: files, functions, classes, a device, a model on disk."""

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from nemo_algos.config import ConfigError, Finding, install
from nemo_algos.engines.data.math_problems import OURS, MathProblems, read
from nemo_algos.engines.data.schema import VERIFIER
from nemo_algos.engines.data.tasks import Task
from nemo_algos.engines.local.schema import SHAPES, LocalConfig, PolicySection
from nemo_algos.engines.local.trackers import enabled
from nemo_algos.engines.rewards.function import GIVEN, PAIR, RewardFunction, path_of

NO_PEFT = f"needs peft: {install('peft', 'lora')}"


def named(name: str, key: str) -> Any:
    """The object of `package.module:NAME`. Raises ConfigError at the key."""
    try:
        if not all(name.partition(":")):
            raise ValueError("write it as package.module:NAME")
        return resolve_name(name)
    except Exception as error:  # whatever the module does when it is imported
        here = Path(f"{name.partition(':')[0].partition('.')[0]}.py").exists()
        unseen = here and isinstance(error, ModuleNotFoundError)
        cure = "; it lies in this folder: put PYTHONPATH=. before the command" if unseen else ""
        reason = f"cannot import {name}: {type(error).__name__}: {error}{cure}"
        raise ConfigError([Finding(key, reason)]) from None


def found(look: Callable[..., object], *args: Any) -> list[Finding]:
    """What `look` raises."""
    try:
        look(*args)
    except ConfigError as error:
        return error.findings
    return []


def verifier(name: str, key: str, given: Sequence[str] = PAIR) -> None:
    """Raises ConfigError for what cannot be called with a response and an answer, or with less."""
    function = named(path_of(name), key)
    try:
        RewardFunction(function, given)
    except ValueError as error:
        raise ConfigError([Finding(key, f"{name} {error}")]) from None


def data_files(c: LocalConfig) -> Iterator[Finding]:
    """Both files are there, can be read and have the named fields."""
    for name in ("train", "validation"):
        split = getattr(c.data, name)
        try:
            if split and c.data.task == "math":
                read(split)
        except ValueError as error:
            yield Finding(f"data.{name}.data_path", str(error))


def reward_functions(c: LocalConfig) -> Iterator[Finding]:
    """They ask for nothing that they are not given."""
    for name, reward in c.data.functions.items():
        key = f"data.rewards.{name}.function" if name else "data.verifier"
        yield from found(verifier, reward.function, key, GIVEN)


def own_task(c: LocalConfig) -> Iterator[Finding]:
    """It is a subclass of Task that says all that Task leaves open."""
    name = c.data.task
    try:
        kind = OURS.get(name) or named(name, "data.task")
    except ConfigError as error:
        yield from error.findings
        return
    if not (isinstance(kind, type) and issubclass(kind, Task)):
        yield Finding("data.task", f"{name} is no subclass of nemo_algos.engines.data.tasks.Task")
        return
    lacking = sorted(kind.__abstractmethods__)
    if kind.verify is Task.verify and kind.answer is Task.answer:
        lacking.append("verify (or answer, for data.rewards)")
    if lacking:
        yield Finding("data.task", f"{name} lacks {', '.join(lacking)}")
    elif kind.verify is not Task.verify:
        for key, usual in (("rewards", None), ("verifier", VERIFIER), ("verifier_workers", 1)):
            if getattr(c.data, key) != usual:
                yield Finding(f"data.{key}", f"{name} judges by its own verify: remove it")
    if kind.turns and c.policy.model_name in SHAPES:
        reason = f"{c.policy.model_name} takes prompts of one length, and {name} has turns"
        yield Finding("policy.model_name", f"{reason}: name another model")
    if c.data.max_input_seq_length and kind.keep is Task.keep:
        yield Finding("data.max_input_seq_length", f"{name} cannot leave prompts out")


def response_length(c: LocalConfig) -> Iterator[Finding]:
    """The answers fit into a response, as far as a tokenizer on disk, or their words, tell."""
    limit, boxed = c.policy.generation.max_new_tokens, "\\boxed" in c.data.prompt
    reads = any(reward.function == VERIFIER for reward in c.data.functions.values())
    if c.data.task != "math" or not c.data.train or not reads:
        return
    try:
        answers = [example.answer for example in read(c.data.train)]
        count = _counter(c.policy, boxed)
    except ValueError:  # said by data_files and model
        return
    lengths = [count(f"\\boxed{{{answer}}}" if boxed else answer) + 1 for answer in answers]
    if longer := sum(length > limit for length in lengths):
        what = f"{limit} tokens do not hold the answers of {longer} of {len(lengths)} rows"
        also = ", and the prompt asks to reason before it" if "eason" in c.data.prompt else ""
        reason = f"{what}, which take up to {max(lengths)}{also}: raise it"
        yield Finding("policy.generation.max_new_tokens", reason, "warning")


def _counter(policy: PolicySection, boxed: bool) -> Callable[[str], int]:
    """How many tokens a text has, or at least."""
    if not Path(policy.model_name).is_dir():
        return lambda text: len(text.split()) + (3 if boxed else 0)  # \boxed, { and }
    from nemo_algos.engines.local import hf

    tokenizer = hf.load_tokenizer(policy)
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])


def prompt_lengths(c: LocalConfig) -> Iterator[Finding]:
    """Some prompt fits, as far as a tokenizer on disk tells."""
    limit = c.data.max_input_seq_length
    if c.data.task != "math" or not limit or not Path(c.policy.model_name).is_dir():
        return
    from nemo_algos.engines.local import hf

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
    from nemo_algos.engines.local.optimizer import rehearse

    yield from rehearse(c.policy.optimizer, c.policy.scheduler)


def device(policy: PolicySection) -> list[Finding]:
    """This machine has it."""
    if policy.device in ("cpu", "auto"):
        return []
    from nemo_algos.engines.local.hardware import device_of

    return found(device_of, policy)


def model(policy: PolicySection) -> list[Finding]:
    """A folder or file holds a model's config, weights and tokenizer; hub names are not asked."""
    name = policy.model_name
    if policy.dtensor_cfg.lora_cfg.enabled and not find_spec("peft"):
        return [Finding("policy.dtensor_cfg.lora_cfg.enabled", NO_PEFT)]
    on_disk = name.startswith(("/", ".", "~")) or name.endswith(".gguf") or Path(name).is_dir()
    if name in SHAPES or not on_disk:
        return []
    from transformers import AutoConfig

    from nemo_algos.engines.local import hf

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
            reason = f"{name} is not installed: {install(name)}"
            yield Finding(f"logger.{name}_enabled", reason)


RULES: dict[Callable[[LocalConfig], Iterator[Finding]], tuple[str, ...]] = {
    data_files: ("data.task", "data.train", "data.validation"),
    reward_functions: ("data.verifier", "data.rewards"),
    own_task: (
        "policy.model_name",
        "data.task",
        "data.max_input_seq_length",
        "data.verifier",
        "data.rewards",
        "data.verifier_workers",
    ),
    response_length: ("data", "policy"),
    prompt_lengths: ("data", "policy.model_name", "policy.tokenizer"),
    trackers: ("logger",),
    optimizer: ("policy.optimizer", "policy.scheduler"),
    lambda c: iter(device(c.policy)): ("policy.device",),
    lambda c: iter(model(c.policy)): ("policy.model_name", "policy.tokenizer"),
}
