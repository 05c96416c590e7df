"""What `nemo-algos slurm` refuses: one line each, status 2, no folder and no job."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from matrix import some_of
from says import Says
from slurm_here import LAUNCH, called, checkout, folder, invoked, slurm, stub  # noqa: F401

from nemo_algos.preflight.slurm import rules as slurm_rules
from nemo_algos.preflight.slurm.batch import Job
from nemo_algos.preflight.slurm.rules import OURS

# {0}: the folder of the test
REFUSED = [
    ("--account=", ["--account: missing"]),
    ("--image=", ["--image: missing"]),
    ("--image x.sqsh", ["--image: x.sqsh"]),
    ("--image /nowhere/nemo", ["--image: /nowhere/nemo"]),
    (
        "--image nvcr.io/nvidia/nemo-rl:v0.7.0",
        ["--image: nvcr.io/nvidia/nemo-rl:v0.7.0 nvcr.io#nvidia/nemo-rl:v0.7.0"],
    ),
    ("--image docker://my:5000/x", ["--image: docker://my:5000/x"]),
    ("--checkout /nowhere", ["--checkout: ray.sub /nowhere"]),
    ("--program /nowhere.py", ["--program: /nowhere.py"]),
    ("--out {0}/etr.yaml", ["--out: {0}/etr.yaml"]),
    ("--time soon", ["--time: 'soon'"]),
    ("--time 9999999999999", ["--time: 9999999999999"]),
    ("--stalled 240", ["--stalled: 240 --time 4:00:00"]),
    ("--stalled 99999999999999999999", ["--stalled: 99999999999999999999 --time"]),
    ("--out=", ["--out: "]),
    ("--time 0:15:00", ["--margin: 15 --time"]),
    ("--margin 0", ["--margin: 0 1 1092"]),
    ("--margin -5", ["--margin: -5 1 1092"]),
    ("--margin 1093 --time 2-0", ["--margin: 1093 1 1092"]),
    ("--nodes 0", ["--nodes: 0 1"]),
    ("--nodes -1", ["--nodes: -1 1"]),
    ("--gpus-per-node 0", ["--gpus-per-node: 0 1"]),
    ("--nodes 4 cluster.num_nodes=2", ["cluster.num_nodes: 2 --nodes 4"]),
    ("--gpus-per-node 4 cluster.gpus_per_node=2", ["cluster.gpus_per_node: 2 --gpus-per-node 4"]),
    ("cluster.num_nodes=2.5", ["cluster.num_nodes: 1 2.5"]),
    ("cluster.num_nodes=0", ["cluster.num_nodes: 1 0"]),
    ("checkpointing.enabled=false", ["checkpointing.enabled: true"]),
    (
        "--time 1:00:00 checkpointing.checkpoint_must_save_by=00:02:00:00",
        ["checkpointing.checkpoint_must_save_by: 3600"],
    ),
    ("engine=local", ["engine: nemo_rl"]),
    ("policy.generation.min_p=0.1", ["policy.generation.min_p: NeMo-RL"]),
    ("grpo.max_steps=3", ["grpo.max_steps: NeMo-RL"]),
    ("method.name=ert", ["method.name: 'ert'"]),
    ("loss_fn.use_cispo=true", ["loss_fn.use_cispo: false"]),
    ("--account= --image= grpo.x=1", ["--account: missing", "--image: missing", "grpo.x: "]),
    ("--name ..", ["--name: '..'"]),
    ("--name a/b", ["--name: 'a/b'"]),
    ("--name -x", ["--name: '-x'"]),
    ("--name " + 300 * "x", ["--name: "]),
    # sweeps
    ("--sweep grpo.seed", ["--sweep: 'grpo.seed' key=a,b"]),
    ("--sweep grpo.seed=", ["--sweep: 'grpo.seed=' key=a,b"]),
    ("--sweep grpo.seed=1,,2", ["--sweep: 'grpo.seed=1,,2' key=a,b"]),
    ("--sweep =1,2", ["--sweep: '=1,2' key=a,b"]),
    ("--sweep grpo.seed=1,2 --sweep grpo.seed=3", 2 * ["--sweep: grpo.seed"]),
    ("grpo.seed=1 --sweep +grpo.seed=2,3", ["--sweep: +grpo.seed"]),
    ("--sweep method.name=etr,ert", ["method.name: 'ert'"]),
    (
        "--sweep policy.model_name=a/b,a-b",
        [
            f"{key}: 2 {{0}}/runs/etr-a-b{below}"
            for key, below in (
                ("--sweep", ""),
                ("checkpointing.checkpoint_dir", "/checkpoints"),
                ("logger.log_dir", "/logs"),
            )
        ],
    ),
    ("--sweep grpo.seed=1,1", 3 * [""]),
    (
        "--sweep grpo.seed=1,2 --mounts {0}:{0} checkpointing.checkpoint_dir={0}/c",
        ["checkpointing.checkpoint_dir: 2 {0}/c"],
    ),
    (
        "--sweep grpo.seed=1,2 --mounts {0}:{0} logger.log_dir={0}/c/../l/",
        ["logger.log_dir: 2 {0}/l"],
    ),
    # mounts, and what the container lacks
    ("--mounts /nowhere:/x", ["--mounts: /nowhere:/x /nowhere"]),
    ("--mounts bin:/x", ["--mounts: bin:/x"]),
    ("--mounts {0}:x", ["--mounts: {0}:x"]),
    ("--mounts {0}:/", ["--mounts: {0}:/ container"]),
    ("--mounts {0}", ["--mounts: '{0}' HOST:CONTAINER"]),
    ("--mounts $HOME:$HOME", ["--mounts: '$HOME:$HOME' HOST:CONTAINER"]),
    ("--mounts ~/x:/x", ["--mounts: '~/x:/x' HOST:CONTAINER"]),
    ("--mounts {0}:/x,/no:/y", ["--mounts: /no:/y /no"]),
    ("--mounts {0}:/x,", ["--mounts: HOST:CONTAINER"]),
    ("checkpointing.checkpoint_dir={0}/c", ["checkpointing.checkpoint_dir: {0}/c mounted"]),
    ("logger.log_dir=/l --mounts {0}:/l:ro", ["logger.log_dir: /l lost"]),
    (
        "checkpointing.checkpoint_dir={0}/runs/etr/../c",
        ["checkpointing.checkpoint_dir: {0}/runs/etr/../c mounted"],
    ),
    ("checkpointing.checkpoint_dir=/tmp", ["checkpointing.checkpoint_dir: /tmp mounted"]),
    ("logger.log_dir=~/x", ["logger.log_dir: ~/x"]),
    ('data.train=[{{"data_path":x}}]', ["data.train: grpo_math_1B.yaml"]),
    ("nemo_rl.config=null", ["nemo_rl.config: null"]),
    ("checkpointing.checkpoint_dir=null", ["checkpointing.checkpoint_dir: "]),
    ("policy.model_name={0}/bin", ["policy.model_name: {0}/bin --mounts"]),
    ("data.train.data_path={0}/etr.yaml", ["data.train.data_path: {0}/etr.yaml"]),
    # what sbatch would not read, or we write
    ("--sbatch=-pfast", ["--sbatch: '-pfast' --option=value"]),
    ("--sbatch=qos=high", ["--sbatch: 'qos=high' --option=value"]),
    *(
        (f"--sbatch=--{o}", [f"--sbatch: '--{o}' singleton"])
        for o in (
            "dependency=afterok:1",
            "depend=afterok:1",
            "dependency=singleton?afterany:1",
            "dependency=afterok:1,singleton?afterany:2",
            "dependency=singleton,afterany:1?afterany:2",
            "dependency=afterok:singleton",
        )
    ),
    *((f"--sbatch=--{o}=1", [f"--sbatch: '--{o}=1'"]) for o in OURS),
    # options that stand for a key of the config
    ("--sbatch=--nodes=2", ["--sbatch: '--nodes=2' --nodes cluster.num_nodes"]),
    ("--sbatch=--node=2", ["--sbatch: '--node=2' --nodes cluster.num_nodes"]),
    *(
        (f"--sbatch={o} --sbatch=--qos=8", [f"cluster.gpus_per_node: 8 --sbatch={o} 4"])
        for o in (
            "--gres=gpu:4",
            "--gres=gpu:h100:4",
            "--gpus-per-node=4",
            "--gpus-per-node=a100:4",
        )
    ),
    ("--sbatch=--no-requeue", ["--sbatch: '--no-requeue' --max-requeues"]),
]


@pytest.mark.parametrize(("line", "says"), some_of(REFUSED, 34), ids=lambda x: str(x)[:40])
def test_mistakes_stop_before_submission(here, line, says):
    """Every one in a line; no folder, no job."""
    said = slurm(here, f"{line.format(here)} --submit")
    assert (said.status, len(said.err)) == (2, len(says)), said.err
    for got, want in zip(said.err, says, strict=True):
        assert got == Says(want.format(here))
    assert said.out == [] and called(here, "sbatch") == []
    assert not (here / "runs").exists()


ODD = [*"$,:;(&|<>*?[]{}!~^'\"\\`# ", "%j", "\n", "\t", "a\ntouch x"]
PLACES = {  # Job's field, a value with an odd place {0}, what is not odd there, the hint
    "--out": ("", "{0}/runs", "", ""),
    "--checkout": ("nemo_rl", "{0}", "", ""),
    "--program": ("program", "{0}/p.py", "", ""),
    "--image": ("image", "{0}/i.sqsh", ":#", "#"),
    "--mounts": ("mounts", "{0}:/x", ":", "HOST:CONTAINER"),
    "--account": ("account", "a{0}", "", "one"),
    "--partition": ("partition", "a{0}", ",", "commas"),
}


@pytest.mark.parametrize("option", PLACES)
def test_no_odd_character_reaches_a_shell_or_sbatch(here, option):
    """The places are there, so that nothing else is wrong with them."""
    field, template, harmless, hint = PLACES[option]
    for odd in sorted(set(ODD) - set(harmless)):
        place = here / f"{odd}x"
        checkout(place)
        for name in ("p.py", "i.sqsh"):
            (place / name).write_text("hsqs")
        value = template.format(place)
        typed = {"nemo_rl": Path(value), "program": Path(value), "mounts": (value,)}
        job = Job("a", "b", here / "nemo-rl")
        job = job._replace(**{field: typed.get(field, value)}) if field else job
        found = list(slurm_rules.problems(job, here if field else Path(value)))
        (one,) = found
        assert one.path == option and one.message.startswith(repr(value))
        assert one.message == Says(hint)


def test_odd_characters_are_refused_all_at_once(here):
    """By the command, from its options and from the environment."""
    words = ["--out", f"{here}/$x", "--image", "a;b", "--mounts", f"{here}:/a b", "--name", "ok"]
    words += ["--account", "a\ntouch x", "--partition", "p q", "--sbatch", "--comment=a\nb"]
    said = slurm(here, "", *words)
    options = [line.partition(":")[0] for line in said.err]
    expected = ["--account", "--partition", "--sbatch", "--image", "--mounts", "--out"]
    assert (said.status, options) == (2, expected)
    assert slurm(here, "", "--name", "a b").err[0] == Says("--name: 'a b'")


@pytest.mark.parametrize("odd", ["a\nb", "x\\y", "a\tb", "\x7f", ""])
def test_options_of_sbatch_are_one_line_without_backslashes(here, odd):
    """Which sbatch would read in another way than a shell does."""
    said = slurm(here, "", "--sbatch", f"--comment={odd}")
    assert (said.status, len(said.err)) == (2, 1)
    assert said.err[0].startswith(f"--sbatch: {f'--comment={odd}'!r}")


def test_a_checkout_in_an_odd_place_is_refused(here, monkeypatch):
    monkeypatch.setattr(slurm_rules, "ROOT", Path("/a b"))
    assert slurm(here).err[0] == Says("checkout: '/a b'")


@pytest.mark.parametrize(
    "line",
    [
        "--image nvcr.io#nvidia/nemo-rl:v0.7.0",
        "--image docker://user@nvcr.io#nvidia/nemo-rl@sha256:0a",
        "--image nvidia/nemo-rl:v0.7.0",
        "--mounts {0}:/a,{0}/bin:/b:ro+rprivate",
        "--margin 1092 --time 2-0",
        "--account a.b-c --partition fast,slow",
        "--sbatch=--constraint=[a|b]&c*2 --sbatch=--gres=gpu:h100:8 --sbatch=--hold",
        "--sbatch=--exclude=n[1-3,5] --sbatch=--mail-user=me@x.org --sbatch=--mem=0",
        "--sbatch=--dependency=singleton,afterok:12 --sbatch=--no-kill",
        "--sbatch=--dependency=afterok:12:13,singleton --sbatch=--wait-all-nodes=1",
        "policy.tokenizer.name={0}/bin --mounts {0}:{0}:ro",
        "logger.log_dir={0}/bin --mounts {0}:{0}:ro,{0}/bin:{0}/bin",
        "env.math.num_workers=2 --name a_b.c-1",
        "data.default.prompt_file=/opt/nemo-rl/examples/prompts/cot.txt",
    ],
)
def test_what_is_close_to_a_mistake_and_right_is_accepted(here, line):
    said = slurm(here, line.format(here))
    assert said.status == 0, said.err


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ("batch* 4:00:00 gpu:8", None),
        ("batch* infinite gpu:h100:8(S:0-1)", None),
        ("other 1:00 gpu:4\nbatch* 7-00:00:00 gpu:8", None),
        ("batch* infinite (null)", None),
        ("batch* infinite gpu:4", "8 4 ray.sub"),
        ("batch* infinite gpu:a:2(S:0),gpu:b:4(S:1)", "8 2 4"),
    ],
)
def test_gpus_of_a_node_are_those_that_slurm_knows(here, nodes, says):
    stub(here, "sinfo", f"printf '%s\\n' '{nodes}'")
    said = slurm(here)
    assert called(here, "sinfo") and said.status == (2 if says else 0)
    assert not says or said.err[0] == Says(f"cluster.gpus_per_node: {says}")
    assert slurm(here, "--partition p").status == said.status or "other" in nodes
    assert called(here, "sinfo")[-1].endswith("--partition=p")


def test_a_time_above_the_limit_of_the_partition_is_refused(here):
    """Of several partitions one that lets the job run is enough."""
    stub(here, "sinfo", "echo 'a 3:59:59 gpu:8'; echo 'b 30:00 gpu:8'")
    said = slurm(here, "--partition a,b")
    assert (said.status, len(said.err)) == (2, 1) and said.err[0] == Says("--time: 4:00:00")
    assert slurm(here, "--partition a,b --time 3:59:00").status == 0
    stub(here, "sinfo", "echo 'a 1:00:00 gpu:8'; echo 'b 4:00:00 gpu:8'")
    assert slurm(here, "--partition a,b").status == 0


def test_without_sbatch_nothing_is_written(here, monkeypatch):
    found = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "sbatch" else found(name))
    for option in ("--submit", "--test-only"):
        said = slurm(here, option)
        assert said == (2, [], [Says("sbatch --submit")])
    assert not (here / "runs").exists()
    assert slurm(here).status == 0


def test_a_dry_run_submits_nothing(here):
    said = slurm(here, "--test-only --submit")
    assert said == (2, [], [Says("--test-only --submit")])


def test_a_folder_with_a_ray_sub_is_no_checkout(here):
    (here / "nemo-rl" / "nemo_rl").unlink()
    said = slurm(here)
    assert said.err[0] == Says(f"--checkout: {here}/nemo-rl NeMo-RL")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_is_not_ours_is_refused(here):
    said = slurm(here, "--out /runs")
    assert said.err == [Says("--out: /")]


def test_a_config_that_is_none(here):
    said = invoked("slurm", str(here), *LAUNCH.format(here).split())
    assert said.status == 2 and said.err[0] == Says(f"{here} YAML")


REWARD = "def score(response, answer):\n    return 0.0\n"
OWN = "+env.mine.verifier={}:score data.default.env_name=mine"


@pytest.mark.parametrize(
    ("path", "line", "cures"),
    [  # PYTHONPATH, options, and what the job lacks; {0}: the reward's folder
        (".", "", ["PYTHONPATH={0}", "--mounts"]),
        ("{0}", "", ["--mounts"]),
        (".", "--mounts {0}:{0}", ["PYTHONPATH={0}"]),
        ("{0}", "--mounts {0}:/code", ["--mounts"]),
        ("{0}", "--mounts {0}:{0}", []),
        ("/nowhere:{0}/", "--mounts {0}:{0}:ro", []),
    ],
)
@pytest.mark.parametrize("module", ["score_alone", "score_pack.deep.score"])
def test_a_reward_that_the_job_could_not_import(here, monkeypatch, path, line, cures, module):
    """Found as Python finds it from the command's code; the job starts in another."""
    code = here / "code"
    file = code / f"{module.replace('.', '/')}.py"
    file.parent.mkdir(parents=True)
    file.write_text(REWARD)
    monkeypatch.chdir(code)
    monkeypatch.setenv("PYTHONPATH", path.format(code))
    monkeypatch.syspath_prepend(code)
    for name in [name for name in sys.modules if name.split(".")[0] == module.split(".")[0]]:
        monkeypatch.delitem(sys.modules, name)
    said = slurm(here, f"{OWN.format(module)} {line.format(code)}")
    if not cures:
        assert said.status == 0, said.err
        script = (here / "runs" / "etr" / "job.sh").read_text()
        assert f"export PYTHONPATH={path.format(code)}\n" in script
        return
    assert (said.status, len(said.err)) == (2, 1), said.err
    assert said.err[0] == Says(f"env.mine.verifier: {module}:score {code}")
    for cure in ("PYTHONPATH={0}", "--mounts"):
        assert (cure.format(code) in said.err[0]) is (cure in cures)
    assert not (here / "runs").exists()


def test_a_method_of_one_s_own_is_looked_for_as_a_reward(here, monkeypatch):
    code = here / "code"
    code.mkdir()
    text = (
        "from dataclasses import replace\n\nfrom nemo_algos.algorithms.methods import METHODS\n\n"
    )
    (code / "my_method.py").write_text(text + 'MINE = replace(METHODS["grpo"], name="mine")\n')
    monkeypatch.syspath_prepend(code)
    said = slurm(here, "method.name=my_method:MINE")
    assert said.status == 2
    assert said.err == [Says(f"method.name: my_method:MINE PYTHONPATH={code}")]


def test_a_reward_that_is_installed_is_the_image_s_affair(here, monkeypatch):
    """And Python's own are everywhere."""
    code = here / "site-packages"
    code.mkdir()
    (code / "bought_reward.py").write_text(REWARD)
    monkeypatch.syspath_prepend(code)
    said = slurm(here, OWN.format("bought_reward"))
    assert said.status == 0, said.err
    assert Says("warning env.mine.verifier: bought_reward:score") in said.err
    said = slurm(here, "+env.mine.verifier=operator:eq data.default.env_name=mine --name eq")
    assert said.status == 0 and not any("env.mine" in line for line in said.err)


@pytest.mark.parametrize("status", [0, 1, 2])
def test_a_run_that_its_rehearsal_refuses_is_neither_written_nor_submitted(
    here, monkeypatch, status
):
    asked = []

    def check_data(words):
        asked.append(words[3:])
        return subprocess.CompletedProcess(words, status)

    monkeypatch.setattr("nemo_algos.cli.slurm._in_a_process", check_data)
    said = slurm(here, "--submit --check-data grpo.seed=7")
    checkout = ["--nemo-rl", f"{here}/nemo-rl"]
    assert asked == [["check", f"{here}/etr.yaml", "grpo.seed=7", "--data", *checkout]]
    assert said.status == status
    assert len(called(here, "sbatch")) == (status == 0) and (here / "runs").exists() == (
        status == 0
    )
