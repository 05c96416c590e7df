"""What a file from anyone may hold: good ones by suffix, broken kinds, configs that are bombs."""

import io
import os
import pickle
import zipfile

import numpy as np
import torch

TOKENS = b'{"tokens": [1], "sampler_logprobs": [-1], "trainer_logprobs": [-1]}\n'


class Bomb:
    """Makes a folder where it is unpickled."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


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
    "a cut object": b"{",
    "null": b"null\n",
    "an object of other keys": b'{"a": 1}\n',
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
    "a pickle": pickle.dumps(Bomb("ran")),
    "a pickled object": npz(tokens=np.array([Bomb("ran")], dtype=object)),
    "a pickle of torch": pt(Bomb("ran")),
}
LAUGH = "\n".join(f'a{n + 1}: "{10 * f"${{a{n}}}"}"' for n in range(12))
SECTIONS = "\n".join(f"s{n + 1}: {{a: '${{s{n}}}', b: '${{s{n}}}'}}" for n in range(30))
CHAIN = "\n".join(f"c{n + 1}: ${{c{n}}}" for n in range(5000))
BOMBS = {  # configs that grow, turn in a ring, or name code
    "laughs": f"a0: lol\n{LAUGH}",
    "laughs of one long text": f"a0: {100_000 * 'x'}\na1: '{2_000 * '${a0}'}'",
    "laughs by a name that another gives": "a0: lol\nn0: '0'\n"
    + "\n".join(f"n{i}: '{i}'\na{i}: '{10 * f'${{a${{n{i - 1}}}}}'}'" for i in range(1, 12)),
    "laughs by select": "a0: lol\n"
    + "\n".join(f"a{i}: '{10 * f'${{oc.select:a{i - 1}}}'}'" for i in range(1, 12)),
    "sections": f"s0: {{x: 1}}\n{SECTIONS}",
    "a chain": f"c0: 1\n{CHAIN}",
    "a ring": "a: ${b}\nb: ${a}",
    "anchors": "a: &a [x, x]\n"
    + "\n".join(f"b{n}: &b{n} [{10 * f'*b{n - 1},'}]" for n in range(1, 12)).replace("*b0", "*a"),
    "depth": "a: " + 100_000 * "[",
    "code": "a: !!python/object/apply:os.system [true]",
}
