"""The NeMo-RL that a run is judged by: its types, its configs, and facts of its code.

It is the one that will run, read as text from its checkout; nothing of it is imported. Without a
checkout it is the one that ships with this package, of a date that every output names.
"""

import ast
import importlib.util
import json
import lzma
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from nemo_algos.preflight.check.annotations import (
    Schema,
    Section,
    fields_of,
    module,
    parsed,
    schemas,
)
from nemo_algos.preflight.check.registries import TABLES, constructors, listed

GRPO = "nemo_rl.algorithms.grpo"
# the config's types, by the path of their section; the single controller has a type of its own
TYPES = {
    "": f"{GRPO}:MasterConfig",
    "policy.generation": "nemo_rl.models.generation.vllm.config:VllmConfig",
}
OF_CONTROLLER = {"": "nemo_rl.algorithms.single_controller_utils.config:MasterConfig"}
ENGINE_TYPES = ("EngineArgs", "AsyncEngineArgs")
ENVIRONMENTS = "nemo_rl.environments.utils:ENV_REGISTRY"
CLONE = "git clone --depth 1{} https://github.com/NVIDIA-NeMo/RL nemo-rl"
SHIPPED = Path(__file__).parent / "nemo_rl.json.xz"
PURPOSES = {  # by the section that no other trainer's config has
    "sft": "supervised fine-tuning",
    "dpo": "DPO",
    "rm": "a reward model",
    "distillation": "distillation",
    "ppo": "PPO",
    "eval": "an evaluation",
}
GIVEN = ("data", "variant")  # arguments of data sets that NeMo-RL itself gives
# keys of other trainers that a single controller may lack
CONTROLLED = (
    "data.use_multiple_dataloader",
    "grpo.advantage_clip_high",
    "grpo.advantage_clip_low",
    "grpo.overlong_filtering",
    "grpo.reward_scaling",
    "grpo.reward_shaping",
    "grpo.stop_at_validation_metric",
    "grpo.use_dynamic_sampling",
    "grpo.val_at_end",
    "grpo.val_at_start",
    "grpo.val_period",
)
# What rules rest on: a piece of code, a function, or a parameter, and where it is. The names are
# keys of the shipped file, too.
CODE = {
    # it refuses to generate on the GPUs that train
    "asynchronous GRPO needs GPUs of its own": (
        f"{GRPO}:async_grpo_train",
        "assert not colocated_inference",
    ),
    # `_get_params_in_layers` gives a list, which `append` puts into the list of names as one item
    "ignored layers are a nested list": (
        "nemo_rl.models.generation.vllm.quantization.fp8:init_fp8",
        "bf16_params.append(_get_params_in_layers(param_names, layers))",
    ),
    "DTensor refuses YaRN": (
        "nemo_rl.models.automodel.setup:validate_and_prepare_config",
        'assert rope_scaling.get("rope_type") != "yarn"',
    ),
    # Python's `list.append` takes one argument, so this line is a TypeError; it is run where
    # activations have scales that are powers of two
    "powers of two stop the engine": (
        "nemo_rl.models.generation.vllm.quantization.fp8:apply_fp8_patches",
        "fp8_state.vllm_patches.append(patcher2, patcher3, patcher4)",
    ),
    "DTensor v2 has what it resumes as its reference": (
        "nemo_rl.models.policy.workers.dtensor_policy_worker_v2:DTensorPolicyWorkerV2Impl",
        "model_and_optimizer_state = setup_model_and_optimizer(config=config, "
        "tokenizer=self.tokenizer, runtime_config=runtime_config, "
        "distributed_context=distributed_context, checkpoint_manager=self.checkpoint_manager, "
        "is_vlm=self.is_vlm, init_optimizer=init_optimizer, weights_path=weights_path, "
        "optimizer_path=optimizer_path)",
    ),
}
FUNCTIONS = {
    "NeMo Gym gives rewards in parts": "nemo_rl.environments.nemo_gym:extract_reward_components"
}
PARAMETERS = {"asynchronous GRPO takes images": (f"{GRPO}:async_grpo_train", "processor")}


class Engine(NamedTuple):
    """The vLLM that generates: its version, and the arguments of its engine.

    installed: whether it is the one that will run, and not the shipped one.
    """

    name: str
    arguments: frozenset[str]
    installed: bool = False


@dataclass(frozen=True, eq=False)  # equal only to itself: its mappings are never compared
class Release:
    """One NeMo-RL. `find` gives the one that will run.

    name: for people.
    schema: the JSON schema of each typed key, by path.
    configs: the files below examples by name, interpolations as written. The shipped NeMo-RL has
        only the names of the sections of those that are not for GRPO.
    environments: the keys of each environment's section.
    data_set_keys: the arguments of its data sets.
    facts: whether each of FACTS holds.
    engine: its vLLM.
    names: by the name of a package ("NeMo-RL", "vLLM 0.11.0") and a key the values that the package
        looks up for that key. Those of libraries are always the shipped ones.
    prompts: the texts of its prompt files, by name.
    fields: what is read of `model TYPE`, `processor NAME`, `data set NAME`, `Megatron Bridge`,
        which are always the shipped ones; and what `constructors` reads of data sets.
    root: the checkout; None of the shipped one.
    trees: what `tree` has made.
    """

    name: str
    schema: Mapping[str, Schema]
    configs: Mapping[str, dict[str, Any]]
    environments: Mapping[str, tuple[str, ...]]
    data_set_keys: frozenset[str]
    facts: Mapping[str, bool]
    engine: Engine
    names: Mapping[str, Mapping[str, Sequence[str]]]
    prompts: Mapping[str, str]
    fields: Mapping[str, list[str]]
    root: Path | None = None
    trees: dict[str, DictConfig] = field(default_factory=dict)

    @property
    def declared(self) -> frozenset[str]:
        """The paths of its typed keys."""
        return frozenset(self.schema)

    @property
    def grpo(self) -> dict[str, dict[str, Any]]:
        """The configs that its GRPO trainers take."""
        return {name: config for name, config in self.configs.items() if is_grpo(config)}

    @property
    def samplers(self) -> Mapping[str, Mapping[str, Schema]]:
        """The keys that each sampler of the single controller reads."""
        return self.schema.get("async_rl.sampler", {}).get("variants", {})

    def tree(self, name: str) -> DictConfig:
        """A config as OmegaConf has it, made once."""
        if name not in self.trees:
            self.trees[name] = OmegaConf.create(self.configs[name])
        return self.trees[name]


def is_grpo(config: Mapping[str, Any]) -> bool:
    """Whether NeMo-RL's GRPO trainers take it: its other trainers have a section of their own."""
    return "grpo" in config


def purpose(config: Mapping[str, Any]) -> str:
    """What a config that is not for GRPO is for."""
    return next((what for section, what in PURPOSES.items() if section in config), "something else")


def find(named: str = "") -> Release:
    """The NeMo-RL that will run: the named folder, $NEMO_RL_HOME, the installed one, this folder.

    Without any of them the shipped one. Raises ValueError where what is named is no checkout.
    """
    home = os.environ.get("NEMO_RL_HOME", "")
    for source, folder in {"--nemo-rl": named, "$NEMO_RL_HOME": home}.items():
        if folder and not is_checkout(Path(folder)):
            # a version, written where a folder is asked for: how to get that one
            version = re.fullmatch(r"v?(\d+\.\d+\.\d+\w*)", folder)
            branch = f" --branch v{version[1]}" if version else ""
            raise ValueError(
                f"{source} {folder}: this is not a folder with a NeMo-RL checkout. Get one, and "
                f"name its folder: {CLONE.format(branch)}"
            )
        if folder:
            return read(Path(folder).resolve())
    installed = importlib.util.find_spec("nemo_rl")
    if installed is not None and installed.origin is not None:
        root = Path(installed.origin).parents[1]
        if is_checkout(root):
            return read(root)
    if is_checkout(Path.cwd()):
        return read(Path.cwd())
    return shipped()


def is_checkout(root: Path) -> bool:
    """Whether a folder has NeMo-RL's GRPO and its configs."""
    return (root / "nemo_rl" / "algorithms" / "grpo.py").is_file() and _examples(root).is_dir()


def _examples(root: Path) -> Path:
    return root / "examples" / "configs"


@cache
def shipped() -> Release:
    """The NeMo-RL that this package ships, written by scripts/ship_nemo_rl.py."""
    kept = json.loads(lzma.decompress(SHIPPED.read_bytes()))
    kept["environments"] = {name: tuple(keys) for name, keys in kept["environments"].items()}
    kept["data_set_keys"] = frozenset(kept["data_set_keys"])
    kept["engine"] = Engine(kept["engine"]["name"], frozenset(kept["engine"]["arguments"]))
    return Release(**kept)


@cache
def read(root: Path) -> Release:
    """The checkout in a folder, in half a second; its configs and facts when they are asked for."""
    files = config_files(root)
    data_sets = constructors(root)
    taken = chain(*(data_sets[what] for what in data_sets if what.startswith("arguments of ")))
    return Release(
        name=_name(root),
        schema=schemas(root, TYPES, OF_CONTROLLER),
        configs=_Lazy(files, lambda name: _composed(files[name])),
        environments=_environments(root),
        data_set_keys=frozenset(taken).difference(GIVEN),
        facts=_Lazy(FACTS, lambda fact: _holds(root, fact)),
        engine=_engine(root),
        names={
            **shipped().names,
            "NeMo-RL": {key: listed(root, where) for key, where in TABLES.items()},
        },
        prompts={f.name: f.read_text("utf-8") for f in (root / "examples/prompts").glob("*.txt")},
        fields={**shipped().fields, **data_sets},
        root=root,
    )


def _engine(root: Path) -> Engine:
    """The vLLM of this Python or of NeMo-RL's environments, else the shipped one."""
    environments = Path(os.environ.get("NEMO_RL_VENV_DIR") or root / "venvs")
    places = [*environments.glob("*/lib/python*/site-packages/vllm")]
    installed = importlib.util.find_spec("vllm")
    if installed is not None and installed.origin is not None:
        places.insert(0, Path(installed.origin).parent)
    for place in places:
        arguments = engine_arguments(place)
        if arguments:
            return Engine("this vLLM", arguments, installed=True)
    return shipped().engine


def engine_arguments(vllm: Path) -> frozenset[str]:
    """The arguments of the engine of a vLLM package, read as text; none where there is no file."""
    both = (listed(vllm.parent, f"vllm.engine.arg_utils:{kind}") for kind in ENGINE_TYPES)
    return frozenset(chain(*both))


def _name(root: Path) -> str:
    """Its version, and its commit where it is a clone: git's files are read, git is not asked."""
    info = _text(root / "nemo_rl" / "package_info.py")
    numbers = re.findall(r"^(?:MAJOR|MINOR|PATCH) = (\d+)", info, re.MULTILINE)
    version = f"NeMo-RL {'.'.join(numbers) or f'in {root}'}"
    commit = _commit(root)
    if commit:
        return f"{version} at commit {commit[:9]}"
    return version


def _commit(root: Path) -> str:
    """The commit that is checked out, or ""."""
    git = root / ".git"
    if git.is_file():  # of a worktree, whose references are the clone's
        git = root / git.read_text(encoding="utf-8").removeprefix("gitdir: ").strip()
    head = _text(git / "HEAD")
    reference = head.removeprefix("ref: ")
    if reference == head:
        return head
    # a worktree's file names the clone's folder; a clone has no such file, and `git / ""` is `git`
    shared = git / _text(git / "commondir")
    line = rf"^(\w+) {re.escape(reference)}$"
    packed = re.search(line, _text(shared / "packed-refs"), re.MULTILINE)
    return _text(shared / reference) or (packed[1] if packed else "")


def _text(file: Path) -> str:
    if file.is_file():
        return file.read_text(encoding="utf-8").strip()
    return ""


class _Lazy(Mapping[str, Any]):
    """Values that are made when they are asked for, and kept."""

    def __init__(self, names: Iterable[str], make: Callable[[str], Any]) -> None:
        self.made: dict[str, Any] = dict.fromkeys(names)
        self.make = make

    def __getitem__(self, name: str) -> Any:
        if self.made[name] is None:
            self.made[name] = self.make(name)
        return self.made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.made)

    def __len__(self) -> int:
        return len(self.made)


def _composed(file: Path) -> Any:
    """A config with those that it goes over, interpolations as written."""
    try:
        return OmegaConf.to_container(inherited(file))
    except RecursionError:
        raise ValueError(f"{file} goes over itself by `defaults`.") from None


def config_files(root: Path) -> dict[str, Path]:
    """The YAML files below examples, by the name that `nemo_rl.config` has for them."""
    found = {}
    for file in sorted((root / "examples").rglob("*.yaml")):
        above = _examples(root) if file.is_relative_to(_examples(root)) else root / "examples"
        found[str(file.relative_to(above))] = file
    return found


@cache
def inherited(file: Path) -> DictConfig:
    """A config over those that its key `defaults` names, as NeMo-RL composes it."""
    try:
        own = OmegaConf.load(file)
    except (OSError, YAMLError, OmegaConfBaseException) as error:
        raise ValueError(f"{file} of this NeMo-RL cannot be read: {error}") from None
    if not isinstance(own, DictConfig):
        raise ValueError(f"{file} of this NeMo-RL is not a section of key: value pairs.")
    above = own.pop("defaults", None) or []
    merged = OmegaConf.create({})
    for name in [above] if isinstance(above, str) else above:
        merged = _over(merged, inherited((file.parent / name).resolve()))
    return _over(merged, own)


def _over(base: DictConfig, own: DictConfig) -> DictConfig:
    """As NeMo-RL merges: a section with `_override_: true` replaces the other one."""
    for key in own:
        section = None if OmegaConf.is_missing(own, key) else own[key]
        if isinstance(section, DictConfig) and section.get("_override_"):
            section.pop("_override_")
            base = base.copy()
            base.pop(key, None)
    merged = OmegaConf.merge(base, own)
    assert isinstance(merged, DictConfig)
    return merged


def _environments(root: Path) -> dict[str, tuple[str, ...]]:
    """The keys of the sections below `env`, by NeMo-RL's name of the environment.

    NeMo-RL's registry is a dictionary such as `{"math": {"actor_class_fqn": "package.Class"}}`,
    maybe within another expression. The keys are the fields of the type `...EnvConfig` in the
    module of that class; an environment without such a type, as NeMo Gym's, is left out.
    """
    where, _, name = ENVIRONMENTS.partition(":")
    bound = module(root, where).find(name)
    registry = getattr(bound[1], "value", None) if bound else None
    found: dict[str, tuple[str, ...]] = {}
    for entry in ast.walk(registry) if registry is not None else ():
        if not isinstance(entry, ast.Dict):
            continue
        for key, value in zip(entry.keys, entry.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(value, ast.Dict):
                found[str(key.value)] = tuple(sorted(_environment_keys(root, value)))
    return {name: keys for name, keys in found.items() if keys}


def _environment_keys(root: Path, entry: ast.Dict) -> Iterator[str]:
    classes = []
    for v in entry.values:
        if isinstance(v, ast.Constant) and "." in str(v.value):
            classes.append(str(v.value))
    if not classes:
        return
    owner = module(root, classes[0].rpartition(".")[0])
    for name, node in owner.names.items():
        if name.endswith("EnvConfig") and isinstance(node, ast.ClassDef):
            yield from _keys(Section(owner, node))


def _keys(section: Section) -> Iterator[str]:
    """The fields of a section, and those of the sections below it."""
    for key, kind in fields_of(section).items():
        yield key
        for inner in kind.sections:
            yield from (f"{key}.{below}" for below in fields_of(inner))


READS = "the single controller reads "
FACTS = (*CODE, *FUNCTIONS, *PARAMETERS, *(f"{READS}{key}" for key in CONTROLLED))


def _function(root: Path, where: str) -> ast.AST | None:
    name, _, function = where.partition(":")
    bound = module(root, name).find(function)
    return bound[1] if bound else None


def _holds(root: Path, fact: str) -> bool:
    """Whether one of FACTS holds of a checkout; not where the code that would show it is absent."""
    if fact in FUNCTIONS:
        return _function(root, FUNCTIONS[fact]) is not None
    if fact in PARAMETERS:
        where, parameter = PARAMETERS[fact]
        match _function(root, where):
            case (
                ast.FunctionDef(args=ast.arguments(args=args, kwonlyargs=named))
                | ast.AsyncFunctionDef(args=ast.arguments(args=args, kwonlyargs=named))
            ):
                return parameter in [a.arg for a in [*args, *named]]
        return False
    if fact.startswith(READS):
        return any(_reads(tree, fact.rpartition(".")[2]) for tree in _controller(root))
    where, code = CODE[fact]
    function = _function(root, where)
    wanted = _without_message(ast.parse(code).body[0])
    if function is None:
        return False
    for node in ast.walk(function):
        if isinstance(node, type(wanted)) and ast.dump(_without_message(node)) == ast.dump(wanted):
            return True
    return False


def _without_message(node: ast.AST) -> ast.AST:
    """A statement, whatever an assertion says."""
    if isinstance(node, ast.Assert):
        return ast.Assert(test=node.test)
    return node


@cache
def _controller(root: Path) -> list[ast.AST]:
    algorithms = root / "nemo_rl" / "algorithms"
    files = algorithms.glob("single_controller_utils/*.py")
    several = [algorithms / "single_controller.py", *files]
    return [parsed(file) for file in several if file.is_file()]


def _reads(node: ast.AST, name: str) -> bool:
    """Whether code reads a key other than to refuse it: by `assert`, or by `if ...: raise`."""
    if isinstance(node, ast.Assert):
        return False
    if isinstance(node, ast.If) and any(isinstance(n, ast.Raise) for n in node.body):
        return any(_reads(child, name) for child in node.orelse)
    match node:
        case ast.Attribute(attr=key) | ast.Subscript(slice=ast.Constant(value=key)) if key == name:
            return True
    return any(_reads(child, name) for child in ast.iter_child_nodes(node))
