"""What lets a job fail before it trains, as far as its options show it.

ray.sub pastes paths into shell commands unquoted. sbatch reads quotes in a script as a shell does,
but a backslash also between single quotes.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from nemo_algos.engines.nemo import worker_env
from nemo_algos.engines.nemo.worker_env import ROOT
from nemo_algos.findings import Finding
from nemo_algos.preflight.check.release import is_checkout
from nemo_algos.preflight.slurm import batch
from nemo_algos.preflight.slurm.batch import Job

WHOLE = "the job takes whole nodes, with one task each"
ANSWER = "it changes the output of sbatch, or submits nothing"
OURS = {  # options of sbatch that are ours to write, or that a run does not survive
    "account": "use --account",
    "array": "all its tasks would write to one run: use --sweep for runs, --chain for jobs",
    "dependency": "keep singleton, with commas: --sbatch=--dependency=singleton,afterok:12",
    "exclusive": WHOLE,
    "help": ANSWER,
    "input": "the job script reads no input",
    "job-name": "use --name",
    "no-requeue": "the run goes on by requeue: for none use --max-requeues 0",
    "nodes": "use --nodes, which sets `cluster.num_nodes`",
    **dict.fromkeys((f"ntasks{of}" for of in ("", "-per-core", "-per-gpu", "-per-node")), WHOLE),
    "ntasks-per-socket": WHOLE,
    "output": "use --out",
    "oversubscribe": WHOLE,
    "partition": "use --partition",
    "quiet": ANSWER,
    "signal": "use --margin",
    "test-only": "use --test-only",
    "time": "use --time",
    "usage": ANSWER,
    "version": ANSWER,
    "wait": "sbatch would block until the end of the run: use nemo-algos slurm status",
    "wrap": "nemo-algos writes the job script",
}
PATH = r"[\w./@+=-]+"
PATHS = "ray.sub only accepts letters, digits and ./@+=_-"
SHAPES = {  # what an option's value matches, and how to write it
    "--account": (r"(\w[\w.@+-]*)?", "write the name of one account"),
    "--partition": (r"(\w[\w.,+-]*)?", "write the name of a partition, or several with commas"),
    "--sbatch": (
        r"--[a-z][a-z-]*(=[^\\\x00-\x1f\x7f]+)?",
        "write --option=value, on one line without backslashes",
    ),
    "--image": (r"([\w./@+=:#-]+)?", f"{PATHS}, and : and # in an image's name"),
    "--mounts": (rf"{PATH}:{PATH}(:[\w+-]+)?", f"write HOST:CONTAINER; {PATHS}"),
    "--checkout": (PATH, f"{PATHS}: move it"),
    "--program": (PATH, f"{PATHS}: move it"),
    "--out": (PATH, f"{PATHS}: choose another folder"),
    "checkout": (PATH, f"{PATHS}: move this checkout of nemo_algos"),
}
SQUASHFS = b"hsqs"  # with which such a file begins
LONGEST = 65535 // 60  # minutes before the limit that sbatch's --signal takes


def refusal(option: str) -> str:
    """Why not, and what to write instead; empty for one that a run survives."""
    name, _, value = option.removeprefix("--").partition("=")
    ours = next((o for o in OURS if name and o.startswith(name)), "")  # sbatch completes it
    # among others that all must hold: Slurm takes `?` between dependencies for an or
    kept = ours == "dependency" and "singleton" in value.split(",") and "?" not in value
    return "" if kept else OURS.get(ours, "")


def problems(job: Job, folder: Path) -> Iterator[Finding]:
    values = {
        **{f"--{name}": value for name, value in job._asdict().items()},
        "--sbatch": job.options,
        "--checkout": job.nemo_rl,
        "--out": folder,
        "checkout": ROOT,
    }
    for option, (shape, hint) in SHAPES.items():
        given = values[option]
        for value in map(str, given if isinstance(given, tuple) else [given]):
            if not re.fullmatch(shape, value):
                yield Finding(option, f"{value!r}: {hint}")
    for option in job.options:
        hint = refusal(option)
        if hint:
            yield Finding("--sbatch", f"{option!r}: {hint}")
    yield from _missing(job)
    minutes = job.margin // 60
    if not 1 <= minutes <= LONGEST:
        yield Finding("--margin", f"must be 1 to {LONGEST} minutes, got {minutes}")
    try:
        if batch.seconds(job.time) <= job.margin and 1 <= minutes <= LONGEST:
            yield Finding("--margin", f"{minutes} minutes must be less than --time")
        if job.stalled and job.stalled >= batch.seconds(job.time):
            yield Finding(
                "--stalled",
                f"{job.stalled // 60} minutes without a step are not within --time {job.time}, so "
                "a job would never be found to hang. Choose less.",
            )
    except ValueError as error:
        yield Finding("--time", str(error))
    for mount in job.mounts:
        source, target = (*mount.split(":"), "")[:2]
        if not re.fullmatch(SHAPES["--mounts"][0], mount):
            continue
        if not source.startswith("/") or not target.startswith("/"):
            yield Finding("--mounts", f"must be absolute paths HOST:CONTAINER, got {mount}")
        elif not os.path.normpath(target).strip("/"):
            yield Finding(
                "--mounts", f"{mount} would hide the container's files. Mount to a folder below /."
            )
        elif not Path(source).exists():
            yield Finding("--mounts", f"{mount}: {source} not found on this machine")
    above = next(path for path in (folder, *folder.parents) if path.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        yield Finding("--out", f"{above} is not a writable folder. Choose another.")


def _missing(job: Job) -> Iterator[Finding]:
    if not job.account:
        yield Finding("--account", "it is missing. Name the Slurm account to charge.")
    if not job.image:
        yield Finding("--image", "it is missing. Name NeMo-RL's container image, or a .sqsh file.")
    elif not Path(job.image).is_file():
        registry, slash, name = re.sub(r"^\w+://", "", job.image).partition("/")
        if job.image.startswith(("/", ".")) or job.image.endswith(".sqsh"):
            yield Finding("--image", f"file {job.image} not found")
        elif slash and "#" not in registry and re.search(r"[.:]", registry):
            yield Finding(
                "--image",
                f"pyxis needs # after the registry, got {job.image}. Write {registry}#{name}.",
            )
    else:
        with open(job.image, "rb") as image:
            if image.read(len(SQUASHFS)) != SQUASHFS:
                said = f"{job.image} is not a squashfs image. Make it by `enroot import`."
                yield Finding("--image", said)
    if not (job.nemo_rl / "ray.sub").is_file():
        yield Finding(
            "--checkout",
            f"ray.sub not found in {job.nemo_rl}. Name a NeMo-RL checkout of the image's version.",
        )
    elif not is_checkout(job.nemo_rl):
        yield Finding(
            "--checkout",
            f"{job.nemo_rl} is not a NeMo-RL checkout. Name a NeMo-RL checkout of the image's "
            "version, by which the config is judged.",
        )
    reason = worker_env.refusal(ROOT)
    if reason:
        yield Finding("", reason)
    elif not job.program.is_file():
        yield Finding("--program", f"file {job.program} not found")
