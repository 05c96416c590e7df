"""What differs between versions of NeMo-RL, and the error for one that we do not know."""

import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args, get_type_hints

import nemo_rl

from nemo_algos.findings import ConfigError, Finding

TESTED = "v0.7.0 and main of 2026-08-22 (7ea279abf)"
EXAMPLES = Path(nemo_rl.__path__[0]).parent / "examples"

CONTROLLER = "nemo_rl.algorithms.single_controller"
# what we take of the tuple that `setup` returns, by the types of its annotation
SETUP: dict[str, set[str]] = {
    "policy": {"ColocatablePolicyInterface"},
    "policy_generation": {"GenerationInterface", "NoneType"},
    "dataloader": {"StatefulDataLoader", "MultipleDataloaderWrapper"},
    "val_dataloader": {"StatefulDataLoader", "NoneType"},
    "logger": {"Logger"},
    "checkpointer": {"CheckpointManager"},
    "grpo_save_state": {"GRPOSaveState"},
    "master_config": {"MasterConfig"},
}
# of the tuple too, where NeMo-RL's setup starts NeMo Gym
OF_GYM: dict[str, set[str]] = {"nemo_gym": {"EnvironmentInterface", "NoneType"}}
OPTIONAL = ("processor",)  # of v0.7.0's trainers none takes it
ALIAS = {"wrapped_dataloader": "dataloader"}  # of the trainers that take several


def check() -> None:
    """Raises ConfigError with what NeMo-RL's setup no longer returns."""
    refuse(_missing(SETUP))


def check_gym() -> None:
    """Raises ConfigError where NeMo-RL's setup does not start NeMo Gym as we know it."""
    refuse(_missing(OF_GYM))


def refuse(problems: list[str]) -> None:
    """Raises ConfigError where there are any."""
    if problems:
        first = f"this NeMo-RL is not one that nemo_algos knows (tested: {TESTED}):"
        raise ConfigError([Finding("engine", "\n  ".join([first, *problems]))])


def setup_result(
    setup: Callable[..., tuple[Any, ...]], *args: Any, **kwargs: Any
) -> dict[str, Any]:
    """What setup returns, by the names of SETUP, and of OF_GYM where it does."""
    kinds = _kinds(setup)
    values = setup(*args, **kwargs)
    returned = {}
    for name, kind in (SETUP | OF_GYM).items():
        if kind in kinds:
            returned[name] = kind
    return {name: values[kinds.index(kind)] for name, kind in returned.items()}


def arguments(trainer: Callable[..., None], given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` under the trainer's own names, without what only some trainers take."""
    parameters = inspect.signature(trainer).parameters
    renamed = {}
    for p in parameters:
        if p in ALIAS:
            renamed[ALIAS[p]] = p
    named = {renamed.get(name, name): value for name, value in given.items()}
    return {k: v for k, v in named.items() if k in parameters or k not in OPTIONAL}


def _missing(parts: Mapping[str, set[str]]) -> list[str]:
    from nemo_rl.algorithms import grpo  # not in the workers

    kinds = _kinds(grpo.setup)
    return [f"grpo.setup returns no {n}" for n, kind in parts.items() if kinds.count(kind) != 1]


def _kinds(setup: Callable[..., Any]) -> list[set[str]]:
    """The names of the types of each value that setup returns; {} where it does not say."""
    parts = get_args(get_type_hints(setup).get("return"))
    kinds = []
    for part in parts:
        kinds.append({getattr(kind, "__name__", str(kind)) for kind in get_args(part) or (part,)})
    return kinds


def get(section: Any, key: str, default: Any = None) -> Any:
    """A config value: sections are dictionaries in one version and pydantic models in another."""
    if isinstance(section, Mapping):
        return section.get(key, default)
    return getattr(section, key, default)


def put(section: Any, key: str, value: Any) -> None:
    """Sets a config value or a state's, wherever `get` finds it."""
    if isinstance(section, MutableMapping):
        section[key] = value
    else:
        setattr(section, key, value)


@contextmanager
def replace_attributes(*places: tuple[Any, str, Any]) -> Iterator[None]:
    """Within, attributes of NeMo-RL's modules are ours: (module, name, value)."""
    stock = [(module, name, getattr(module, name)) for module, name, _ in places]
    try:
        for module, name, value in places:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in stock:
            setattr(module, name, value)


def present(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
