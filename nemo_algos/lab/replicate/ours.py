"""Whether a run, or an evaluation of it, is the manifest's: by what the folder records."""

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from omegaconf import OmegaConf

from nemo_algos.algorithms.build import build
from nemo_algos.config import ConfigError, apply_overrides, at, find, load, read, resolve
from nemo_algos.engines.nemo.decided import method_keys
from nemo_algos.lab.evals.benchmarks.registry import BENCHMARKS
from nemo_algos.lab.replicate.manifest import Paper, names
from nemo_algos.lab.replicate.seed import Seed

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "max_tokens": None, "perturbation": None}  # defaults
# of a recipe, what makes it another training: not its seed, validation, parallelism, memory
DEFINING = re.compile(
    r"(grpo|sft)\.(?!seed$|val_|max_val).*|loss_fn\..*|data\.(train|default)\..*"
    r"|policy\.(model_name|train_global_batch_size|max_total_sequence_length"
    r"|optimizer\..*|scheduler.*|generation\.(temperature|top_p|top_k|max_new_tokens)"
    r"|dtensor_cfg\.lora_cfg\..*)"
)


def other_run(manifest: Paper, run: str, seed: Seed) -> str:
    """How the run is another one than the manifest's, "" where nothing says so."""
    configs = seed.configs if manifest.trains(run) else []
    return next((wrong for c in configs if (wrong := _other(manifest, run, c))), "")


def _other(manifest: Paper, run: str, recorded: dict[str, Any]) -> str:
    base, name = manifest.of(run)[0].base, at(recorded, "policy.model_name")
    if name and name != base:
        return f"model {name}, not {base}"
    wanted = _expected_config(manifest, run)
    method, asked = recorded.get("method"), wanted.get("method", {})
    if method and not _same(method, asked):
        return f"method {method}, not {asked}"
    for path, value in _leaves(wanted):
        there = at(recorded, path)
        if not DEFINING.fullmatch(path) or there is None or "${" in str(there):
            continue
        if _plain(path, there) != value:
            return f"config: {path} is {there}, not {value}"
    return ""


def _expected_config(manifest: Paper, run: str) -> dict[str, Any]:
    """The recipe with the run's keys, with what the method decides in NeMo-RL; a program's keys."""
    model, method = manifest.of(run)
    if method.program:
        keys = [word.lstrip("+") for word in manifest.program(run) if "=" in word]
        return resolve(OmegaConf.from_dotlist(keys))
    if not model.recipe:
        return {"method": method.method}
    wanted = resolve(apply_overrides(read(find(model.recipe)), manifest.overrides(run)))
    if wanted.get("engine") == "nemo_rl":
        loss = method_keys(build(wanted["method"], wanted.get("rollout_correction")))
        wanted["loss_fn"] = {**wanted.get("loss_fn", {}), **loss}
    return wanted


def _leaves(plain: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in plain.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", _plain(f"{above}{key}", value)


def _plain(path: str, value: object) -> object:
    """Of a file its name, wherever it lies."""
    return PurePath(str(value)).name if path.endswith("_path") else value


def _same(recorded: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether both are one method with the same parameters, defaults written or not."""
    try:
        return build(recorded) == build(wanted)
    except ConfigError:
        return False


def other_evaluation(
    manifest: Paper,
    paper: str,
    run: str,
    name: str,
    made: dict[str, Any],
    measured: dict[str, Any],
    seed: Seed,
) -> str:
    """How an evaluation is another one than the manifest's, "" where nothing says so.

    made: its manifest; measured: what `measure` says of it.
    """
    model, evaluation = manifest.of(run)[0], manifest.evaluations[name]
    wanted = load(find(evaluation.config), [*evaluation.overrides, *model.sampling])
    return (
        _other_model(manifest, paper, run, made, seed)
        or _other_sampling(wanted, made)
        or _other_problems(wanted, made, measured)
    )


def _other_model(manifest: Paper, paper: str, run: str, made: dict[str, Any], seed: Seed) -> str:
    base, trains = manifest.of(run)[0].base, manifest.trains(run)
    asked, engine = str(at(made, "model.model")), at(made, "model.engine")
    if not trains:
        return "" if asked in (base, "None") else f"evaluates {asked}, not {base}"
    if engine == "endpoint" and asked == base:
        return f"evaluates {asked}, which is not trained"
    served, wanted = _served_name(asked), {f"{paper}/{run}", f"{paper}/{seed.name}"}
    return "" if served in ("", *wanted) else f"evaluates {served}, not {paper}/{run}"


def _served_name(name: str) -> str:
    """PAPER/MODEL/METHOD[-seedN] of what a server calls a model, or of its folder; "" if none."""
    parts = re.sub(r"/hf(/.*)?$", "", name).split("/")
    found = [parts[i : i + 3] for i, part in enumerate(parts[:-2]) if part in names()]
    return "/".join(found[-1]) if found else ""


def _other_sampling(wanted: dict[str, Any], made: dict[str, Any]) -> str:
    for key, ours in {**SAMPLING, **(at(made, "sampling") or {})}.items():
        theirs = (at(wanted, "sampling") or {}).get(key, SAMPLING.get(key))
        if key in SAMPLING and ours != theirs:
            return f"samples with {key} {ours}, not {theirs}"
    return ""


def _other_problems(wanted: dict[str, Any], made: dict[str, Any], measured: dict[str, Any]) -> str:
    benchmark = BENCHMARKS[measured["benchmark"]]
    section = wanted["benchmarks"].get(benchmark.name) or {}
    sizes = [section["problems"]] if section.get("problems") else list(benchmark.sizes)
    left_out = sum(n for what, n in made.get("counts", {}).items() if what.endswith("left out"))
    if sizes and measured["problems"] + left_out not in sizes:
        return f"has {measured['problems']} problems, not {' or '.join(map(str, sizes))}"
    verifier = section.get("verifier") or benchmark.verifier
    theirs = made.get("verifier")
    return "" if theirs == verifier else f"is judged by {theirs}, not {verifier}"
