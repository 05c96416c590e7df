"""An environment, asked for single rewards: a verifier of ours, or NeMo-RL's own on a Ray.

The Ray is this check's, with GPUs that it only counts; NeMo-RL finds it by RAY_ADDRESS.
"""

import math
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from nemo_algos.engines.rewards import VerifierPool
from nemo_algos.engines.rewards.weighted import VerifierConfig
from nemo_algos.preflight.check.data.verdict import cut

ATTEMPTS = 10  # Ray gives its own processes 30 s of the wall, however busy the machine is
STARTED = "Ray runtime started."
AGENTS = {  # the file that names a port, which a raylet waits for 15 s -> the option that sets it
    "metrics_agent_port": "dashboard-agent-grpc-port",
    "dashboard_agent_listen_port": "dashboard-agent-listen-port",
    "runtime_env_agent_port": "runtime-env-agent-port",
    "metrics_export_port": "metrics-export-port",
}
PORTS = (
    *AGENTS.values(),
    "port",
    "ray-client-server-port",
    "node-manager-port",
    "object-manager-port",
)
BELOW_THE_SYSTEMS = range(20_000, 32_768)  # and above those of Ray's workers

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


@contextmanager
def head(
    folder: Path, env: Mapping[str, str], gpus: int, cwd: Path | None = None
) -> Iterator[dict[str, str]]:
    """Within, a head with its files below `folder` (a short path); gives what names it.

    cwd: the folder of its workers, below which are a config's relative paths; default: `folder`.

    Ends with every process that it started. Raises RuntimeError with its log where it never starts.
    """
    ray = str(Path(sys.executable).with_name("ray"))
    for attempt in range(1, ATTEMPTS + 1):
        ports = dict(zip(PORTS, _free(len(PORTS)), strict=True))
        log = folder / f"ray{attempt}.log"
        options = {
            **ports,
            "node-ip-address": "127.0.0.1",
            "num-gpus": gpus,
            "num-cpus": 16,
            "include-dashboard": "false",
            "temp-dir": log.with_suffix(""),
            "object-store-memory": 200 << 20,
        }
        words = [f"--{name}={value}" for name, value in options.items()]
        with open(log, "wb") as file:
            process = subprocess.Popen(
                [ray, "start", "--head", "--block", "--disable-usage-stats", *words],
                cwd=cwd or folder,
                env={**os.environ, **env},
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        try:
            if _up(process, log, ports):
                yield {"RAY_ADDRESS": f"127.0.0.1:{ports['port']}"}
                return
        finally:
            end(process.pid)
    raise RuntimeError((folder / f"ray{ATTEMPTS}.log").read_text())


def end(pid: int) -> None:
    try:
        every = [psutil.Process(pid)]
    except psutil.NoSuchProcess:
        return
    every += every[0].children(recursive=True)
    for process in every:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(every, timeout=60)


def _up(process: "subprocess.Popen[bytes]", log: Path, ports: Mapping[str, int]) -> bool:
    while process.poll() is None:
        for node in log.with_suffix("").glob("session_2*/gcs_server_port_*"):
            for name, option in AGENTS.items():
                file = node.with_name(node.name.replace("gcs_server_port", name))
                if not file.exists():
                    file.write_text(str(ports[option]))
        if STARTED in log.read_text():
            return True
        time.sleep(0.2)
    return False


def _free(number: int) -> list[int]:
    """Ports that are free now, below those that the system gives to others before Ray binds."""
    found: list[int] = []
    for port in random.sample(BELOW_THE_SYSTEMS, len(BELOW_THE_SYSTEMS)):
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == number:
            break
    return found


class Unpaid(Exception):
    """The environment could not be made, raised, or did not answer; the text says which."""


class Judge:
    """One environment of the config: rewards of responses to answers."""

    def __init__(self, section: Mapping[str, Any]) -> None:
        few = {}
        for k in ("num_workers", "workers"):
            if section.get(k):
                few[k] = min(section[k], WORKERS)
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

        asked = []
        for response in responses:
            asked.append(
                [{"role": "user", "content": ""}, {"role": "assistant", "content": response}]
            )
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
        head(Path(folder), {}, 0, Path.cwd()) as env,
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
    single = []
    for value in values:
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        single.append(value if isinstance(value, (int, float)) else math.nan)
    return single
