"""What the plug-in binds of NeMo-RL and no run here meets: registries, configs, keys of sections.

What a run meets needs no list: NeMo-RL's own trainers, losses and post-processors run with our code
in the other files, and `versions.check` names the rest before Ray.
"""

import ast
import functools
import importlib.util
import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

import checkout
import pytest
from cpu_run import OVERRIDES, load_config
from nemo_rl.algorithms import grpo
from nemo_rl.data.datasets.response_datasets import DATASET_REGISTRY
from nemo_rl.distributed import ray_actor_environment_registry as registry
from nemo_rl.distributed.virtual_cluster import PY_EXECUTABLES
from nemo_rl.environments.utils import ENV_REGISTRY
from nemo_rl.models.automodel import train as automodel

from nemo_algos.preflight.check.keys import FOREIGN
from nemo_algos.preflight.check.release import GIVEN as GIVEN_BY_NEMO_RL
from nemo_algos.preflight.check.rules.generation import GIVEN

WORKERS = "nemo_rl.models.policy.workers"
LOGPROBS = automodel.LogprobsPostProcessor  # of DTensor's workers, which tests/real/stack runs


def parameters(function: Any) -> str:
    """The names, with "=" for one that has a default."""
    found = inspect.signature(function).parameters.values()
    return " ".join(p.name + ("" if p.default is p.empty else "=") for p in found)


def test_dtensors_post_processor_is_called_as_we_call_it() -> None:
    made = "self cfg device_mesh cp_mesh tp_mesh cp_size enable_seq_packing= sampling_params="
    called = "self logits data_dict processed_inputs original_batch_size original_seq_len"
    assert parameters(LOGPROBS.__init__) == made
    assert parameters(LOGPROBS.__call__) == f"{called} sequence_dim="


@pytest.mark.parametrize(
    ("module", "worker", "extra"),
    [
        ("megatron_policy_worker", "MegatronPolicyWorker", PY_EXECUTABLES.MCORE),
        ("dtensor_policy_worker_v2", "DTensorPolicyWorkerV2", PY_EXECUTABLES.AUTOMODEL),
    ],
)
def test_workers(module: str, worker: str, extra: str) -> None:
    assert registry.ACTOR_ENVIRONMENT_REGISTRY[f"{WORKERS}.{module}.{worker}"] == extra
    found = import_module(f"{WORKERS}.{module}")
    assert callable(getattr(found, f"{worker}Impl").get_logprobs)
    backend = "megatron" if module.startswith("megatron") else "automodel"
    train = import_module(f"nemo_rl.models.{backend}.train")
    assert found.LogprobsPostProcessor is train.LogprobsPostProcessor


def test_config_keeps_unknown_keys(ref: str) -> None:
    extra = ["+nemo_algos.method=etr", "+grpo.nemo_algos.x=1", "+loss_fn.nemo_algos_x=2"]
    config = load_config([*OVERRIDES, *extra])
    assert isinstance(config, grpo.MasterConfig)
    assert config.nemo_algos == {"method": "etr"}
    assert config.loss_fn.nemo_algos_x == 2
    section = config.grpo["nemo_algos"] if ref == "v0.7.0" else config.grpo.nemo_algos
    assert section == {"x": 1}


# ---- the keys of data sets and environments that `nemo-algos check` knows


def arguments(kind: Any) -> set[str]:
    """What the constructors of a data set and of its parents name; a variant is the registry's."""
    while isinstance(kind, functools.partial):
        kind = kind.func
    inits = [k.__dict__["__init__"] for k in kind.__mro__[:-1] if "__init__" in k.__dict__]
    named = [p for init in inits for p in inspect.signature(init).parameters.values()]
    return {p.name for p in named if p.kind != p.VAR_KEYWORD} - {"self", "variant"}


def test_arguments_of_data_sets_are_known() -> None:
    found = set[str]().union(*map(arguments, DATASET_REGISTRY.values()))
    assert found - set(GIVEN_BY_NEMO_RL) == checkout.release().data_set_keys


def test_keys_of_environments_are_known() -> None:
    environments = checkout.release().environments
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
