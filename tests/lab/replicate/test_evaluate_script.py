"""scripts/slurm/evaluate.sh with stand-ins for vLLM, Python and curl: what it serves and asks."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "slurm" / "evaluate.sh"
STANDS_IN = '#!/bin/bash\necho "{name} $*" >> "$LOG"\n{more}\n'


@pytest.fixture
def log(tmp_path, monkeypatch):
    """What the stand-ins were asked."""
    healthy = 'until grep -q ^vllm "$LOG"; do sleep 0.05; done'
    more = {"vllm": "exec sleep 60", "python": "", "curl": healthy}
    (tmp_path / "bin").mkdir()
    for name, does in more.items():
        program = tmp_path / "bin" / name
        program.write_text(STANDS_IN.format(name=name, more=does))
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    return tmp_path / "log"


def evaluated(tmp_path, log, **more):
    given = {"RUN": tmp_path / "run", "MODEL": "Qwen/Q", "SERVED": "etr/q/etr", "ROOT": "/code"}
    asked = "eval a.yaml 'k=[1, 2]' model.name=n\neval b.yaml model.name=n"
    given |= {"EVALUATIONS": asked, "NEMO_RL_ROOT": tmp_path}
    env = {**os.environ, **{k: str(v) for k, v in (given | {"VLLM": "vllm"} | more).items()}}
    subprocess.run(["bash", SCRIPT], env=env, check=True, capture_output=True, timeout=60)
    lines = [line.partition(" ") for line in sorted(log.read_text().splitlines())]
    return {name: [rest for n, _, rest in lines if n == name] for name in ("vllm", "python")}


def test_the_newest_checkpoint_is_converted_served_and_asked(tmp_path, log):
    for step in (2, 10):
        (tmp_path / f"kept/step_{step}/policy/weights").mkdir(parents=True)
    asked = evaluated(tmp_path, log, CHECKPOINTS=tmp_path / "kept")
    (serve,) = asked["vllm"]
    assert serve.startswith(f"serve {tmp_path}/run/hf/step_10 --served-model-name etr/q/etr")
    convert = next(line for line in asked["python"] if "convert_dcp_to_hf" in line)
    assert f"--dcp-ckpt-path {tmp_path}/kept/step_10/policy/weights" in convert
    evals = [line for line in asked["python"] if "nemo_algos" in line]
    assert [line.split("model.url")[0] for line in evals] == [
        "-m nemo_algos eval a.yaml k=[1, 2] model.name=n ",
        "-m nemo_algos eval b.yaml model.name=n ",
    ]


def test_what_reads_images_is_put_beside_a_checkpoint(tmp_path, log):
    (tmp_path / "kept/step_1/policy/weights").mkdir(parents=True)
    asked = evaluated(tmp_path, log, CHECKPOINTS=tmp_path / "kept", PROCESSOR="save()")
    assert f"-c save() Qwen/Q {tmp_path}/run/hf/step_1" in asked["python"]


def test_an_adapter_is_served_over_its_base_model(tmp_path, log):
    weights = tmp_path / "kept/step_1/policy/weights/model"
    weights.mkdir(parents=True)
    (weights / "adapter_config.json").write_text("{}")
    asked = evaluated(tmp_path, log, CHECKPOINTS=tmp_path / "kept")
    assert asked["vllm"][0].startswith("serve Qwen/Q ")
    assert f"--lora-modules etr/q/etr={weights}" in asked["vllm"][0]
    assert not any("convert" in line for line in asked["python"])


def test_a_model_as_it_is_is_served_under_its_name(tmp_path, log):
    asked = evaluated(tmp_path, log, SERVED="Qwen/Q")
    assert asked["vllm"][0].startswith("serve Qwen/Q --served-model-name Qwen/Q")


def test_what_the_embedded_engine_samples_needs_no_server(tmp_path, log):
    words = "eval a.yaml 'model.policy.model_name={weights}'"
    asked = evaluated(tmp_path, log, EVALUATIONS=words)
    filled = "eval a.yaml model.policy.model_name=Qwen/Q"
    assert asked == {"vllm": [], "python": [f"-m nemo_algos {filled}"]}
    log.unlink()
    asked = evaluated(tmp_path, log, EVALUATIONS=f"eval b.yaml model.name=n\n{words}")
    assert ["model.url" in line for line in asked["python"]] == [False, True]
    assert len(asked["vllm"]) == 1


def test_every_checkpoint_is_served_in_turn_where_an_evaluation_asks_for_it(tmp_path, log):
    for step in (2, 10):
        (tmp_path / f"kept/step_{step}/policy/weights/consolidated").mkdir(parents=True)
    words = "eval a.yaml model.name=n out=eval\neval b.yaml model.name=n 'out=eval-{step}'"
    asked = evaluated(tmp_path, log, CHECKPOINTS=tmp_path / "kept", EVALUATIONS=words)
    steps = [line.split("/kept/")[1].split("/")[0] for line in asked["vllm"]]
    assert sorted(steps) == ["step_10", "step_2"]
    assert all("/policy/tokenizer" in line for line in asked["vllm"])  # not with the weights
    out = [line.split("out=")[1].split()[0] for line in asked["python"]]
    assert sorted(out) == ["eval", "eval-10", "eval-2"]


def test_a_run_without_a_checkpoint_ends_the_job(tmp_path, log):
    (tmp_path / "kept").mkdir()
    with pytest.raises(subprocess.CalledProcessError):
        evaluated(tmp_path, log, CHECKPOINTS=tmp_path / "kept")
