"""The shims: the lines that need each, and how many there are."""

from nemo_cpu import SHIMS, absent

OTHERS = ("nemo_cpu.engine", "nemo_cpu.refit", "nemo_cpu.data_plane")  # test_vllm_shims.py
OWN = [s for s in SHIMS.values() if s.apply.__module__ not in OTHERS]


def test_every_shim_names_the_lines_that_need_it(ref: str) -> None:
    for one in SHIMS.values():
        if ref in one.refs:
            assert list(one.lines()), f"{one.name} is for no line"
        assert one.reason, f"{one.name} says no reason"


def test_there_are_no_more_shims_than_these(ref: str) -> None:
    assert len([one for one in OWN if ref in one.refs]) == {"main": 26, "v0.7.0": 25}[ref]
    assert set(absent.MODULES) == {"megatron.energon"}
