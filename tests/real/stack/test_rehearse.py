"""rehearse.py (make stack-demo): a clean run, planted mistakes, and how it ends."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checkout
import psutil
import pytest
import test_check_data as planted
from omegaconf import OmegaConf
from rehearsal import machine

from nemo_algos.preflight.check.data.verdict import Verdict

HERE = Path(__file__).parent
LIMIT = 2400  # seconds, on a machine that does other things
STAGES = ["start", "rollouts", "advantages", "step", "refit", "save", "resume", "stop"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, with a model's config.json."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    shape = {"model_type": "qwen2", "num_hidden_layers": 8, "hidden_size": 512, "vocab_size": 264}
    shape |= {"num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 1024}
    (tmp_path / "model" / "config.json").write_text(json.dumps(shape))
    return tmp_path


def config(home: Path, *overrides: str) -> Path:
    """A run that `check` finds nothing wrong with."""
    run = planted.Run(home)
    run.own = [f"policy.model_name={home}/model", "checkpointing.enabled=true"]
    run.own += [f"checkpointing.checkpoint_dir={home}/results", f"logger.log_dir={home}/logs"]
    run.own += [f"policy.tokenizer.name={home}/model", *overrides]
    OmegaConf.save(run.config(), home / "run.yaml")
    shutil.copytree(home / "reader", home / "model", dirs_exist_ok=True)  # the model's own
    return home / "run.yaml"


def command(file: Path, nemo_rl: Path, *options: str) -> list[str]:
    words = [sys.executable, str(HERE / "rehearse.py"), str(file)]
    return [*words, "--nemo-rl", str(nemo_rl), "--ranks", "1", *options]


def environment() -> dict[str, str]:
    """The user's: without what this suite's processes have, but with the planted modules."""
    without = ("NRL_MEGATRON_CHECKPOINT_DIR", "WANDB_MODE")
    own = {k: v for k, v in os.environ.items() if k not in without}
    return own | {
        "PYTHONPATH": os.pathsep.join(
            (str(HERE), str(HERE.parent / "nemo"), os.environ["PYTHONPATH"])
        )
    }


def rehearsed(file: Path, nemo_rl: Path, *options: str) -> tuple[int, list[Verdict]]:
    words = command(file, nemo_rl, "--json", *options)
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=LIMIT)
    assert done.stdout.startswith("["), done.stderr
    return done.returncode, [Verdict(**one) for one in json.loads(done.stdout)]


@pytest.fixture
def nemo_rl(ref: str) -> Path:
    clone = checkout.home()
    assert clone is not None
    return checkout.worktree(clone, ref)


@pytest.mark.slow
def test_a_clean_run_passes_every_stage(home: Path, nemo_rl: Path) -> None:
    """Rewards differ, since right answers stand in place of half of the responses."""
    status, found = rehearsed(config(home), nemo_rl)
    outcomes = {v.stage: v.outcome for v in found}
    assert status == 0, found
    assert {stage: outcomes[stage] for stage in STAGES} == dict.fromkeys(STAGES, "passed"), found
    assert not [v for v in found if v.outcome in ("failed", "warning")], found
    assert not [*home.glob("results*"), *home.glob("logs*")]
    assert not running()


@pytest.mark.slow
@pytest.mark.usefixtures("main_alone")
def test_a_run_over_images_passes_every_stage(home: Path, nemo_rl: Path) -> None:
    """A small Qwen2.5-VL sees pictures of one colour, in place of a data set of the hub."""
    pictured = ("nemo_rl.config=vlm_grpo_3B.yaml",)
    status, found = rehearsed(Path("nemo_rl.yaml"), nemo_rl, *pictured)
    outcomes = {v.stage: v.outcome for v in found}
    assert status == 0, found
    assert {stage: outcomes[stage] for stage in STAGES} == dict.fromkeys(STAGES, "passed"), found


def running() -> list[psutil.Process]:
    """Processes of any rehearsal; this suite's have a folder of another name."""
    found = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(machine.MARK, "")
        except psutil.Error:
            continue
        if Path(mark).name.startswith("nrh"):
            found.append(process)
    return found


PLANTS = {  # an override, the stage that names it, a word; what is asked for
    "method_nan": ("method.name=plants:BREAKS", "step", "not finite", "--steps 3"),
    "reward_raises": ("env.judged.verifier=plants:raises_later", "rollouts", "verifier/error", ""),
    "folder": ("checkpointing.checkpoint_dir=/proc/x", "folders", "/proc/x", "--only folders"),
    "login": ("logger.wandb_enabled=true", "folders", "wandb", "--only folders"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_mistake_is_named(name: str, home: Path, nemo_rl: Path) -> None:
    override, stage, word, options = PLANTS[name]
    status, found = rehearsed(config(home, override), nemo_rl, *options.split())
    named = [v for v in found if v.outcome == "failed"]
    assert status == 1 and [v.stage for v in named][:1] == [stage], found
    assert word in str(named[0])


@pytest.mark.slow
@pytest.mark.parametrize(("mistake", "word"), [("forgets", "again"), ("skips", "skip")])
def test_a_resume_with_other_prompts_is_named(
    mistake: str, word: str, home: Path, nemo_rl: Path
) -> None:
    """In a NeMo-RL that takes up its data elsewhere."""
    wrong = home / "nemo-rl"
    wrong.mkdir()
    for one in nemo_rl.iterdir():
        (wrong / one.name).symlink_to(one) if one.name != "nemo_rl" else None
    subprocess.run(["cp", "-r", nemo_rl / "nemo_rl", wrong / "nemo_rl"], check=True)
    for name in ("algorithms/grpo.py", "data/utils.py"):
        file = wrong / "nemo_rl" / name
        resumes = f"__import__('plants').{mistake}(dataloader, "
        file.write_text(file.read_text().replace("dataloader.load_state_dict(", resumes))
    status, found = rehearsed(config(home), wrong)
    assert status == 1
    (named,) = [v for v in found if v.outcome == "failed"]
    assert named.stage == "resume" and word in named.message


@pytest.fixture
def started(home: Path, nemo_rl: Path) -> Iterator[Any]:
    process = subprocess.Popen(command(config(home), nemo_rl), env=environment(), cwd=home)
    until = time.monotonic() + LIMIT
    while not any("ray" in p.name() for p in running()):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.2)
    yield process
    process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_everything_ends_with_the_command(how: signal.Signals, started: Any) -> None:
    started.send_signal(how)
    assert started.wait(60) != 0
    until = time.monotonic() + 60
    while running():
        assert time.monotonic() < until, running()
        time.sleep(0.2)
