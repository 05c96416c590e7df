"""Rules about what a config names: files, functions, classes, a device, a model on disk."""

import functools
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from nemo_algos.engines.data.schema import VERIFIER
from nemo_algos.engines.data.tasks import OURS, Task
from nemo_algos.engines.local import availability
from nemo_algos.engines.local.logs import enabled_names
from nemo_algos.engines.local.schema import SHAPES, Milestones, PolicySection, TorchClass
from nemo_algos.engines.named import check_verifier, findings_of, load_object
from nemo_algos.engines.rewards.function import GIVEN
from nemo_algos.extras import EXTRAS, install
from nemo_algos.findings import ConfigError, Finding
from nemo_algos.preflight.check.rule import LocalRun, Rule, error, warning
from nemo_algos.preflight.check.rules.run import own_tokenizer

FILE = Path(__file__).with_name("torch_classes.json")


@functools.cache
def _table() -> dict[str, Any]:
    return json.loads(FILE.read_text())


def known_to_work(optimizer: TorchClass, entries: Sequence[TorchClass | Milestones]) -> bool:
    """Whether `rehearse` would find nothing; False where torch alone can tell."""
    schedulers = [entry for entry in entries if isinstance(entry, TorchClass)]
    ends = []
    for e in entries:
        if isinstance(e, Milestones):
            ends += e.milestones
    in_order = ends == sorted({end for end in ends if end > 0})
    return (
        (in_order and len(ends) == max(len(schedulers) - 1, 0))
        and _fits(optimizer, _table()["optimizers"])
        and all(_fits(scheduler, _table()["schedulers"]) for scheduler in schedulers)
    )


def _fits(component: TorchClass, classes: dict[str, Any]) -> bool:
    known = classes.get(component.name)
    kwargs = component.kwargs
    if known is None or not {*known["needs"]} <= kwargs.keys() <= known["takes"].keys():
        return False
    return all(_within(value, *known["takes"][name]) for name, value in kwargs.items())


def _within(value: Any, low: float, high: float, length: int) -> bool:
    """Whether a number, or each of so many, lies in the range and is of its kind."""
    if length:
        each = isinstance(value, list) and len(value) == length
        return each and all(_within(one, low, high, 0) for one in value)
    return type(value) in (int, type(low)) and low <= value <= high


def data_files(run: LocalRun) -> Iterator[Finding]:
    """Both files are there, can be read and have the named fields."""
    splits = {name: run[f"data.{name}"] for name in ("train", "validation")}
    if run["data.task"] != "math":
        return
    from nemo_algos.engines.data.tasks import read

    for name, split in splits.items():
        try:
            if split:
                read(split, f"data.{name}")
        except ValueError as problem:
            yield error(f"data.{name}.data_path", str(problem))


def reward_functions(run: LocalRun) -> Iterator[Finding]:
    """They ask for nothing that they are not given; a task with its own verify asks none."""
    task = run["data.task"]
    if task in OURS and resolve_name(OURS[task]).verify is not Task.verify:
        return
    for name, reward in run.functions.items():
        key = f"data.rewards.{name}.function" if name else "data.verifier"
        yield from findings_of(check_verifier, reward.function, key, GIVEN)


def own_task(run: LocalRun) -> Iterator[Finding]:
    """It is a subclass of Task that says all that Task leaves open."""
    name = str(run["data.task"])
    try:
        kind = load_object(OURS.get(name, name), "data.task")
    except ConfigError as problem:
        yield from problem.findings
        return
    if not (isinstance(kind, type) and issubclass(kind, Task)):
        yield error(
            "data.task",
            f"{name} is not a subclass of nemo_algos.engines.data.tasks.Task. Derive it from Task.",
        )
        return
    lacking = sorted(kind.__abstractmethods__)
    if kind.verify is Task.verify and kind.answer is Task.answer:
        lacking.append("verify (or answer, for `data.rewards`)")
    if lacking:
        yield error("data.task", f"{name} lacks {', '.join(lacking)}")
    elif kind.verify is not Task.verify:
        for key in ("data.rewards", "data.verifier", "data.verifier_workers"):
            if run.changed(key):
                yield error(key, f"{name} has its own verify function. Remove this key.")
    if kind.turns and run.model in SHAPES:
        yield error(
            "policy.model_name",
            f"{run.model} needs prompts of equal length, but {name} has several turns. Name "
            "another model.",
        )
    if run["data.max_input_seq_length"] and kind.keep is Task.keep:
        yield error(
            "data.max_input_seq_length",
            f"{name} does not define `keep`, so it cannot skip long prompts. Define it, or remove "
            "this key.",
        )


def response_length(run: LocalRun) -> Iterator[Finding]:
    """The answers fit into a response, as far as a tokenizer on disk, or their words, tell."""
    data = run["data"]
    policy = run["policy"]
    limit = policy.generation.max_new_tokens
    boxed = "\\boxed" in data.prompt
    reads = any(reward.function == VERIFIER for reward in data.functions.values())
    if data.task != "math" or not data.train or not reads:
        return
    from nemo_algos.engines.data.tasks import read

    try:
        answers = [example.answer for example in read(data.train)]
        count = _counter(policy, boxed)
    except ValueError:  # said by data_files and model
        return
    lengths = []
    for answer in answers:
        written = f"\\boxed{{{answer}}}" if boxed else answer
        lengths.append(count(written) + 1)
    longer = sum(length > limit for length in lengths)
    if longer:
        also = ", and the prompt asks for reasoning first" if "eason" in data.prompt else ""
        yield warning(
            "policy.generation.max_new_tokens",
            f"{limit} tokens are too few for the answers of {longer} of {len(lengths)} rows, "
            f"which need up to {max(lengths)}{also}. Set it to {max(lengths)} or more.",
        )


def _counter(policy: PolicySection, boxed: bool) -> Callable[[str], int]:
    """How many tokens a text has, or at least."""
    if not Path(policy.model_name).is_dir():
        return lambda text: len(text.split()) + (3 if boxed else 0)  # \boxed, { and }
    from nemo_algos.engines.local import hf

    tokenizer = hf.load_tokenizer(policy)
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])


def prompt_lengths(run: LocalRun) -> Iterator[Finding]:
    """Some prompt fits, as far as a tokenizer on disk tells."""
    data = run["data"]
    limit = run["data.max_input_seq_length"]
    _ = run["policy.tokenizer"]
    if data.task != "math" or not limit or not Path(run.model).is_dir():
        return
    from nemo_algos.engines.data.tasks import MathProblems
    from nemo_algos.engines.local import hf

    try:
        tokenizer = hf.load_tokenizer(run.config.policy)
        task = MathProblems(data, run.config.grpo.seed)
    except ValueError:  # said by data_files and model
        return
    try:
        task.keep(lambda e: len(hf.chat(tokenizer, task.prompt(e), task.prefix(e))) <= limit)
    except ValueError as problem:
        yield error("data.max_input_seq_length", str(problem))


def optimizer(run: LocalRun) -> Iterator[Finding]:
    """Optimizer and scheduler can be made, and take a step."""
    settings = run["policy.optimizer"]
    scheduler = run["policy.scheduler"]
    if known_to_work(settings, scheduler):
        return
    from nemo_algos.engines.local.updates import rehearse

    yield from rehearse(settings, scheduler)


def has_device(run: LocalRun) -> Iterator[Finding]:
    _ = run["policy.device"]
    yield from availability.device(run.config.policy)


def has_model(run: LocalRun) -> Iterator[Finding]:
    """Its folder is whole."""
    _ = run.model, run["policy.tokenizer"]
    yield from availability.model(run.config.policy)


def trackers(run: LocalRun) -> Iterator[Finding]:
    """The libraries of those that are enabled are there; of TensorBoard's `train` sees to it."""
    for name in enabled_names(run["logger"]):
        if name not in EXTRAS and find_spec(name) is None:
            yield error(f"logger.{name}_enabled", f"{name} is not installed: {install(name)}")


def log_dir(run: LocalRun) -> Iterator[Finding]:
    """A folder is made there and removed again."""
    above = Path(run["logger.log_dir"]).absolute()
    while not above.exists():
        above = above.parent
    try:
        tempfile.TemporaryDirectory(dir=above).cleanup()
    except OSError as problem:
        yield error(
            "logger.log_dir",
            f"{run['logger.log_dir']} cannot be written: {problem.strerror}. Choose another "
            "folder.",
        )


RULES: tuple[Rule, ...] = (
    data_files, reward_functions, own_task, response_length, prompt_lengths, trackers, optimizer,
    has_device, has_model, own_tokenizer,
)  # fmt: skip
