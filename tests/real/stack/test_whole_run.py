"""The program itself inside NeMo-RL: Ray, Policy, vLLM, refit, verifiers, checkpoints.

Each run is `examples/run_grpo_math.py --config recipes/cpu/countdown-1n1g-fsdp.yaml`, a process as
a user starts it, on one Ray for the module. The embedded engine trains the same model from the same
start on the same problems: between the two are NeMo-RL, vLLM and the samples they draw.
"""

import math
import statistics
from pathlib import Path

import pytest
import whole_run
from band import embedded, within
from runs import OWN, ROLLOUTS, STEPS, Env, Run, is_sound, kill_after_step_2, moved, own

from nemo_algos.config import SHIPPED

WARMUP = [2e-4 * (0.2 + 0.8 * step / 5) for step in range(3)]  # the recipe's LinearLR
STALE = Path(__file__).with_name("stale.py")


@pytest.fixture(scope="module")
def etr(place: tuple[Path, Env]) -> Run:
    return Run(place, "etr", "etr", "checkpointing.save_period=2").whole()


@pytest.mark.smoke
def test_etr_from_the_command_line_to_the_checkpoint(etr: Run) -> None:
    is_sound(etr)
    assert 1e-4 < moved(etr, 2) < moved(etr, STEPS) < 0.1
    assert len(set(etr.curve("etr/radius_positive"))) == STEPS
    within(etr.curve("reward"), embedded("etr", STEPS))


def logprob_calls(run: Run) -> int:
    """Steps that asked the workers for previous log-probs, by NeMo-RL's own timer."""
    name = "timing/train/get_logprobs/submit_logprob_futures"
    return len(whole_run.curve(run.folder, name))


def test_with_old_as_the_sampler_no_step_asks_for_log_probs(
    place: tuple[Path, Env], etr: Run
) -> None:
    """One implementation samples and trains here, so that all else is as without."""
    preset = "rollout_correction.preset=bypass_ppo_clip_k3_rs"
    two = Run(place, "two", "etr", preset, "grpo.max_num_steps=2").whole()
    assert (logprob_calls(etr), logprob_calls(two)) == (STEPS, 0)
    assert two.curve("correction/rejected_tokens")[0] == 0
    assert two.curve("reward")[0] == etr.curve("reward")[0]
    assert not whole_run.curve(two.folder, "train/mismatch/mean")


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(OWN.keys() - {"etr"}))
def test_a_method_logs_what_is_its_own(place: tuple[Path, Env], method: str) -> None:
    run = Run(place, method, method, "grpo.max_num_steps=2").whole()
    is_sound(run, 2)
    found = own(run)
    assert set(found) == OWN[method]
    assert all(len(x) == 2 and all(map(math.isfinite, x)) for x in found.values())


OTHERWISE = {  # a word of the log that no other of these runs says, an override
    "data_plane": ("SimpleStorageUnit", "data_plane.enabled=true"),
    "two_ranks": ("DTensorPolicyWorkerV2[rank=1]", "cluster.gpus_per_node=2"),
    "megatron": (
        "MegatronPolicyWorker[rank=0]",
        "--config=recipes/cpu/countdown-1n1g-megatron.yaml",
    ),
}


ASYNC = "--config=recipes/cpu/countdown-1n2g-async.yaml"
LORA = "--config=recipes/cpu/countdown-1n1g-lora.yaml"
PAGE = Path(__file__).parents[3] / "docs" / "nemo_rl.md"


def without_checkpoint(folder: Path) -> Path:
    """The Megatron recipe without the one key that NeMo-RL v0.7.0 does not have."""
    cpu, path = SHIPPED / "recipes" / "cpu", folder / "megatron.yaml"
    lines = (cpu / "countdown-1n1g-megatron.yaml").read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.lstrip().startswith("checkpoint:")]
    assert len(kept) == len(lines) - 1
    path.write_text("".join(kept).replace("defaults: ", "defaults: recipes/cpu/"))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERWISE)
def test_etr_otherwise(place: tuple[Path, Env], name: str, ref: str) -> None:
    word, override = OTHERWISE[name]
    if ref == "v0.7.0" and name == "megatron":
        override = f"--config={without_checkpoint(place[0])}"
    run = Run(place, name, "etr", "grpo.max_num_steps=3", override).whole()
    is_sound(run, 3)
    assert word in run.said()
    assert set(own(run)) == OWN["etr"]
    assert run.curve("lr") == pytest.approx(WARMUP)
    within(run.curve("reward"), embedded("etr", 3))


@pytest.mark.slow
def test_the_asynchronous_trainer(place: tuple[Path, Env]) -> None:
    """Its sampler is one step behind from the second on, and the monitor says so."""
    run = Run(place, "async", "etr", "grpo.max_num_steps=3", ASYNC).whole()
    assert run.curve("avg_trajectory_age") == [0, 1, 1]
    first, *later = run.curve("mismatch/max")
    assert first < 1e-4 and min(later) > 0.01
    assert set(own(run)) == OWN["etr"]
    assert sum(run.curve("verifier/ok")) >= 3 * ROLLOUTS
    assert all(map(math.isfinite, run.curve("loss") + run.curve("grad_norm")))
    within(run.curve("reward"), embedded("etr", 3))


@pytest.mark.slow
def test_lora(place: tuple[Path, Env]) -> None:
    is_sound(Run(place, "lora", "etr", "grpo.max_num_steps=3", LORA).whole(), 3)


@pytest.mark.slow
def test_a_stale_sampler_stops_the_run(place: tuple[Path, Env]) -> None:
    """Step 2 is not trained on; step 1's checkpoint is whole."""
    overrides = ("checkpointing.save_period=1", "mismatch.stop_above=1e-3")
    run = Run(place, "stale", "etr", *overrides).whole(1, program=STALE)
    assert "mismatch.stop_above=0.001" in run.said()
    assert [path.name for path in run.results.glob("*step_*")] == ["step_1"]
    assert 1e-5 < moved(run, 1) < 0.1
    assert len(run.curve("mismatch/max")) == 1
    run.whole()  # with the refits again
    is_sound(run)


@pytest.mark.slow
def test_a_worker_is_killed_and_the_same_command_goes_on(place: tuple[Path, Env], etr: Run) -> None:
    run = Run(place, "killed", "etr", "checkpointing.save_period=2")
    kill_after_step_2(run, "DTensorPolicyWorker")
    assert not (run.results / f"step_{STEPS}").exists()
    run.whole()
    is_sound(run)
    assert run.curve("lr") == etr.curve("lr")
    within(run.curve("reward"), embedded("etr", STEPS))


@pytest.mark.slow
def test_its_curve_is_the_embedded_engines(place: tuple[Path, Env]) -> None:
    run = Run(place, "curve", "etr", "grpo.max_num_steps=20").whole()
    is_sound(run, 20)
    rewards, band = run.curve("reward"), embedded("etr", 20)
    within(rewards, band)
    untaught = (statistics.fmean(x) for x in zip(*embedded("etr", 20, rate=1e-9), strict=True))
    gained = [r - u for r, u in zip(rewards, untaught, strict=True)][10:]
    assert statistics.fmean(gained) > 0.03
