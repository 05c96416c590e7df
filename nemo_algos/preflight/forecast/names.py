"""Names that NeMo-RL and its libraries look up on the booked nodes, and rows that fit them."""

from collections.abc import Iterator, Mapping
from typing import Any

from nemo_algos.config import Finding, did_you_mean
from nemo_algos.preflight.forecast.planned import Planned, error, warning

OF_DATA = ("dataset_name", "processor")  # keys of a data set's section
OF_PARTS = "math_multi_reward"
ONLY_OF_PARTS = ("math", "hf_math_verify")  # what that environment knows of the others' names
NEEDED = ("verifier_type", "math_verify_impl")  # where null stands for no default
FUNCTIONS = "reward_functions"
SAVED = "checkpointing.model_save_format"
PACKING = "policy.sequence_packing"
OWN_ROWS = ("ResponseDataset", "general-conversation-jsonl", "openai_format", "arrow_text")
PICTURED = {"image", "audio", "video"}
SMALL = {"AIME2024": 30, "AIME2025": 30, "AIME2026": 30}  # rows of data sets
GYM = "nemo_gym_data_processor"


def names(run: Planned) -> Iterator[Finding]:
    """A name is in the table of the code that looks it up."""
    for kind, library in run.nemo_rl.libraries.items():
        own = kind == "NeMo-RL"
        runs = run.nemo_rl.root is not None if own else library.installed
        for key, known in library.names.items():
            for path, name in _written(run, key):
                if name in known or str(name).lower() in known:
                    continue
                usable = [one for one in known if OF_PARTS not in path or one in ONLY_OF_PARTS]
                near = did_you_mean(str(name), usable)
                say = error if runs else warning
                what = "text" if name is None else "value"
                yield say(path, f"{library.name} knows no such {what}: {name}{near}.")


def _written(run: Planned, key: str) -> Iterator[tuple[str, Any]]:
    """The paths and names of a table's key that the run looks up."""
    if key in OF_DATA:
        for path, data in run.data_sets:
            dotted = key == "dataset_name" and "." in str(data.get(key))  # a class of one's own
            if data.get(key) is not None and not dotted:
                yield run.written_at(path, key), data[key]
    elif "." in key:
        found = run[key] if _read(run, key) else None
        for name in found if isinstance(found, list) else [found]:
            if name is not None:
                yield key, name
    else:
        for name, section in (run["env"] or {}).items():
            if not isinstance(section, Mapping) or key not in section:
                continue
            path = f"env.{name}.{key}"
            if key == FUNCTIONS:
                yield from ((path, one["name"]) for one in _functions(section))
            elif section[key] is not None or key in NEEDED:
                yield path, section[key]


def _functions(section: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = section[FUNCTIONS] if isinstance(section[FUNCTIONS], list) else []
    return [one for one in found if isinstance(one, Mapping) and "name" in one]


def _read(run: Planned, key: str) -> bool:
    """Whether the run's backends read a key."""
    if key.startswith("policy.megatron_cfg."):
        return run.megatron
    if key.startswith("policy.generation.vllm"):
        return run["policy.generation.backend"] == "vllm"
    if key.startswith(PACKING):
        return bool(run[f"{PACKING}.enabled"])
    return key != SAVED or bool(run["checkpointing.enabled"] and not run.megatron)


def processors(run: Planned) -> Iterator[Finding]:
    """A processor finds in a data set's rows what it reads, and gives what is compared with."""
    for path, data in run.data_sets:
        name, processor = data.get("dataset_name"), data.get("processor")
        columns = set(run.nemo_rl.fields.get(f"data set {name}", ()))
        reads = set(run.nemo_rl.fields.get(f"processor {processor}", ()))
        if "messages" not in columns or not reads or processor == GYM:
            continue
        said = ""
        lacking = sorted(reads - columns - {"ground_truth"})
        if "messages" not in reads and lacking:
            said = f"{processor} reads {' and '.join(lacking)}, which rows of {name} do not have"
        elif "ground_truth" not in reads:
            said = f"{processor} gives no answer that an environment could compare with"
        elif name not in OWN_ROWS and bool(PICTURED & columns) != ("image" in reads):
            rows = "images, sounds or videos" if PICTURED & columns else "text alone"
            said = f"rows of {name} are of {rows}, and {processor} is not for these"
        if said:
            cure = "vlm_hf_data_processor" if PICTURED & columns else "math_hf_data_processor"
            yield error(run.written_at(path, "processor"), f"{said}. Set it to {cure}.")


def enough_problems(run: Planned) -> Iterator[Finding]:
    """A small data set of NeMo-RL's fills a step."""
    prompts = run["grpo.num_prompts_per_step"]
    trained = [data for path, data in run.data_sets if path == "data.train"]
    for data in trained if len(trained) == 1 else ():
        rows = SMALL.get(str(data.get("dataset_name")), prompts or 0) * (data.get("repeat") or 1)
        if rows < (prompts or 0):
            yield error(
                run.written_at("data.train", "dataset_name"),
                f"it has {rows} problems, and a step takes {prompts}: no step is made. Name "
                "another, or lower `grpo.num_prompts_per_step`.",
            )


def weights(run: Planned) -> Iterator[Finding]:
    """No reward function of a mixture punishes what it finds right."""
    for name, section in (run["env"] or {}).items():
        if not isinstance(section, Mapping) or FUNCTIONS not in section:
            continue
        given = [one.get("weight") or 0 for one in _functions(section)]
        if given and (min(given) < 0 or sum(given) <= 0):
            yield error(
                f"env.{name}.{FUNCTIONS}",
                f"NeMo-RL divides the weights by their sum ({sum(given):g}), and a function whose "
                "share is negative pays for what is wrong. Set every weight to 0 or more, one "
                "above.",
            )
