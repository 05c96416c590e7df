"""A probe of vLLM: the run's first prompts, asked greedily before the engine goes to sleep.

At that time sampler and trainer should have the same weights: those that the step's rollouts were
drawn from, before it trains.
"""

from collections.abc import Callable
from typing import Any

import ray
import torch
import torch.nn.functional as F
from torch import Tensor

from nemo_algos.algorithms.shapes import Mask
from nemo_algos.engines.dumps.watch import checksums
from nemo_algos.engines.nemo.trace import current_logprobs

PROMPTS = 8


def of_engine(generation: Any) -> dict[str, float]:
    """Checksums of the first engine's parameters on its first rank, by vLLM's own names."""
    ask = lambda worker: worker.llm.collective_rpc(of_rank)[0]  # noqa: E731
    return ray.get(generation.worker_group.workers[0].__ray_call__.remote(ask))


def of_rank(worker: Any) -> dict[str, float]:
    """In vLLM's worker."""
    return checksums(worker.model_runner.model)


class Probe:
    """Takes the place of `generate` and `finish_generation` of NeMo-RL's VllmGeneration.

    due: whether the coming step has a probe; asked: the prompts, each twice, which shows rounding;
    sums: checksums of the engine at its last answer.
    """

    def __init__(
        self,
        generation: Any,
        due: Callable[[], bool],
        checksums_of: Callable[[Any], dict[str, float]] = of_engine,
    ) -> None:
        self.due = due
        self.asked = None
        self.answer = None
        self.drawn = False
        self.generation = generation
        self.checksums_of = checksums_of
        self.sums: dict[str, float] = {}
        self._generate = generation.generate
        self._finish = generation.finish_generation
        generation.generate = self.generate
        generation.finish_generation = self.finish

    def generate(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """As the engine's; the first prompts of the run are kept."""
        if self.asked is None:
            first = {}
            for i, ids in reversed([*enumerate(data["input_ids"].tolist())]):
                first[tuple(ids)] = i
            rows = torch.tensor(sorted(first.values())[:PROMPTS]).repeat(2)
            self.asked = type(data)({k: data[k][rows] for k in ("input_ids", "input_lengths")})
        self.drawn = True
        return self._generate(data, *args, **kwargs)

    def finish(self, *args: Any, **kwargs: Any) -> Any:
        """As the engine's, after the probe."""
        if self.drawn and self.due():
            self._ask()
        self.drawn = False
        return self._finish(*args, **kwargs)

    def _ask(self) -> None:
        self.answer = self._generate(self.asked, greedy=True)
        self.sums = self.checksums_of(self.generation)

    def again(self, policy: Any) -> tuple[dict[str, Tensor], dict[str, float]]:
        """`columns` and sums of an engine that sleeps, with the weights of the step's rollouts."""
        if self.generation.cfg["colocated"]["enabled"]:
            policy.offload_after_refit()  # as NeMo-RL makes room
        self.generation.prepare_for_generation()
        self._ask()
        self._finish()
        return self.columns(policy) or {}, self.sums

    def columns(self, policy: Any) -> dict[str, Tensor] | None:
        """As a `Dump` has them, with the policy's log-probs of now; None without an answer."""
        answer = self.answer
        asked = self.asked
        self.answer = None
        if answer is None or asked is None:
            return None
        place = torch.arange(answer["output_ids"].shape[1])
        begin = asked["input_lengths"][:, None]
        mask = (place >= begin) & (place < answer["unpadded_sequence_lengths"][:, None])
        return {
            "tokens": answer["output_ids"],
            "mask": mask,
            "sampler_logprobs": answer["logprobs"],
            "trainer_logprobs": scored(policy, answer, mask),
            "prompt_length": asked["input_lengths"],
        }


def scored(policy: Any, answer: Any, mask: Mask) -> Tensor:
    """The policy's log-probs [B,S], of whole micro-batches on each rank; it is left to train."""
    count, width = answer["output_ids"].shape
    ranks = policy.sharding_annotations.get_axis_size("data_parallel")
    whole = ranks * policy.cfg["logprob_batch_size"]
    step = policy.cfg["make_sequence_length_divisible_by"] or 1
    rows = torch.arange(-(-count // whole) * whole) % count
    ids = F.pad(answer["output_ids"], (0, -width % step))
    data = {"input_ids": ids, "input_lengths": answer["unpadded_sequence_lengths"]}
    data |= {
        "token_mask": F.pad(mask, (0, -width % step)).float(),
        "sample_mask": torch.ones(count),
    }
    asked = type(answer)({name: values[rows] for name, values in data.items()})
    return current_logprobs(policy, asked)[:count, :width]
