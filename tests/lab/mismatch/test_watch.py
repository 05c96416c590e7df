"""`mismatch.dump` in the embedded engine, the command on what it writes, and its page."""

import json
import re

import numpy as np
import pytest
import torch
from commands import invoke
from matrix import some_of
from says import Says

from nemo_algos import config
from nemo_algos.algorithms.core.logprob_gap import measure
from nemo_algos.algorithms.extensions.loss_config import MismatchConfig
from nemo_algos.engines.dumps.dump import from_arrays, read, write
from nemo_algos.engines.dumps.watch import Watch
from nemo_algos.findings import ConfigError
from nemo_algos.lab.mismatch import page
from nemo_algos.lab.mismatch.responses import everything
from nemo_algos.preflight.check.local.judge import parse

SMALL = [
    "grpo.max_val_samples=4",
    "grpo.val_samples_per_prompt=4",
    "logger.tensorboard_enabled=false",
]


def columns(rows=20, width=15, apart=0.0):
    generator = torch.Generator().manual_seed(0)
    sampler = -torch.rand(rows, width, generator=generator) - 0.1
    return {
        "tokens": torch.randint(0, 9, (rows, width), generator=generator),
        "mask": torch.arange(width) < torch.arange(1, rows + 1)[:, None],
        "sampler_logprobs": sampler,
        "trainer_logprobs": sampler - apart,
    }


@pytest.mark.parametrize(("dump", "written"), [(0, []), (1, [1, 2, 3, 4]), (3, [3])])
def test_every_nth_step_is_dumped(tmp_path, dump, written):
    for step in range(1, 5):
        batch = columns()
        got = Watch(MismatchConfig(dump=dump), tmp_path).of(step, batch)[0]
        pair = batch["trainer_logprobs"], batch["sampler_logprobs"], batch["mask"]
        assert got == measure(*pair, threshold=0.5)
    names = [f"step_{step:06d}.npz" for step in written]
    assert sorted(path.name for path in (tmp_path / "mismatch").glob("*")) == names
    if names:
        dump = read(tmp_path / "mismatch" / names[0])
        np.testing.assert_array_equal(dump.sampler_logprobs, batch["sampler_logprobs"])


@pytest.mark.parametrize("dump", [0, 100])
def test_a_step_that_is_stopped_is_dumped_where_any_is(tmp_path, dump):
    settings = MismatchConfig(dump=dump, stop_above=0.1)
    with pytest.raises(FloatingPointError, match="mismatch"):
        Watch(settings, tmp_path).of(7, columns(apart=0.3))
    assert (tmp_path / "mismatch" / "step_000007.npz").exists() == bool(dump)


def test_without_a_folder_or_a_token_nothing_is_written(tmp_path):
    Watch(MismatchConfig(dump=1)).of(1, columns())
    empty = columns()
    empty["mask"] = torch.zeros_like(empty["mask"])
    Watch(MismatchConfig(dump=1), tmp_path).of(1, empty)
    assert not [*tmp_path.iterdir()]


def test_a_run_dumps_what_the_command_reads(tmp_path):
    overrides = [f"logger.log_dir={tmp_path}", "mismatch.dump=2", "grpo.max_num_steps=2", *SMALL]
    result = invoke("train", "etr.yaml", *overrides)
    assert result.exit_code == 0, result.output
    (path,) = tmp_path.glob("exp_001/mismatch/*")
    dump = read(path)
    assert path.name == "step_000002.npz" and dump.step == 1
    assert {*dump.arrays()} >= {"entropy", "prompt_length", "weights_version"}
    assert (dump.weights_version == 1).all() and (dump.prompt_length == 6).all()
    result = invoke("mismatch", path)
    assert result.exit_code == 0
    assert result.output.splitlines()[0] == Says("no mismatch: same")


def test_a_negative_number_of_steps_is_refused():
    with pytest.raises(ConfigError, match="greater than or equal to 0"):
        parse(config.load(config.find("etr.yaml"), ["mismatch.dump=-1"]))


@pytest.fixture
def hot(tmp_path):
    """The sampler's log-probs are to the base of 2."""
    rng, shape = np.random.default_rng(0), (30, 20)
    values = -rng.exponential(1.0, shape)
    sides = {"sampler_logprobs": values / np.log(2), "trainer_logprobs": values}
    write(tmp_path / "hot.npz", from_arrays({"tokens": rng.integers(0, 50, shape), **sides}))
    return tmp_path / "hot.npz"


def test_the_command_names_shows_and_says_what_to_do(hot):
    result = invoke("mismatch", hot)
    assert result.exit_code == 0
    first, second, *worst, more, cause, last = result.output.splitlines()
    assert first == Says("base 100%")
    assert second.startswith("600 tokens of 30 responses, mean |d| ")
    assert len(worst) == 5 and more == Says("20 --json --html")
    assert cause == Says("log_base 2 sampler 100%")
    assert last == Says("next: nats")


def test_for_scripts(hot):
    result = invoke("mismatch", hot, "--json")
    got = json.loads(result.output)
    assert got["verdict"] == "log_base" and got["tokens"] == 600 and got["responses"] == 30
    (cause,) = got["causes"]
    assert cause["parameter"] == {"base": 2} and cause["side"] == "sampler"


@pytest.mark.parametrize("option", ["--previous", "--adapter"])
def test_folders_beside_no_model_are_refused(hot, option):
    result = invoke("mismatch", hot, option, hot.parent)
    assert result.exit_code == 2 and result.output == Says("--model")


def test_a_model_that_is_not_there_ends_in_one_line(hot):
    result = invoke("mismatch", hot, "--model", hot.parent / "no")
    assert result.exit_code == 2 and result.output.count("\n") == 1


@pytest.mark.parametrize("option", ["--model", "--previous", "--adapter"])
def test_a_folder_that_is_not_there_is_said_beside_few_tokens_too(hot, option):
    rows = {k: v[:2] for k, v in np.load(hot).items()}
    write(hot.with_name("few.npz"), from_arrays(rows))
    others = [] if option == "--model" else ["--model", hot.parent]
    nowhere = str(hot.parent / "nowhere")
    few = str(hot.with_name("few.npz"))
    result = invoke("mismatch", few, *others, option, nowhere)
    assert result.exit_code == 2 and result.output == Says(nowhere)


def test_where_the_difference_is_stands_before_what_it_may_be(tmp_path):
    rng, shape = np.random.default_rng(0), (30, 20)
    values = -rng.exponential(1.0, shape)
    other = values - np.where(np.arange(20) == 7, 0.4, 0.002) * rng.random(shape)
    sides = {"sampler_logprobs": values, "trainer_logprobs": other}
    write(tmp_path / "a.npz", from_arrays({"tokens": rng.integers(0, 50, shape), **sides}))
    result = invoke("mismatch", tmp_path / "a.npz")
    lines = result.output.splitlines()
    assert lines[2] == Says("where: place 7: 30 tokens")
    assert [line.split(":")[0] for line in lines[3:8]] == ["worst"] * 5
    page = tmp_path / "page.html"
    invoke("mismatch", tmp_path / "a.npz", "--html", page)
    assert "<th>place</th>" in page.read_text()


def test_the_page_stands_alone(hot, tmp_path):
    page = tmp_path / "sub" / "page.html"
    name = hot.with_name("<script>.npz")
    hot.rename(name)
    result = invoke("mismatch", name, "--html", page)
    assert result.exit_code == 0
    html = page.read_text()
    assert html.count("<svg") == 4 and "<script" not in html and "http-equiv" in html
    assert "default-src 'none'" in html and "src=" not in html.replace("default-src=", "")
    assert "&lt;script&gt;.npz" in html
    assert len(html) < 400_000


@pytest.mark.parametrize("draw", page.FIGURES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("apart", some_of([1e-3, 0.02, 0.5], 1))
def test_every_axis_has_numbers(draw, apart):
    rng, shape = np.random.default_rng(0), (30, 20)
    values = -1.5 - rng.random(shape)
    sides = {"sampler_logprobs": values, "trainer_logprobs": values + apart * rng.random(shape)}
    ages = {"weights_version": np.arange(30) % 4, "step": 5}
    tokens = everything([from_arrays({"tokens": rng.integers(0, 50, shape), **sides, **ages})])
    drawn = str(page._svg(draw, tokens))
    for anchor in ("middle", "end"):  # below the x axis, beside the y axis
        numbers = re.findall(rf"text-anchor: {anchor}[^>]*>[-\u2212]?[\d.e-]+</text>", drawn)
        assert len(numbers) >= 2, anchor
