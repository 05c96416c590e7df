"""The wheel in an environment of its own, far from any checkout: commands, configs, data."""

import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = """
grpo.max_num_steps=1 grpo.num_prompts_per_step=2 grpo.num_generations_per_prompt=2
policy.train_global_batch_size=2 grpo.max_val_samples=1 grpo.val_samples_per_prompt=1
logger.tensorboard_enabled=false
""".replace("\n", " ")
ONE = "benchmarks.countdown.problems=1"
COMMANDS = f"""
train etr.yaml {SMALL}
eval eval/countdown.yaml model.run=runs/etr/exp_001 sampling.samples=1 {ONE}
check recipes/etr-qwen3-8b-base-1n8g-fsdp.yaml
methods
"""
# in one process, as torch takes seconds to load; the policy is taught next to nothing
CODE = """
import sys
from nemo_algos.cli import app
from nemo_algos.config import load, find
from nemo_algos.engines.local import tiny_policy
tiny_policy.WARM_STEPS = 1
statuses = [app(line.split(), standalone_mode=False) for line in sys.stdin if line.strip()]
print(statuses, tiny_policy.__file__)
print(open(load(find("smollm2.yaml"))["data"]["train"]["data_path"]).readline())
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The Python of an environment with the wheel.

    Its libraries are this environment's, without the .pth files there: one names the checkout.
    """
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(["uv", "build", "--wheel", "--quiet", "-o", folder, ROOT], check=True)
    subprocess.run(["uv", "venv", "--quiet", folder / "env"], check=True)
    python, (wheel,) = folder / "env" / "bin" / "python", folder.glob("*.whl")
    install = ["uv", "pip", "install", "--quiet", "--no-deps", "--python", python, wheel]
    subprocess.run(install, check=True)
    (site,) = (folder / "env" / "lib").glob("python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_paths()["purelib"])
    return python


def test_the_commands_find_their_configs(python, tmp_path, monkeypatch):
    monkeypatch.setenv("NEMO_ALGOS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    here = {"cwd": tmp_path, "text": True, "capture_output": True}
    done = subprocess.run([python, "-c", CODE], input=COMMANDS, **here)
    *said, statuses, row, _ = done.stdout.splitlines() or [""]
    assert done.returncode == 0, done.stdout + done.stderr
    assert statuses.startswith("[None, None, 0, None] "), said
    assert Path(statuses.split()[-1]).is_relative_to(python.parents[1])
    assert '"problem"' in row
    assert (tmp_path / "runs/etr/exp_001/eval/countdown/metrics.json").exists()
    version = subprocess.run([python.with_name("nemo-algos"), "--version"], **here)
    assert version.stdout.startswith("nemo-algos ")


def test_configs_and_job_scripts_lie_in_the_wheel(python, tmp_path):
    folders = "'examples/configs', 'scripts/slurm'"
    code = f"from nemo_algos.config import shipped; print(*map(shipped, ({folders})), sep='\\n')"
    done = subprocess.run([python, "-c", code], cwd=tmp_path, text=True, capture_output=True)
    inside = [Path(line) for line in done.stdout.splitlines()]
    for there, folder in zip(inside, ("examples/configs", "scripts/slurm"), strict=True):
        assert there.is_relative_to(python.parents[1])
        tracked = {p.relative_to(ROOT / folder) for p in (ROOT / folder).rglob("*") if p.is_file()}
        assert {p.relative_to(there) for p in there.rglob("*") if p.is_file()} == tracked
