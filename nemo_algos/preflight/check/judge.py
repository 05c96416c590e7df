"""What can be known of a run before it starts, all of it at once.

`judge` is the one judgement of a NeMo-RL run, of the commands check, plan and slurm and of the
launcher: over the NeMo-RL that will run (`release.find`).
"""

from collections.abc import Iterable, Mapping, Sequence

from omegaconf import DictConfig

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.extensions import old_policy
from nemo_algos.algorithms.extensions.loss_config import MismatchConfig
from nemo_algos.config import apply_overrides, find, read, resolve, select
from nemo_algos.engines.nemo.derived_config import derive
from nemo_algos.findings import ConfigError, Finding, at, validate
from nemo_algos.preflight.check.compose import Composed, compose
from nemo_algos.preflight.check.decoder import Model
from nemo_algos.preflight.check.known_models import model
from nemo_algos.preflight.check.layout import layout
from nemo_algos.preflight.check.local.judge import Foretold as Locally
from nemo_algos.preflight.check.local.judge import judge as judged_locally
from nemo_algos.preflight.check.release import Release
from nemo_algos.preflight.check.release import find as find_release
from nemo_algos.preflight.check.rule import Preflight, ask, keep_errors
from nemo_algos.preflight.check.rules.index import AFTER_KEYS, CONFLICTS, RULES
from nemo_algos.preflight.check.rules.values import repair

SEVERITIES = ("error", "warning", "note")
OVERRIDES = "policy.hf_config_overrides"


def check(
    name: str, overrides: Sequence[str], release: Release | None = None, seconds: int | None = None
) -> list[Finding]:
    """Findings of a config by path or shipped name, errors first.

    release: the NeMo-RL that will run, else as `release.find` has it; seconds: the job's limit.
    """
    return judged(name, overrides, release, seconds)[1]


def judged(
    name: str, overrides: Sequence[str], release: Release | None = None, seconds: int | None = None
) -> tuple[Preflight | Locally | None, list[Finding]]:
    """The run as well, where there is one to foretell; arguments as of `check`."""
    try:
        written = apply_overrides(read(find(name)), overrides)
        if select(written, "engine") == "nemo_rl":
            return judge(written, release or find_release(), seconds)
        ours = judged_locally(resolve(written))
        return Locally.of(ours), ours.warnings
    except ConfigError as error:
        return None, _sort(error.findings)


def judge(
    written: DictConfig, release: Release, seconds: int | None = None
) -> tuple[Preflight, list[Finding]]:
    """A NeMo-RL run as it would train, and what is found in it, errors first.

    seconds: the job's time limit. Raises ConfigError where there is nothing to judge.
    """
    if select(written, "engine") != "nemo_rl":
        said = "must be nemo_rl, and this config is for the embedded engine: `train` runs it here"
        raise ConfigError([Finding("engine", said)])
    return judge_composed(compose(written, release), seconds)


def judge_composed(
    composed: Composed, seconds: int | None = None
) -> tuple[Preflight, list[Finding]]:
    """The judgement of a composed config, whose `plain` becomes what trains."""
    plain, written, base, tree, unknown, release = composed
    findings = [*unknown, *repair(plain, base, tree, release)]
    keep_errors(findings, lambda: validate(MismatchConfig, plain.get("mismatch") or {}, "mismatch"))
    findings += old_policy.conflicts(plain)
    plain = old_policy.reconcile(plain)
    method = plain.get("method") or {}
    correction = plain.get("rollout_correction")
    algorithm = keep_errors(findings, lambda: build(method, correction))
    if algorithm:
        limit = at(plain, "policy.generation.max_new_tokens")
        algorithm = algorithm.with_max_tokens(limit if isinstance(limit, int) else None)
        findings += ask(
            CONFLICTS, Preflight(plain, layout(plain), None, written, algorithm, release)
        )
        derive(plain, algorithm)
    facts = keep_errors(findings, lambda: _model(plain))
    run = Preflight(plain, layout(plain), facts, written, algorithm, release, seconds)
    rules = [rule for rule in RULES if not (unknown and rule in AFTER_KEYS)]
    return run, _sort([*findings, *ask(rules, run)])


def refuse(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, none of which is an error. Raises ConfigError with every error."""
    found = list(findings)
    errors = [f for f in found if f.severity == "error"]
    if errors:
        raise ConfigError(errors)
    return found


def _sort(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(dict.fromkeys(findings), key=lambda f: SEVERITIES.index(f.severity))


def _model(plain: Mapping[str, object]) -> Model | None:
    """The facts, as policy.hf_config_overrides changes them; None of an unknown model."""
    name = str(at(plain, "policy.model_name"))
    changed = at(plain, OVERRIDES)
    try:
        facts = model(name)
    except (ValueError, OSError):
        return None
    try:
        if isinstance(changed, Mapping):
            return model(name, changed)
        return facts
    except ValueError as problem:
        raise ConfigError([Finding(OVERRIDES, str(problem))]) from None
