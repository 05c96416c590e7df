"""A run of `nemo-algos slurm` on the cluster, as seen from outside."""

import re
from subprocess import CompletedProcess

from cluster import HERE, Cluster, until

CONFIG = "engine: nemo_rl\nmethod: {name: etr}\ncluster: {num_nodes: 1, gpus_per_node: 8}\n"
OPTIONS = "--account a --partition batch --image light.sqsh --checkout light"
PROGRAM = HERE / "light" / "program.py"
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "PREEMPTED")


class Run:
    """One of a name, by default of the light config; `jobs` are those it submitted."""

    def __init__(self, cluster: Cluster, name: str, out: str = "runs") -> None:
        self.cluster, self.name, self.out = cluster, name, out
        self.folder, self.config = cluster.home / out / name, "etr.yaml"
        self.jobs: list[int] = []

    def command(self, line: str = "", **environment: str) -> CompletedProcess[str]:
        """`nemo-algos slurm` without --submit."""
        command = f"nemo-algos slurm {self.config} {OPTIONS} --program {PROGRAM} --out {self.out}"
        return self.cluster.user(f"{command} --name {self.name} {line}", **environment)

    def submit(self, line: str = "", **environment: str) -> int:
        """The last job's number."""
        done = self.command(f"{line} --submit", **environment)
        return self._submitted(done)

    def resubmit(self, options: str = "", **environment: str) -> int:
        """By hand."""
        command = f"sbatch {options} runs/{self.name}/job.sh"
        return self._submitted(self.cluster.user(command, **environment))

    def ends(self) -> list[str]:
        """What job.sh noted of each attempt: how it ended."""
        lines = (self.folder / "attempts").read_text().splitlines()
        return [what for what in (line.split()[4] for line in lines) if what != "start"]

    def _submitted(self, done: CompletedProcess[str]) -> int:
        assert done.returncode == 0, done.stdout + done.stderr
        self.jobs += map(int, re.findall(r"job (\d+)", done.stdout))
        return self.jobs[-1]

    def steps(self) -> list[tuple[int, int]]:
        """(step, attempt) as trained, attempts of all jobs counted from 0."""
        file = self.folder / "steps.txt"
        lines = file.read_text().splitlines() if file.exists() else []
        parts = [line.split() for line in lines]
        attempts = list(dict.fromkeys(part[1] for part in parts))
        return [(int(part[0]), attempts.index(part[1])) for part in parts]

    def trained(self, step: int, seconds: float = 120) -> None:
        """Wait for it. Raises AssertionError where the first job ends before."""
        reached, job = f"{self.name} reached {step}", self.jobs[0]

        def over() -> bool:
            return self.cluster.job(job)["JobState"] in ENDED

        until(lambda: step in dict(self.steps()) or over(), reached, seconds)
        assert step in dict(self.steps()), reached

    def ended(self, job: int | None = None, seconds: float = 120) -> tuple[str, str, int]:
        """Wait for the end: JobState, ExitCode, Restarts."""
        job = job or self.jobs[-1]
        until(lambda: self.cluster.job(job)["JobState"] in ENDED, f"job {job} did not end", seconds)
        found = self.cluster.job(job)
        return found["JobState"], found["ExitCode"], int(found["Restarts"])

    def log(self) -> str:
        """What the batch scripts said."""
        return "".join(file.read_text() for file in sorted(self.folder.glob("slurm-*.log")))

    @property
    def finished(self) -> bool:
        return (self.folder / "finished").exists()

    def beside(self, name: str, out: str = "runs") -> "Run":
        """Another one."""
        return Run(self.cluster, name, out)
