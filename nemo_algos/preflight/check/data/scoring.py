"""An environment, asked for single rewards: a verifier of ours, or NeMo-RL's own on a Ray."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nemo_algos.engines.rewards import VerifierPool
from nemo_algos.engines.rewards.weighted import VerifierConfig
from nemo_algos.preflight.check.data import ray_head
from nemo_algos.preflight.check.data.verdict import cut

START = 600.0  # seconds for its processes to import what they need
PATIENCE = 120.0  # seconds for a batch of responses
SLOW = 1.0  # seconds of a response from which on it is measured again
NO_MEMORY = ("failed to map segment", "Cannot allocate memory")  # of an import, as the loader says
WORKERS = 2  # processes of an environment here
UNKNOWN = {  # environments whose rewards no text alone decides
    "code": "it runs several turns and pays nothing by itself",
    "nemo_gym": "NeMo Gym's own servers judge",
    "reward_model": "a reward model judges",
}


class Unpaid(Exception):
    """The environment could not be made, raised, or did not answer; the text says which."""


class Judge:
    """One environment of the config: rewards of responses to answers."""

    def __init__(self, section: Mapping[str, Any]) -> None:
        few = {k: min(section[k], WORKERS) for k in ("num_workers", "workers") if section.get(k)}
        self.section = {**section, **few}

    def started(self) -> None:
        """Wait for it. Raises Unpaid."""
        self.rewards([""], ["1"], START)

    def rewards(
        self, responses: Sequence[str], answers: Sequence[str], seconds: float = PATIENCE
    ) -> list[float]:
        """The sum of a response's rewards, nan for what is no number. Raises Unpaid."""
        raise NotImplementedError

    def timed(self, response: str, answer: str) -> tuple[float, float]:
        """The reward and the seconds it took; the faster of two where one was slow."""
        taken = []
        while True:
            begun = time.monotonic()
            reward = self.rewards([response], [answer])[0]
            taken.append(time.monotonic() - begun)
            if len(taken) == 2 or not SLOW < taken[-1] < 10 * SLOW:
                return reward, min(taken)

    def reason(self, response: str, answer: str) -> str:
        """What the verifier raised, or how it ended, on this response; "" where it judged it."""
        return ""

    def close(self) -> None:
        """End its processes."""


class VerifierJudge(Judge):
    """An environment whose section names a verifier: it pays as the pool of such a run does."""

    def __init__(self, section: Mapping[str, Any]) -> None:
        super().__init__(section)
        settings = VerifierConfig(**self.section).model_dump()
        settings.pop("extractor")
        self.memory_mb = settings["memory_mb"]
        self.pool = VerifierPool(settings.pop("verifier"), **settings)

    def rewards(
        self, responses: Sequence[str], answers: Sequence[str], seconds: float = PATIENCE
    ) -> list[float]:
        """A response's reward, 0 for what could not be judged. Raises Unpaid."""
        try:
            return [verdict.reward for verdict in self.pool.score(responses, answers)]
        except ValueError as error:
            raise Unpaid(f"raised {cut(f'{type(error).__name__}: {error}')}") from None

    def reason(self, response: str, answer: str) -> str:
        """What the verifier raised, or how it ended, on this response; "" where it judged it."""
        verdict = self.pool.score([response], [answer])[0]
        if verdict.status == "ok":
            return ""
        small = verdict.status == "memory" or any(word in verdict.detail for word in NO_MEMORY)
        cure = f" (its processes have memory_mb: {self.memory_mb}: raise that)"
        return f"{verdict.status}: {cut(verdict.detail)}{cure if small else ''}"

    def close(self) -> None:
        """End its processes."""
        self.pool.close()


class NemoJudge(Judge):
    """An environment of NeMo-RL's own, an actor on the Ray of `ray_here`."""

    def __init__(self, name: str, section: Mapping[str, Any]) -> None:
        from nemo_rl.environments.utils import create_env

        super().__init__(section)
        self.actor: Any = create_env(name, self.section)  # starts meanwhile

    def rewards(
        self, responses: Sequence[str], answers: Sequence[str], seconds: float = PATIENCE
    ) -> list[float]:
        """The sum of a response's rewards, nan for what is no number. Raises Unpaid."""
        import ray

        asked = [
            [{"role": "user", "content": ""}, {"role": "assistant", "content": response}]
            for response in responses
        ]
        metadata = [{"ground_truth": answer} for answer in answers]
        try:
            returned = ray.get(self.actor.step.remote(asked, metadata), timeout=seconds)
        except ray.exceptions.GetTimeoutError:
            raise Unpaid(f"did not answer within {seconds:g} s") from None
        except ray.exceptions.RayError as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise Unpaid(f"raised {cut(lines[-1])}") from None
        return numbers(returned.rewards, len(responses))


@contextmanager
def ray_here() -> Iterator[None]:
    """Within, a Ray of this process's own, whatever RAY_ADDRESS names."""
    import ray

    if ray.is_initialized():  # this process's own already
        yield
        return
    with (
        TemporaryDirectory(prefix="nrr", ignore_cleanup_errors=True) as folder,  # short: sockets
        ray_head.head(Path(folder), {}, 0, Path.cwd()) as env,
    ):
        ray.init(address=env["RAY_ADDRESS"], log_to_driver=False)
        try:
            yield
        finally:
            ray.shutdown()


def numbers(rewards: Any, count: int) -> list[float]:
    """One for each response: of rewards in several parts their sum."""
    if isinstance(rewards, Mapping):
        parts = [numbers(part, count) for part in rewards.values()]
        return [math.fsum(values) for values in zip(*parts, strict=True)]
    values = rewards.tolist() if hasattr(rewards, "tolist") else list(rewards or [])
    if len(values) != count:
        raise Unpaid(f"returned {len(values)} rewards for {count} responses")
    return [v if isinstance(v, (int, float)) else math.nan for v in map(_plain, values)]


def _plain(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value
