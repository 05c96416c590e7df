"""Which keys NeMo-RL's config has: those of its example configs and of its types."""

from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cache
from typing import Any

import yaml

from nemo_algos.engines.nemo.derived_config import AMONG, OURS, is_vlm
from nemo_algos.findings import Finding, UnknownKey, as_names, at, did_you_mean, sections_of
from nemo_algos.preflight.check.layout import VLLM
from nemo_algos.preflight.check.release import Release, config_files
from nemo_algos.preflight.check.rules.fp8 import POW2

# read by NeMo-RL's workers, and in neither its example config nor its types
OF_VLLM = (*POW2, "quantization_ignored_layer_kws", "enable_prefix_caching")
UNDECLARED = {f"{VLLM}.{key}" for key in OF_VLLM} | {
    "policy.sequence_packing.fuse_loss",
    "policy.megatron_cfg.layernorm_epsilon",
}

SPLITS = ("train", "validation", "default")

# of an environment's reward functions, which NeMo-RL's types call a list of dictionaries
REWARD_FUNCTION = ("kwargs", "name", "weight")
# of any environment: NeMo-Gym's switches
FLAGS = ("should_log_nemo_gym_responses", "should_mask_flagged_samples", "should_use_nemo_gym")
# environments whose keys are another program's: NeMo-Gym's servers; a second policy
FOREIGN = ("nemo_gym", "reward_model")
NO_SETS = "vLLM in NeMo-RL does not report which tokens it kept, and the trainer filters"
# keys of the embedded engine that NeMo-RL cannot have
EMBEDDED = {
    "policy.generation.support_replay": f"{NO_SETS} its own logits by top_p and top_k. Remove it.",
    "policy.generation.min_p": f"{NO_SETS} its own logits by top_p and top_k only. Remove it.",
}
FREE = ("kwargs", "env_vars")  # sections whose keys are another program's
FEW = 8  # keys of a small section
OTHERS = "Your NeMo-RL may have it: --nemo-rl FOLDER, its checkout, judges by that one."


def unknown_keys(
    written: Mapping[Any, Any], base: Mapping[Any, Any], release: Release
) -> list[Finding]:
    """Keys that neither NeMo-RL's example config nor its types have; `+key` is not needed.

    They are errors where the NeMo-RL is the user's, and warnings where it is the shipped one, as a
    newer one may have them, or where another of its configs has them.
    """
    known = _known(written, base, release)
    findings = list[Finding]()
    for path in _unknown(written, base, known, release):
        near = _near(path, known)
        example = _examples(release).get(path)
        severity = "warning"
        if path in EMBEDDED:
            said = EMBEDDED[path]
            severity = "error"
        elif example is not None:
            said = (
                f"NeMo-RL's types lack it, and only configs such as its {example} have it. "
                "Make sure it is read."
            )
        elif release.root is not None:
            said = f"unknown key of NeMo-RL{near}"
            severity = "error"
        else:
            said = f"{release.name} has no such key{near}. {OTHERS}"
        findings.append(UnknownKey(as_names(path), said, severity=severity))
    return findings


@cache
def _examples(release: Release) -> dict[str, str]:
    """The keys of NeMo-RL's own configs, each with one that has it."""
    found: dict[str, str] = {}
    if release.root is None:
        return found
    for name, file in config_files(release.root).items():
        try:
            plain = yaml.load(file.read_bytes(), yaml.CSafeLoader)
        except yaml.YAMLError:  # a template, say
            continue
        for path in _paths(plain):
            found.setdefault(path, name)
    return found


def knows(written: Mapping[Any, Any], base: Mapping[Any, Any], release: Release) -> bool:
    """Whether NeMo-RL has every key; `unknown_keys` also looks for those near the others."""
    return not _unknown(written, base, _known(written, base, release), release)


def _unknown(
    written: Mapping[Any, Any], base: Mapping[Any, Any], known: Set[str], release: Release
) -> list[str]:
    paths = dict.fromkeys(_paths(_closed(written, base, release)))
    found = set()
    for path in paths:
        if path not in known and not _open(path, known):
            found.add(path)
    return [path for path in paths if path in found and path.rpartition(".")[0] not in found]


def _known(written: Mapping[Any, Any], base: Mapping[Any, Any], release: Release) -> set[str]:
    known = {*_paths(base), *UNDECLARED, *release.declared, *OURS, *AMONG}
    known |= _below("env", (*FLAGS, *FOREIGN, *release.environments))
    for section in base:
        known.add(f"{section}._override_")
    for split in SPLITS:
        known |= _below(f"data.{split}", release.data_set_keys)
    for name in release.environments:
        known |= _below(f"env.{name}", _environment(release, name))
    if _vlm(written, base):  # every environment is NeMo-RL's vlm, whatever its name
        for section in sections_of([base.get("env"), written.get("env")]):
            known |= _below("env", section)
            for name in section:
                known |= _below(f"env.{name}", _environment(release, "vlm"))
    return known


def _below(section: str, keys: Iterable[str]) -> set[str]:
    """The paths of a section's keys."""
    return {f"{section}.{key}" for key in keys}


def _vlm(*configs: Mapping[Any, Any]) -> bool:
    return any(is_vlm(config.get("data")) for config in configs)


def _near(path: str, known: Set[str]) -> str:
    """As did_you_mean; in a small section among its own keys alone, which are named if none is."""
    section, _, key = path.rpartition(".")
    parts = [name.rpartition(".") for name in known]
    beside = sorted(last for above, _, last in parts if above == section)
    few = section and 0 < len(beside) <= FEW
    if few:
        return did_you_mean(key, beside)
    return did_you_mean(path, sorted(known))


def _environment(release: Release, name: str) -> list[str]:
    """The keys of an environment's section, also those within its reward functions."""
    keys = list(release.environments.get(name, ()))
    if "reward_functions" in keys:
        keys += _below("reward_functions", REWARD_FUNCTION)
    return keys


def _closed(
    written: Mapping[Any, Any], base: Mapping[Any, Any], release: Release
) -> dict[Any, Any]:
    """Without what is free: data sets, environments and a sampler of one's own classes."""
    closed = {}
    for key, value in written.items():
        if key not in ("data", "env"):
            closed[key] = value
    data = written.get("data")
    if isinstance(data, Mapping):
        closed["data"] = dict(data)
        for split in SPLITS:
            if split in data:
                closed["data"][split] = _of_nemo_rl(data[split], data.get("default"))
    env = written.get("env")
    if isinstance(env, Mapping):
        vlm = _vlm(written, base)
        closed["env"] = {}
        for name, section in env.items():
            own = isinstance(section, Mapping) and name not in release.environments
            # of a VLM run only what is meant as a verifier of ours, which own_rewards refuses
            if not own or (vlm and "verifier" not in section):
                closed["env"][name] = section
    controller = written.get("async_rl")
    named = at(written, "async_rl.sampler.name") or at(base, "async_rl.sampler.name")
    if named == "custom" and isinstance(controller, Mapping):
        closed["async_rl"] = {k: v for k, v in controller.items() if k != "sampler"}
    return closed


def _of_nemo_rl(data_sets: Any, usual: Any) -> Any:
    """A data set, or those of a list, whose class is NeMo-RL's.

    Another's is named by its path (`NuminaMath-1.5` is none).
    """
    if isinstance(data_sets, list):
        return [_of_nemo_rl(one, usual) for one in data_sets]
    names = []
    for section in (usual, data_sets):
        if isinstance(section, Mapping) and section.get("dataset_name"):
            names.append(str(section["dataset_name"]))
    parts = names[-1].split(".") if names else []
    if len(parts) > 1 and all(part.isidentifier() for part in parts):
        return {}
    return data_sets


def _open(path: str, known: Set[str]) -> bool:
    """Below an empty or free-form section anything may stand, such as an optimizer's kwargs."""
    parent = path.rpartition(".")[0]
    named = any(word in parent for word in FREE)
    free = named or not any(k.startswith(parent + ".") for k in known)
    return bool(parent) and free and (parent in known or _open(parent, known))


def _paths(value: Any, prefix: str = "") -> Iterator[str]:
    for section in sections_of(value):
        for key, below in section.items():
            yield f"{prefix}{key}"
            yield from _paths(below, f"{prefix}{key}.")
