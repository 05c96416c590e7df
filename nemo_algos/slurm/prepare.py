"""A config as Slurm jobs: judged, then a folder with a batch script, then sbatch; docs/slurm.md."""

import itertools
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from omegaconf import DictConfig, OmegaConf

from nemo_algos.config import ConfigError, Finding, at, overridden, read
from nemo_algos.preflight.check import judge, refuse
from nemo_algos.preflight.rule import note
from nemo_algos.preflight.snapshot import load
from nemo_algos.slurm import batch, outputs, placement, rules
from nemo_algos.slurm.batch import Job
from nemo_algos.slurm.outputs import OUTPUTS
from nemo_algos.slurm.placement import Sizes

STRONGEST = ("SBATCH_ARRAY_INX", "SBATCH_WAIT")  # which no option of sbatch takes back
SHARED = {  # by two points of a sweep, and what to write instead
    "--sweep": "their values look alike in a file's name",
    "checkpointing.checkpoint_dir": "put the key that differs in it, as in /x/${grpo.seed}",
    "logger.log_dir": "put the key that differs in it, as in /x/${grpo.seed}",
}


class Submission(NamedTuple):
    """A run for Slurm, which reads and writes in its folder; findings: warnings and notes."""

    folder: Path
    written: DictConfig
    script: str
    options: list[str]
    size: str
    findings: list[Finding]


def prepare(
    config: Path, overrides: Sequence[str], job: Job, folder: Path, sizes: Sizes, version: str
) -> Submission:
    """A run, checked and not yet on disk. Raises ConfigError with all that is wrong."""
    few = [Finding(o, f"is {n}: 1 or more") for o, n in sizes.keys().values() if n < 1]
    if wrong := [*rules.problems(job, folder), *few]:
        try:
            refuse(judge(overridden(read(config), overrides), load(version))[1])
        except ConfigError as error:
            wrong += error.findings
        raise ConfigError(wrong)
    written = overridden(placement.located(read(config), job, folder, sizes), overrides)
    written = outputs.absolute(written, folder)
    run, findings = judge(written, load(version), batch.seconds(job.time))
    plain = run.plain
    wrong = [*rules.checkout(job.nemo_rl, version), *findings]
    findings = refuse([*wrong, *placement.problems(plain, job, folder, sizes)])
    for key in OUTPUTS:  # for train.py, which resolves nothing
        OmegaConf.update(written, key, at(plain, key))
    findings += placement.warnings(run, job, folder)
    options, script = batch.options(job, folder, plain), batch.script(job, folder, plain)
    return Submission(folder, written, script, options, batch.size(job, plain), findings)


def points(sweep: Sequence[str], overrides: Sequence[str] = ()) -> list[tuple[str, ...]]:
    """The overrides of each run: a=1 b=3 and a=2 b=3 of `["a=1,2", "b=3"]`. Raises ConfigError."""
    split = [s.partition("=") for s in sweep]
    times = Counter(key.lstrip("+") for key, _, _ in split)
    times.update({o.partition("=")[0].lstrip("+") for o in overrides})
    wrong: list[Finding] = []
    for written, (key, _, text) in zip(sweep, split, strict=True):
        if not key or not all(_values(text)):
            wrong.append(Finding("--sweep", f"{written!r}: write it as key=a,b"))
        elif times[key.lstrip("+")] > 1:
            wrong.append(Finding("--sweep", f"{key} is set twice: write its values once, key=a,b"))
    if wrong:
        raise ConfigError(wrong)
    return list(itertools.product(*([f"{k}={v}" for v in _values(text)] for k, _, text in split)))


def _values(text: str) -> list[str]:
    """Split at the commas outside of brackets and quotes."""
    values, depth, quote = [""], 0, ""
    for letter in text:
        depth += (letter in "[{") - (letter in "]}") if not quote else 0
        if letter in "\"'":
            quote = "" if letter == quote else quote or letter
        if letter == "," and depth == 0 and not quote:
            values.append("")
        else:
            values[-1] += letter
    return [value.strip() for value in values]


def apart(runs: Sequence[Submission]) -> None:
    """Raises ConfigError where two runs would write to one folder, or one is there already."""
    folders = {"--sweep": [str(run.folder) for run in runs]}
    for key in OUTPUTS:
        folders[key] = [str(Path(OmegaConf.select(run.written, key)).resolve()) for run in runs]
    wrong = [
        Finding(option, f"{count} runs share {path}: {SHARED[option]}")
        for option, paths in folders.items()
        for path, count in Counter(paths).items()
        if count > 1
    ]
    for run in runs:
        config = run.folder / "config.yaml"
        if config.exists() and config.read_text() != OmegaConf.to_yaml(run.written):
            wrong.append(Finding("--name", f"{run.folder} holds a run of another config"))
    if wrong:
        raise ConfigError(wrong)


def write(run: Submission) -> None:
    """Put the run in its folder."""
    (run.folder / "logs").mkdir(parents=True, exist_ok=True)
    (run.folder / "config.yaml").write_text(OmegaConf.to_yaml(run.written))
    (run.folder / "job.sh").write_text(run.script)


def sbatch(run: Submission, *words: str | Path) -> str:
    """Its answer, to the run's script in its folder or on its stdin. Raises OSError."""
    command = ["sbatch", *run.options, *words]
    inside = "SLURM_JOB_ID" in os.environ  # of another job, which leaves its traces in this one
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in STRONGEST and not (inside and re.match("SLURM_(?!CONF$)", name))
    }
    done = subprocess.run(command, input=run.script, capture_output=True, text=True, env=env)
    if done.returncode:
        raise OSError(f"sbatch: {done.stderr.strip()}")
    return (done.stdout or done.stderr).strip()


def submit(runs: Sequence[Submission], chain: int) -> Iterator[tuple[str, Path]]:
    """sbatch's answers and drivers' logs of `chain` jobs a run. Raises OSError with those sent."""
    answers: list[str] = []
    for run in (run for run in runs for _ in range(chain)):
        try:
            answers.append(sbatch(run, run.folder / "job.sh"))
        except OSError as error:
            before = f"\nsubmitted before, of {len(runs) * chain}: {', '.join(answers)}"
            raise OSError(f"{error}{before if answers else ''}") from None
        number = "".join(re.findall(r"\d+", answers[-1])[:1])
        yield answers[-1], run.folder / "logs" / f"{number}-logs" / "ray-driver.log"


def by_hand(job: Job) -> Iterator[Finding]:
    """What sbatch would take over the script's own lines, were it not called from here."""
    same = {"SBATCH_ACCOUNT": job.account, "SBATCH_PARTITION": job.partition}
    for name in sorted(n for n in os.environ if n.startswith("SBATCH_")):
        if os.environ[name] != same.get(name):
            hint = "unset it, or use --submit"
            yield note(name, f"set, and sbatch reads it before the script: {hint}")
