"""Bytes of anyone are unpacked up to a size, texts of anyone are harmless to a terminal."""

import gzip
import tracemalloc

import pytest

from nemo_algos.untrusted import decompress, printable


def test_gzip_is_unpacked_up_to_a_size():
    assert decompress(gzip.compress(b"x" * 1000), 1000) == b"x" * 1000
    bomb = gzip.compress(bytes(100 << 20))
    tracemalloc.start()
    with pytest.raises(ValueError, match="more than 1 MiB"):
        decompress(bomb, 1 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 << 20


CUT = gzip.compress(b"x" * 1000, mtime=0)[:-9]


@pytest.mark.parametrize("content", [b"", b"no gzip", CUT], ids=["empty", "text", "cut"])
def test_what_is_no_gzip_is_said(content):
    if content:
        with pytest.raises(ValueError, match="broken or cut"):
            decompress(content, 1000)
    else:
        assert decompress(content, 1000) == b""


def test_printable():
    assert printable("a\tb\nc é 答") == "a\tb\nc é 答"
    assert printable("\x1b[2Jx\r\x07\x9b1m\u202e\ud800") == " [2Jx   1m  "
