"""NeMo-RL's VllmGeneration through Ray: a real vLLM in its actor, sync and async, both refits."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import configs
import local_ray
import models
import pytest
import ray
import refit_socket
import torch
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.distributed.stateless_process_group import StatelessProcessGroup
from nemo_rl.distributed.virtual_cluster import RayVirtualCluster
from nemo_rl.models.generation import configure_generation_config
from nemo_rl.models.generation.vllm import VllmGeneration
from nemo_rl.models.policy.utils import stream_weights_via_ipc_zmq_impl
from nemo_rl.utils.packed_tensor import packed_broadcast_producer
from trainer import SAME, TEMPERATURE, Sampled, Trainer, free_port, prompts
from transformers import AutoTokenizer

Refit = Callable[[dict[str, torch.Tensor]], None]
CASES = [  # async, colocated
    pytest.param(False, True, id="sync-colocated", marks=pytest.mark.smoke),
    pytest.param(True, False, id="async-apart", marks=pytest.mark.slow),
    pytest.param(False, False, id="sync-apart", marks=pytest.mark.slow),
    pytest.param(True, True, id="async-colocated", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[None]:
    local_ray.start(num_gpus=1, num_cpus=8, _temp_dir=str(folder / "ray"))
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.saved("llama", tmp_path_factory.mktemp("models"))


def generation(model: Path, is_async: bool, colocated: bool, name: str) -> tuple[Any, Any]:
    """NeMo-RL's, as its `setup` makes it for a policy that will refit; its cluster."""
    overrides = (
        f"policy.generation.temperature={TEMPERATURE}",
        "policy.generation.vllm_cfg.enforce_eager=true",
        "policy.generation.vllm_cfg.gpu_memory_utilization=0.2",
        f"policy.generation.vllm_cfg.async_engine={is_async}",
        f"policy.generation.colocated.enabled={colocated}",
    )
    policy = configs.composed("dtensor", model, overrides).policy
    tokenizer = AutoTokenizer.from_pretrained(model)
    config = configure_generation_config(policy["generation"], tokenizer)
    config["model_name"] = str(model)
    own = RayVirtualCluster([1], num_gpus_per_node=1, max_colocated_worker_groups=1, name=name)
    return VllmGeneration(own, config, name_prefix=name), own


def sample(made: Any, is_async: bool) -> list[Sampled]:
    rows = prompts()
    data = BatchedDataDict(
        input_ids=torch.tensor(rows), input_lengths=torch.tensor([len(r) for r in rows])
    )
    assert made.prepare_for_generation()
    outputs = asyncio.run(_drained(made, data)) if is_async else _rows(made.generate(data))
    assert made.finish_generation()  # resets the cache of prefixes
    return [_sampled(row, out) for row, out in zip(rows, outputs, strict=True)]


async def _drained(made: Any, data: Any) -> list[Any]:
    async def one(row: int) -> Any:
        ((_, out),) = [x async for x in made.generate_async(data.slice(row, row + 1))]
        return {name: column[0] for name, column in out.items()}

    return await asyncio.gather(*(one(row) for row in range(data.size)))


def _rows(out: Any) -> list[Any]:
    return [{name: column[row] for name, column in out.items()} for row in range(out.size)]


def _sampled(prompt: list[int], out: Any) -> Sampled:
    response = slice(len(prompt), int(out["unpadded_sequence_lengths"]))
    assert out["output_ids"][: len(prompt)].tolist() == prompt
    return Sampled(prompt, out["output_ids"][response].tolist(), out["logprobs"][response])


@contextmanager
def by_zmq(made: Any) -> Iterator[Refit]:
    """From this process, as a policy's worker does it."""
    with refit_socket.bound() as sender:

        def refit(weights: dict[str, torch.Tensor]) -> None:
            assert made.prepare_for_generation(tags=["weights"])
            answers = made.update_weights_via_ipc_zmq()
            stream_weights_via_ipc_zmq_impl(iter(weights.items()), 1 << 16, sender, 0, "trainer")
            assert ray.get(answers) == [True]

        yield refit


@contextmanager
def by_collective(made: Any) -> Iterator[Refit]:
    port = free_port()
    joined = made.init_collective("127.0.0.1", port, 2, train_world_size=1)
    group = StatelessProcessGroup("127.0.0.1", port, rank=0, world_size=2)
    group.init_nccl_communicator(device=0)
    ray.get(joined)

    def refit(weights: dict[str, torch.Tensor]) -> None:
        answers = made.update_weights_from_collective()
        packed_broadcast_producer(iter(weights.items()), group, 0, lambda named: named[1])
        assert ray.get(answers) == [True]

    yield refit


@pytest.mark.parametrize(("is_async", "colocated"), CASES)
def test_the_sampler_follows_the_trainer(
    is_async: bool, colocated: bool, model: Path, cluster: None
) -> None:
    name = f"vllm{int(is_async)}{int(colocated)}"
    made, own = generation(model, is_async, colocated, name)
    trainer = Trainer(model)
    try:
        made.prepare_refit_info(trainer.shapes)
        assert made.finish_generation()
        with (by_zmq if colocated else by_collective)(made) as refit:
            for seed in (1, 2):
                trainer.move(seed)
                assert trainer.distance(sample(made, is_async)) > 100 * SAME
                refit(trainer.weights)
                assert trainer.distance(sample(made, is_async)) < SAME
    finally:
        assert made.shutdown()
        own.shutdown()
