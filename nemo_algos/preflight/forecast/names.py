"""Names that NeMo-RL and its libraries look up on the booked nodes, and rows that fit them."""

from collections.abc import Iterator, Mapping
from typing import Any

from nemo_algos.findings import Finding, at, did_you_mean, sections_of
from nemo_algos.preflight.forecast.planned import InNeMoRL, error, errors, warning

OF_PARTS = "env.math_multi_reward."
ONLY_OF_PARTS = ("math", "hf_math_verify")  # what that environment knows of the others' names
NEEDED = ("verifier_type", "math_verify_impl")  # where null stands for no default
FUNCTIONS = "reward_functions"
OWN_ROWS = ("ResponseDataset", "general-conversation-jsonl", "openai_format", "arrow_text")
PICTURED = {"image", "audio", "video"}
HELD_OUT = "split_validation_size"
CHOOSING = ("split", "subset", HELD_OUT)  # keys that choose rows of a data set


def names(run: InNeMoRL) -> Iterator[Finding]:
    """A name is in the table of the code that looks it up."""
    for owner, tables in run.nemo_rl.names.items():
        say = error if owner == "NeMo-RL" and run.nemo_rl.root else warning
        for key, table in tables.items():
            for path, name in _looked_up(run, key):
                known = []
                for n in table:
                    if n in ONLY_OF_PARTS or not path.startswith(OF_PARTS):
                        known.append(n)
                if known and name not in known and str(name).lower() not in known:
                    near = did_you_mean(str(name), known)
                    yield say(path, f"{owner} knows no such name: {name or 'null'}{near}.")


def _looked_up(run: InNeMoRL, key: str) -> Iterator[tuple[str, Any]]:
    """The paths and names of a table's key that the run looks up."""
    unread = {
        "policy.megatron_cfg.": not run.megatron,
        "policy.generation.vllm": run["policy.generation.backend"] != "vllm",
        "policy.sequence_packing.": not run["policy.sequence_packing.enabled"],
        "checkpointing.": run.megatron or not run["checkpointing.enabled"],
    }
    if any(off and key.startswith(section) for section, off in unread.items()):
        return
    if "." in key:
        written = run[key]
        for name in written if isinstance(written, list) else [written]:
            if name is not None:
                yield key, name
    for path, data in run.data_sets:
        name = str(data.get(key, "."))  # with a dot a class of one's own
        if key == "processor" or "." not in name or name in run.nemo_rl.fields:
            yield run.written_at(path, key), data.get(key)
    for path, section in _environments(run):
        if key == FUNCTIONS:
            for function in _functions(section):
                yield f"{path}.{key}", function.get("name")
        if key in NEEDED and key in section:
            yield f"{path}.{key}", section[key]


def _environments(run: InNeMoRL) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, section in (run["env"] or {}).items():
        if isinstance(section, Mapping):
            yield f"env.{name}", section


def _functions(section: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    given = section.get(FUNCTIONS)
    if isinstance(given, list):
        return sections_of(given)
    return []


def weights(run: InNeMoRL) -> Iterator[Finding]:
    """No reward function of a mixture punishes what it finds right."""
    for path, section in _environments(run):
        given = [one.get("weight") or 0 for one in _functions(section)]
        said = (
            f"NeMo-RL divides the weights by their sum ({sum(given):g}), and what has a negative "
            "share pays for what is wrong. Set all to 0 or more, and one above."
        )
        wrong = FUNCTIONS in section and min([*given, sum(given) or -1]) < 0
        right = [(one.get("weight") or 0) * _of_the_answer(one) for one in _functions(section)]
        formal = (
            "a right answer earns no more than a wrong one in the same format: the functions "
            "reward the format alone. Add one of the answer, or lower its format_score."
        )
        yield from errors(
            (wrong, f"{path}.{FUNCTIONS}", said),
            (not wrong and right and sum(right) <= 0, f"{path}.{FUNCTIONS}", formal),
        )


def _of_the_answer(function: Mapping[str, Any]) -> float:
    """The share of a reward function of NeMo-RL's that the answer decides, and not the format."""
    if function.get("name") == "format":
        return 0.0
    return 1 - ((function.get("kwargs") or {}).get("format_score") or 0)


def processors(run: InNeMoRL) -> Iterator[Finding]:
    """A data set's rows have what its processor reads, which gives what they are graded by."""
    for path, data in run.data_sets:
        name, processor = data.get("dataset_name"), str(data.get("processor"))
        columns = set(run.nemo_rl.fields.get(f"data set {name}", ()))
        reads = set(run.nemo_rl.fields.get(f"processor {processor}", ()))
        pictured = bool(PICTURED & columns)
        if "messages" not in columns or not reads or "gym" in processor:
            continue
        said = f"rows of {name} are of {'images or sounds' if pictured else 'text'}"
        if "messages" not in reads:
            said = f"rows of {name} have no {' or '.join(sorted(reads - columns))}"
        if "ground_truth" not in reads:
            said = "it gives no answer to compare with"
        wrong = pictured != ("image" in reads) and name not in OWN_ROWS
        usual = f"{'vlm' if pictured else 'math'}_hf_data_processor"
        if wrong or not {"messages", "ground_truth"} <= reads:
            yield error(
                run.written_at(path, "processor"),
                f"{processor} does not fit: {said}. Set it to {usual}.",
            )


def ignores(run: InNeMoRL, data: Mapping[str, Any], key: str) -> bool:
    """Whether a data set is known to take no notice of a key."""
    return key not in run.nemo_rl.fields.get(f"arguments of {data.get('dataset_name')}", [key])


def splits(run: InNeMoRL) -> Iterator[Finding]:
    """A data set has the split that is named, and takes the keys that choose its rows."""
    for path, data in run.data_sets:
        name, split = data.get("dataset_name"), data.get("split")
        known = run.nemo_rl.fields.get(f"splits of {name}") or [split]
        wrong = split not in (None, *known)
        said = f"{name} has no split {split}. Name one of {', '.join(map(str, known))}."
        yield from errors((wrong, run.written_at(path, "split"), said))
        for key in CHOOSING:
            where = run.written_at(path, key)
            if at(run.written, where) and ignores(run, data, key):
                said = f"{name} does not take it, and gives all of its rows. Remove it."
                yield warning(where, said)
