"""Options of sbatch that --sbatch does not take."""

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
    "nodes": "use --nodes",
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


def refusal(option: str) -> str:
    """Why not, and what to write instead; empty for one that a run survives."""
    name, _, value = option.removeprefix("--").partition("=")
    ours = next((o for o in OURS if name and o.startswith(name)), "")  # sbatch completes it
    return "" if ours == "dependency" and _keeps_singleton(value) else OURS.get(ours, "")


def _keeps_singleton(dependency: str) -> bool:
    """Among others that all must hold: Slurm takes `?` between dependencies for an or."""
    return "singleton" in dependency.split(",") and "?" not in dependency
