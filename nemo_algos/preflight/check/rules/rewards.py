"""One's own rewards in a NeMo-RL run: the sections of `env` that name a verifier of ours."""

import inspect
from collections.abc import Iterator

from nemo_algos.config import ConfigError, Finding, validate
from nemo_algos.engines.nemo.derived_config import is_vlm
from nemo_algos.engines.rewards.function import NAMED, path_of
from nemo_algos.engines.rewards.weighted import VerifierConfig, sections
from nemo_algos.preflight.check.keys import FOREIGN
from nemo_algos.preflight.check.local.resources import findings_of, load_object, verifier
from nemo_algos.preflight.check.nemo_run import Preflight
from nemo_algos.preflight.check.rule import error


def own_rewards(run: Preflight) -> Iterator[Finding]:
    """Its function can be imported, and is given what it asks for: a response and an answer."""
    for name, section in sections(run["env"] or {}).items():
        path = f"env.{name}"
        if name in (*run.nemo_rl.environments, *FOREIGN):
            what = f"NeMo-RL already has an environment named {name}"
            yield error(path, f"{what}. Choose another name for yours.")
            continue
        if is_vlm(run["data"]):
            reason = "for prompts with images NeMo-RL only supports its built-in reward functions"
            cure = "Remove it, and set `reward_functions` beside it."
            yield error(f"{path}.verifier", f"{reason}. {cure}")
            continue
        try:
            settings = validate(VerifierConfig, dict(section), path)
        except ConfigError as wrong:
            yield from wrong.findings
            continue
        yield from findings_of(verifier, settings.verifier, f"{path}.verifier")
        yield from findings_of(_extractor, settings.extractor, f"{path}.extractor")


def _extractor(name: str, key: str) -> None:
    """Raises ConfigError for what cannot be called with a response alone."""
    function = load_object(path_of(name), key, NAMED)
    try:
        inspect.signature(function).bind("response")
    except TypeError as wrong:
        reason = f"{name} must take one argument, the response: {wrong}"
        raise ConfigError([Finding(key, reason)]) from None
