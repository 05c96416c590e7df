"""docker/environments.sh on environments made here; the image itself needs docker."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = "docker/environments.sh"


@pytest.fixture
def image(tmp_path):
    """A copy of the package, a driver's environment, and those of two workers: none knows it."""
    for folder in ("nemo_algos", "docker"):
        shutil.copytree(ROOT / folder, tmp_path / "ours" / folder)
    for name in ("driver", "venvs/a.b.Worker", "venvs/a.c.Worker"):
        venv = [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / name)]
        subprocess.run(venv, check=True)
        (site,) = (tmp_path / name).glob("lib/python*/site-packages")
        installed = [place for place in sys.path if Path(place).name == "site-packages"]
        (site / "dependencies.pth").write_text("\n".join(installed))
    return tmp_path


def run(image, what):
    places = {"UV_PROJECT_ENVIRONMENT": image / "driver", "NEMO_RL_VENV_DIR": image / "venvs"}
    environment = {**os.environ, **{name: str(path) for name, path in places.items()}}
    script = [str(image / "ours" / SCRIPT), what]
    return subprocess.run(script, env=environment, capture_output=True, text=True)


def test_bake_makes_the_package_importable_in_every_environment(image):
    before = run(image, "smoke")
    assert before.returncode == 1 and "smoke failed" in before.stderr
    assert run(image, "bake").returncode == 0
    after = run(image, "smoke")
    assert after.returncode == 0, after.stderr
    file = image / "ours" / "nemo_algos" / "algorithms" / "build.py"
    assert after.stdout.splitlines() == [str(file)] * 3 + ["smoke: 3 environments"]


def test_the_image_says_the_version_that_it_holds():
    """tests/real/container looks at the image itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    labels = (ROOT / "docker" / "Dockerfile").read_text()
    assert f'org.opencontainers.image.version="{project["version"]}"' in labels
    assert f'org.opencontainers.image.licenses="{project["license"]}"' in labels


def test_an_image_without_worker_environments_is_refused(image):
    shutil.rmtree(image / "venvs")
    assert run(image, "bake").returncode == 1
