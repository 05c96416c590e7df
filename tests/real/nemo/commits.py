"""make test-commits: commits of NeMo-RL drawn by lot, two releases, and open pull requests.

    python tests/real/nemo/commits.py [REF]...

Of each it says whether the config's types are read, every GRPO config is judged without an
exception, no key of such a config is called unknown, and what the step before Ray answers. What is
done is kept in ../nemo-rl-worktrees/commits.jsonl beside the clone; the table is commits.md.
"""

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE)]

import checkout  # noqa: E402

PAGE = HERE / "commits.md"
SEED, DRAWN = 48, 20
RELEASES = ("v0.6.0", "v0.7.0")
SINCE = "2026-02-01"
MINUTES = 20  # of one commit
HEAD = """# Commits of NeMo-RL

What `make test-commits` found: {drawn} commits of main drawn by lot since {since} (seed {seed}),
two releases and {pulls} merge refs of pull requests. "Typed" counts the keys whose types were read
from the checkout as text; "judged" the GRPO configs that `nemo-algos check` judged with ETR,
"exceptions" those where it raised. "Unknown" are the keys that one of these configs sets, and that
`check` calls an error over NeMo-RL's default config. The step before Ray is NeMo-RL's own trainer,
with nine methods, behind the steps of the launcher up to NeMo-RL's setup: it is right (to 1e-6), or
refused with what is lacking. (NVIDIA-NeMo/RL#2506 of 2026-06-24 changed the gradient of the KL
penalty.)

| ref | date | typed | judged | exceptions | unknown | step before Ray |
|---|---|---|---|---|---|---|
"""


def refs(clone: Path) -> list[str]:
    """Those of the page: drawn commits, releases, and the pull requests that were fetched.

    One is fetched by `git fetch origin refs/pull/N/merge:refs/pull/N/merge`.
    """
    main = ["--first-parent", f"--since={SINCE}", "--format=%H", "origin/main"]
    lot = random.Random(SEED)
    commits = lot.sample(_git(clone, "log", *main).split(), DRAWN)
    pulls = _git(clone, "for-each-ref", "--format=%(refname)", "refs/pull/*/merge").split()
    return [*commits, *RELEASES, *pulls]


def judged(root: Path) -> dict[str, Any]:
    """Every GRPO config over itself, and the keys it has over the default one."""
    from omegaconf import OmegaConf

    from nemo_algos.engines.nemo.derived_config import DEFAULT
    from nemo_algos.findings import ConfigError
    from nemo_algos.preflight.check import release
    from nemo_algos.preflight.check.judge import judge
    from nemo_algos.preflight.check.keys import unknown_keys

    begun = time.monotonic()
    found = release.read(root)
    facts = sum(found.facts.values())
    seconds = time.monotonic() - begun
    names = [name for name in found.configs if "grpo" in found.configs[name]]
    files = release.config_files(root)
    exceptions: list[str] = []
    unknown: set[str] = set()
    for name in names:
        written = {"engine": "nemo_rl", "method": {"name": "etr"}, "nemo_rl": {"config": name}}
        try:
            findings = judge(OmegaConf.create(written), found)[1]
        except ConfigError as error:
            findings = error.findings
        except Exception as error:  # what this test is there to find
            exceptions.append(f"{name}: {type(error).__name__}: {error}")
            continue
        own = OmegaConf.to_container(OmegaConf.load(files[name]))
        own.pop("defaults", None)
        wrong = unknown_keys(own, found.configs[DEFAULT], found)
        unknown |= {f.path for f in [*findings, *wrong] if "unknown key" in f.message}
    return {
        "typed": len(found.schema),
        "judged": len(names),
        "exceptions": exceptions,
        "unknown": sorted(unknown),
        "facts": facts,
        "seconds": round(seconds, 2),
    }


def trial(ref: str) -> str:
    """What the step before Ray says, in an environment that has what NeMo-RL imports."""
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    pythons = sorted(versions.glob("3.1[23]*/bin/python"))
    command = ["uv", "run", "--no-project", "--isolated"]
    command += ["--python", str(pythons[-1]) if pythons else "3.13"]
    command += ["--with-requirements", str(HERE / "requirements.txt")]
    command += ["--with-editable", f"{ROOT}[lab]", "python", __file__, "--step"]
    done = subprocess.run(
        command,
        env={**os.environ, "NEMO_RL_REF": ref, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=60 * MINUTES,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("step: ")]
    return lines[-1].removeprefix("step: ") if lines else f"failed: {done.stderr[-300:]}"


def step() -> str:
    """In that environment: each trainer that this NeMo-RL has."""
    import functools

    import conftest  # noqa: F401  (the path and the stubs)

    _stub_what_is_missing()
    from nemo_rl.algorithms import grpo  # pyright: ignore

    from nemo_algos.engines.nemo import launch, trial, versions

    said = {}
    trainers = {name: getattr(grpo, name) for name in ("grpo_train", "async_grpo_train")}
    if versions.present("nemo_rl.algorithms.grpo_sync"):
        from nemo_rl.algorithms import grpo_sync  # pyright: ignore

        trainers["grpo_train_sync"] = grpo_sync.grpo_train_sync
    steps = {name: functools.partial(trial.step, train) for name, train in trainers.items()}
    for name, one in steps.items():
        said[name] = _answer(lambda name=name, one=one: _tried(name, one))
    if versions.present(versions.CONTROLLER):
        said["controller"] = _answer(lambda: launch.check(*_judged("single_controller.yaml")))
    right = [name for name, answer in said.items() if answer == "right"]
    others = [f"{name}: {answer}" for name, answer in said.items() if answer != "right"]
    return "; ".join([f"right: {', '.join(right)}" if right else "", *others]).strip("; ")


def _judged(name: str) -> tuple[Any, Any]:
    """A shipped config as a run has it: NeMo-RL's, and the method."""
    from nemo_algos import config
    from nemo_algos.preflight.check import launcher

    return launcher.compose(config.read(config.find(name)))[:2]


def _tried(name: str, one: Any) -> None:
    """As a run whose config asks for this trainer."""
    from nemo_algos.engines.nemo import launch

    with mock.patch.object(launch, "trial_of", lambda _: (name, one)):
        launch.check(*_judged("nemo_rl.yaml"))


def _answer(ask: Any) -> str:
    from nemo_algos.engines.nemo import self_test, versions
    from nemo_algos.findings import ConfigError

    try:
        versions.check()
        ask()
    except (ImportError, ConfigError) as refusal:
        if self_test.ONLY_THE_PENALTY in str(refusal):
            return "right without a KL penalty"
        return f"refused, {' '.join(str(refusal).split())[:400]}"
    except Exception as error:
        return f"EXCEPTION {type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return "right"


def _stub_what_is_missing() -> None:
    """Packages that only an older NeMo-RL imports are empty, as Megatron is."""
    import stubs

    for _ in range(20):
        try:
            import nemo_rl.algorithms.grpo  # noqa: F401  # pyright: ignore

            return
        except ModuleNotFoundError as error:
            missing = str(error.name).partition(".")[0]
            if missing in ("nemo_rl", *stubs.STUBBED):
                raise
            stubs.STUBBED += (missing,)
            for name in [name for name in sys.modules if name.partition(".")[0] == "nemo_rl"]:
                del sys.modules[name]


def main(words: list[str]) -> int:
    """Judge the refs that are not done; 1 where one has an exception or a wrong answer."""
    if words[:1] == ["--judge"]:
        print(json.dumps(judged(Path(words[1]))))
        return 0
    if words == ["--step"]:
        print(f"step: {step()}")
        return 0
    clone = checkout.home()
    if clone is None:
        print("skipped: no NeMo-RL checkout (NEMO_RL_HOME names one)")
        return 0
    kept = clone.parent / "nemo-rl-worktrees" / "commits.jsonl"
    kept.parent.mkdir(exist_ok=True)
    lines = kept.read_text().splitlines() if kept.exists() else []
    done = {row["ref"]: row for row in map(json.loads, lines)}
    wanted = words or refs(clone)
    for ref in wanted:
        if ref in done and not words:
            continue
        commit = _git(clone, "rev-parse", f"{ref}^{{commit}}")
        root = checkout.worktree(clone, "walk", commit)
        row = {"ref": ref, "date": _git(clone, "log", "-1", "--format=%cs", commit)}
        judge = [sys.executable, __file__, "--judge", str(root)]  # what is read once is kept
        answer = subprocess.run(judge, check=True, capture_output=True, text=True).stdout
        row |= json.loads(answer) | {"step": trial("walk")}
        done[ref] = row
        with kept.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
    rows = [done[ref] for ref in wanted]
    if not words:
        PAGE.write_text("".join([_head(rows), *_lines(rows)]))
    return int(any(row["exceptions"] or "EXCEPTION" in row["step"] for row in rows))


def _head(rows: list[dict[str, Any]]) -> str:
    pulls = sum(row["ref"].startswith("refs/pull") for row in rows)
    return HEAD.format(drawn=DRAWN, since=SINCE, seed=SEED, pulls=pulls)


def _lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    for row in sorted(rows, key=lambda row: row["date"]):
        ref = row["ref"].removeprefix("refs/pull/").replace("/merge", " (pull request)")
        name = ref[:9] if len(ref) == 40 else ref
        counts = f"{row['typed']} | {row['judged']} | {len(row['exceptions'])}"
        unknown = ", ".join(row["unknown"]) or "0"
        answer = _grouped(row["step"]).replace("|", "/")
        yield f"| {name} | {row['date']} | {counts} | {unknown} | {answer} |\n"


def _grouped(step: str) -> str:
    """What several trainers are refused for is said once, and of it the first problem."""
    if step.startswith("failed: "):
        return f"not tried: {step.strip().splitlines()[-1]}"
    answers: dict[str, list[str]] = {}
    for part in step.split("; "):
        name, _, answer = part.partition(": ")
        if name == "right":
            answers[part] = []
            continue
        lacks = re.sub(r"(engine: )?this NeMo-RL is not one that .*?\)\): ", "", answer)
        lacks = lacks.partition(" To start without")[0]
        first = lacks.replace(f" of {name}", "").partition(" (/")[0]
        first = " a step with".join(first.split(" a step with")[:2])
        answers.setdefault(first, []).append(name)
    return "; ".join(", ".join(names) + ": " * bool(names) + a for a, names in answers.items())


def _git(where: Path, *words: str) -> str:
    command = ["git", "-C", str(where), *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
