"""A NeMo-RL run's own rows: enough of them, with the keys that are read; one's own rewards."""

import inspect
from collections.abc import Iterator

from nemo_algos.engines.named import check_verifier, findings_of, load_object
from nemo_algos.engines.nemo.derived_config import is_vlm
from nemo_algos.engines.rewards.function import NAMED, path_of
from nemo_algos.engines.rewards.weighted import VerifierConfig, sections
from nemo_algos.findings import ConfigError, Finding, at, did_you_mean, sections_of, validate
from nemo_algos.preflight.check.keys import FOREIGN
from nemo_algos.preflight.check.rule import Preflight, error, note, warning
from nemo_algos.preflight.check.rules.data import MATH, environment
from nemo_algos.preflight.check.training_rows import (
    datasets,
    is_number,
    rows_of,
    split_off,
    training_rows,
)
from nemo_algos.preflight.forecast.names import HELD_OUT, ignores

KEYS = {"input_key": "input", "output_key": "output"}  # of NeMo-RL's ResponseDataset


def row_keys(run: Preflight) -> Iterator[Finding]:
    """Every row has a problem and an answer under the keys that the data set names.

    Verifiers of mathematics compare with all that a row has for an answer.
    """
    for path, data in datasets(run):
        rows = rows_of(data) or []
        named = {key: str(data.get(key) or usual) for key, usual in KEYS.items()}
        for name, key in named.items() if rows and "messages" not in rows[0].values else ():
            lacking = next((row for row in rows if row.get(key) is None), None)
            if lacking:
                near = did_you_mean(key, [str(k) for k in lacking.values if k != key])
                yield error(
                    f"{path}.{name}",
                    f"{lacking.where} has no value for {key!r}{near}. Name another key, or "
                    "correct the row.",
                )
        section = run[f"env.{environment(run, data)}"] or {}
        maths = environment(run, data) in MATH or "math" in str(section.get("verifier") or "")
        whole = [row for row in rows if "####" in str(row.get(named["output_key"]))]
        if whole and maths:
            yield error(
                f"{path}.output_key",
                f"{len(whole)} of {len(rows)} answers are whole solutions with `####` "
                f"({whole[0].where}): the verifier compares with all of it, so each response "
                "would earn 0. Keep only what stands behind ####.",
            )


def enough_rows(run: Preflight) -> Iterator[Finding]:
    """NeMo-RL drops an incomplete batch, and a synchronous run ends with its last epoch.

    Unshuffled, one data set comes after the other.
    """
    rows = training_rows(run)
    apart = run["data.use_multiple_dataloader"]
    path = "data.num_prompts_per_dataloader" if apart else "grpo.num_prompts_per_step"
    prompts = int((run[path] or 0) * run.oversampling)
    if rows and (min if apart else sum)(rows) < prompts:
        yield error(
            path,
            f"a batch takes {prompts} prompts, but `data.train` has {sum(rows)} training rows. "
            "NeMo-RL drops incomplete batches, so no step would be made. Lower it, or add rows.",
        )
    sets = sections_of(run["data.train"])
    if len(sets) > 1 and run["data.shuffle"] is False and not apart:
        yield warning(
            "data.shuffle",
            f"the {len(sets)} data sets of `data.train` come one after the other, so the run sees "
            f"the first one alone for {sum(rows[:1]) // max(1, prompts) or 'all of its'} steps. "
            "Set it to true, or set `data.use_multiple_dataloader: true`.",
        )
    steps = run.last_step
    if steps < run["grpo.max_num_steps"]:
        say = warning if at(run.written, "grpo.max_num_steps") is not None else note
        number = run["grpo.max_num_epochs"] or 1
        yield say(
            "grpo.max_num_epochs",
            f"it is {number}, and {sum(rows)} training rows are {steps // number} steps an epoch, "
            f"so the run ends after {steps} steps of {run['grpo.max_num_steps']:,}. Raise it, or "
            "add rows.",
        )


def held_out(run: Preflight) -> Iterator[Finding]:
    """NeMo-RL takes rows from training for validation; others are graded by what grades them."""
    for path, data in datasets(run):
        key = f"{path}.split_validation_size"
        size = data.get("split_validation_size") or 0
        if not is_number(size) or ignores(run, data, HELD_OUT):
            continue
        if size > 1 and size % 1:
            yield error(
                key,
                f"it is a share of the rows below 1, or else a whole number of rows, got {size}. "
                "Set it to 0.05, for one, or to 256.",
            )
        elif size and path == "data.train" and run["data.validation"]:
            rows = rows_of(data)
            taken = f"{split_off(size, len(rows))} of the {len(rows)} rows" if rows else "some rows"
            meant = at(run.written, key) is not None
            own = at(run.written, "data.validation.dataset_name") is not None
            say = warning if (rows or own) and not meant else note
            yield say(
                key,
                f"it is {size}, so NeMo-RL moves {taken} of training into validation, although "
                "`data.validation` is set, and scores both together. Set it to 0 to train on all "
                "rows.",
            )
    trained = [data.get("dataset_name") for path, data in datasets(run) if path == "data.train"]
    usual = run["data.default.env_name"]
    for section in sections_of(run["data.validation"]):
        name = not section.get("env_name") and section.get("dataset_name")
        if name and usual and usual not in run.nemo_rl.environments and name not in trained:
            yield warning(
                "data.validation.env_name",
                f"{name} would be graded by {usual}, the training environment of `data.default`. "
                f"Set the one that you mean, {usual} or another.",
            )


def own_rewards(run: Preflight) -> Iterator[Finding]:
    """Its function can be imported, and is given what it asks for: a response and an answer."""
    for name, section in sections(run["env"] or {}).items():
        path = f"env.{name}"
        if name in (*run.nemo_rl.environments, *FOREIGN):
            yield error(
                path,
                f"NeMo-RL already has an environment named {name}. Choose another name for yours.",
            )
            continue
        if is_vlm(run["data"]):
            yield error(
                f"{path}.verifier",
                "for prompts with images NeMo-RL only supports its built-in reward functions. "
                "Remove it, and set `reward_functions` beside it.",
            )
            continue
        try:
            settings = validate(VerifierConfig, dict(section), path)
        except ConfigError as wrong:
            yield from wrong.findings
            continue
        yield from findings_of(check_verifier, settings.verifier, f"{path}.verifier")
        yield from findings_of(_extractor, settings.extractor, f"{path}.extractor")


def _extractor(name: str, key: str) -> None:
    """Raises ConfigError for what cannot be called with a response alone."""
    function = load_object(path_of(name), key, NAMED)
    try:
        inspect.signature(function).bind("response")
    except TypeError as wrong:
        raise ConfigError(
            [Finding(key, f"{name} must take one argument, the response: {wrong}")]
        ) from None
