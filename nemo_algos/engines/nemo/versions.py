"""What we bind of NeMo-RL, checked before Ray starts: one error that names what changed."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from typing import Any, get_args, get_type_hints

TESTED = "v0.7.0 and main of 2026-08-22 (7ea279abf)"
GRPO, LOSS = "nemo_rl.algorithms.grpo", "nemo_rl.algorithms.loss"

# module, attribute, parameters that we pass by name (or override)
BOUND: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (LOSS, "ClippedPGLossFn", ("cfg",)),
    (
        LOSS,
        "ClippedPGLossFn.__call__",
        ("next_token_logprobs", "data", "global_valid_seqs", "global_valid_toks"),
    ),
    (GRPO, "_create_advantage_estimator", ("master_config",)),
    (GRPO, "calculate_baseline_and_std_per_prompt", ("prompts", "rewards")),
    (GRPO, "scale_rewards", ("repeated_batch",)),
    (GRPO, "MasterConfig", ()),
    (
        GRPO,
        "setup",
        ("master_config", "tokenizer", "dataset", "val_dataset", "policy_factory", "processor"),
    ),
    ("nemo_rl.algorithms.utils", "get_gdpo_reward_component_keys", ("batch",)),
    ("nemo_rl.utils.checkpoint", "CheckpointManager.get_latest_checkpoint_path", ()),
    ("nemo_rl.utils.checkpoint", "CheckpointManager.load_training_info", ("checkpoint_path",)),
    ("nemo_rl.models.policy.lm_policy", "Policy", ("worker_extension_cls_fqn",)),
    ("nemo_rl.utils.config", "load_config", ()),
)
CONTROLLER = "nemo_rl.algorithms.single_controller"
OF_CONTROLLER: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (f"{CONTROLLER}_utils.setup", "_create_advantage_estimator", ("master_config",)),
    (f"{CONTROLLER}_utils.setup", "ClippedPGLossFn", ("cfg",)),
    (f"{CONTROLLER}_utils.setup", "TQPolicy", ()),
    (f"{CONTROLLER}_utils.setup", "setup_single_controller", ("master_config", "tokenizer")),
    (f"{CONTROLLER}_utils.utils", "fields_for_put", ("meta", "fields")),
    (f"{CONTROLLER}_utils.utils", "tensor_field", ("data", "field_name")),
    (
        f"{CONTROLLER}_utils.setup",
        "SingleControllerActorArgs",
        ("gen_handle", "trainer_handle", "env_handles", "save_state"),
    ),
    (f"{CONTROLLER}_utils.utils", "squeeze_trailing_unit_dim", ()),
    (f"{CONTROLLER}_utils.config", "validate_single_controller_config", ("master_config",)),
    (CONTROLLER, "SingleControllerActor", ()),
)
# and of the controller's actor: what we read and replace of it
OF_ITS_START = (
    "self._advantage_estimator",
    "self._save_state",
    "self._checkpointer",
    "self._trainer",
    "self._logger",
    "self._env_handles",
    "self._policy_logprobs_required",
)
# and of its advantage stage
OF_ITS_STAGE = (
    "prompt_ids=",
    "rewards=",
    "mask=",
    "repeated_batch=",
    "_advantage_estimator",
    "_policy_logprobs_required",
    '"logprobs_policy"',
    '"logprobs_reference"',
    '"put_samples"',
)
# names that only the source of NeMo-RL's loss has: batch keys, some read with a default, and
# attributes that we set
OF_THE_LOSS = (
    '"curr_logprobs_unfiltered"',
    '"advantages"',
    '"prev_logprobs"',
    "self.ratio_clip_min",
    "self.ratio_clip_max",
    "self.ratio_clip_c",
    "self.disable_ppo_ratio",
)
# and of its trainers: the arguments of compute_advantage
OF_A_TRAINER = (
    "prompt_ids=",
    "rewards=",
    "mask=",
    "repeated_batch=",
    "logprobs_policy=",
    "logprobs_reference=",
)
# and the calls that our proxy of the policy answers
OF_THE_POLICY = ("policy.get_logprobs", "policy.train")
OF_THE_QUEUE = ("policy.read_from_dataplane", "policy.write_to_dataplane", "policy.train_from_meta")
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
# every trainer's other arguments
GIVEN = (*SETUP, "tokenizer", "loss_fn", "task_to_env", "val_task_to_env")
OPTIONAL = ("processor",)  # of v0.7.0's trainers none takes it
ALIAS = {"wrapped_dataloader": "dataloader"}  # of the trainers that take several


def check() -> None:
    """Raises ImportError with everything that is missing or has other parameters."""
    problems = [p for module, name, wanted in BOUND for p in _parameters(module, name, wanted)]
    refuse(problems)
    refuse([*_names(_import(LOSS, "ClippedPGLossFn.__call__"), OF_THE_LOSS), *_parts()])


def check_trainer(function: Callable[..., None]) -> None:
    """Raises ImportError where it takes, gives our estimator, or asks the policy what we do not."""
    asked = OF_THE_QUEUE if "sync" in function.__name__.split("_") else OF_THE_POLICY
    refuse([*_arguments(function), *_names(function, (*OF_A_TRAINER, *asked))])


def check_controller() -> None:
    """Raises ImportError where the single controller is not there, or not the one we know."""
    refuse([p for module, name, wanted in OF_CONTROLLER for p in _parameters(module, name, wanted)])
    actor = _import(CONTROLLER, "SingleControllerActor").__ray_metadata__.modified_class
    methods = {"__init__": OF_ITS_START, "_advantage_stage": OF_ITS_STAGE, "_call_dp": ()}
    refuse([f"its controller has no {name}" for name in methods if not hasattr(actor, name)])
    refuse([p for name, words in methods.items() for p in _names(getattr(actor, name), words)])


def refuse(problems: list[str]) -> None:
    """Raises ImportError where there are any."""
    if problems:
        what = f"this NeMo-RL is not one that nemo_algos knows (tested: {TESTED})"
        raise ImportError("\n  ".join([f"{what}:", *problems]))


def setup_result(
    setup: Callable[..., tuple[Any, ...]], *args: Any, **kwargs: Any
) -> dict[str, Any]:
    """What setup returns, by the names of SETUP."""
    kinds = _kinds(setup)
    values = setup(*args, **kwargs)
    return {name: values[kinds.index(kind)] for name, kind in SETUP.items()}


def arguments(trainer: Callable[..., None], given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` under the trainer's own names, without what only some trainers take."""
    parameters = inspect.signature(trainer).parameters
    renamed = {ALIAS[p]: p for p in parameters if p in ALIAS}
    named = {renamed.get(name, name): value for name, value in given.items()}
    return {k: v for k, v in named.items() if k in parameters or k not in OPTIONAL}


def _import(module: str, name: str) -> Any:
    return attrgetter(name)(import_module(module))


def _parameters(module: str, name: str, wanted: tuple[str, ...]) -> Iterator[str]:
    try:
        bound = _import(module, name)
    except (ImportError, AttributeError) as error:
        yield f"{module}.{name}: {error}"
        return
    missing = [p for p in wanted if p not in inspect.signature(bound).parameters] if wanted else []
    if missing:
        yield f"{module}.{name} has no parameter {', '.join(missing)}"


def _names(function: Callable[..., Any], names: tuple[str, ...]) -> Iterator[str]:
    source = inspect.getsource(function)
    words = {n: rf"(?<!\w){re.escape(n)}" + (r"\b" if n[-1].isalnum() else "") for n in names}
    gone = [name for name, word in words.items() if not re.search(word, source)]
    gone = [name.strip('"=').removeprefix("self.") for name in gone]
    if gone:
        yield f"{function.__module__}.{function.__qualname__} does not know {', '.join(gone)}"


def _arguments(trainer: Callable[..., None]) -> Iterator[str]:
    """A trainer takes all that we have, and asks for no more."""
    parameters = inspect.signature(trainer).parameters.values()
    known = {ALIAS.get(p.name, p.name): p.default for p in parameters}
    missing = [name for name in GIVEN if name not in known]
    unknown = [k for k, v in known.items() if k not in GIVEN and v is inspect.Parameter.empty]
    for names, fault in ((missing, "has no parameter"), (unknown, "asks for")):
        if names:
            yield f"{trainer.__module__}.{trainer.__qualname__} {fault} {', '.join(names)}"


def _parts() -> list[str]:
    kinds = _kinds(_import(GRPO, "setup"))
    return [f"{GRPO}.setup returns no {n}" for n, kind in SETUP.items() if kinds.count(kind) != 1]


def _kinds(setup: Callable[..., Any]) -> list[set[str]]:
    """The names of the types of each value that setup returns; {} where it does not say."""
    parts = get_args(get_type_hints(setup).get("return"))
    return [{getattr(t, "__name__", str(t)) for t in get_args(part) or (part,)} for part in parts]


def get(section: Any, key: str, default: Any = None) -> Any:
    """A config value: sections are dictionaries in one version and pydantic models in another."""
    if isinstance(section, Mapping):
        return section.get(key, default)
    return getattr(section, key, default)


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
    """Whether this version has the module."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
