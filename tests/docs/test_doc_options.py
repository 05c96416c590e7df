"""What the docs' commands name exists: programs, options, configs and their keys.

Also of commands that `make test-docs` cannot run, and of those within a sentence or a table.
"""

import re
import runpy
import shlex
from functools import cache, partial
from string import Template

import pytest
import typer
from doc_commands import FENCE, ROOT, blocks, pages, runs, write_files

from nemo_algos.cli import load_command
from nemo_algos.config import find, load
from nemo_algos.lab.evals.schema import parse_config

END = {";", "&&", "||", "|", "&", ">", ">>", "<", "do", "done"}
INLINE = re.compile(r"`((?:[A-Z_]+=\S+ )*(?:uv run|nemo-algos|python) [^`\n]+)`")


def commands(body):
    """The words of each command of a shell text; a variable is what its text sets it to."""
    known = {}
    for line in body.replace("\\\n", " ").splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        command = []
        for word in [*words, ";"]:
            if word not in END:
                command.append(Template(word).safe_substitute(known))
                continue
            if len(command) == 1 and "=" in command[0]:
                known.update([command[0].split("=", 1)])
            yield command
            command = []


NEMO_RLS = {"examples/run_sft.py"}  # in its root


def ours(command):
    """(script, arguments) of a command that runs one of our programs with options, else None.

    A script that hands its arguments to one of the commands is that command.
    """
    for i, word in enumerate(command):
        if word == "nemo-algos" and (i == 0 or "uv" in command[:i]):
            return word, command[i + 1 :]
        if named := re.search(r"(?:^|/)((?:examples(?:/papers)?|benchmarks)/\w+\.py)$", word):
            script = named[1]
            if script in NEMO_RLS:
                return None
            text = (ROOT / script).read_text()
            if handed := re.search(r'^    main\("(\w+)"\)$', text, re.MULTILINE):
                return "nemo-algos", [handed[1], *command[i + 1 :]]
            elsewhere = re.search(r"^from (trl|nemo_rl)\b", text, re.MULTILINE)
            return None if elsewhere or "typer.run" not in text else (script, command[i + 1 :])
    return None


@cache
def program(script):
    """The command of a script: what it hands to typer.run."""
    handed = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer, "run", handed.append)
        patch.syspath_prepend(ROOT / script.split("/")[0])
        runpy.run_path(str(ROOT / script), run_name="__main__")
    alone = typer.Typer()
    alone.command()(handed[0])
    return typer.main.get_command(alone)


def split(script, words):
    """The command's name, the command, its arguments."""
    if script != "nemo-algos":
        return script, program(script), words
    name, *rest = words
    command = load_command(name)
    of_group = getattr(command, "commands", {})  # `slurm CONFIG` is its `job`
    if of_group:
        first = rest[:1] if rest and rest[0] in of_group else []
        word, rest = (first or [command.default])[0], rest[len(first) :]
        command = of_group[word]
    return name, command, rest


def config_and_overrides(params):
    """Of a command's parsed arguments; those of `train` are one list."""
    config, words = params.get("config"), params.get("words", params.get("overrides")) or []
    return (
        (words[0], words[1:]) if config is None and "words" in params and words else (config, words)
    )


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Makes the current folder one with a page's files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return partial(write_files, folder=tmp_path)


@pytest.mark.parametrize("page", pages(), ids=lambda p: p.name)
def test_options_and_configs_exist(page, files):
    """Of what does not run; a loop's variable is not followed. test_own_configs.py has the keys."""
    files(page)
    for block in (b for b in blocks(page.read_text()) if b.language == "bash"):
        for found in filter(None, map(ours, commands(block.body))):
            name, command, words = split(*found)
            config, overrides = config_and_overrides(command.make_context(name, words).params)
            if config and not runs(block) and "$" not in "".join([config, *overrides]):
                path = find(config.split("examples/configs/")[-1])
                assert path.is_file(), found
                if name == "eval":
                    parse_config(load(path, overrides))


@pytest.mark.parametrize("page", [*pages(), ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name)
def test_options_within_a_sentence_exist(page):
    for text in INLINE.findall(FENCE.sub("", page.read_text())):
        for found in filter(None, map(ours, commands(text))):
            _, command, words = split(*found)
            known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
            used = {word.split("=")[0] for word in words if word.startswith("--")}
            assert used <= known, (text, used - known)


SHELL = """\
R=recipes/x.yaml
X=1 uv run nemo-algos plan $R a=b \\
  --gpu H200 > out   # a remark
for m in a; do /code/examples/run_grpo_math.py --config $m.yaml; done
docker build -t nemo-algos .
"""


def test_commands_of_a_text():
    found = [ours(c) for c in commands(SHELL)]
    assert [f for f in found if f] == [
        ("nemo-algos", ["plan", "recipes/x.yaml", "a=b", "--gpu", "H200"]),
        ("nemo-algos", ["train", "--config", "$m.yaml"]),
    ]
