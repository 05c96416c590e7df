"""An item's runs as Slurm jobs, and their evaluations as jobs that wait for them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from omegaconf import OmegaConf

from nemo_algos.config import find
from nemo_algos.engines.nemo.checkout import ROOT
from nemo_algos.jsonl import replace
from nemo_algos.lab.replicate import commands, plan
from nemo_algos.lab.replicate.manifest import Item, Paper
from nemo_algos.preflight.check.judge import versions
from nemo_algos.preflight.slurm import batch, prepare, submission
from nemo_algos.preflight.slurm.batch import SCRIPTS, Job
from nemo_algos.preflight.slurm.placement import Sizes
from nemo_algos.preflight.slurm.prepare import Submission

CHECKPOINTS = "checkpointing.checkpoint_dir"
EVALUATE = "evaluate.sh"  # of a run's folder


class Order(NamedTuple):
    """What is submitted: the runs of these items, below `out`."""

    manifest: Paper
    paper: str
    items: list[Item]
    job: Job
    out: Path

    def runs(self) -> dict[str, list[Submission]]:
        """By run, one of each seed. Raises ConfigError with what is wrong."""
        wanted = dict.fromkeys(
            r for item in self.items for r in plan.trained_runs(self.manifest, item)
        )
        seeds = {run: plan.seeds(self.manifest, run) for run in wanted}
        made = {run: [self._run(run, seed) for seed in each] for run, each in seeds.items()}
        prepare.apart([one for each in made.values() for one in each])
        return made

    def _run(self, run: str, seed: int) -> Submission:
        recipe = self.manifest.of(run)[0].recipe
        folder = self.out.resolve() / plan.place(self.manifest, self.paper, run, seed)
        words, version = plan.seeded_overrides(self.manifest, run, seed), versions(recipe)[0]
        return prepare.prepare(find(recipe), words, self.job, folder, Sizes(), version)

    def evaluations(
        self, made: dict[str, list[Submission]]
    ) -> Iterator[tuple[Submission, Submission | None]]:
        """A job for each run's folder, and the job that it waits for, if any."""
        wanted: dict[str, dict[str, None]] = {}
        for item in self.items:
            for name, names in commands.evaluations(self.manifest, item).items():
                for run in names:
                    wanted.setdefault(run, {})[name] = None
        for run, names in wanted.items():
            if self.manifest.of(run)[0].serve.nodes == 1 and not self.manifest.program(run):
                for after in made.get(run) or [None]:
                    yield self._evaluation(run, list(names), after), after

    def unserved_runs(self) -> Iterator[str]:
        """What no job of ours trains, or of one node can evaluate, a sentence for each run."""
        for run in dict.fromkeys(run for item in self.items for run in item.needed_runs()):
            model = self.manifest.of(run)[0]
            if (nodes := model.serve.nodes) > 1:
                gpus = nodes * model.serve.tensor_parallel
                yield (
                    f"{run} is not submitted: {model.base} needs {nodes} nodes ({gpus} GPUs) to be "
                    "served, and an evaluation's job has one. Serve it yourself, and run its "
                    "`nemo-algos eval` lines of the plan with model.url=URL"
                )
            if self.manifest.program(run):
                yield (
                    f"{run} is not submitted: NeMo-RL's own program trains it. Start the lines of "
                    "the plan yourself"
                )

    def _evaluation(self, run: str, names: list[str], after: Submission | None) -> Submission:
        folder = after.folder if after else self.out.resolve() / self.paper / run
        model, serve = self.manifest.of(run)[0].base, self.manifest.of(run)[0].serve
        served = after.folder.relative_to(self.out.resolve()).as_posix() if after else model
        asked = [
            commands.evaluation(self.manifest, n, run, served, "{weights}", str(folder))[1:]
            for n in names
        ]
        variables = {
            "CONTAINER": self.job.image,
            "MOUNTS": ",".join(batch.mounts(self.job, folder)),
            "RUN": folder,
            "MODEL": model,
            "SERVED": served,
            "CHECKPOINTS": OmegaConf.select(after.written, CHECKPOINTS) if after else "",
            "PROCESSOR": commands.processor(self.manifest, run) if after else "",
            "ROOT": ROOT,
            "TENSOR_PARALLEL": serve.tensor_parallel,
            "EVALUATIONS": "\n".join(shlex.join(words) for words in asked),
        }
        lines = [f"#SBATCH {shlex.quote(option)}" for option in self._options(folder)]
        lines += [f"export {name}={shlex.quote(str(value))}" for name, value in variables.items()]
        start = 'srun --ntasks=1 --container-image="$CONTAINER" --container-mounts="$MOUNTS"'
        script = "\n".join(["#!/bin/bash", *lines, f"{start} bash {SCRIPTS}/{EVALUATE}", ""])
        return Submission(folder, OmegaConf.create(), script, [], "", [])

    def _options(self, folder: Path) -> list[str]:
        return [
            f"--job-name={batch.job_name(folder / 'evaluation')}",
            f"--account={self.job.account}",
            *([f"--partition={self.job.partition}"] if self.job.partition else []),
            "--nodes=1",
            f"--time={self.job.time}",
            "--exclusive",
            f"--output={folder}/evaluation-%j.log",
            *self.job.options,
        ]


def write(one: Submission) -> Path:
    """The evaluation's script in its run's folder."""
    one.folder.mkdir(parents=True, exist_ok=True)
    replace(one.folder / EVALUATE, one.script)
    return one.folder / EVALUATE


def submit(
    runs: dict[str, list[Submission]], waiting: list[tuple[Submission, Submission | None]]
) -> Iterator[str]:
    """sbatch's answers, the runs' first; an evaluation waits until its run has ended well."""
    numbers: dict[Path, str] = {}
    every = [one for each in runs.values() for one in each]
    for run, (answer, _) in zip(every, submission.submit(every, 1), strict=True):
        numbers[run.folder] = "".join(re.findall(r"\d+", answer)[:1])
        yield answer
    for one, after in waiting:
        words = [f"--dependency=afterok:{numbers[after.folder]}"] if after else []
        yield submission.sbatch(one, *words, write(one))
