"""Whether a response of the configured kind can come about: its prompt, its end, its variety."""

import json
import re
from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from nemo_algos.config import Finding, did_you_mean
from nemo_algos.preflight.forecast.planned import Planned, error, note, warning
from nemo_algos.preflight.forecast.rewards import limit

GENERATION = "policy.generation"
SHARE = f"{GENERATION}.vllm_cfg.gpu_memory_utilization"
AT_A_TIME = f"{GENERATION}.vllm_kwargs.max_num_seqs"
STOPS = f"{GENERATION}.stop_strings"
TEMPLATE = "policy.tokenizer.chat_template"
PROBLEM = "What is 2 + 3?"
# formats of answers that prompts ask for, and a response of each
FORMS = {"boxed": r"\boxed{7}", "Answer:": "Answer: 7", "<answer>": "<answer>7</answer>"}
WORKED = "First, 3 + 4 = 7, because 4 is 3 + 1. So we get 7.\n\nThe result follows.\n"
# data sets of NeMo-RL whose rows ask for a format themselves
DATASETS = {"DAPOMath17K": "Answer:", "DAPOMathAIME2024": "Answer:"}
FORMATTING = ("default", "math_hf_data_processor", "math_data_processor", "vlm_hf_data_processor")
SHORTEST = 32  # tokens of a response that says anything, and its answer in a format
OVERHEAD = 48  # tokens of a chat template and of a short problem
LETTERS = 4  # of a token
ROUNDS = 64  # of responses one after another
CALLED = ("add_generation_prompt", "tokenize", "add_special_tokens", "return_tensors")
COMMON = ("enable_thinking", "thinking", "reasoning_effort", "thinking_budget", "builtin_tools")


def asked(run: Planned, data: Mapping[str, Any]) -> list[str] | None:
    """The formats that a dataset's prompts ask for; None where a file cannot be read here."""
    found = [DATASETS[data["dataset_name"]]] if data.get("dataset_name") in DATASETS else []
    for name in filter(None, (data.get(k) for k in ("prompt_file", "system_prompt_file"))):
        text = prompt_of(run, str(name))
        if text is None:
            return None
        found += [form for form in FORMS if form in text]
    return found


def prompt_of(run: Planned, name: str) -> str | None:
    """The text of a file that is here or in the checkout, or that NeMo-RL is known to have."""
    for file in (Path(name), (run.nemo_rl.root or Path()) / name):
        if file.is_file():
            return file.read_text(encoding="utf-8", errors="replace")
    return run.nemo_rl.prompts.get(Path(name).name)


def prompts(run: Planned) -> Iterator[Finding]:
    """The problem is in its prompt, which is not cut."""
    longest, key = min(
        (run[path] or inf, path)
        for path in ("data.max_input_seq_length", "policy.max_total_sequence_length")
    )
    for where, data in run.data_sets:
        text = prompt_of(run, str(data["prompt_file"])) if data.get("prompt_file") else "{}"
        path = run.written_at(where, "prompt_file")
        if text is None or data.get("processor") not in FORMATTING:
            continue
        try:
            made = text.format(PROBLEM)
        except (LookupError, ValueError):
            yield error(path, "its braces are not Python's: write {} once, and other ones twice.")
            continue
        if PROBLEM not in made:
            yield error(
                path,
                f"{data['prompt_file']} has no {{}}, where NeMo-RL puts the problem: every prompt "
                "would be the same. Add {}, or name it as `system_prompt_file`.",
            )
        needed = len(text) // LETTERS + OVERHEAD
        if longest < needed:
            yield warning(
                key,
                f"NeMo-RL cuts prompts of {longest} tokens to 4, and does not train on them. With "
                f"the chat template a short problem has about {needed}. Set e.g. 512.",
            )


def answers(run: Planned) -> Iterator[Finding]:
    """A response of the format that is asked for fits the limit, and is not stopped before."""
    forms = {form for _, data in run.data_sets for form in asked(run, data) or ()}
    math = any(str(data.get("env_name")).startswith("math") for _, data in run.data_sets)
    if limit(run) < SHORTEST and (forms or math):
        keys = (f"{GENERATION}.max_new_tokens", "policy.max_total_sequence_length")
        yield warning(
            min(keys, key=lambda path: run[path] or inf),
            f"responses are cut after {limit(run)} tokens, and one with an answer in a format "
            f"such as {FORMS['boxed']} needs {SHORTEST} or more: nearly all would score 0. Raise "
            "it.",
        )
    for stop in run[STOPS] or []:
        for form in sorted(forms):
            whole = WORKED + FORMS[form]
            cut = whole.find(str(stop)) + len(str(stop))
            if str(stop) not in whole or cut == len(whole):
                continue
            early = str(stop) in WORKED
            say = warning if early else error
            what = "mostly before its answer" if early else f"within {FORMS[form]}, before it ends"
            yield say(STOPS, f"{stop!r} ends a response {what}. Remove it.")
            break


def variety(run: Planned) -> Iterator[Finding]:
    """Responses to a prompt differ, and are sampled as in validation."""
    heat, top_k, top_p = (run[f"{GENERATION}.{key}"] for key in ("temperature", "top_k", "top_p"))
    if top_k is not None and top_k != -1 and top_k < 1:
        yield error(f"{GENERATION}.top_k", f"must be null, -1 or at least 1, got {top_k}")
    alike = "all responses to a prompt are the same, so nothing is learned. Set it to"
    if top_k == 1:
        yield error(f"{GENERATION}.top_k", f"at 1 {alike} null.")
    if heat == 0:
        yield error(f"{GENERATION}.temperature", f"at 0 {alike} 1.0.")
    for key, value in {"temperature": heat or None, "top_p": top_p}.items():
        if value is not None and value < 0.1:
            yield warning(f"{GENERATION}.{key}", f"at {value:g} nearly {alike} 1.0.")
    for key in ("temperature", "top_p", "top_k"):
        path = f"{GENERATION}.val_{key}"
        named = f"val_{key}" in (run[GENERATION] or {}) and not run["env.should_use_nemo_gym"]
        if named and run[path] != run[f"{GENERATION}.{key}"]:
            yield error(
                path,
                "only NeMo-Gym supports separate sampling settings for validation. Set it to the "
                f"value of `{key}`.",
            )
    if heat not in (None, 0, 1):
        yield note(
            f"{GENERATION}.temperature",
            f"it is {heat:g}, but the papers train at 1.0, where samples come from the "
            "policy itself. Set it to 1.0 to do the same.",
        )


def engine(run: Planned) -> Iterator[Finding]:
    """vLLM has memory for weights and cache, and generates many responses at a time."""
    if run[f"{GENERATION}.backend"] != "vllm":
        return
    share, few = run[SHARE], run[AT_A_TIME]
    if share is not None and not 0.1 <= share < 0.97:
        least = "weights and cache do not fit" if share < 0.1 else "CUDA's own memory does not fit"
        yield warning(SHARE, f"of {share:.0%} of a GPU, {least}. Set 0.5 to 0.9.")
    a = run.layout
    engines = max(1, a.generation_gpus // (a.generation_tensor * a.generation_pipeline))
    if few and run.rollouts / engines / few > ROUNDS:
        yield warning(
            AT_A_TIME,
            f"each engine generates {run.rollouts // engines} responses a step, {few} at a time. "
            "Set e.g. 256.",
        )


def template(run: Planned) -> Iterator[Finding]:
    """A prompt by the chat template has the problem, and the template reads what it is given."""
    text = _template(run)
    given = run["policy.tokenizer.chat_template_kwargs"] or {}
    names = [*COMMON]
    if text is not None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals |= {"raise_exception": _refuse, "strftime_now": str}
        text = re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", text)  # transformers' own tag
        pictured = any(data.get("processor") == FORMATTING[-1] for _, data in run.data_sets)
        content = [{"type": "text", "text": PROBLEM}] if pictured else PROBLEM
        asking = [{"role": "user", "content": content}]
        try:
            names = sorted(meta.find_undeclared_variables(environment.parse(text)))
            made = environment.from_string(text).render(
                {**given, "messages": asking, "add_generation_prompt": True}
            )
        except (TemplateError, TypeError, LookupError, ValueError) as problem:
            line = f" in line {problem.lineno}" if isinstance(problem, TemplateSyntaxError) else ""
            yield error(TEMPLATE, f"it fails{line}: {problem}. Correct it.")
            return
        if PROBLEM not in made:
            yield error(
                TEMPLATE,
                "a prompt by it does not have the problem: messages have `role` and `content`. "
                "Set it to default, or to a Jinja template that prints the content.",
            )
    for key in given:
        path = f"{TEMPLATE}_kwargs.{key}"
        near = did_you_mean(key, names, 0.8)
        if key in CALLED:
            yield warning(path, "no effect: NeMo-RL gives the template this itself. Remove it.")
        elif key not in names and (text is not None or "did you mean" in near):
            yield warning(path, f"the template does not read it{near}. Correct the name.")


def _refuse(message: str) -> None:
    raise ValueError(message)


def _template(run: Planned) -> str | None:
    """The text of the chat template; None where it is the tokenizer's, and that is not here."""
    written = (run["policy.tokenizer"] or {}).get(TEMPLATE.rpartition(".")[2], "default")
    if not isinstance(written, str) or written.lower() != "default":
        jinja = isinstance(written, str) and written.endswith(".jinja")
        return prompt_of(run, written) if jinja else written
    folder = Path(str(run["policy.tokenizer.name"]))
    try:
        kept = json.loads((folder / "tokenizer_config.json").read_text()).get("chat_template")
    except (OSError, ValueError, AttributeError):
        kept = None
    found = prompt_of(run, str(folder / "chat_template.jinja")) or kept
    return found if isinstance(found, str) else None
