"""One cluster for the session, and a run on it for each test."""

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import image
import pytest
import stack_image
from cluster import HERE, ROOT, Cluster
from runs import CONFIG, Run


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "smoke: the part that takes two minutes")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Up; in its user's home images and checkouts of NeMo-RL without Ray (light) and with it."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        folder = Path(name)
        pythons = [image.environment(folder / "light", sys.executable)]
        image.install(folder / "light", image.LIGHT)
        if image.checkout.home():
            pythons.append(image.environment(folder / "ray", image.newest_python()))
        pythons.append(Path(sys.base_prefix))
        seen = [
            ROOT,
            Path(sys.prefix),
            *(python.parent for python in pythons),
            *stack_image.folders(),
        ]
        cluster = Cluster(folder, seen)
        image.nemo_rl(folder / "nemo-rl")
        image.bare_checkout(cluster.home / "light", (HERE / "light" / "ray.sub").read_text())
        for environment, python in zip(("light", "ray"), pythons, strict=False):
            image.write(cluster.home / f"{environment}.sqsh", f"/srv/{environment}", python)
        (cluster.home / "etr.yaml").write_text(CONFIG)
        try:
            cluster.start()
            yield cluster
        finally:
            print((folder / "log" / "out").read_text()[-3000:])  # shown where it did not start
            cluster.end()


@pytest.fixture
def run(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Run]:
    """Named after the test; its jobs are ended with it."""
    run = Run(cluster, re.sub(r"\W+", "-", request.node.name).strip("-"))
    yield run
    for log in sorted(run.folder.rglob("*.log")):  # shown where the test failed
        print(f"=== {log}\n{log.read_text()[-3000:]}")
    cluster.user("scancel --user user")
