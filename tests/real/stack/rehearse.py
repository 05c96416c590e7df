"""make stack-demo CONFIG=...: a small copy of a NeMo-RL run on this machine, without GPUs.

rehearse.py CONFIG [key.path=value]... [options]; exit status 1 where something failed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from rehearsal import machine
from rehearsal.request import STAGES, Request

from nemo_algos import config
from nemo_algos.findings import ConfigError
from nemo_algos.preflight.check import release
from nemo_algos.preflight.check.data.output_dirs import output_dirs
from nemo_algos.preflight.check.data.verdict import MARKS, Verdict, add, read
from nemo_algos.preflight.check.judge import judge
from nemo_algos.secrets import as_written
from nemo_algos.terminal import echo

COLORS = {"failed": "red", "warning": "yellow"}


def arguments(words: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", help="a YAML file, or the name of a shipped one")
    parser.add_argument("overrides", nargs="*", help="key.path=value")
    parser.add_argument("--nemo-rl", default="", help="NeMo-RL checkout; found by default")
    parser.add_argument("--steps", type=int, default=2, help="training steps before the kill")
    parser.add_argument("--ranks", type=int, default=4, help="most training ranks")
    parser.add_argument("--model", default="", help="folder with config.json and tokenizer")
    parser.add_argument("--rows", default="", help="JSON lines for a data set not at hand")
    parser.add_argument("--only", default="", help=f"some of {','.join(STAGES)}")
    parser.add_argument("--json", action="store_true", help="verdicts for scripts")
    given = parser.parse_args(words)
    if unknown := {*filter(None, given.only.split(","))} - {*STAGES}:
        parser.error(f"--only has an unknown stage: {', '.join(unknown)}")
    if given.steps < 2:
        parser.error("--steps: at least 2, so that there is a step to resume from")
    return given


def checkout(named: str = "") -> Path:
    """NeMo-RL's root, as `nemo-algos check` finds it, else the clone in the cache folder."""
    clone = machine.cache() / "nemo-rl"
    root = release.find(named).root or release.find(str(clone)).root
    assert root is not None
    return root


def main(words: list[str] | None = None) -> int:
    """The exit status: 1 where a verdict has failed."""
    given = arguments(words)
    written = config.apply_overrides(config.read(config.find(given.config)), given.overrides)
    if OmegaConf.select(written, "engine") != "nemo_rl":
        raise ValueError(f"{given.config} has no `engine: nemo_rl`.")
    root = checkout(given.nemo_rl)
    place = Path(tempfile.mkdtemp(prefix="nrh"))  # a short name, for Ray's sockets lie below it
    request = Request(
        config=OmegaConf.to_yaml(written),
        nemo_rl=str(root),
        ranks=given.ranks,
        steps=given.steps,
        model=given.model,
        rows=given.rows,
        only=tuple(filter(None, given.only.split(","))),
    )
    found: list[Verdict] = []
    for verdict in rehearse(request, written, root, place):
        found.append(verdict)
        if not given.json:
            echo(verdict.line(), color=COLORS.get(verdict.outcome))
    if given.json:
        echo(json.dumps([as_written(v._asdict()) for v in found]))
    else:
        echo(summary(found, place))
    return int(any(v.outcome == "failed" for v in found))


def rehearse(
    request: Request, written: DictConfig, nemo_rl: Path, place: Path
) -> Iterator[Verdict]:
    """Every verdict as it comes."""
    failed = False
    for verdict in judge_config(request, written):
        failed |= verdict.stage == "judge" and verdict.outcome == "failed"
        yield add(place, verdict)
    if failed or not request.wants("data", "stack"):
        return
    for verdict in run(request, nemo_rl, place):
        if verdict.stage not in ("judge", "folders"):
            yield verdict


def judge_config(request: Request, written: DictConfig) -> Iterator[Verdict]:
    """What `check` finds, and what the folders and trackers of the config say."""
    begun = time.monotonic()
    try:
        preflight, findings = judge(written, release.read(Path(request.nemo_rl)))
    except ConfigError as error:
        findings = error.findings
        preflight = None
    for finding in findings:
        outcome = {"error": "failed", "warning": "warning"}.get(finding.severity)
        if outcome:
            seconds = time.monotonic() - begun
            yield Verdict("judge", outcome, str(finding), finding.path, seconds)  # type: ignore[arg-type]
    if not any(f.severity == "error" for f in findings):
        yield Verdict("judge", "passed", "`nemo-algos check` finds no error.")
    if preflight and request.wants("folders"):
        yield from output_dirs(preflight)


def run(request: Request, nemo_rl: Path, place: Path) -> Iterator[Verdict]:
    """The verdicts of the program. Everything that was started ends with the iteration."""
    venv = machine.build()
    env = {**os.environ, **machine.variables(nemo_rl, place, str(venv))}
    request.write(place)
    seen = 0
    with _process(env, place) as process:
        while True:
            running = process.poll() is None
            found = read(place)
            yield from found[seen:]
            seen = len(found)
            if not running:
                break
            time.sleep(0.2)
    if process.returncode:
        lines = (place / "rehearsal.log").read_text(errors="replace").splitlines()
        yield Verdict("stack", "failed", f"The rehearsal itself ended: {' '.join(lines[-1:])}")


@contextmanager
def _process(env: dict[str, str], place: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """The program of the stages, and a reaper that outlives this process by a moment."""
    python = str(machine.python())
    reaper = subprocess.Popen(
        [python, "-m", "rehearsal.reaper", str(place)],
        env={k: v for k, v in env.items() if k != machine.MARK},
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    with open(place / "rehearsal.log", "wb") as log:
        process = subprocess.Popen(
            [python, "-m", "rehearsal", str(place)], env=env, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert reaper.stdin
        reaper.stdin.close()
        reaper.wait()


def summary(found: Sequence[Verdict], folder: Path) -> str:
    """Counts, what was changed for this machine, and where the logs are."""
    counts = Counter(v.outcome for v in found)
    listed = next((v.details["changes"] for v in found if "changes" in v.details), [])
    kinds = Counter(change["kind"] for change in listed)
    parts = [", ".join(f"{mark}: {counts[name]}" for name, mark in MARKS.items())]
    if listed:
        parts.append(
            "changed for this machine: " + ", ".join(f"{n} {kind}" for kind, n in kinds.items())
        )
        parts += [
            f"  given up: {c['path']} ({c['reason']})" for c in listed if c["kind"] == "given up"
        ]
    parts.append(f"logs, samples and the small config: {folder}")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
