"""A Ray of this run's own, with GPUs that it only counts; NeMo-RL finds it by RAY_ADDRESS."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

ATTEMPTS = 10  # Ray gives its own processes 30 s of the wall, however busy the machine is
STARTED = "Ray runtime started."
AGENTS = {  # the file that names a port, which a raylet waits for 15 s -> the option that sets it
    "metrics_agent_port": "dashboard-agent-grpc-port",
    "dashboard_agent_listen_port": "dashboard-agent-listen-port",
    "runtime_env_agent_port": "runtime-env-agent-port",
    "metrics_export_port": "metrics-export-port",
}
PORTS = (*AGENTS.values(), "port", "ray-client-server-port", "node-manager-port")
PORTS += ("object-manager-port",)


@contextmanager
def head(
    folder: Path, env: Mapping[str, str], gpus: int, cwd: Path | None = None
) -> Iterator[dict[str, str]]:
    """Within, a head with its files below `folder` (a short path); gives what names it.

    cwd: the folder of its workers, below which are a config's relative paths; default: `folder`.

    Ends with every process that it started. Raises RuntimeError with its log where it never starts.
    """
    for attempt in range(1, ATTEMPTS + 1):
        ports = dict(zip(PORTS, _free(len(PORTS)), strict=True))
        process, log = _start(folder, f"ray{attempt}", env, gpus, ports, cwd or folder)
        try:
            if _up(process, log, ports):
                yield {"RAY_ADDRESS": f"127.0.0.1:{ports['port']}"}
                return
        finally:
            end(process.pid)
    raise RuntimeError((folder / f"ray{ATTEMPTS}.log").read_text())


def end(pid: int) -> None:
    """The process and all below it."""
    try:
        every = [psutil.Process(pid)]
    except psutil.NoSuchProcess:
        return
    every += every[0].children(recursive=True)
    for process in every:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(every, timeout=60)


def _start(
    above: Path,
    name: str,
    env: Mapping[str, str],
    gpus: int,
    ports: Mapping[str, int],
    cwd: Path,
) -> tuple["subprocess.Popen[bytes]", Path]:
    options = {
        **ports,
        "node-ip-address": "127.0.0.1",
        "num-gpus": gpus,
        "num-cpus": 16,
        "include-dashboard": "false",
        "temp-dir": above / name,
        "object-store-memory": 200 << 20,
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    ray = Path(sys.executable).with_name("ray")
    log = above / f"{name}.log"
    with open(log, "wb") as file:
        process = subprocess.Popen(
            [str(ray), "start", "--head", "--block", "--disable-usage-stats", *words],
            cwd=cwd,
            env={**os.environ, **env},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    return process, log


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
    """Ports that are free now."""
    sockets = [socket.socket() for _ in range(number)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
