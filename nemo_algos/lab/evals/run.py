"""An evaluation from its config to metrics.json: load, sample what is missing, verify, measure."""

import json
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress
from rich.table import Column, Table

from nemo_algos.engines.local import availability
from nemo_algos.engines.named import check_verifier, findings_of
from nemo_algos.engines.rewards import Verdict, VerifierPool
from nemo_algos.engines.rewards.function import PAIR
from nemo_algos.findings import ConfigError, Finding
from nemo_algos.jsonl import replace
from nemo_algos.lab.evals.benchmarks import BENCHMARKS, EXTRACTORS, Loaded, load
from nemo_algos.lab.evals.metrics import measure
from nemo_algos.lab.evals.nemo_file import THEIRS, NemoRLResults
from nemo_algos.lab.evals.problem import Generation, Sampler
from nemo_algos.lab.evals.schema import EndpointModel, EvalConfig, LocalModel, NemoRLFile
from nemo_algos.lab.evals.store import Store
from nemo_algos.secrets import as_written

STORED_AT_ONCE = 64
LOG_SECONDS = 60.0
CHAT_TEMPLATE = """. For a model without one, set 'model.completions="{prompt}"'"""
LIBRARIES = ("nemo-algos", "math-verify", "scikit-learn", "torch", "transformers")

Advance = Callable[[int], None]  # so many more are done


def evaluate(config: EvalConfig, console: Console) -> list[Path]:
    """Evaluate on every benchmark of the config; the folders.

    What is stored already is not sampled, nor verified, again. Raises ValueError, before anything
    is sampled, where a benchmark or the model cannot be loaded.
    """
    if isinstance(config.model, NemoRLFile):
        verified = iter([_from_nemo_rl(config, config.model, console)])
    else:
        verified = _sample_all(config, config.model, console)
    found = {}
    for loaded, store in verified:
        found[store.folder] = _measure(loaded, store, config, console)
    console.print(table(list(found.values())))
    return list(found)


def _sample_all(
    config: EvalConfig, model: LocalModel | EndpointModel, console: Console
) -> Iterator[tuple[Loaded, Store]]:
    """Each benchmark with its verified responses, as soon as it has them."""
    loaded = _load(config)
    _say_rewards(loaded, config, console)
    asked = _sampler(model, config, console)
    stores = [_store(each, asked, config) for each in loaded]
    with ExitStack() as held:
        for store in stores:
            held.enter_context(store.lock)
        while stores:  # one in memory at a time
            each = loaded.pop(0)
            store = stores.pop(0)
            _say_counts(each, console)
            _sample(asked, store, console)
            _verify(store, config.workers, each.benchmark.deadline, console)
            yield each, store


def _from_nemo_rl(config: EvalConfig, model: NemoRLFile, console: Console) -> tuple[Loaded, Store]:
    wrong = _wrong_verifiers(config)
    if wrong:
        raise ConfigError(wrong)
    results = NemoRLResults(model)
    ((name, section),) = config.chosen.items()
    loaded = results.load(name)
    sampling = config.sampling.model_copy(update={"samples": results.samples})
    section = section.model_copy(update={"verifier": section.verifier or results.verifier})
    changed = {"sampling": sampling, "benchmarks": {name: section}}
    store = _store(loaded, results, config.model_copy(update=changed))
    _say_counts(loaded, console)
    _sample(results, store, console)
    if section.verifier == THEIRS:
        store.judge(results.own_verdicts(store.unverified()))
        console.print("The file has no gold answers, so these are NeMo-RL's rewards.")
    else:
        _verify(store, config.workers, loaded.benchmark.deadline, console)
        differ = [results.differs(g, v) for _, g, v in store.judged()]
        console.print(f"{sum(differ)} of {len(differ)} verdicts differ from NeMo-RL's rewards")
    return loaded, store


def _sampler(model: LocalModel | EndpointModel, config: EvalConfig, console: Console) -> Sampler:
    if isinstance(model, EndpointModel):
        from nemo_algos.lab.evals.endpoint import Endpoint

        say = partial(console.print, markup=False, soft_wrap=True)
        return Endpoint(model, config.sampling, say)
    from nemo_algos.lab.evals.local_sampler import LocalSampler

    return LocalSampler(model, config.sampling)


def _load(config: EvalConfig) -> list[Loaded]:
    """Every benchmark, before a model is. Raises ConfigError with all that cannot be used."""
    loaded = list[Loaded]()
    findings = _wrong_verifiers(config)
    for name, section in config.chosen.items():
        options = section.model_dump(include={"data", "seed", "databases"})
        asked = config.trained if section.prompt == "trained" else None
        try:
            loaded.append(load(name, **options, limit=section.problems, trained=asked))
        except ValueError as error:
            unset = section.data == "hub" and not BENCHMARKS[name].hub  # perhaps inherited
            cure = f" Or remove it: `benchmarks.{name}=null`." if unset else ""
            findings.append(Finding(f"benchmarks.{name}.data", f"{error}{cure}"))
    if isinstance(config.model, LocalModel) and config.model.policy:
        policy = config.model.policy
        wrong = availability.device(policy) + availability.model(policy)
        findings += [f._replace(path=f"model.{f.path}") for f in wrong]
    if findings:
        raise ConfigError(findings)
    return loaded


def _wrong_verifiers(config: EvalConfig) -> list[Finding]:
    """Those that ask for what they are not given: of models that are not ours, lengths and more."""
    names = (*PAIR, "prompt", "tokens") if isinstance(config.model, LocalModel) else PAIR
    named = {}
    for name, s in config.chosen.items():
        named[f"benchmarks.{name}.verifier"] = s.verifier
    found = []
    for key, function in named.items():
        if function:
            found += findings_of(check_verifier, function, key, names)
    return found


def _store(loaded: Loaded, model: Sampler, config: EvalConfig) -> Store:
    benchmark = loaded.benchmark
    name = loaded.benchmark.name
    answers = benchmark.answer_of
    verifier = config.chosen[name].verifier or benchmark.verifier
    manifest = {
        "model": model.identity,
        "asked": config.model.model_dump(mode="json", exclude_none=True),
        "benchmark": name,
        "sampling": config.sampling.model_dump(),
        "verifier": verifier,
        "answers": next((key for key, extract in EXTRACTORS.items() if extract is answers), ""),
        "data": loaded.source,
        "counts": dict(loaded.counts),
        "versions": {"python": platform.python_version(), **{x: version(x) for x in LIBRARIES}},
    }
    return Store(config.folder / name, as_written(manifest), loaded.problems)


def _say_rewards(loaded: list[Loaded], config: EvalConfig, console: Console) -> None:
    """Training's own functions are code, which a folder may not bring: they have to be named."""
    trained = config.trained
    for each in loaded:
        name = each.benchmark.name
        verifier = config.chosen[name].verifier or BENCHMARKS[name].verifier
        if trained and trained.rewards not in ([], [verifier]):
            console.print(
                f"{name}: trained with {', '.join(trained.rewards)}, but judged by {verifier}; to "
                f"change it, set `benchmarks.{name}.verifier`",
                markup=False,
                soft_wrap=True,
            )


def _say_counts(loaded: Loaded, console: Console) -> None:
    counted = ", ".join(f"{name} {number}" for name, number in loaded.counts.items() if number)
    line = f"{loaded.benchmark.name}: {len(loaded.problems)} problems"
    console.print(f"{line} ({counted})" if counted else line, markup=False, soft_wrap=True)


def _sample(model: Sampler, store: Store, console: Console) -> None:
    wanted = store.missing()
    with _progress("sampled", sum(len(samples) for _, samples in wanted), console) as advance:

        def add(generations: list[Generation]) -> None:
            store.add(generations)
            advance(len(generations))

        model.sample(wanted, add)
    _refuse_refusals(store)
    lacking = Counter[str]()
    for generation in store.generations.values():
        if generation.refused:
            lacking[generation.finish] += 1
        elif not generation.response:
            lacking["empty"] += 1
    for state, number in lacking.items():
        console.print(f"warning: {number} responses are {state}", markup=False, soft_wrap=True)


def _refuse_refusals(store: Store) -> None:
    """Raises ValueError where the server has answered nothing: that is no score of 0."""
    refusals = []
    for g in store.generations.values():
        if g.refused:
            refusals.append(g.finish)
    if refusals and len(refusals) == len(store.generations):
        (store.folder / "metrics.json").unlink(missing_ok=True)
        hint = CHAT_TEMPLATE if "chat template" in refusals[0] else ""
        raise ValueError(
            f"{store.folder.name}: the server refused all {len(refusals)} requests, so nothing is "
            f"measured. {refusals[0]}{hint}"
        )


def _verify(store: Store, workers: int, deadline: float, console: Console) -> None:
    refused = []
    given = []
    for p, g in store.unverified():
        if g.refused:
            refused.append((p, g, Verdict(0.0, "error", g.finish)))
        else:
            given.append((p, g))
    store.judge(refused)
    with (
        _progress("verified", len(given), console) as advance,
        VerifierPool(store.manifest["verifier"], workers=workers, deadline=deadline) as pool,
    ):
        verdicts = pool.scores(
            [g.response for _, g in given],
            [p.answer for p, _ in given],
            prompt=[p.prompt for p, _ in given],
            tokens=[g.tokens for _, g in given],
        )
        for i in range(0, len(given), STORED_AT_ONCE):
            chunk = given[i : i + STORED_AT_ONCE]
            store.judge((p, g, next(verdicts)) for p, g in chunk)
            advance(len(chunk))
    details: dict[str, list[str]] = {}  # of those that are not judged
    for _, _, verdict in store.judged():
        if verdict and verdict.status != "ok":
            details.setdefault(verdict.status, []).append(verdict.detail)
    for status, said in details.items():
        console.print(
            f"warning: {len(said)} verdicts are {status}; the first one: {said[0] or '-'}",
            markup=False,
            soft_wrap=True,
        )


def _measure(loaded: Loaded, store: Store, config: EvalConfig, console: Console) -> dict[str, Any]:
    """The benchmark's metrics, which metrics.json now holds."""
    evaluation = store.evaluation(loaded.benchmark.answer_of)
    say = partial(console.print, markup=False, soft_wrap=True)
    judged = dict[str, Any]()
    judge = config.metrics.judge
    if judge:
        from nemo_algos.lab.evals.judge import DIVERSITY, scores  # openai

        judged[DIVERSITY] = scores(evaluation, judge, store.folder, say)
    with _progress("measured", len(evaluation.problems), console) as advance:
        more = {"workers": config.workers, "progress": lambda *_: advance(1), "judged": judged}
        metrics = measure(evaluation, config.metrics, **more)
    replace(store.folder / "metrics.json", json.dumps(metrics, allow_nan=False))
    return metrics


@contextmanager
def _progress(done: str, total: int, console: Console) -> Iterator[Advance]:
    """A bar while it lasts, where there is anything to do; in a log a line now and then."""
    with Progress(
        *Progress.get_default_columns(),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        disable=not (total and console.is_terminal),
    ) as progress:
        task = progress.add_task(done, total=total)
        logged = time.monotonic()

        def advance(number: int) -> None:
            nonlocal logged
            progress.advance(task, number)
            if not console.is_terminal and time.monotonic() - logged > LOG_SECONDS:
                logged = time.monotonic()
                console.print(f"{done} {progress.tasks[task].completed:.0f} of {total}")

        yield advance


Measured = dict[str, Any]  # what measure() returns


def table(results: list[Measured]) -> Table:
    """A row per benchmark of the same number of samples, without columns that no benchmark has."""
    n = results[0]["samples"]
    columns: dict[str, Callable[[Measured], str]] = {
        "benchmark": lambda m: m["benchmark"],
        "problems": lambda m: str(m["problems"]),
        "mean": _mean,
        f"pass@{n}": lambda m: _number(m["curves"].get("pass@k")),
        f"maj@{n}": lambda m: _number(m["curves"].get("maj@k")),
        f"UCC@{n}": lambda m: _number(m["curves"].get("ucc@k")),
        "boxed": lambda m: _number(m["scalars"].get("boxed")),
        "unjudged": lambda m: str(sum(x for s, x in m["statuses"].items() if s != "ok")),
    }
    cells = {}
    for name, cell in columns.items():
        column = [cell(measured) for measured in results]
        if any(column):
            cells[name] = column
    first, *rest = cells
    title = f"{n} samples per problem; mean (95 % CI)"
    shown = Table(
        Column(first, no_wrap=True), *(Column(r, justify="right") for r in rest), title=title
    )
    for row in zip(*cells.values(), strict=True):
        shown.add_row(*row)
    return shown


def _mean(measured: Measured) -> str:
    mean = measured["scalars"]["mean"]
    interval = "" if mean["low"] is None else f" ({mean['low']:.3f}, {mean['high']:.3f})"
    return f"{mean['value']:.3f}{interval}"


def _number(measured: Measured | None) -> str:
    """Of a scalar, or of a curve at the largest k."""
    if measured:
        return f"{np.ravel(measured['value'])[-1]:.3f}"
    return ""
