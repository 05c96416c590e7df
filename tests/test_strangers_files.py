"""Every reader of a file from anyone, and every kind of broken file: a sentence that names it.

Some kinds are whole files to some readers; then they are read. Nothing else comes out: no code
runs, nothing is waited for, no memory is filled, no terminal obeys.
"""

import gzip
import os
import shutil
import tracemalloc

import pytest
import small_llama
from commands import invoke
from matrix import some_of
from strangers import BOMBS, GOOD, KINDS, LAUGH

from nemo_algos import config, untrusted
from nemo_algos.algorithms.golden import verify
from nemo_algos.engines.data import rows
from nemo_algos.engines.dumps import dump
from nemo_algos.engines.local import checkpoint, hf
from nemo_algos.findings import ConfigError
from nemo_algos.jsonl import read_lines, read_object
from nemo_algos.lab.evals import nemo_file

ROW = b'{"problem": "1 + 1?", "answer": "2"}'
READERS = {
    "verify": (verify.read, (".json", ".json.gz")),
    "rows": (rows.load, (".json", ".jsonl", ".csv", ".jsonl.gz", ".csv.gz", ".parquet")),
    "mismatch": (dump.read, (".npz", ".jsonl", ".pt")),
    "NeMo-RL": (nemo_file.read, (".json",)),
    "lines": (lambda path: [*read_lines(path)], (".jsonl",)),
    "object": (read_object, (".json",)),
    "config": (lambda path: config.load(path), (".yaml",)),
    "checkpoint": (checkpoint.load, (".pt",)),
}
WALK = [(name, suffix) for name, (_, suffixes) in READERS.items() for suffix in suffixes]


def asked(name, path):
    """The sentence, empty where the file is read."""
    read = READERS[name][0]
    try:
        read(str(path) if name == "rows" else path)
    except (ValueError, OSError) as error:
        return str(error)
    return ""


def said(sentence, path):
    assert path.name in sentence and len(sentence) < 1200 and sentence.count("\n") < 4


@pytest.mark.parametrize(("name", "suffix"), WALK)
def test_a_broken_file_is_read_or_named_in_a_sentence(name, suffix, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where a pickle's code would leave its mark
    good = GOOD[suffix.removesuffix(".gz")]
    for content in (*KINDS.values(), good[: len(good) // 2]):
        path = tmp_path / f"cases{suffix}"
        path.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
        if sentence := asked(name, path):
            said(sentence, path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", BOMBS)
def test_a_config_that_would_take_all_memory_ends_in_a_sentence(name, tmp_path):
    path = tmp_path / "bomb.yaml"
    path.write_text(BOMBS[name])
    with pytest.raises(ConfigError) as error:
        config.load(path)
    assert len(str(error.value)) < 2000


OVER = {  # a section over a text that other texts give, which a merge evaluates
    "a key that commands look at first": (["bomb.yaml"], "engine: ${a12}\nmethod: grpo"),
    "a child": (["child.yaml"], "method: ${a12}"),
    "an override": (["bomb.yaml", "method.name=etr"], "method: ${a12}"),
    "NeMo-RL's": (["bomb.yaml"], "engine: nemo_rl\nmethod: etr\npolicy: ${a12}"),
    "an override of NeMo-RL's": (["bomb.yaml", "policy.x=1"], "engine: nemo_rl\npolicy: ${a12}"),
}
COMMANDS = [
    *((name, "check") for name in OVER),
    *((next(iter(OVER)), c) for c in ("train", "plan")),
]


@pytest.mark.parametrize(("name", "command"), some_of(COMMANDS, 4))
def test_a_section_over_what_would_take_all_memory_is_bounded_too(name, command, tmp_path):
    words, text = OVER[name]
    (tmp_path / "bomb.yaml").write_text(f"a0: lol\n{LAUGH}\n{text}\n")
    (tmp_path / "child.yaml").write_text("defaults: bomb.yaml\nmethod: {name: etr}\n")
    done = invoke(command, str(tmp_path / words[0]), *words[1:])
    assert done.exit_code in (1, 2) and len(done.output) < 5000


# a config may come from a pipe; a run's folder is looked through before its checkpoints are read
@pytest.mark.parametrize(
    ("name", "suffix"), [walk for walk in WALK if walk[0] not in ("config", "checkpoint")]
)
def test_what_is_no_file_is_named_and_never_waited_for(name, suffix, tmp_path):
    path = tmp_path / f"cases{suffix}"
    path.symlink_to("/dev/zero")
    said(asked(name, path), path)
    path.unlink()
    os.mkfifo(path)
    said(asked(name, path), path)
    path.unlink()
    path.mkdir()
    if name != "rows":  # to which a folder may be a data set
        said(asked(name, path), path)


@pytest.mark.parametrize("place", ["itself", "its parent"])
@pytest.mark.parametrize("kind", ["a pipe", "a device", "a folder"])
def test_a_config_that_is_no_file_is_not_waited_for(place, kind, tmp_path):
    path = tmp_path / "odd.yaml"
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    if place == "its parent":
        path = tmp_path / "mine.yaml"
        path.write_text("defaults: odd.yaml\n")
    done = invoke("check", str(path))
    printed = done.output.replace("\n", "")
    assert done.exit_code in (1, 2) and ("odd.yaml" in printed or "/dev/zero" in printed)


@pytest.mark.parametrize(("name", "suffix"), [w for w in WALK if w[1].endswith(".gz")])
def test_a_bomb_is_not_unpacked(name, suffix, tmp_path, monkeypatch):
    monkeypatch.setattr(untrusted, "MOST", 1 << 20)
    path = tmp_path / f"bomb{suffix}"
    path.write_bytes(gzip.compress(b" " * (5 << 20)))
    assert "more than 1 MiB" in asked(name, path)
    path.write_bytes(gzip.compress(ROW)[:-9])
    said(asked(name, path), path)


def test_gzip_is_unpacked_up_to_a_size():
    assert untrusted.decompress(gzip.compress(b"x" * 1000), 1000) == b"x" * 1000
    assert untrusted.decompress(b"", 1000) == b""
    for broken in (b"no gzip", gzip.compress(b"x" * 1000, mtime=0)[:-9]):
        with pytest.raises(ValueError, match="broken or cut"):
            untrusted.decompress(broken, 1000)
    bomb = gzip.compress(bytes(100 << 20))
    tracemalloc.start()
    with pytest.raises(ValueError, match="more than 1 MiB"):
        untrusted.decompress(bomb, 1 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 << 20


def test_printable():
    assert untrusted.printable("a\tb\nc é 答") == "a\tb\nc é 答"
    assert untrusted.printable("\x1b[2Jx\r\x07\x9b1m\u202e\ud800") == " [2Jx   1m  "


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_model_that_is_cut_is_named(share, tmp_path):
    folder = small_llama.save(tmp_path / "whole")
    cut = tmp_path / "cut"
    shutil.copytree(folder, cut)
    weights = (cut / "model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(weights[: int(share * len(weights))])
    with pytest.raises(ValueError, match=r"policy\.model_name: cannot load") as error:
        hf.load_model(small_llama.section(cut))
    said(str(error.value), cut)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"method": "evilmod:X"}, "method"),
        ({"params": {"name": "evilmod:X"}}, "params"),
        ({"params": {"bounds": {"name": "evilmod:X"}}}, "params"),
        ({"params": {"advantages": "evilmod:X"}}, "params"),
        ({"params": {"terms": {"own": {"name": "evilmod:X"}}}}, "params"),
        ({"params": {"terms": {"evilmod:X": {}}}}, "params"),
    ],
)
def test_a_case_never_names_code(change, where, tmp_path, monkeypatch):
    (tmp_path / "evilmod.py").write_text("import pathlib; pathlib.Path('ran').touch()\nX = 1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    inputs = {"mask": [[1]], "logprobs": [[-1.0]], "old_logprobs": [[-1.0]], "rewards": [1.0]}
    case = {"name": "own", "method": "grpo", "params": {}, "inputs": inputs, "expected": {}}
    with pytest.raises(ValueError, match="names code, 'evilmod:X'"):
        verify.errors_of({**case, **change})
    assert not (tmp_path / "ran").exists()
