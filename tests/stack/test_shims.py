"""The shims: the lines that need each, how many there are, and that each is needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import test_workers
from nemo_cpu import SHIMS, absent

OTHERS = ("nemo_cpu.engine", "nemo_cpu.refit")  # vLLM's: test_generation.py
OWN = [s for s in SHIMS.values() if s.apply.__module__ not in OTHERS]
# what a module asks for as it is imported; the others are undone in a process that has imported all
IMPORTS = ("transformer_engine", "modelopt", "fsdp_versions", *absent.MODULES)
RAY = ("ray_thread",)  # a forked case has one thread; test_ray_workers.py fails without it
PROGRAM = "import nemo_cpu, nemo_algos.nemo.megatron_worker"


def test_every_shim_names_the_lines_that_need_it(ref: str) -> None:
    for one in SHIMS.values():
        if ref in one.refs:
            assert list(one.lines()), f"{one.name} is for no line"
        assert one.reason, f"{one.name} says no reason"


def test_there_are_no_more_shims_than_these(ref: str) -> None:
    assert len([one for one in OWN if ref in one.refs]) == {"main": 26, "v0.7.0": 25}[ref]
    assert set(absent.MODULES) == {"megatron.energon"}


@pytest.mark.slow
@pytest.mark.parametrize("name", IMPORTS)
def test_without_it_the_workers_cannot_be_imported(name: str, ref: str) -> None:
    if name in SHIMS and ref not in SHIMS[name].refs:
        pytest.skip(f"for {', '.join(SHIMS[name].refs)} only")
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"NEMO_CPU_WITHOUT": name},
        capture_output=True,
        text=True,
    )
    assert run.returncode and "Error" in run.stderr, run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", [one.name for one in OWN if one.name not in (*IMPORTS, *RAY)])
def test_without_it_a_case_fails(name: str, imported: None, folder: Path) -> None:
    layouts = ("dtensor-packed", "megatron-packed")
    assert any(fails(layout, folder, name) for layout in layouts)


def fails(layout: str, folder: Path, without: str) -> bool:
    process = test_workers.started(test_workers.LAYOUTS[layout], folder, without)
    try:
        process.built.get()
        test_workers.check_updates(process.call("updates", "erpo").get())
    except (RuntimeError, AssertionError):
        return True
    finally:
        process.end()
    return False
