"""`plan` against what NVIDIA's functional tests of Megatron-LM measured.

    uv run benchmarks/plan_memory.py memory.json.gz --out rows.csv
    uv run benchmarks/plan_memory.py memory.json.gz --write nemo_algos/preflight/plan/expected.json

A row holds a test's arguments (`args`, `env`), its platform, and what the last rank measured:
`mem_max_allocated`, `mem_allocated` after a step (bytes), `iteration_time` (seconds). Predicted is
the last pipeline rank. No number is fitted to a case; four facts were inferred from the half of
the rows that was given (README.md, "plan's memory"). Constants from sources: cuBLAS' and
Transformer Engine's workspaces; fitted on that half: the latencies of
nemo_algos/preflight/plan/speed.py and the three here.

Where the number of GPUs is a guess, of a release test or one that its groups do not divide, it is
the one whose weights, gradients and optimizer come nearest to `mem_allocated`: such rows are
counted apart, and not for the time.
"""

import csv
import gzip
import json
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from megatron_lm.arguments import Refused, training

from nemo_algos.preflight.plan import memory, speed
from nemo_algos.preflight.plan.memory import states
from nemo_algos.preflight.plan.nemo_rl_arguments import GPU, GPUS
from nemo_algos.preflight.plan.workload import Training, of_layers

CAPABILITIES = {"A100": 8, "H100": 9, "H200": 9, "B200": 10, "GB200": 10}
MICRO_BATCH = 5.3e-3  # fitted: seconds of data, loss and pipeline messages of a micro-batch
ITERATION = 36e-3  # fitted: of the optimizer, the gradients' reduction, logging
ALONE = 0.2  # fitted: of a micro-batch more where a GB200 test has one node
Row = dict[str, Any]


@dataclass(frozen=True)
class Judged:
    """A row and what was predicted for it, or the reason for refusing it."""

    row: Row
    reason: str = ""
    gpus: int = 0
    inferred: bool = False
    parts: dict[str, float] = field(default_factory=dict)
    steady: float = 0.0
    seconds: float = 0.0

    @property
    def error(self) -> float:
        """Of the peak, relative."""
        return sum(self.parts.values()) / self.row["mem_max_allocated"] - 1

    @property
    def timed(self) -> float | None:
        """Relative error of the time, where the number of GPUs is a fact."""
        known = self.row["world"]["source"] != "assumed" and self.row.get("iteration_time")
        return self.seconds / self.row["iteration_time"] - 1 if known else None


def system(row: Row) -> str:
    """The GPU of `dgx_h100_2nd`."""
    name = row["platform"].split("_")[1].upper()
    if name not in CAPABILITIES:
        raise Refused(f"platform {row['platform']}")
    return name


def steady(run: Training) -> float:
    """What stays allocated between steps on the last rank."""
    last = run.parallel.pipeline - 1
    return sum(states(run, last).values()) + run.kernels.workspace


def flops(run: Training) -> float:
    """Of a micro-batch on a GPU, forward and backward, causal attention; what is recomputed too."""
    net, p, a = run.network, run.parallel, run.network.attention
    layers = tuple(parts for stage in net.stages for parts in stage)
    held = of_layers(net, p, layers)
    met = net.experts.chosen / net.experts.number * p.expert * p.expert_tensor if net.experts else 0
    weights = held.linear + met * held.experts / p.tensor
    scores = sum("*" in parts for parts in layers) * run.sequence * a.heads * a.size / p.tensor
    forward = (3 + bool(run.recompute.layers)) * (2 * weights + 2 * scores)
    logits = 3 * 2 * net.vocabulary * net.hidden / p.tensor
    return run.tokens * (forward + logits) / p.pipeline


def iteration_seconds(run: Training, gpu: GPU) -> float:
    """Micro-batches, and the pipeline's filling by (p - 1) / chunks of them."""
    p, net = run.parallel, run.network
    share = speed.share(net.experts is not None, gpu, fp8=run.kernels.linear_input == 1)
    computing = flops(run) / (share * gpu.flops)
    each = speed.bound(net.experts is not None, computing, speed.latency(run, gpu))
    filling = (p.pipeline - 1) / (len(net.stages) / p.pipeline)
    return (run.micro_batches + filling) * each + run.micro_batches * MICRO_BATCH + ITERATION


def made(row: Row, gpus: int) -> Training:
    """The training of a row on so many GPUs."""
    return training(row["args"], gpus, CAPABILITIES[system(row)], row.get("env") or {})


def worlds(row: Row) -> Iterator[Training]:
    """On every number of GPUs that the groups divide, powers of two and thrice."""
    for gpus in sorted(2**k * m for k in range(13) for m in (1, 3)):
        try:
            yield made(row, gpus)
        except Refused as refusal:
            if "GPUs do not divide" not in str(refusal):
                raise


def run_of(row: Row) -> tuple[Training, bool]:
    """The training of a row, and whether its number of GPUs is inferred."""
    world, measured = row["world"], row["mem_allocated"]
    guessed = world["source"] == "assumed"
    if not (guessed and row.get("test_type") == "release"):
        try:
            return made(row, world["nodes"] * world["gpus_per_node"]), False
        except Refused as refusal:
            if not guessed or "GPUs do not divide" not in str(refusal):
                raise
    return min(worlds(row), key=lambda run: abs(steady(run) / measured - 1)), True


def judged(row: Row) -> Judged:
    """The prediction for a row."""
    try:
        run, inferred = run_of(row)
        parts = memory.bytes_of_rank(run, run.parallel.pipeline - 1)
    except (ArithmeticError, LookupError, ValueError) as refusal:
        return Judged(row, f"{refusal}")
    seconds = iteration_seconds(run, GPUS[system(row)])
    seconds += ALONE * run.micro_batches * (system(row) == "GB200" and row["world"]["nodes"] == 1)
    return Judged(row, "", run.parallel.gpus, inferred, parts, steady(run), seconds)


def quantiles(errors: list[float]) -> tuple[float, float]:
    """Median and 90th percentile of |error|."""
    ordered = sorted(map(abs, errors))
    return statistics.median(ordered), ordered[int(0.9 * len(ordered))]


def summary(errors: list[float]) -> str:
    """Median and 90th percentile of |error|, and of how many."""
    if not errors:
        return "none"
    median, high = quantiles(errors)
    return f"{median:6.1%} {high:6.1%}  ({len(errors)})"


def show(name: str, rows: list[Judged]) -> None:
    """A platform's table."""
    kept = [r for r in rows if not r.reason]
    cases = {r.row["case"] for r in rows}
    print(f"\n{name}: {len(rows)} rows of {len(cases)} cases")
    print("  |error|, median, 90th percentile, rows")
    print(f"  peak             {summary([r.error for r in kept])}")
    print(f"  peak, GPUs known {summary([r.error for r in kept if not r.inferred])}")
    print(f"  steady           {summary([r.steady / r.row['mem_allocated'] - 1 for r in kept])}")
    print(f"  iteration time   {summary([r.timed for r in kept if r.timed is not None])}")


def write(path: Path, rows: list[Judged]) -> None:
    """The errors that `nemo-algos plan` prints beside its numbers."""
    kept = [r for r in rows if not r.reason]
    found = {"peak": [r.error for r in kept]}
    found["time"] = [r.timed for r in kept if r.timed is not None]
    lines = []
    for kind, errors in found.items():
        median, high = (round(x, 3) for x in quantiles(errors))
        numbers = {"median": median, "nine_of_ten": high, "rows": len(errors)}
        lines.append(f'  "{kind}": {json.dumps(numbers)}')
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def out(path: Path, rows: list[Judged]) -> None:
    """Every row as CSV, bytes and seconds."""
    with path.open("w", newline="") as file:
        names = ("case", "environment", "platform", "refused", "gpus", "inferred", "measured")
        more = ("predicted", "steady measured", "steady", "seconds measured", "seconds", "parts")
        table = csv.writer(file)
        table.writerow(names + more)
        for r in rows:
            where = [r.row[k] for k in ("case", "environment", "platform")]
            peak = [r.row["mem_max_allocated"], sum(r.parts.values()), r.row["mem_allocated"]]
            time = [r.steady, r.row["iteration_time"], r.seconds, json.dumps(r.parts)]
            table.writerow([*where, r.reason, r.gpus, r.inferred, *peak, *time])


def main(
    file: Path,
    csv_out: Annotated[Path | None, typer.Option("--out", help="every row, as CSV")] = None,
    written: Annotated[Path | None, typer.Option("--write", help="errors, for plan")] = None,
) -> None:
    """Errors by platform, refusals with their reasons, and the ten worst."""
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt") as text:
        rows = [judged(row) for row in json.load(text) if row.get("mem_max_allocated")]
    platforms = sorted({r.row["platform"].split("_")[1] for r in rows})
    for name in platforms:
        show(name, [r for r in rows if r.row["platform"].split("_")[1] == name])
    show("all", rows)
    cases = {r.row["case"]: r.reason for r in rows}
    refused = Counter(reason for reason in cases.values() if reason)
    share = refused.total() / len(cases)
    print(f"\nrefused: {refused.total()} of {len(cases)} cases ({share:.0%})")
    for reason, count in refused.most_common():
        print(f"  {count}  {reason}")
    kept = [r for r in rows if not r.reason]
    full = [r for r in kept if sum(r.parts.values()) > GPUS[system(r.row)].memory]
    print(f"\nran, but predicted not to fit its GPU: {len(full)} of {len(kept)} rows")
    print("\nthe ten worst peaks: error, measured and predicted GB")
    for r in sorted(kept, key=lambda r: -abs(r.error))[:10]:
        numbers = f"{r.error:+.0%} {r.row['mem_max_allocated'] / 1e9:6.2f}"
        where = f"{r.row['environment']} {r.row['platform']} {r.row['case']}"
        print(f"  {numbers} {sum(r.parts.values()) / 1e9:6.2f}  {where}")
    if csv_out:
        out(csv_out, rows)
    if written:
        write(written, rows)


if __name__ == "__main__":
    main.__doc__ = __doc__  # with its commands, for --help
    typer.run(main)
