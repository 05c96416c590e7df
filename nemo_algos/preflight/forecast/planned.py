"""The config that a forecast is made of, and how the key is found that made an outcome so."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.findings import Finding, at

error = Finding
warning = partial(Finding, severity="warning")
note = partial(Finding, severity="note")
TRIAL = 30  # steps up to which a run tries whether it runs
SMALL = 50e6  # parameters: smaller models learn at higher rates and have tokenizers of their own
ENDLESS = 100_000  # steps from which on a base config's number bounds nothing


def errors(*cases: tuple[Any, str, str]) -> Iterator[Finding]:
    """Of cases (whether it is wrong, the key, what is said) those that are wrong."""
    for wrong, key, message in cases:
        if wrong:
            yield error(key, message)


class Planned(Protocol):
    """A composed config as it would train: `run["grpo.max_num_steps"]`, None where it has no key.

    written: the user's own keys. algorithm: None where it is unknown. nemo_rl: what is known of
    the NeMo-RL that will run. last_step: the step that ends the run, as far as is known here.
    held_out: rows of validation, 0 where they are not known here.
    """

    @property
    def written(self) -> Mapping[str, Any]: ...
    @property
    def algorithm(self) -> Algorithm | None: ...
    @property
    def nemo_rl(self) -> Any: ...
    @property
    def megatron(self) -> bool: ...
    @property
    def controlled(self) -> bool: ...
    @property
    def rollouts(self) -> int: ...
    @property
    def last_step(self) -> int: ...
    @property
    def held_out(self) -> int: ...
    def __getitem__(self, path: str) -> Any: ...


class InNeMoRL(Planned, Protocol):
    """A run of NeMo-RL.

    model: the facts of the model, checkpoint its config.json, and own_template its chat template,
    as far as they are known here.
    data_sets: of each the section's path and its keys, the defaults filled in.
    """

    @property
    def model(self) -> Any: ...
    @property
    def checkpoint(self) -> Mapping[str, Any]: ...
    @property
    def own_template(self) -> str: ...
    @property
    def data_sets(self) -> list[tuple[str, dict[str, Any]]]: ...
    def written_at(self, path: str, key: str) -> str: ...


def small(run: InNeMoRL) -> bool:
    """Whether the model is known, and too small for what is usual of language models."""
    return run.model is not None and run.model.parameters < SMALL


def written_of(run: Planned, *paths: str) -> str:
    """The path that the user wrote; of several, or of none, the first."""
    return next((path for path in paths if at(run.written, path) is not None), paths[0])


def blamed(
    section: str,
    values: Mapping[str, Any],
    usual: Mapping[str, Any],
    wrong: Callable[[Mapping[str, Any]], bool],
) -> str:
    """The path of the key whose usual value mends the outcome; of several the first.

    wrong: says whether the outcome of such values is wrong. Where no single key mends it, it is
    the first with another value than usual.
    """
    unusual = [key for key, value in usual.items() if values.get(key) != value]
    for key in unusual:
        if not wrong({**values, key: usual[key]}):
            return f"{section}.{key}"
    if unusual:
        return f"{section}.{unusual[0]}"
    return section
