"""Every reader of a file from anyone, and every kind of broken file: a sentence that names it.

Some kinds are whole files to some readers; then they are read. Nothing else comes out.
"""

import gzip
import io
import os
import shutil
import zipfile

import numpy as np
import pytest
import small_llama
import torch

from nemo_algos import config, untrusted
from nemo_algos.algorithms.golden import verify
from nemo_algos.engines.data import rows
from nemo_algos.engines.local import checkpoint, hf
from nemo_algos.engines.mismatch import dump
from nemo_algos.jsonl import read_lines, read_object
from nemo_algos.lab.evals import nemo_file

ROW = b'{"problem": "1 + 1?", "answer": "2"}'
TOKENS = b'{"tokens": [1], "sampler_logprobs": [-1], "trainer_logprobs": [-1]}\n'


def npz(**entries):
    file = io.BytesIO()
    np.savez(file, **entries)
    return file.getvalue()


def pt(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def claiming(header):
    """An .npz whose array's header is this text."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        text = header.encode().ljust(117) + b"\n"
        archive.writestr(
            "tokens.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
        )
    return file.getvalue()


def unknown_compression():
    content = bytearray(npz(tokens=np.ones((2, 3))))
    for mark, at in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        start = content.index(mark) + at
        content[start : start + 2] = (77).to_bytes(2, "little")
    return bytes(content)


def flipped():
    file = io.BytesIO()
    np.savez_compressed(file, tokens=np.arange(3000).reshape(3, 1000))
    content = bytearray(file.getvalue())
    content[len(content) // 2] ^= 0xFF
    return bytes(content)


GOOD = {
    ".json": b'{"cases": [1], "evaluation_data": [{}], "inputs": {}}',
    ".jsonl": TOKENS,
    ".csv": b"problem,answer\n1 + 1?,2\n",
    ".npz": npz(tokens=np.ones((2, 3))),
    ".pt": pt({"tokens": torch.ones(2, 3)}),
    ".yaml": b"grpo: {seed: 1}\n",
    ".parquet": b"PAR1",
    ".safetensors": b"\x08\0\0\0\0\0\0\0{}      ",
}
KINDS = {
    "empty": b"",
    "zeros": bytes(2000),
    "noise": bytes(range(256)) * 8,
    "UTF-16": "{}".encode("utf-16"),
    "no UTF-8": b'{"a": "\xff"}\n',
    "deep lists": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n",
    "a number of 4400 digits": b"[" + b"1" * 4400 + b"]\n",
    "a number of 400 digits": TOKENS.replace(b"[1]", b"[1" + b"0" * 400 + b"]"),
    "a step beyond integers": TOKENS.replace(b"}", b', "step": 1e300}'),
    "another type": b'[1, "a", null]\n',
    "a long field": b"problem,answer\n" + b"1" * 200_000 + b",2\n",
    "an open quote": b'problem,answer\n"1,2\n' * 3,
    "a NUL": b"problem,answer\n\0,2\n",
    "escape sequences": b'{"\x1b[2J": "\x1b[2J"}\n',
    "escape sequences in JSON": rb'{"\u001b[2J": "\u001b[2J"}' + b"\n",
    "a header of 80 TB": claiming("{'descr': '<f8', 'fortran_order': False, 'shape': (10**13,), }"),
    "a claim of 80 TB": claiming(
        "{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000,), }"
    ),
    "a header of brackets": claiming("(((("),
    "unknown compression": unknown_compression(),
    "a flipped byte": flipped(),
    "strides of 0": pt({"tokens": torch.ones(1).expand(10**6, 10**6)}),
    "a pickle": b"cos\nsystem\n(S'touch ran'\ntR.",
}
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
def test_a_broken_file_is_read_or_named_in_a_sentence(name, suffix, tmp_path):
    good = GOOD[suffix.removesuffix(".gz")]
    for content in (*KINDS.values(), good[: len(good) // 2]):
        path = tmp_path / f"cases{suffix}"
        path.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
        if sentence := asked(name, path):
            said(sentence, path)
    assert not (tmp_path / "ran").exists()


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


@pytest.mark.parametrize(("name", "suffix"), [w for w in WALK if w[1].endswith(".gz")])
def test_a_bomb_is_not_unpacked(name, suffix, tmp_path, monkeypatch):
    monkeypatch.setattr(untrusted, "MOST", 1 << 20)
    path = tmp_path / f"bomb{suffix}"
    path.write_bytes(gzip.compress(b" " * (5 << 20)))
    assert "more than 1 MiB" in asked(name, path)
    path.write_bytes(gzip.compress(ROW)[:-9])
    said(asked(name, path), path)


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
