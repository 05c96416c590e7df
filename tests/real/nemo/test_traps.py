"""What the rules of `nemo-algos check` on silent traps say of NeMo-RL, seen in its own code.

Where one of these fails, NeMo-RL has mended the trap: limit its rule to the versions that have it.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from nemo_rl.algorithms import reward_functions
from nemo_rl.algorithms.utils import mask_out_neg_inf_logprobs
from nemo_rl.data import processors
from nemo_rl.data.interfaces import TaskDataSpec
from nemo_rl.experience import rollouts
from nemo_rl.models.dtensor import parallelize
from nemo_rl.models.megatron import router_replay
from nemo_rl.models.policy.lm_policy import Policy


async def failing(*_: Any, **__: Any) -> AsyncIterator[Any]:
    """Of an engine that raises."""
    raise RuntimeError("engine")
    yield


def test_a_failed_generation_is_an_empty_response_of_reward_0(
    capsys: pytest.CaptureFixture[str],
) -> None:
    prompt = [{"role": "user", "content": "1+1?", "token_ids": torch.tensor([1, 2])}]
    start = {"message_log": prompt, "extra_env_info": {}, "task_name": "math"}
    tokenizer = SimpleNamespace(pad_token_id=0)
    cfg = {"backend": "vllm", "vllm_cfg": {"async_engine": True}}
    engine = SimpleNamespace(cfg=cfg, generate_async=failing)
    run = rollouts.run_sample_multi_turn_rollout(0, start, engine, tokenizer, {}, 16, 1)
    final, metrics = asyncio.run(run)
    assert final["total_reward"] == 0 and metrics["assistant_tokens"] == 0
    assert [message["role"] for message in final["message_log"]] == ["user"]
    assert "Error generating response for sample 0: engine" in capsys.readouterr().out


@pytest.mark.parametrize("section", [{}, {"_v2": False}, {"_v2": None}])
def test_a_first_save_with_a_format_fails_without_v2(section: dict[str, Any]) -> None:
    policy = SimpleNamespace(cfg={"dtensor_cfg": section})
    with pytest.raises(ValueError, match="model_save_format must be None"):
        Policy.save_checkpoint(policy, "w", checkpointing_cfg={"model_save_format": "safetensors"})


@pytest.mark.parametrize(("limit", "factor"), [(0, 0.0), (-1, -0.2), (10, 1.0)])
def test_gradients_are_multiplied_by_the_limit(limit: int, factor: float) -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 4.0])
    parallelize.clip_grad_by_total_norm_([parameter], limit, 5.0)
    torch.testing.assert_close(parameter.grad, factor * torch.tensor([3.0, 4.0]))


def test_a_token_outside_the_nucleus_trains_with_probability_1() -> None:
    logprobs, mask = torch.tensor([-0.5, -torch.inf]), torch.ones(2)
    assert mask_out_neg_inf_logprobs(logprobs, mask, "curr").tolist() == [-0.5, 0.0]


def test_an_mtp_router_replays_the_routes_of_the_decoder_s_layer() -> None:
    routers = [SimpleNamespace(router_replay=SimpleNamespace(), layer_number=n) for n in (1, 2, 1)]
    config = SimpleNamespace(num_layers=2, moe_layer_freq=1, sequence_parallel=False)
    model = SimpleNamespace(modules=lambda: iter(routers), config=config)
    routes = torch.arange(12).reshape(1, 3, 2, 2)  # [B,T,L,K]
    first, second, mtp = router_replay.build_router_replay_tensors(model, routes)
    assert mtp.equal(first) and not mtp.equal(second)


def test_shaping_keeps_the_outcome_apart(ref: str) -> None:
    """In `unshaped_total_reward`, which the data plane's trainer does not read."""
    batch = {"total_reward": torch.zeros(2), "response_token_lengths": torch.tensor([8, 16])}
    keys = {"enabled": True, "overlong_buffer_length": 8, "overlong_buffer_penalty": 1}
    keys |= {"max_response_length": 16, "stop_properly_penalty_coef": None}
    config = keys if ref == "v0.7.0" else reward_functions.RewardShapingConfig(**keys)
    shaped = reward_functions.apply_reward_shaping(batch, config)
    assert shaped["total_reward"].std() > 0 == shaped["unshaped_total_reward"].std()
    source = Path(rollouts.__file__).parents[1] / "algorithms"
    read = [p.name for p in source.glob("grpo*.py") if "unshaped_total_reward" in p.read_text()]
    assert read == ["grpo.py"] and (source / "grpo_sync.py").exists()


def test_a_prompt_s_length_is_compared_with_a_number() -> None:
    class Tokenizer:
        def apply_chat_template(self, messages: Any, **_: Any) -> str:
            return messages[-1]["content"]

        def __call__(self, *_: Any, **__: Any) -> dict[str, Any]:
            return {"input_ids": torch.zeros(1, 3, dtype=torch.long)}

    data = {"messages": [{"content": "1+1?"}, {"content": "2"}], "task_name": "math"}
    arguments = (data, TaskDataSpec(task_name="math"), Tokenizer())
    assert processors.math_hf_data_processor(*arguments, 4, 0)["loss_multiplier"] == 1
    assert processors.math_hf_data_processor(*arguments, 3, 0)["loss_multiplier"] == 0
    with pytest.raises(TypeError):
        processors.math_hf_data_processor(*arguments, None, 0)


def test_its_engine_is_asked_for_the_sampled_token_alone() -> None:
    """So support_replay, which needs the set that a filter kept, is refused."""
    from nemo_rl.models.generation.vllm.vllm_worker import BaseVllmGenerationWorker

    generation = {"top_k": 5, "top_p": 0.9, "temperature": 1.0, "max_new_tokens": 4}
    cfg = generation | {"stop_token_ids": None, "logprobs": 5}
    worker: Any = SimpleNamespace(cfg=cfg, SamplingParams=lambda **asked: asked)
    build = BaseVllmGenerationWorker._build_sampling_params
    assert build(worker, greedy=False, stop_strings=None)["logprobs"] == 0
