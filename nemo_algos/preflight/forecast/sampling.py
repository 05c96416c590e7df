"""Whether a response of the configured kind can come about: its prompt, its end, its variety."""

import os
import re
from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any

from nemo_algos.findings import Finding, at, did_you_mean, sections_of
from nemo_algos.preflight.forecast.planned import InNeMoRL, error, errors, note, small, warning
from nemo_algos.preflight.forecast.rewards import limit
from nemo_algos.preflight.forecast.template import rendered

GENERATION = "policy.generation"
TEMPLATE = "policy.tokenizer.chat_template"
LENGTHS = ("data.max_input_seq_length", "policy.max_total_sequence_length")
PROBLEM = "What is 2 + 3?"
# formats of answers that prompts ask for, and a response of each
FORMS = {"boxed": r"\boxed{7}", "Answer:": "Answer: 7", "<answer>": "<answer>7</answer>"}
THOUGHT = "<think>\nIt is 7.\n</think>\n"
WORKED = "First, 3 + 4 = 7, because 4 is 3 + 1. So we get 7.\n\nThe result follows.\n"
# data sets of NeMo-RL whose rows ask for a format themselves
DATASETS = {"DAPOMath17K": ["Answer:"], "DAPOMathAIME2024": ["Answer:"]}
GAME = "env.sliding_puzzle_game.cfg"
FORMATTING = ("default", "math_hf_data_processor", "math_data_processor", "vlm_hf_data_processor")
SEQUENCES = 256  # that vLLM's engine computes at a time, where nothing else is set
IMAGE = 160  # tokens of a small picture of 480 x 320
SHORTEST = 32  # tokens of a response that says anything, and its answer in a format
CALLED = ("add_generation_prompt", "tokenize", "add_special_tokens", "return_tensors")
CHATS = re.compile(r"(?i)[-_](instruct|chat|thinking|it)\b")  # in a model's name
COMMON = ["enable_thinking", "thinking", "reasoning_effort", "thinking_budget", "builtin_tools"]


def asked(run: InNeMoRL, data: Mapping[str, Any]) -> list[str] | None:
    """The formats that a dataset's prompts ask for; None where a file cannot be read here."""
    files = []
    for key in ("prompt_file", "system_prompt_file"):
        if data.get(key):
            files.append(data[key])
    texts = [prompt_of(run, str(name)) for name in files]
    found = []
    for text in texts:
        for form in FORMS:
            if form in (text or ""):
                found.append(form)
    if None in texts:
        return None
    return DATASETS.get(str(data.get("dataset_name")), []) + found


def prompt_of(run: InNeMoRL, name: str) -> str | None:
    """The text of a file that is here or in the checkout, or that NeMo-RL is known to have."""
    places = (Path(name), (run.nemo_rl.root or Path()) / name)
    here = []
    for file in places:
        if os.path.isfile(file):
            here.append(file.read_text("utf-8", errors="replace"))
    if here:
        return here[0]
    return run.nemo_rl.prompts.get(Path(name).name)


def prompts(run: InNeMoRL) -> Iterator[Finding]:
    """The problem is in its prompt, which is not cut."""
    longest, key = min((run[path] or inf, path) for path in LENGTHS)
    for where, data in run.data_sets:
        name = data.get("prompt_file")
        text = prompt_of(run, str(name)) if name else "{}"
        if text is None or data.get("processor") not in FORMATTING:
            continue
        try:
            made = text.format(PROBLEM)
        except (LookupError, ValueError):  # of other braces
            made = ""
        needed = len(text) // 4 + 48  # tokens of a chat template and of a short problem
        if data.get("processor") == FORMATTING[-1]:
            needed += IMAGE
        cases = (
            (
                error,
                PROBLEM not in made,
                run.written_at(where, "prompt_file"),
                f"NeMo-RL puts the problem in place of {{}}, which {name} does not have once. "
                "Write {} there, and other braces twice, or name it as `system_prompt_file`.",
            ),
            (
                warning,
                run.model is not None and longest < needed and not small(run),
                key,
                f"NeMo-RL cuts prompts of {longest} tokens to 4, and does not train on them. With "
                f"the chat template a short problem has about {needed}. Set e.g. 512.",
            ),
        )
        yield from (say(path, said) for say, wrong, path, said in cases if wrong)


def answers(run: InNeMoRL) -> Iterator[Finding]:
    """A response of the format that is asked for fits the limit, and is not stopped before."""
    forms = {}
    for where, data in run.data_sets:
        for form in asked(run, data) or ():
            forms[form] = where
    math = any(str(data.get("env_name")).startswith("math") for _, data in run.data_sets)
    if limit(run) < SHORTEST and (forms or math):
        yield warning(
            min(f"{GENERATION}.max_new_tokens", LENGTHS[1], key=lambda path: run[path] or inf),
            f"a response and its answer in a format such as {FORMS['boxed']} need {SHORTEST} "
            f"tokens or more, and are cut after {limit(run)}: nearly all would score 0. Raise it.",
        )
    for stop in map(str, run[f"{GENERATION}.stop_strings"] or []):
        wholes = [WORKED + THOUGHT + FORMS[form] for form in forms]
        if any(stop in text and not text.endswith(stop) for text in wholes):
            yield (warning if stop in WORKED + THOUGHT else error)(
                f"{GENERATION}.stop_strings",
                f"{stop!r} ends a response such as {wholes[0][-31:]!r} before its answer. Remove "
                "it.",
            )


def variety(run: InNeMoRL) -> Iterator[Finding]:
    """Responses to a prompt differ, and are sampled as in validation."""
    given = {}
    for key in ("temperature", "top_p", "top_k"):
        given[key] = run[f"{GENERATION}.{key}"]
    heat, top_p, top_k = given.values()
    own = {} if run["env.should_use_nemo_gym"] else run[GENERATION] or {}
    others = []
    for key in given:
        if own.get(f"val_{key}", given[key]) != given[key]:
            others.append(key)
    alike = "all responses to a prompt are the same, so nothing is learned. Set it to"
    cases = (
        (error, heat == 0, "temperature", f"at 0 {alike} 1.0."),
        (error, top_k == 1, "top_k", f"at 1 {alike} null."),
        (
            error,
            top_k not in (None, -1) and top_k < 1,
            "top_k",
            f"must be null, -1 or at least 1, got {top_k}",
        ),
        (warning, 0 < (heat or 0) < 0.1, "temperature", f"at {heat} nearly {alike} 1.0."),
        (warning, (top_p or 1) < 0.1, "top_p", f"at {top_p} nearly {alike} 1.0."),
        (
            note,
            heat not in (None, 0, 1),
            "temperature",
            f"it is {heat}, but the papers train at 1.0, where samples come from the policy "
            "itself. Set it to 1.0 to do the same.",
        ),
        *(
            (
                error,
                True,
                f"val_{key}",
                "only NeMo-Gym supports separate sampling settings for validation. Set it to the "
                f"value of `{key}`.",
            )
            for key in others
        ),
    )
    yield from (say(f"{GENERATION}.{key}", said) for say, wrong, key, said in cases if wrong)


def engine(run: InNeMoRL) -> Iterator[Finding]:
    """The engine has a section, memory for weights and cache, and many responses at a time."""
    share = run[f"{GENERATION}.vllm_cfg.gpu_memory_utilization"] or 0
    given = run[f"{GENERATION}.vllm_kwargs"] or {}
    counts = {key: value for key, value in given.items() if isinstance(value, int)}
    few = counts.get("max_num_seqs")
    tokens = counts.get("max_num_batched_tokens")
    each = run.rollouts // (run["cluster.num_nodes"] * run["cluster.gpus_per_node"])
    lacks = "weights and cache do" if share < 0.1 else "CUDA's own memory does"
    vllm = run[f"{GENERATION}.backend"] == "vllm"
    cases = (
        (
            not 0.1 <= share < 0.97 and vllm,
            "vllm_cfg.gpu_memory_utilization",
            f"at {share:.0%} of a GPU, {lacks} not fit. Set 0.5 to 0.9.",
        ),
        (
            few and each > 64 * few and vllm,
            "vllm_kwargs.max_num_seqs",
            f"an engine generates {each} responses or more, {few} at a time. Set e.g. 256.",
        ),
        (
            vllm and tokens is not None and tokens < (few or SEQUENCES),
            "vllm_kwargs.max_num_batched_tokens",
            f"vLLM refuses fewer than its {few or SEQUENCES} sequences (max_num_seqs). Set e.g. "
            "8192.",
        ),
        (
            vllm
            and run[f"{GENERATION}.stop_strings"]
            and run[f"{GENERATION}.vllm_cfg.skip_tokenizer_init"],
            "vllm_cfg.skip_tokenizer_init",
            "stop strings are found in the text, which vLLM's tokenizer makes. Set it to false.",
        ),
        (
            vllm
            and run[f"{GENERATION}.bad_words"]
            and not run[f"{GENERATION}.stop_strings"]
            and run[f"{GENERATION}.vllm_cfg.skip_tokenizer_init"] is not False,
            "bad_words",
            "vLLM finds their tokens by its tokenizer, which NeMo-RL leaves out without stop "
            "strings: they are ignored. Set `vllm_cfg.skip_tokenizer_init: false`.",
        ),
        (
            run[f"{GENERATION}.backend"] == "sglang" and not run[f"{GENERATION}.sglang_cfg"],
            "backend",
            "SGLang needs `policy.generation.sglang_cfg`, which is not set. Take it from NeMo-RL's "
            "grpo_math_1B_sglang.yaml.",
        ),
    )
    yield from (warning(f"{GENERATION}.{key}", said) for bad, key, said in cases if bad)


def games(run: InNeMoRL) -> Iterator[Finding]:
    """A rollout has as many turns as a puzzle needs moves."""
    shuffled = run[f"{GAME}.game_config.shuffle_moves"] or 0
    turns = run["grpo.max_rollout_turns"] or inf
    moves = min(run[f"{GAME}.max_moves"] or inf, turns)
    if moves < shuffled:
        yield warning(
            "grpo.max_rollout_turns" if moves == turns else f"{GAME}.max_moves",
            f"a rollout ends after {moves} moves, but boards are shuffled by up to {shuffled}: "
            f"many cannot be solved. Raise it, or lower `{GAME}.game_config.shuffle_moves`.",
        )


def template(run: InNeMoRL) -> Iterator[Finding]:
    """A prompt by the chat template has the problem, and the template reads what it is given."""
    wrote = sections_of(at(run.written, "policy.tokenizer"))
    if wrote and wrote[0].get("chat_template", "") is None:
        say = warning if CHATS.search(str(run["policy.model_name"])) else note
        if say is warning or run.own_template:
            yield say(
                TEMPLATE,
                "null is not the default template: NeMo-RL then gives the model the bare text, "
                "without roles or the start of its turn. Set it to default.",
            )
        return
    text = run[TEMPLATE] or "default"
    text = prompt_of(run, text) or "default" if text.endswith(".jinja") else text
    own = text.lower() == "default"
    text = run.own_template if own else text
    names = COMMON
    if text:
        names, made = _read(run, text)
        key = TEMPLATE
        systems = [path for path, data in run.data_sets if data.get("system_prompt_file")]
        if made and systems and not _read(run, text, system=False)[1]:
            key = run.written_at(systems[0], "system_prompt_file")
        whose = "the chat template of the model" if own else "it"
        yield from errors((made, key, f"prompts by {whose} are not the bare problem: {made}."))
    for key in run[f"{TEMPLATE}_kwargs"] or {}:
        near = did_you_mean(key, names, 0.8) if key not in CALLED else ": NeMo-RL gives it itself"
        if key in CALLED or (key not in names and (names is not COMMON or "did you" in near)):
            yield warning(f"{TEMPLATE}_kwargs.{key}", f"it has no effect on the template{near}.")


def _read(run: InNeMoRL, text: str, system: bool = True) -> tuple[list[str], str]:
    """What a template reads, and what is wrong with a prompt by it, rendered as transformers do.

    system: with the system prompt that a data set of the run has.
    """
    pictured = any(data.get("processor") == FORMATTING[-1] for _, data in run.data_sets)
    content = [{"type": "text", "text": PROBLEM}] if pictured else PROBLEM
    messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
    if system and any(data.get("system_prompt_file") for _, data in run.data_sets):
        messages.insert(0, {"role": "system", "content": "Be brief."})
    asking = {"messages": messages, "add_generation_prompt": True}
    text = re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", text)  # transformers' own tag
    found = rendered(text, {**(run[f"{TEMPLATE}_kwargs"] or {}), **asking})
    if "failure" in found:
        return COMMON, f"{found['failure'].rstrip('.')}. Correct or remove it"
    said = "print each message's `content`, or set it to default"
    right = PROBLEM in found["made"] and "'role'" not in found["made"]
    return found["names"], "" if right else said
