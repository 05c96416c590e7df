"""Mistakes that `nemo-algos check` passes, planted one by one: `check --data` names each."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkout
import pytest
from doc_commands import ROOT, write_files
from omegaconf import OmegaConf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from nemo_algos.config import apply_overrides, read
from nemo_algos.preflight.check.data import program, verdict
from nemo_algos.preflight.check.data.verdict import Verdict
from nemo_algos.preflight.check.judge import judge

HERE = Path(__file__).parent  # of planted_rewards.py, which the verifiers' processes import
ROWS, LATE = 80, 77  # rows of training; the one with a mistake
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<pad>", "<|im_start|>", "<|im_end|>", "<s>"]
PROMPT = "Put the answer into \\boxed{{}}.\n{}"
Row = dict[str, Any]


class Run:
    """A small run in a folder: its rows, its prompt, its tokenizer and its config."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[Row] = [
            sum_of(37 * i % ROWS) for i in range(ROWS)
        ]  # no ids, which only increase
        self.validation: list[Row] = [sum_of(i) for i in range(200, 216)]
        self.prompt, self.system, self.template = PROMPT, "", CHAT
        self.special: dict[str, Any] = {"pad_token": "<pad>", "eos_token": "<|im_end|>"}
        self.own: list[str] = []

    def config(self) -> Any:
        """As the user wrote it, its files written."""
        for name, rows in (("train", self.rows), ("validation", self.validation)):
            lines = [json.dumps(row) + "\n" for row in rows]
            (self.folder / f"{name}.jsonl").write_text("".join(lines))
        for name in ("prompt", "system"):
            (self.folder / f"{name}.txt").write_text(getattr(self, name))
        made = tokenizer(**self.special)
        made.chat_template = self.template
        made.save_pretrained(self.folder / "reader")
        plain: Any = OmegaConf.load(HERE / "check_data.yaml")
        paths = OmegaConf.from_dotlist(
            [
                f"data.train.data_path={self.folder}/train.jsonl",
                f"data.validation.data_path={self.folder}/validation.jsonl",
                f"data.default.prompt_file={self.folder}/prompt.txt",
                f"policy.tokenizer.name={self.folder}/reader",
            ]
        )
        if self.system:
            plain.data.default.system_prompt_file = f"{self.folder}/system.txt"
        return OmegaConf.merge(plain, paths, OmegaConf.from_dotlist(self.own))


def sum_of(number: int) -> Row:
    return {"problem": f"What is {number} + {2 * number}?", "answer": str(3 * number)}


def tokenizer(**special: Any) -> PreTrainedTokenizerFast:
    """A token for each byte."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *letters])}
    bytes_of_text = Tokenizer(models.BPE(vocabulary, []))
    bytes_of_text.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_of_text.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=bytes_of_text, additional_special_tokens=SPECIAL, **special
    )


def found(run: Run, ref: str, only: tuple[str, ...] = ("tokenizer", "data")) -> list[Verdict]:
    """The verdicts of a run in which check finds no error."""
    judged, findings = judge(run.config(), checkout.release())
    assert not [f for f in findings if f.severity == "error"], findings
    (run.folder / "config.json").write_text(json.dumps(judged.plain, default=str))
    program.main(run.folder, only)
    return verdict.read(run.folder)


def said(verdicts: list[Verdict]) -> str:
    return "\n".join(f"{v.stage} {v.outcome} [{v.key}] {v.message}" for v in verdicts)


Mistake = Callable[[Run], None]


def of(**values: Any) -> Mistake:
    """The run with these attributes."""
    return lambda run: run.__dict__.update(values)


def with_key(override: str) -> Mistake:
    """The run with this key of its config."""
    return of(own=[override])


def late(**values: Any) -> Mistake:
    """One row with other values."""
    return lambda run: run.rows[LATE - 1].update(values)


def conversations(roles: str) -> Mistake:
    """All rows as messages, of these roles in the late one."""

    def change(run: Run) -> None:
        kinds = [["user", "assistant"]] * ROWS
        kinds[LATE - 1] = roles.split()
        texts = [[row["problem"], row["answer"], "?"] for row in run.rows]
        run.rows = [
            {"messages": [{"role": r, "content": t} for r, t in zip(k, ts, strict=False)]}
            for k, ts in zip(kinds, texts, strict=True)
        ]

    return change


def numbers(run: Run) -> None:
    run.rows = [{**row, "answer": int(row["answer"])} for row in run.rows]


def solutions(run: Run) -> None:
    for row in run.rows:
        row["answer"] = f"{row['problem']} We add, and we add again.\n#### {row['answer']}"


def leak(run: Run) -> None:
    run.validation[3:5] = run.rows[10:12]


WORDY = {"problem": "What is 1 + 2? " + "Think. " * 60, "answer": "3"}
LONG: list[Row] = [sum_of(i) for i in range(ROWS - 8)] + [WORDY] * 8
ODD = CHAT.replace("{% for m", "<s><s>{% for m")
MUTE = CHAT.partition("{% if add_gen")[0]
DEAF = CHAT.replace(
    "<|im_start|>{{ m['role'] }}\n",
    "{% if m['role'] != 'system' %}<|im_start|>{{ m['role'] }}\n",
    1,
).replace("{% endfor %}", "{% endif %}{% endfor %}", 1)
ENDLESS = CHAT.replace("<|im_end|>\n{% endfor %}", "\n{% endfor %}")
THINKING = "Box it. <think> </think>\n{}"
THOUGHTLESS = CHAT.replace("m['content']", "m['content'].split('</think>')[-1]")
BOS = {"pad_token": "<pad>", "eos_token": "<|im_end|>", "bos_token": "<s>"}
TEMPLATE, READER = "policy.tokenizer.chat_template", "policy.tokenizer.name"
STOPS, PROMPT_FILE = "policy.generation.stop_token_ids", "data.default.prompt_file"
FILE, ABSENT = "data.train.data_path", "data.train={dataset_name: OpenMathInstruct-2}"
# what is planted: how, the outcome and the stage, the key, a word of the message
PLANTED: dict[str, tuple[Mistake, str, str, str]] = {
    "numbers for answers": (numbers, "failed data", "data.train", "row 1 "),
    "no assistant": (conversations("user"), "failed data", "data.train", "row 77"),
    "system first": (conversations("system user assistant"), "failed data", "data.train", "row 77"),
    "an empty problem": (late(problem="  "), "failed data", "data.train", "row 77"),
    "validation rows in training": (leak, "failed data", "data.validation", "rows 4, 5"),
    "long prompts": (of(rows=LONG), "failed data", "data.max_input_seq_length", "rows 73"),
    "no generation prompt": (of(template=MUTE), "failed tokenizer", TEMPLATE, "generation"),
    "no template": (of(template=None), "failed tokenizer", TEMPLATE, "template"),
    "system dropped": (of(template=DEAF, system="Count."), "failed data", TEMPLATE, "system"),
    "thoughts dropped": (of(template=THOUGHTLESS, prompt=THINKING), "failed data", TEMPLATE, "Box"),
    "two BOS": (of(template=ODD, special=BOS), "failed tokenizer", TEMPLATE, "twice"),
    "no end of a turn": (of(template=ENDLESS), "warning tokenizer", TEMPLATE, "stop"),
    "no pad": (of(special={"eos_token": "<|im_end|>"}), "passed tokenizer", READER, "eos"),
    "neither pad nor eos": (of(special={}), "failed tokenizer", READER, "neither"),
    "{} in the box": (of(prompt="Into \\boxed{}."), "failed data", PROMPT_FILE, "boxed{}"),
    "a stop id outside": (with_key(f"{STOPS}=[2,260]"), "failed tokenizer", STOPS, "260"),
    "another stop": (with_key(f"{STOPS}=[0]"), "warning tokenizer", STOPS, "<|im_end|>"),
    "no such file": (with_key(f"{FILE}=none.jsonl"), "unchecked data", "data.train", "64 sums"),
    "no such prompt file": (with_key(f"{PROMPT_FILE}=x.txt"), "failed data", "data.train", "x.txt"),
    "not in the cache": (with_key(ABSENT), "unchecked data", "data.train", "HF_HOME"),
    "no such tokenizer": (with_key(f"{READER}=no/one"), "unchecked tokenizer", READER, "no/one"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_named(name: str, tmp_path: Path, ref: str) -> None:
    change, outcome_and_stage, key, word = PLANTED[name]
    run = Run(tmp_path)
    change(run)
    verdicts = found(run, ref)
    of_key = [v for v in verdicts if v.key == key]
    named = [v for v in of_key if f"{v.outcome} {v.stage}" == outcome_and_stage]
    assert any(word in v.message for v in named), said(verdicts)


def halves(run: Run) -> None:
    """Answers as fractions, in a fifth of the rows."""
    for row in run.rows[::5]:
        row["answer"] += "/2"


def none(_: Run) -> None:
    """The mistake is the reward function's."""


# the function, what else is planted, a word of the message (all: tests/preflight/check/data)
REWARDS: dict[str, tuple[str, Mistake, str]] = {
    "another format": ("tags", none, "it pays <answer>"),
    "None": ("nothing", none, "returned None"),
    "raises": ("raises", none, "ZeroDivisionError"),
    "gold answers it cannot read": ("numbers", halves, "ValueError: invalid"),
    "solutions for answers": ("right", solutions, "does not pay the gold answer"),
}


@pytest.mark.parametrize("name", REWARDS)
def test_a_planted_reward_is_named(name: str, tmp_path: Path, ref: str) -> None:
    function, change, word = REWARDS[name]
    run = Run(tmp_path)
    change(run)
    run.own = [f"env.judged.verifier=planted_rewards:{function}"]
    verdicts = [v for v in found(run, ref, program.STAGES) if v.stage == "rewards"]
    named = [v for v in verdicts if (v.outcome, v.key) == ("failed", "env.judged")]
    assert any(word in v.message for v in named), said(verdicts)


def test_the_files_that_people_copy_pass(
    tmp_path: Path, ref: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/scale.md's config and reward as written, with rows as it asks for.

    tests/test_own_configs.py has what `check` says of the config.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    write_files(ROOT / "docs/scale.md", tmp_path)
    run = Run(tmp_path)
    run.rows = [sum_of(37 * i % 800) for i in range(800)]
    run.validation = [sum_of(i) for i in range(900, 1000)]
    run.config()
    reader = f"policy.tokenizer.name={tmp_path}/reader"  # the model's own is on the hub
    written = apply_overrides(read(Path("mine.yaml")), [reader])
    judged, _ = judge(written, checkout.release())
    (tmp_path / "config.json").write_text(json.dumps(judged.plain, default=str))
    program.main(tmp_path)
    verdicts = verdict.read(tmp_path)
    assert {v.outcome for v in verdicts} == {"passed"}, said(verdicts)


@pytest.mark.smoke
def test_a_sound_run_passes(tmp_path: Path, ref: str) -> None:
    verdicts = found(Run(tmp_path), ref, program.STAGES)
    assert {v.outcome for v in verdicts} == {"passed"}, said(verdicts)
    assert {v.stage for v in verdicts} == {*program.STAGES}
    seen = json.loads((tmp_path / "rows.json").read_text())
    first = "<|im_start|>user\nPut the answer into \\boxed{}.\nWhat is 0 + 0?<|im_end|>\n"
    assert seen["train"]["first_prompt"] == first + "<|im_start|>assistant\n"
    assert seen["train"]["rows"] == ROWS
    assert next(iter(seen["forms"].values())).endswith("\\boxed{{answer}}$.")
