"""The shims: the lines that need each, how many there are, and that each fails there without it."""

import os
import subprocess
import sys
from pathlib import Path

import nemo_cpu
import pytest
import test_workers
from layouts import Layout
from nemo_cpu import SHIMS, absent

OTHERS = ("nemo_cpu.engine", "nemo_cpu.refit", "nemo_cpu.data_plane")  # test_vllm_shims.py
OTHERS += ("nemo_cpu.answers",)  # of a rehearsal alone
OWN = [s for s in SHIMS.values() if s.apply.__module__ not in OTHERS]
# the layout that needs a shim, where it is another one than megatron-plain
NEEDS = {
    "device_argument": "dtensor-packed",
    "cuda.synchronize": "dtensor-packed",
    "cuda.get_device_name": "dtensor-packed",
    "cuda_mesh": "dtensor-packed",
    "flash_attention": "dtensor-packed",
    "autocast": "dtensor-bf16",
    "thread": "megatron-packed-ray",
    "generator": "megatron-tp",
    "packed_attention": "megatron-packed",
    "context_parallel": "megatron-cp-packed",
    "sequence_parallel_norm": "megatron-tp-sequence",
    "expert_splits": "megatron-experts",
    "local_adapters": "megatron-tp-lora",
    "local_targets": "megatron-tp-lora-all",
}
# the error that follows, where the line itself only does nothing
LATER = {"autocast": "to have the same dtype"}
# to be left out from the start: others hold what these replace, or they serve an import
LEFT_OUT = ("device_argument", "thread", "cuda_mesh", "flash_attention", "without_cuda")
LEFT_OUT += ("transformer_engine", "modelopt", "fsdp_versions")


def test_every_shim_names_the_lines_that_need_it(ref: str) -> None:
    for one in SHIMS.values():
        if ref in one.refs:
            assert list(one.lines()), f"{one.name} is for no line"
        assert one.reason, f"{one.name} says no reason"


def test_there_are_no_more_shims_than_these(ref: str) -> None:
    assert len([one for one in OWN if ref in one.refs]) == {"main": 28, "v0.7.0": 27}[ref]
    assert set(absent.MODULES) == {"megatron.energon"}


@pytest.mark.parametrize("name", [s.name for s in OWN if s.name not in LEFT_OUT])
def test_without_it_a_case_fails(name: str, imported: None, folder: Path) -> None:
    layout = Layout(NEEDS.get(name, "megatron-plain"))

    def undo() -> None:
        nemo_cpu.undo(name)
        os.environ["NRL_MEGATRON_CHECKPOINT_DIR"] = str(folder / name)  # imports the model anew

    process = test_workers.started(layout, folder, before=undo)
    try:
        with pytest.raises(RuntimeError) as raised:
            process.built.get()
            process.call("updates", "quatro").get()
    finally:
        process.end()
    expected = [text for _, text in SHIMS[name].calls] + [LATER[name]] * (name in LATER)
    assert any(text in str(raised.value) for text in expected), raised.value


@pytest.mark.parametrize("name", LEFT_OUT)
def test_without_it_a_fresh_case_fails(name: str, ref: str) -> None:
    if ref not in SHIMS[name].refs:
        return
    names = {"device_argument": "device_argument,thread"}  # which enters its mode in a thread
    output = failed(names.get(name, name), NEEDS.get(name, "megatron-plain"))
    assert any(text in output for _, text in SHIMS[name].calls), output


@pytest.mark.parametrize("name", absent.MODULES)
def test_without_it_an_import_fails(name: str) -> None:
    assert f"No module named '{name}'" in failed(name, "megatron-plain")


def failed(without: str, layout: str) -> str:
    """What a case of test_workers.py says, which fails without this shim."""
    case = f"{test_workers.__file__}::{test_workers.test_a_method_is_one_processes.__name__}"
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", f"{case}[{layout}-erpo]"]
    env = os.environ | {"NEMO_CPU_WITHOUT": without}
    ended = subprocess.run(command, env=env, capture_output=True, text=True)
    assert ended.returncode == 1, ended.stdout
    return ended.stdout
