"""A prepared run goes into its folder and to sbatch."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from omegaconf import OmegaConf

from nemo_algos.config import Finding
from nemo_algos.jsonl import replace
from nemo_algos.preflight.check.rule import note
from nemo_algos.preflight.slurm import batch
from nemo_algos.preflight.slurm.batch import Job
from nemo_algos.preflight.slurm.prepare import Submission

STRONGEST = ("SBATCH_ARRAY_INX", "SBATCH_WAIT")  # which no option of sbatch takes back


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
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in STRONGEST and not (inside and re.match("SLURM_(?!CONF$)", name))
    }
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
        hint = f"Check squeue --name={batch.job_name(run.folder)} before you submit again."
        raise OSError(f"sbatch: {said}. Slurm may have accepted the job of {run.folder}. {hint}")
    if done.returncode:
        reason = said or f"it ends with status {done.returncode} and says nothing"
        raise Refused(f"sbatch refuses {run.folder.name}: {reason}")
    return (done.stdout or done.stderr).strip()


def submit(runs: Sequence[Submission], chain: int) -> Iterator[tuple[str, Path]]:
    """Write each run and submit `chain` jobs of it: sbatch's answers and the drivers' logs.

    Raises as `sbatch` does, with the jobs that were submitted before.
    """
    answers: list[str] = []
    for run in (run for run in runs for _ in range(chain)):
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
    for name in sorted(n for n in os.environ if n.startswith("SBATCH_")):
        if os.environ[name] != same.get(name):
            what = "this variable is set, and sbatch lets it override the script"
            yield note(name, f"{what}. Unset it, or use --submit.")
