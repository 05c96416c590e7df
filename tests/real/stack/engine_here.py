"""A vLLM engine in this process with NeMo-RL's worker extension, and NeMo-RL's senders to it."""

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine core in this process

import refit_socket
import torch
import vllm
from nemo_rl.distributed.stateless_process_group import StatelessProcessGroup
from nemo_rl.models.policy.utils import stream_weights_via_ipc_zmq_impl
from nemo_rl.utils.packed_tensor import packed_broadcast_producer
from torch.overrides import _get_current_function_mode_stack
from trainer import TEMPERATURE, Sampled, Trainer, prompts

EXTENSION = "nemo_rl.models.generation.vllm.vllm_backend.VllmInternalWorkerExtension"


class Engine:
    def __init__(self, model: Any, dtype: str = "float32", prefix_caching: bool = True) -> None:
        self.llm = vllm.LLM(
            model=str(model),
            dtype=dtype,
            load_format="dummy",
            skip_tokenizer_init=True,
            enforce_eager=True,
            enable_sleep_mode=True,
            enable_prefix_caching=prefix_caching,
            block_size=16,
            max_model_len=256,
            gpu_memory_utilization=0.3,
            seed=0,
            logprobs_mode="processed_logprobs",
            worker_extension_cls=EXTENSION,
            disable_log_stats=False,
        )
        self._held = ExitStack()
        self.socket = self._held.enter_context(refit_socket.bound())
        self.cached = 0  # tokens of prompts that the last `sample` took from the cache

    def sample(
        self,
        asked: list[list[int]] | None = None,
        tokens: int = 24,
        temperature: float = TEMPERATURE,
    ) -> list[Sampled]:
        params = vllm.SamplingParams(
            temperature=temperature,
            max_tokens=tokens,
            logprobs=0,
            ignore_eos=True,
            detokenize=False,
        )
        asked = asked or prompts()
        outputs = self.llm.generate(
            [{"prompt_token_ids": p} for p in asked], params, use_tqdm=False
        )
        self.cached = sum(o.num_cached_tokens or 0 for o in outputs)
        return [_sampled(p, o.outputs[0]) for p, o in zip(asked, outputs, strict=True)]

    def prepare(self, trainer: Trainer) -> None:
        self.llm.collective_rpc("prepare_refit_info", args=(trainer.shapes,))

    def by_zmq(self, weights: Iterable[tuple[str, torch.Tensor]], buffer: int = 1 << 16) -> bool:
        """NeMo-RL's sender and receiver; whether the weights were loaded. buffer: bytes."""
        send = lambda: stream_weights_via_ipc_zmq_impl(  # noqa: E731
            iter(weights), buffer, self.socket, 0, "trainer"
        )
        return self._beside(send, "update_weights_via_ipc_zmq")

    def join(self, port: int) -> None:
        def join() -> None:
            self.group = StatelessProcessGroup("127.0.0.1", port, rank=0, world_size=2)
            self.group.init_nccl_communicator(device=0)

        self._beside(join, "init_collective", 0, "127.0.0.1", port, 2, 1)

    def by_collective(self, weights: Iterable[tuple[str, torch.Tensor]]) -> bool:
        send = lambda: packed_broadcast_producer(  # noqa: E731
            iter(weights), self.group, 0, lambda named: named[1]
        )
        return self._beside(send, "update_weights_from_collective")

    def close(self) -> None:
        """The next engine's sockets have the same address."""
        self.llm.collective_rpc("cleanup")
        self._held.close()

    def _beside(self, send: Callable[[], None], method: str, *args: Any) -> Any:
        """The engine's answer to `method`, while another thread sends."""
        errors: list[BaseException] = []
        modes = _get_current_function_mode_stack()  # a thread begins without them: device.py's

        def run() -> None:
            try:
                with ExitStack() as entered:
                    for mode in modes:
                        entered.enter_context(mode)
                    send()
            except BaseException as error:
                errors.append(error)

        sender = threading.Thread(target=run)
        sender.start()
        (answer,) = self.llm.collective_rpc(method, args=args)
        sender.join()
        if errors:
            raise errors[0]
        return answer


def _sampled(prompt: list[int], output: Any) -> Sampled:
    ids = list(output.token_ids)
    logprobs = [float(row[i].logprob) for row, i in zip(output.logprobs, ids, strict=True)]
    return Sampled(prompt, ids, torch.tensor(logprobs))
