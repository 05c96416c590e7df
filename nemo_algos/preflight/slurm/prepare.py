"""A config as Slurm jobs: judged, with its batch script, written and submitted (docs/slurm.md)."""

import itertools
import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from nemo_algos.config import apply_overrides, read, select
from nemo_algos.findings import ConfigError, Finding, at, set_at
from nemo_algos.jsonl import replace
from nemo_algos.preflight.check.judge import judge, refuse
from nemo_algos.preflight.check.release import is_checkout, shipped
from nemo_algos.preflight.check.release import read as read_checkout
from nemo_algos.preflight.check.rule import note
from nemo_algos.preflight.slurm import batch, placement, rules
from nemo_algos.preflight.slurm.batch import OUTPUTS, Job
from nemo_algos.preflight.slurm.placement import Sizes

WHEN_SAVED = ("checkpoint_must_save_by", "save_period")
SHARED = {  # by two points of a sweep, and what to write instead
    "--sweep": "their values give the same file name",
    "checkpointing.checkpoint_dir": "add the key that differs to it, as in /x/${grpo.seed}",
    "logger.log_dir": "add the key that differs to it, as in /x/${grpo.seed}",
}
STRONGEST = ("SBATCH_ARRAY_INX", "SBATCH_WAIT")  # which no option of sbatch takes back


class Submission(NamedTuple):
    """A run for Slurm, which reads and writes in its folder; findings: warnings and notes."""

    folder: Path
    written: DictConfig
    script: str
    options: list[str]
    size: str
    findings: list[Finding]


def prepare(
    config: Path, overrides: Sequence[str], job: Job, folder: Path, sizes: Sizes
) -> Submission:
    """A run, checked and not yet on disk. Raises ConfigError with all that is wrong."""
    few = []
    for o, n in sizes.keys().values():
        if n < 1:
            few.append(Finding(o, f"must be at least 1, got {n}"))
    release = read_checkout(job.nemo_rl) if is_checkout(job.nemo_rl) else shipped()
    wrong = [*rules.problems(job, folder), *few]
    if wrong:
        try:
            refuse(judge(apply_overrides(read(config), overrides), release)[1])
        except ConfigError as error:
            wrong += error.findings
        raise ConfigError(wrong)
    written = apply_overrides(placement.place(read(config), job, folder, sizes), overrides)
    written = batch.absolute(written, folder)
    run, findings = judge(written, release, batch.seconds(job.time))
    plain = run.plain
    findings = refuse([*findings, *placement.problems(plain, job, folder, sizes)])
    for key in OUTPUTS:  # for train.py, which resolves nothing
        OmegaConf.update(written, key, at(plain, key))
    p = placement.planned(run)
    job, watch = placement.watched(job, run, p)
    findings += [*placement.warnings(run, job, folder, p), *([watch] if watch else [])]
    return Submission(
        folder=folder,
        written=written,
        script=batch.script(job, folder, plain),
        options=batch.options(job, folder, plain),
        size=batch.size(job, plain),
        findings=findings,
    )


def points(sweep: Sequence[str], overrides: Sequence[str] = ()) -> list[tuple[str, ...]]:
    """The overrides of each run: a=1 b=3 and a=2 b=3 of `["a=1,2", "b=3"]`. Raises ConfigError."""
    split = [s.partition("=") for s in sweep]
    times = Counter(key.lstrip("+") for key, _, _ in split)
    times.update({o.partition("=")[0].lstrip("+") for o in overrides})
    wrong: list[Finding] = []
    for written, (key, _, text) in zip(sweep, split, strict=True):
        if not key or not all(_values(text)):
            wrong.append(Finding("--sweep", f"must be key=a,b, got {written!r}"))
        elif times[key.lstrip("+")] > 1:
            wrong.append(Finding("--sweep", f"{key} is set twice. Write all values once, key=a,b."))
    if wrong:
        raise ConfigError(wrong)
    axes = list[list[str]]()
    for key, _, text in split:
        axes.append([f"{key}={value}" for value in _values(text)])
    return list(itertools.product(*axes))


def _values(text: str) -> list[str]:
    """Split at the commas outside of brackets and quotes."""
    values = [""]
    depth = 0
    quote = ""
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
        folders[key] = [str(Path(select(run.written, key)).resolve()) for run in runs]
    wrong = list[Finding]()
    for option, paths in folders.items():
        for path, count in Counter(paths).items():
            if count > 1:
                wrong.append(Finding(option, f"{count} runs share {path}: {SHARED[option]}"))
    for run in runs:
        config = run.folder / "config.yaml"
        if config.exists() and _training_part(read(config)) != _training_part(run.written):
            wrong.append(
                Finding(
                    "--name",
                    f"{run.folder} contains a run with another config. Choose another name, or "
                    "continue with the same config.",
                )
            )
    if wrong:
        raise ConfigError(wrong)


def _training_part(written: DictConfig) -> Any:
    """The config without what says only when a run saves, and not what it trains."""
    plain: Any = OmegaConf.to_container(written)
    for key in WHEN_SAVED:
        set_at(plain, f"checkpointing.{key}", None)
    return plain


class Refused(ValueError):
    """What sbatch says where it does not take a job."""


@contextmanager
def write_run(run: Submission) -> Iterator[None]:
    """The run in its folder; where sbatch then has Refused it, what is new of it goes again."""
    new = [path for path in (run.folder, *run.folder.parents) if not path.exists()]
    write(run)
    try:
        yield
    except Refused:
        if run.folder in new:
            shutil.rmtree(run.folder)
        for path in new[1:]:
            path.rmdir()
        raise


def write(run: Submission) -> None:
    """Put the run in its folder. Raises OSError."""
    (run.folder / "logs").mkdir(parents=True, exist_ok=True)
    replace(run.folder / "config.yaml", OmegaConf.to_yaml(run.written))
    replace(run.folder / "job.sh", run.script)


def sbatch(run: Submission, *words: str | Path) -> str:
    """Its answer, to the run's script in its folder or on its stdin.

    Raises Refused, or OSError where nobody knows whether Slurm has the job.
    """
    command = ["sbatch", *run.options, *words]
    inside = "SLURM_JOB_ID" in os.environ  # of another job, which leaves its traces in this one
    env = {}
    for name, value in os.environ.items():
        if name not in STRONGEST and not (inside and re.match("SLURM_(?!CONF$)", name)):
            env[name] = value
    done = subprocess.run(
        command,
        input=run.script,
        capture_output=True,
        encoding="utf-8",
        errors="replace",  # a site's banner may be in any encoding
        env=env,
    )
    said = re.sub("^(sbatch: )?(error: )?", "", done.stderr.strip(), flags=re.MULTILINE)
    if done.returncode < 0:
        said = f"ended by signal {-done.returncode} ({signal.strsignal(-done.returncode)})"
    if done.returncode < 0 or (done.returncode and "timed out" in said):
        raise OSError(
            f"sbatch: {said}. Slurm may have accepted the job of {run.folder}. Check squeue "
            f"--name={batch.job_name(run.folder)} before you submit again."
        )
    if done.returncode:
        reason = said or f"it ends with status {done.returncode} and says nothing"
        raise Refused(f"sbatch refuses {run.folder.name}: {reason}")
    return (done.stdout or done.stderr).strip()


def submit(runs: Sequence[Submission], chain: int) -> Iterator[tuple[str, Path]]:
    """Write each run and submit `chain` jobs of it: sbatch's answers and the drivers' logs.

    Raises as `sbatch` does, with the jobs that were submitted before.
    """
    answers: list[str] = []
    for run, _ in itertools.product(runs, range(chain)):
        try:
            with write_run(run):
                answers.append(sbatch(run, run.folder / "job.sh"))
        except (Refused, OSError) as error:
            before = f"\nSubmitted before, of {len(runs) * chain}: {', '.join(answers)}"
            raise type(error)(f"{error}{before if answers else ''}") from None
        number = "".join(re.findall(r"\d+", answers[-1])[:1])
        yield answers[-1], run.folder / "logs" / f"{number}-logs" / "ray-driver.log"


def by_hand(job: Job) -> Iterator[Finding]:
    """What sbatch would take over the script's own lines, were it not called from here."""
    same = {"SBATCH_ACCOUNT": job.account, "SBATCH_PARTITION": job.partition}
    for name in sorted(os.environ):
        if name.startswith("SBATCH_") and os.environ[name] != same.get(name):
            yield note(
                name,
                "this variable is set, and sbatch lets it override the script. Unset it, or use "
                "--submit.",
            )
