"""A case of each backend through a real Ray: its cluster, placement group, actors, futures."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import configs
import pytest
import test_workers

SECONDS = 1500
HERE = Path(__file__).parent
TESTS = [str(HERE), str(HERE.parent / "nemo")]


@pytest.mark.smoke
@pytest.mark.parametrize("backend", configs.BACKENDS)
def test_a_method_through_ray_is_one_processes(backend: str, folder: Path) -> None:
    log = folder / f"{backend}.log"
    with log.open("w") as out:
        run = subprocess.Popen(
            [sys.executable, str(HERE / "ray_case.py"), backend, str(folder)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], *TESTS])},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = run.wait(SECONDS)
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
    assert code == 0, log.read_text()[-6000:]
    found = json.loads((folder / f"{backend}.json").read_text())
    test_workers.check_forward(found["forward"])
    test_workers.check_updates(found["updates"])
