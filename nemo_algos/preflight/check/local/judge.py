"""What is wrong with a run of the embedded engine, all of it at once, before a model is loaded."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nemo_algos import config as configs
from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.extensions import old_policy
from nemo_algos.engines.local.schema import LocalConfig
from nemo_algos.findings import ConfigError, Finding, UnknownKey, at, validate
from nemo_algos.preflight.check.local import resources, rules
from nemo_algos.preflight.check.rule import LocalRun, Rule, ask, keep_errors


class Judged(NamedTuple):
    """What a run is made of, and the warnings about it."""

    config: LocalConfig
    algorithm: Algorithm
    warnings: list[Finding]


@dataclass(frozen=True)
class Foretold:
    """A run of the embedded engine as a forecast reads it, by NeMo-RL's keys."""

    plain: Mapping[str, Any]
    algorithm: Algorithm
    written: Mapping[str, Any] = field(default_factory=dict)
    nemo_rl: Any = None
    megatron: bool = False
    controlled: bool = False

    @classmethod
    def of(cls, judged: Judged) -> "Foretold":
        """The run's keys; what only NeMo-RL spells otherwise is spelled so."""
        plain = judged.config.model_dump()
        plain["grpo"]["val_num_generations_per_prompt"] = judged.config.grpo.val_samples_per_prompt
        schedulers = plain["policy"].pop("scheduler")
        if schedulers:
            plain["policy"]["scheduler"] = schedulers if len(schedulers) > 1 else schedulers[0]
        return cls(plain, judged.algorithm)

    def __getitem__(self, path: str) -> Any:
        return at(self.plain, path)

    @property
    def rollouts(self) -> int:
        """Responses per step."""
        return self["grpo.num_prompts_per_step"] * self["grpo.num_generations_per_prompt"]

    @property
    def last_step(self) -> int:
        """The step that ends the run."""
        return self["grpo.max_num_steps"]

    held_out = 0  # not known before the task is made


def parse(plain: dict[str, Any]) -> tuple[LocalConfig, Algorithm]:
    """The typed config and its algorithm, files and devices aside. Raises ConfigError with all."""
    config, algorithm, _ = judge_by(rules.RULES, plain)
    return config, algorithm


def judge(plain: dict[str, Any], folder: Path | None = None) -> Judged:
    """As parse; data, rewards, optimizer, device, model and folder are looked at too.

    folder: of a run to go on with, in place of one below logger.log_dir.
    """
    made = () if folder else (resources.log_dir,)
    return judge_by([*rules.RULES, *resources.RULES, *made], plain)


def judge_by(rules: Sequence[Rule], plain: dict[str, Any]) -> Judged:
    """What these rules say of a config. Raises ConfigError with all, where one is an error."""
    contradicted = [*old_policy.conflicts(plain)]
    named = plain.get("method")
    section = {"method": {"name": named}} if isinstance(named, str) else {}
    plain = old_policy.reconcile(deepcopy(plain) | section)
    config, wrong, findings = _parse(plain)
    findings += contradicted
    method = plain.get("method")
    algorithm = None
    if isinstance(method, (dict, str)):
        corrected = plain.get("rollout_correction")
        algorithm = keep_errors(findings, lambda: build(method, corrected))
    if config:
        findings += ask(rules, LocalRun(config, algorithm, wrong))
    findings = list(dict.fromkeys(findings))
    if config is None or algorithm is None or any(f.severity == "error" for f in findings):
        raise ConfigError(findings)
    return Judged(config, algorithm, findings)


def _parse(
    plain: dict[str, Any], wrong: frozenset[str] = frozenset()
) -> tuple[LocalConfig | None, frozenset[str], list[Finding]]:
    """The config with the usual values in place of wrong ones; their keys; what is wrong."""
    try:
        return validate(LocalConfig, plain), wrong, []
    except ConfigError as error:
        usual = configs.load(configs.SHIPPED / "grpo.yaml")
        replaced = {_replace(plain, finding.path, usual) for finding in error.findings}
        findings = [_placed(finding, plain.get("method")) for finding in error.findings]
        if replaced <= wrong:
            return None, wrong, findings
        config, wrong, more = _parse(plain, wrong | replaced)
        return config, wrong, findings + more


def _placed(finding: Finding, method: Any) -> Finding:
    """Of an unknown key it is said that the method has it, or NeMo-RL."""
    from nemo_algos.preflight.check.release import shipped  # for this sentence alone

    if not isinstance(finding, UnknownKey):
        return finding
    key = finding.path.rpartition(".")[2]
    try:
        known = type(build(method).base.params).model_fields
    except ConfigError:  # which is told by itself
        known = {}
    if key in known and "did you mean" not in finding.message:
        return UnknownKey(finding.path, f"unknown key (did you mean method.{key}?)")
    if finding.path in shipped().declared:
        return Finding(
            finding.path, "only NeMo-RL supports this key, not the embedded engine. Remove it."
        )
    return finding


def _replace(plain: dict[str, Any], path: str, usual: Any) -> str:
    """The usual value in place of the one at the path, or of the list above it; where that is."""
    above, _, key = path.rpartition(".")
    section = at(plain, above) if above else plain
    if not isinstance(section, dict):
        return _replace(plain, above, usual)
    section.pop(key, None)
    value = at(usual, path)
    if value is not None:
        section[key] = deepcopy(value)
    return path
