"""Generation from a policy's model in this process, behind NeMo-RL's GenerationInterface."""

import copy
import threading
import zlib
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import torch
from cpu_policy import CpuPolicy
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.models.generation.interfaces import GenerationInterface
from no_ray import Done
from torch import Tensor


class CpuGeneration(GenerationInterface):
    """Samples from its own copy of the policy's weights, which a refit renews.

    The k-th response to a prompt after the n-th refit depends on (seed, n, prompt, k) and the
    weights, not on the batch. A resumed run starts with `refits` at the steps done.
    """

    def __init__(self, source: CpuPolicy, config: dict[str, Any], seed: int, refits: int = 0):
        self.cfg, self.source, self.seed, self.refits = config, source.workers, seed, refits
        self.model = copy.deepcopy(self.source.model.model)
        self.seen: dict[bytes, int] = defaultdict(int)
        self.refitted = threading.Event()
        with torch.no_grad():  # NeMo-RL must refit before the first rollout
            for parameter in self.model.parameters():
                parameter.zero_()

    def update_weights_via_ipc_zmq(self) -> list[Done]:
        self.model.load_state_dict(self.source.model.model.state_dict())
        self.refits += 1
        self.seen.clear()
        self.refitted.set()
        return [Done(True)]

    update_weights_from_collective = update_weights_via_ipc_zmq

    def _random(self, prompt: Tensor) -> Tensor:
        key = prompt.numpy().tobytes()
        self.seen[key] += 1
        seed = zlib.crc32(repr((self.seed, self.refits, key, self.seen[key])).encode())
        generator = torch.Generator().manual_seed(seed)
        return torch.rand(self.cfg["max_new_tokens"], generator=generator)

    @torch.no_grad()
    def generate(self, data: BatchedDataDict, greedy: bool = False) -> BatchedDataDict:
        start, pad = data["input_lengths"], self.cfg["_pad_token_id"]
        rows = torch.arange(len(start))
        prompts = [ids[:n] for ids, n in zip(data["input_ids"], start.tolist(), strict=True)]
        random = torch.stack([self._random(prompt) for prompt in prompts])
        new = random.shape[1]
        ids = torch.nn.functional.pad(data["input_ids"], (0, new), value=pad)
        logprobs = torch.zeros(ids.shape)
        end, stops = start.clone(), torch.tensor(self.cfg["stop_token_ids"])
        open_rows = torch.ones(len(start), dtype=torch.bool)
        for step in range(new):
            logits = self.model(ids).logits[rows, end - 1] / self.cfg["temperature"]
            scores = logits.log_softmax(-1)
            drawn = (scores.exp().cumsum(-1) < random[:, step, None]).sum(-1)
            token = scores.argmax(-1) if greedy else drawn.clamp(max=scores.shape[-1] - 1)
            at = (rows[open_rows], end[open_rows])
            ids[at], logprobs[at] = token[open_rows], scores[rows, token][open_rows].float()
            end += open_rows
            open_rows &= ~torch.isin(token, stops)
        lengths = {"generation_lengths": end - start, "unpadded_sequence_lengths": end}
        outputs = {"output_ids": ids, "logprobs": logprobs, "truncated": open_rows}
        return BatchedDataDict({**outputs, **lengths})

    async def generate_async(
        self, data: BatchedDataDict, greedy: bool = False
    ) -> AsyncIterator[tuple[int, BatchedDataDict]]:
        self.refitted.wait()  # v0.7.0's collector starts beside the first refit
        for index in range(data.size):
            yield index, self.generate(data.slice(index, index + 1), greedy)

    def init_collective(self, *_: Any, **__: Any) -> list[Done]:
        return [Done(None)]

    def prepare_for_generation(self, *_: Any, **__: Any) -> bool:
        return True

    def finish_generation(self, *_: Any, **__: Any) -> bool:
        return True

    def shutdown(self) -> bool:
        return True

    def clear_logger_metrics(self) -> None:
        """None are kept."""

    def get_logger_metrics(self) -> dict[str, Any]:
        return {}
