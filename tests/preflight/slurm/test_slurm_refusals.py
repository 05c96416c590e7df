"""What `nemo-algos slurm` refuses: one line each, status 2, no folder and no job."""

import os
import shutil
from pathlib import Path

import pytest
from slurm_here import LAUNCH, called, checkout, folder, invoked, slurm, stub  # noqa: F401

from nemo_algos.config import Finding
from nemo_algos.preflight.slurm import rules as slurm_rules
from nemo_algos.preflight.slurm.batch import Job
from nemo_algos.preflight.slurm.options import OURS
from nemo_algos.preflight.slurm.rules import PATHS

# {0}: the folder of the test
REFUSED = [
    ("--account=", ["--account: missing"]),
    ("--image=", ["--image: missing"]),
    ("--image x.sqsh", ["--image: no file x.sqsh"]),
    ("--image /nowhere/nemo", ["--image: no file /nowhere/nemo"]),
    (
        "--image nvcr.io/nvidia/nemo-rl:v0.7.0",
        [
            "--image: nvcr.io/nvidia/nemo-rl:v0.7.0: pyxis writes # after a registry, "
            "nvcr.io#nvidia/nemo-rl:v0.7.0"
        ],
    ),
    ("--image docker://my:5000/x", ["--image: docker://my:5000/x: pyxis writes # after a reg"]),
    ("--checkout /nowhere", ["--checkout: no ray.sub in /nowhere: "]),
    ("--program /nowhere.py", ["--program: no file /nowhere.py"]),
    ("--out {0}/etr.yaml", ["--out: {0}/etr.yaml is no folder that you can write to"]),
    ("--time soon", ["--time: 'soon' is no time: "]),
    ("--time 0:15:00", ["--margin: 15 minutes is not less than --time"]),
    ("--margin 0", ["--margin: 0 minutes: choose 1 to 1092"]),
    ("--margin -5", ["--margin: -5 minutes: choose 1 to 1092"]),
    ("--margin 1093 --time 2-0", ["--margin: 1093 minutes: choose 1 to 1092"]),
    ("--nodes 0", ["--nodes: is 0: 1 or more"]),
    ("--nodes -1", ["--nodes: is -1: 1 or more"]),
    ("--gpus-per-node 0", ["--gpus-per-node: is 0: 1 or more"]),
    ("--nodes 4 cluster.num_nodes=2", ["cluster.num_nodes: is 2, but --nodes is 4"]),
    (
        "--gpus-per-node 4 cluster.gpus_per_node=2",
        ["cluster.gpus_per_node: is 2, but --gpus-per-node is 4"],
    ),
    ("cluster.num_nodes=2.5", ["cluster.num_nodes: must be a whole number from 1, got 2.5"]),
    ("cluster.num_nodes=0", ["cluster.num_nodes: must be a whole number from 1, got 0"]),
    ("checkpointing.enabled=false", ["checkpointing.enabled: must be true: "]),
    (
        "--time 1:00:00 checkpointing.checkpoint_must_save_by=00:02:00:00",
        ["checkpointing.checkpoint_must_save_by: is not before the job's end after 3600 s"],
    ),
    ("engine=local", ["engine: must be nemo_rl"]),
    (
        "policy.generation.planted.fp8=true",
        [f"policy.generation.planted{key}: unknown key of NeMo-RL" for key in ("", ".fp8")],
    ),
    ("grpo.max_steps=3", ["grpo.max_steps: unknown key of NeMo-RL"]),
    ("method.name=ert", ["method.name: unknown method 'ert' (did you mean etr?)"]),
    ("loss_fn.use_cispo=true", ["loss_fn.use_cispo: must stay false: "]),
    ("--nemo-rl v9", ["no snapshot of NeMo-RL v9"]),
    ("--nemo-rl main", ["--checkout: {0}/nemo-rl is NeMo-RL v0.7.0, and the config is checked ag"]),
    ("--account= --image= grpo.x=1", ["--account: miss", "--image: miss", "grpo.x: unknown"]),
    ("--name ..", ["--name: '..': name it with letters, digits and ._- alone"]),
    ("--name a/b", ["--name: 'a/b': name it"]),
    ("--name -x", ["--name: '-x': name it"]),
    ("--name " + 300 * "x", ["--name: 'xxx"]),
    # sweeps
    ("--sweep grpo.seed", ["--sweep: 'grpo.seed': write it as key=a,b"]),
    ("--sweep grpo.seed=", ["--sweep: 'grpo.seed=': write it as key=a,b"]),
    ("--sweep grpo.seed=1,,2", ["--sweep: 'grpo.seed=1,,2': write it as key=a,b"]),
    ("--sweep =1,2", ["--sweep: '=1,2': write it as key=a,b"]),
    (
        "--sweep grpo.seed=1,2 --sweep grpo.seed=3",
        2 * ["--sweep: grpo.seed is set twice: write its values once"],
    ),
    ("grpo.seed=1 --sweep +grpo.seed=2,3", ["--sweep: +grpo.seed is set twice"]),
    ("--sweep method.name=etr,ert", ["method.name: unknown method 'ert'"]),
    (
        "--sweep policy.model_name=a/b,a-b",
        [
            f"{key}: 2 runs share {{0}}/runs/etr-a-b{below}: "
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
        ["checkpointing.checkpoint_dir: 2 runs share {0}/c: put the key that differs in it"],
    ),
    (
        "--sweep grpo.seed=1,2 --mounts {0}:{0} logger.log_dir={0}/c/../l/",
        ["logger.log_dir: 2 runs share {0}/l: put the key that differs in it"],
    ),
    # mounts, and what the container lacks
    ("--mounts /nowhere:/x", ["--mounts: /nowhere:/x: no /nowhere here"]),
    ("--mounts bin:/x", ["--mounts: bin:/x: write absolute paths"]),
    ("--mounts {0}:x", ["--mounts: {0}:x: write absolute paths"]),
    ("--mounts {0}:/", ["--mounts: {0}:/: would hide the container: mount a folder below it"]),
    ("--mounts {0}", ["--mounts: '{0}': write HOST:CONTAINER"]),
    ("--mounts $HOME:$HOME", ["--mounts: '$HOME:$HOME': write HOST:CONTAINER"]),
    ("--mounts ~/x:/x", ["--mounts: '~/x:/x': write HOST:CONTAINER"]),
    ("--mounts {0}:/x,/no:/y", ["--mounts: /no:/y: no /no here"]),
    ("--mounts {0}:/x,", ["--mounts: '': write HOST:CONTAINER"]),
    (
        "checkpointing.checkpoint_dir={0}/c",
        ["checkpointing.checkpoint_dir: {0}/c is in no folder that is mounted, and would be lost"],
    ),
    (
        "logger.log_dir=/l --mounts {0}:/l:ro",
        ["logger.log_dir: /l is mounted to be read, and would be lost"],
    ),
    (
        "checkpointing.checkpoint_dir={0}/runs/etr/../c",
        ["checkpointing.checkpoint_dir: {0}/runs/etr/../c is in no folder that is mounted"],
    ),
    ("checkpointing.checkpoint_dir=/tmp", ["checkpointing.checkpoint_dir: /tmp is in no folder"]),
    ("logger.log_dir=~/x", ["logger.log_dir: is ~/x: name a folder by its absolute path"]),
    (
        'data.train=[{{"data_path":x}}]',
        ["data.train: is a section in grpo_math_1B.yaml: write it as grpo_math_1B.yaml does"],
    ),
    ("nemo_rl.config=null", ["nemo_rl.config: must be a file's name, got None"]),
    ("checkpointing.checkpoint_dir=null", ["checkpointing.checkpoint_dir: "]),
    (
        "policy.model_name={0}/bin",
        ["policy.model_name: {0}/bin is here, but not in the container: add --mounts {0}/bin:"],
    ),
    (
        "data.train.data_path={0}/etr.yaml",
        ["data.train.data_path: {0}/etr.yaml is here, but not in the container: "],
    ),
    # what sbatch would not read, or we write
    ("--sbatch=-pfast", ["--sbatch: '-pfast': write --option=value"]),
    ("--sbatch=qos=high", ["--sbatch: 'qos=high': write --option=value"]),
    *(
        (f"--sbatch=--{o}", [f"--sbatch: '--{o}': keep singleton"])
        for o in (
            "dependency=afterok:1",
            "depend=afterok:1",
            "dependency=singleton?afterany:1",
            "dependency=afterok:1,singleton?afterany:2",
            "dependency=singleton,afterany:1?afterany:2",
            "dependency=afterok:singleton",
        )
    ),
    *((f"--sbatch=--{o}=1", [f"--sbatch: '--{o}=1': {hint}"]) for o, hint in OURS.items()),
]


@pytest.mark.parametrize(("line", "says"), REFUSED, ids=lambda x: str(x)[:40])
def test_mistakes_stop_before_submission(here, line, says):
    """Every one in a line; no folder, no job."""
    said = slurm(here, f"{line.format(here)} --submit")
    assert (said.status, len(said.err)) == (2, len(says)), said.err
    for got, want in zip(said.err, says, strict=True):
        assert got.startswith(want.format(here))
    assert said.out == [] and called(here, "sbatch") == []
    assert not (here / "runs").exists()


ODD = [*"$,:;(&|<>*?[]{}!~^'\"\\`# ", "%j", "\n", "\t", "a\ntouch x"]
PLACES = {  # Job's field, a value with an odd place {0}, what is not odd there, the hint
    "--out": ("", "{0}/runs", "", f"{PATHS}: choose another folder"),
    "--checkout": ("nemo_rl", "{0}", "", f"{PATHS}: move it"),
    "--program": ("program", "{0}/p.py", "", f"{PATHS}: move it"),
    "--image": ("image", "{0}/i.sqsh", ":#", f"{PATHS}, and : and # in an image's name"),
    "--mounts": ("mounts", "{0}:/x", ":", f"write HOST:CONTAINER; {PATHS}"),
    "--account": ("account", "a{0}", "", "write the name of one account"),
    "--partition": ("partition", "a{0}", ",", "write a partition's name, or several with commas"),
}


@pytest.mark.parametrize("option", PLACES)
def test_no_odd_character_reaches_a_shell_or_sbatch(here, option):
    """The places are there, so that nothing else is wrong with them."""
    field, template, harmless, hint = PLACES[option]
    for odd in sorted(set(ODD) - set(harmless)):
        place = here / f"{odd}x"
        checkout(place)
        for name in ("p.py", "i.sqsh"):
            (place / name).touch()
        value = template.format(place)
        typed = {"nemo_rl": Path(value), "program": Path(value), "mounts": (value,)}
        job = Job("a", "b", here / "nemo-rl")
        job = job._replace(**{field: typed.get(field, value)}) if field else job
        found = list(slurm_rules.problems(job, here if field else Path(value)))
        assert found == [Finding(option, f"{value!r}: {hint}")]


def test_odd_characters_are_refused_all_at_once(here):
    """By the command, from its options and from the environment."""
    words = ["--out", f"{here}/$x", "--image", "a;b", "--mounts", f"{here}:/a b", "--name", "ok"]
    words += ["--account", "a\ntouch x", "--partition", "p q", "--sbatch", "--comment=a\nb"]
    said = slurm(here, "", *words)
    options = [line.partition(":")[0] for line in said.err]
    expected = ["--account", "--partition", "--sbatch", "--image", "--mounts", "--out"]
    assert (said.status, options) == (2, expected)
    assert slurm(here, "", "--name", "a b").err[0].startswith("--name: 'a b': name it with letters")


@pytest.mark.parametrize("odd", ["a\nb", "x\\y", "a\tb", "\x7f", ""])
def test_options_of_sbatch_are_one_line_without_backslashes(here, odd):
    """Which sbatch would read in another way than a shell does."""
    said = slurm(here, "", "--sbatch", f"--comment={odd}")
    assert (said.status, len(said.err)) == (2, 1)
    assert said.err[0].startswith(f"--sbatch: {f'--comment={odd}'!r}: write")


def test_a_checkout_in_an_odd_place_is_refused(here, monkeypatch):
    monkeypatch.setattr(slurm_rules, "ROOT", Path("/a b"))
    assert slurm(here).err[0].startswith(f"checkout: '/a b': {PATHS}: move this checkout")


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
        "--sbatch=--dependency=singleton,afterok:12 --sbatch=--no-requeue",
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
        (
            "batch* infinite gpu:4",
            "is 8, but a node here has 4, all of which ray.sub takes: change it",
        ),
        (
            "batch* infinite gpu:a:2(S:0),gpu:b:4(S:1)",
            "is 8, but a node here has 2 or 4, all of which",
        ),
    ],
)
def test_gpus_of_a_node_are_those_that_slurm_knows(here, nodes, says):
    stub(here, "sinfo", f"printf '%s\\n' '{nodes}'")
    said = slurm(here)
    assert called(here, "sinfo") and said.status == (2 if says else 0)
    assert not says or said.err[0].startswith(f"cluster.gpus_per_node: {says}")
    assert slurm(here, "--partition p").status == said.status or "other" in nodes
    assert called(here, "sinfo")[-1].endswith("--partition=p")


def test_a_time_above_the_limit_of_the_partition_is_refused(here):
    """Of several partitions one that lets the job run is enough."""
    stub(here, "sinfo", "echo 'a 3:59:59 gpu:8'; echo 'b 30:00 gpu:8'")
    said = slurm(here, "--partition a,b")
    assert (said.status, len(said.err)) == (2, 1) and said.err[0].startswith("--time: 4:00:00 is")
    assert slurm(here, "--partition a,b --time 3:59:00").status == 0
    stub(here, "sinfo", "echo 'a 1:00:00 gpu:8'; echo 'b 4:00:00 gpu:8'")
    assert slurm(here, "--partition a,b").status == 0


def test_without_sbatch_nothing_is_written(here, monkeypatch):
    found = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "sbatch" else found(name))
    for option in ("--submit", "--test-only"):
        said = slurm(here, option)
        assert said == (2, [], ["no sbatch here: log in to the cluster, or leave out --submit"])
    assert not (here / "runs").exists()
    assert slurm(here).status == 0


def test_a_dry_run_submits_nothing(here):
    said = slurm(here, "--test-only --submit")
    assert said == (2, [], ["--test-only submits nothing: leave out --submit"])


@pytest.mark.parametrize(
    ("has", "asked", "fits"),
    [
        ("0.7.0", "v0.7.0", True),
        ("0.6.0", "v0.7.0", False),
        ("0.7.1", "v0.7.0", False),
        ("0.6.0", "main", True),
        ("0.8.0", "main", True),
        ("0.7.0", "main", False),
    ],
)
def test_nemo_rl_s_checkout_has_the_version_that_is_checked(here, has, asked, fits):
    checkout(here / "nemo-rl", has)
    said = slurm(here, f"--nemo-rl {asked}")
    place = f"--checkout: {here}/nemo-rl is NeMo-RL v{has}, and the config is checked against"
    hint = "name the image's in both --checkout and --nemo-rl"
    assert (said.status == 0) is fits
    assert fits or said.err == [f"{place} {asked}: {hint}"]


def test_a_folder_with_a_ray_sub_is_no_checkout(here):
    shutil.rmtree(here / "nemo-rl" / "nemo_rl")
    said = slurm(here)
    assert said.err[0].startswith(f"--checkout: {here}/nemo-rl is no checkout of NeMo-RL")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_is_not_ours_is_refused(here):
    said = slurm(here, "--out /runs")
    assert said.err == ["--out: / is no folder that you can write to: choose another"]


def test_a_config_that_is_none(here):
    said = invoked("slurm", str(here), *LAUNCH.format(here).split())
    assert said.status == 2 and "is not a text: name a YAML file" in said.err[0]
