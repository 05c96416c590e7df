"""A NeMo-RL environment whose reward is a verifier of ours, in killable processes.

Every section of `env` with the key `verifier` is one, named by its section:

    data: {default: {env_name: math_verify, processor: math_hf_data_processor}}
    env: {math_verify: {verifier: math, workers: 8}}
"""

from collections import Counter
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

import ray
import torch
from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY
from nemo_rl.distributed.virtual_cluster import PY_EXECUTABLES
from nemo_rl.environments.interfaces import EnvironmentReturn
from nemo_rl.environments.math_environment import BaseMathEnvironment
from nemo_rl.environments.utils import ENV_REGISTRY

from nemo_algos.algorithms.core.groups import succeeded
from nemo_algos.engines.rewards import VerifierPool
from nemo_algos.engines.rewards.function import path_of
from nemo_algos.engines.rewards.weighted import VerifierConfig, sections

ACTOR = f"{__name__}.VerifierActor"


def register(env: Mapping[str, Any]) -> None:
    """Make the sections that name a verifier known to NeMo-RL's `create_env`."""
    for name in sections(env):
        ENV_REGISTRY[name] = {"actor_class_fqn": ACTOR}
        ACTOR_ENVIRONMENT_REGISTRY[ACTOR] = PY_EXECUTABLES.SYSTEM


class VerifierEnvironment(BaseMathEnvironment):
    """Single-turn: the reward of a conversation is its verdict against the metadata's ground_truth.

    NeMo-RL's data processors put that there. What could not be judged has reward 0, and is counted.
    """

    def __init__(self, section: Mapping[str, Any]):
        settings = VerifierConfig(**section).model_dump()
        self._extract = resolve_name(path_of(settings.pop("extractor")))
        self._pool = VerifierPool(settings.pop("verifier"), **settings)
        self._reported: Counter[str] = Counter()

    def step(
        self,
        message_log_batch: list[Any],
        metadata: list[Any],
        return_extracted_answer: bool = False,
    ) -> EnvironmentReturn[Any]:
        """B conversations to rewards [B] float32; ValueError where the verifier does not load."""
        responses = [_response(conversation) for conversation in message_log_batch]
        golds = [str(row["ground_truth"]) for row in metadata]
        verdicts = self._pool.score(responses, golds)
        rewards = torch.tensor([verdict.reward for verdict in verdicts], dtype=torch.float32)
        answers = None
        if return_extracted_answer:
            answers = [self._extract(response) for response in responses]
        observations = []
        for success in succeeded(rewards):
            judgement = "correct" if success else "incorrect"
            observations.append({"role": "environment", "content": f"Environment: {judgement}"})
        return EnvironmentReturn(
            observations=observations,
            metadata=metadata,
            next_stop_strings=[None] * len(verdicts),
            rewards=rewards,
            terminateds=torch.ones_like(rewards),
            answers=answers,
        )

    def statuses(self) -> dict[str, int]:
        """Verdicts by status ("verifier/ok", "verifier/timeout", ...) since the last call."""
        seen = Counter[str](self._pool.counts)
        new = seen - self._reported
        self._reported = seen
        names = ("ok", "timeout", "error", "too_long", "memory")
        return {f"verifier/{name}": new[name] for name in names}

    def global_post_process_and_metrics(self, batch: Any) -> tuple[Any, dict[str, Any]]:
        """The batch, and the metrics of NeMo-RL's MathEnvironment with our `statuses`."""
        batch, metrics = super().global_post_process_and_metrics(batch)
        return batch, {**metrics, **self.statuses()}

    def shutdown(self) -> None:
        self._pool.close()


# async rollouts score sample by sample: each call waits in a thread of its own
VerifierActor = ray.remote(max_restarts=-1, max_task_retries=-1, max_concurrency=64)(
    VerifierEnvironment
)


def log_statuses(logger: Any, *environments: Mapping[str, Any]) -> None:
    """Make the logger add our environments' `statuses` to each training step's metrics.

    NeMo-RL never asks for them. It logs a step in several calls, and a later call replaces a metric
    of an earlier one: so each call gets the step's totals so far.
    """
    ours = []
    for tasks in environments:
        for e in tasks.values():
            if hasattr(e, "statuses"):
                ours.append(e)
    if not ours:
        return
    log = logger.log_metrics
    totals = Counter[str]()
    logged = -1

    def log_metrics(metrics: Any, step: int, prefix: str = "", **kwargs: Any) -> None:
        nonlocal logged
        if prefix == "train":
            if step != logged:
                totals.clear()
            logged = step
            for counts in ray.get([actor.statuses.remote() for actor in ours]):
                totals.update(counts)
            metrics = {**metrics, **totals}
        log(metrics, step, prefix=prefix, **kwargs)

    logger.log_metrics = log_metrics


def _response(conversation: list[Any]) -> str:
    return "".join(str(m["content"]) for m in conversation if m["role"] == "assistant")
