"""device, precision and threads: what `auto` takes on which machine."""

import pytest
import small_llama
import torch

from nemo_algos.engines.local.hardware import describe, device_of, precision_of, threads_of
from nemo_algos.engines.local.schema import TINY


@pytest.fixture
def machine(monkeypatch):
    """A machine without a GPU and without units for bfloat16; set(name) changes that."""

    def set_(*has):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in has)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: "cuda bf16" in has)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in has)
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: "avx512" in has)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: "amx" in has)

    set_()
    return set_


AUTO = {"precision": "auto", "device": "auto"}


@pytest.mark.parametrize(
    ("has", "device", "precision"),
    [
        ((), "cpu", "float32"),
        (("avx512",), "cpu", "bfloat16"),
        (("amx",), "cpu", "bfloat16"),
        (("cuda", "amx"), "cuda", "float32"),
        (("cuda", "cuda bf16"), "cuda", "bfloat16"),
        (("mps", "amx"), "mps", "float32"),
    ],
)
def test_auto_takes_what_is_fast(machine, has, device, precision):
    machine(*has)
    policy = small_llama.section("any", **AUTO)
    assert (device_of(policy).type, precision_of(policy)) == (device, precision)
    named = small_llama.section("any", device="cpu", precision="float32")
    assert (device_of(named).type, precision_of(named)) == ("cpu", "float32")
    assert device_of(small_llama.section(TINY, **AUTO)).type == "cpu"


def test_a_device_that_is_not_there(machine):
    with pytest.raises(ValueError, match=r"cuda .*cpu"):
        device_of(small_llama.section("any", device="cuda"))
    with pytest.raises(ValueError, match=r"policy\.taught\.device: cuda .*cpu"):
        device_of(small_llama.section(TINY, device="cpu", taught={"device": "cuda"}))


def test_threads_and_the_line_that_names_it_all(machine, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    assert [threads_of(small_llama.section(name)) for name in ("any", TINY)] == [6, 1]
    assert threads_of(small_llama.section(TINY, threads=3)) == 3
    assert describe(small_llama.section("any", **AUTO)) == "cpu (6 threads), float32"
    machine("cuda", "cuda bf16")
    assert describe(small_llama.section("any", **AUTO)) == "cuda (Some GPU), bfloat16"


def test_the_countdown_models_are_said_to_compute_as_they_do(machine):
    machine("avx512")
    assert describe(small_llama.section(TINY, **AUTO)) == "cpu (1 thread), float32"
