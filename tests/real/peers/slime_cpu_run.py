"""slime's own trainer on a CPU, in a process of its own: `slime_cpu_run.py DIR`.

DIR/cases.pt has samples, tables and cases; into DIR/results.pt goes what each rank of each case
ends with. slime's arguments, its conversion of samples, its schedule, its actor's training and
megatron-core's schedule run. Of ours are the model (a table of logits by the token before), its
optimizer and the mean of gradients that Megatron's DDP would take; samples come from no sampler.
"""

# pyright: reportMissingImports=false

import argparse
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import slime_cpu  # noqa: F401  (first: what else imports)
import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).parents[1] / "megatron"))
import ranks
from megatron.core import mpu
from megatron.core.enums import ModelType
from megatron.core.transformer import TransformerConfig
from slime.backends.megatron_utils import actor as slime_actor
from slime.backends.megatron_utils import model as slime_model
from slime.observability import logging_utils, train_metric_utils
from slime.ray import rollout as slime_rollout
from slime.utils import accelerator, arguments, misc
from slime.utils import data as slime_data
from slime.utils.accelerator.torch_accelerator import TorchAccelerator
from slime.utils.types import Sample

MEGATRON = {  # of Megatron's own parser
    "calculate_per_token_loss": False, "seq_length": 1, "decoder_seq_length": None,
    "overlap_grad_reduce": False, "overlap_param_gather": False, "use_distributed_optimizer": False,
    "manual_gc": False, "rank": 0,
}  # fmt: skip


class CPU(TorchAccelerator):
    name = device_type = "cpu"
    communication_backend_name = "gloo"

    def _module(self) -> Any:
        return torch.cpu

    def device_name(self, index: Any = None) -> str:
        return "cpu"

    def current_device(self) -> Any:
        return "cpu"


class Table(torch.nn.Module):
    """Logits [1,T,V] by the token before."""

    model_type = ModelType.encoder_or_decoder

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(table.clone())
        self.config = TransformerConfig(num_layers=1, hidden_size=1, num_attention_heads=1)

    def forward(self, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        return self.table[input_ids]

    def set_input_tensor(self, _: Any) -> None: ...

    def zero_grad_buffer(self) -> None: ...


class Optimizer:
    """SGD in the form of Megatron's optimizers, and the mean that its DDP takes over all ranks."""

    def __init__(self, model: Table, lr: float) -> None:
        self.sgd, self.model = torch.optim.SGD(model.parameters(), lr), model
        self.param_groups = self.sgd.param_groups
        self.zero_grad, self.scale_loss = self.sgd.zero_grad, lambda loss: loss
        self.gradients: list[torch.Tensor] = []

    def step(self) -> tuple[bool, float, None]:
        gradient = self.model.table.grad
        assert gradient is not None
        dist.all_reduce(gradient, group=mpu.get_data_parallel_group(with_context_parallel=True))
        gradient /= mpu.get_data_parallel_world_size(with_context_parallel=True)
        self.gradients.append(gradient.clone())
        self.sgd.step()
        return True, gradient.norm().item(), None


def arguments_of(case: dict[str, Any], folder: Path) -> argparse.Namespace:
    """slime's own parser and validation, which reads the config with our blocks."""
    parser = arguments.get_slime_extra_args_provider()(argparse.ArgumentParser())
    words = ["--custom-config-path", case["config"], "--num-rollout", "1", *case["flags"]]
    args = parser.parse_args([*words, "--ref-load", str(folder), "--load", str(folder)])
    for key, value in MEGATRON.items():
        setattr(args, key, value)
    args.debug_rollout_only = args.debug_train_only = False
    args.train_backend, args.load_debug_rollout_data = "megatron", None
    arguments.slime_validate_args(args)
    return args


def batches(args: argparse.Namespace, samples: list[Any], parallel: dict[str, int]) -> list[Any]:
    """slime's rollout manager makes them, without its servers."""
    manager = object.__new__(slime_rollout.RolloutManager.__ray_metadata__.modified_class)
    manager.args, manager.train_parallel_config = args, parallel
    manager.custom_reward_post_process_func = None
    manager.custom_convert_samples_to_train_data_func = None
    data = manager._convert_samples_to_train_data([Sample(**sample) for sample in samples])
    return manager._split_train_data_by_dp(data)


def train(case: dict[str, Any], given: dict[str, Any], folder: Path) -> dict[str, Any]:
    """On each rank, slime's `train_actor`: scores, advantages, logs, all optimizer steps."""
    args, logged = arguments_of(case, folder), []
    accelerator.set_accelerator(CPU())
    for module in (slime_rollout, slime_data):
        module.ray = SimpleNamespace(put=lambda x, **_: x, get=lambda x: x)
    logging_utils.log = lambda _, metrics, step_key: logged.append(metrics)
    train_metric_utils.log_perf_data = lambda *_, **__: None
    slime_model.get_args, slime_model.finalize_model_grads = lambda: args, lambda *_, **__: None
    model = Table(given["actor"])
    optimizer = Optimizer(model, case["lr"])
    actor = object.__new__(slime_actor.MegatronTrainRayActor)
    actor.args, actor.role, actor.model = args, "actor", [model]
    actor.optimizer, actor.opt_param_scheduler = (
        optimizer,
        SimpleNamespace(step=lambda increment: None, get_lr=lambda group: group["lr"]),
    )
    actor.rollout_data_postprocess = copied if case.get("copied") else None
    actor._active_model_tag = "actor"
    actor.prof = SimpleNamespace(step=lambda rollout_id: None)
    actor.weight_updater = SimpleNamespace(pop_metrics=dict)
    actor.weights_backuper = slime_actor.TensorBackuper.create(model.named_parameters, None)
    if args.use_kl_loss:
        with torch.no_grad():
            model.table.copy_(given["ref"])
        actor.weights_backuper.backup("ref")
        with torch.no_grad():
            model.table.copy_(given["actor"])
    actor.weights_backuper.backup("actor")
    sizes = {"dp_size": mpu.get_data_parallel_world_size(), "cp_size": case["context"]}
    parallel = {**sizes, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
    samples = given["samples"]
    if not case.get("filtered", True):
        samples = [sample | {"remove_sample": False} for sample in samples]
    if case.get("siblings"):
        samples = [sample | {"rollout_id": i // 2} for i, sample in enumerate(samples)]
    try:
        if args.custom_megatron_init_path:  # as at the end of slime's initialize.py
            misc.load_function(args.custom_megatron_init_path)(args)
        data = actor._get_rollout_data(batches(args, samples, parallel))
        slime_actor.Timer().start_time = {"train_wait": 0.0}
        actor.train_actor(0, data)
    except ValueError as error:
        return {"error": str(error)}
    return {"gradients": optimizer.gradients, "table": model.table.detach(), "logged": logged}


def copied(_: Any, __: int, data: dict[str, Any]) -> None:
    """As a slime would that hands its loss no more the tensors themselves."""
    data["returns"] = [x.clone() for x in data["returns"]]


def all_of(world: int, context: int, given: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The cases for this many ranks, of which so many share sequences; on each rank."""
    torch.set_num_threads(1)
    mpu.initialize_model_parallel(context_parallel_size=context)
    shape = {"ranks": world, "context": context}
    alike = {k: c for k, c in given["cases"].items() if shape.items() <= c.items()}
    return {name: train(case, given, folder) for name, case in alike.items()}


if __name__ == "__main__":
    here = Path(sys.argv[1])
    given = torch.load(here / "cases.pt", weights_only=True)
    results = {}
    for shape in {(case["ranks"], case["context"]) for case in given["cases"].values()}:
        answers = ranks.run(shape[0], partial(all_of, *shape, given, here))
        results |= {name: [answer[name] for answer in answers] for name in answers[0]}
    torch.save(results, here / "results.pt")
