"""The keys of data sets and environments that `nemo-algos check` knows are NeMo-RL's own."""

import ast
import functools
import importlib.util
import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

from checkout import release
from nemo_rl.data.datasets.response_datasets import DATASET_REGISTRY
from nemo_rl.environments.utils import ENV_REGISTRY

from nemo_algos.preflight.check.keys import FOREIGN
from nemo_algos.preflight.check.release import GIVEN as GIVEN_BY_NEMO_RL
from nemo_algos.preflight.check.rules.generation import GIVEN


def arguments(kind: Any) -> set[str]:
    """What the constructors of a data set and of its parents name; a variant is the registry's."""
    while isinstance(kind, functools.partial):
        kind = kind.func
    inits = [k.__dict__["__init__"] for k in kind.__mro__[:-1] if "__init__" in k.__dict__]
    named = [p for init in inits for p in inspect.signature(init).parameters.values()]
    return {p.name for p in named if p.kind != p.VAR_KEYWORD} - {"self", "variant"}


def test_arguments_of_data_sets_are_known() -> None:
    found = set[str]().union(*map(arguments, DATASET_REGISTRY.values()))
    assert found - set(GIVEN_BY_NEMO_RL) == release().data_set_keys


def test_keys_of_environments_are_known() -> None:
    environments = release().environments
    ours = {
        name for name, entry in ENV_REGISTRY.items() if "nemo_algos" in entry["actor_class_fqn"]
    }
    assert ENV_REGISTRY.keys() - ours == {*environments, *FOREIGN}
    for name, keys in environments.items():
        module = import_module(ENV_REGISTRY[name]["actor_class_fqn"].rpartition(".")[0])
        (typed,) = [v for k, v in vars(module).items() if k.endswith("EnvConfig")]
        assert {*keys} == set(typed.__annotations__), name


def test_arguments_that_nemo_rl_gives_vllm_are_known(ref: str) -> None:
    """Those of the one call in its worker, beside **vllm_kwargs."""
    spec = importlib.util.find_spec("nemo_rl.models.generation.vllm.vllm_worker")
    assert spec is not None and spec.origin is not None
    calls = [
        n for n in ast.walk(ast.parse(Path(spec.origin).read_text())) if isinstance(n, ast.Call)
    ]
    named = [{word.arg for word in call.keywords} for call in calls]
    (given,) = [found for found in named if {None, "worker_extension_cls"} <= found]
    assert {*GIVEN, None} <= given <= {*GIVEN, None, "logprobs_mode"}
