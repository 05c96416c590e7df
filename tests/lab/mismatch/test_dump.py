"""Dumps on disk: written and read, of three frameworks, and refused with a sentence."""

import io
import json
import pickle
import zipfile

import numpy as np
import pytest
import torch
from says import Says

from nemo_algos.engines.dumps.dump import FRAMEWORKS, Dump, from_arrays, read, write
from nemo_algos.lab.mismatch.responses import gather

OURS = {
    "tokens": [[5, 6, 7], [8, 9, 0]],
    "mask": [[1, 1, 1], [1, 1, 0]],
    "sampler_logprobs": [[-1.0, -2.0, -3.0], [-1.5, -2.5, 0.0]],
    "trainer_logprobs": [[-1.1, -2.1, -3.1], [-1.6, -2.6, 0.0]],
}
OPTIONAL = {
    "entropy": [[0.5, 0.5, 0.5], [0.5, 0.5, 0.0]],
    "top_logprobs": [[[-1.0, -2.0]] * 3] * 2,
    "weights_version": [3, 4],
    "prompt_length": [7, 9],
}


def same(a: Dump, b: Dump) -> None:
    assert {*a.arrays()} == {*b.arrays()}
    for name, array in a.arrays().items():
        np.testing.assert_array_equal(array, b.arrays()[name])


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_what_is_written_is_read(tmp_path):
    dump = from_arrays({**OURS, **OPTIONAL, "step": 4})
    write(tmp_path / "sub" / "d.npz", dump)
    same(read(tmp_path / "sub" / "d.npz"), dump)
    assert dump.mask.dtype == bool and dump.tokens.dtype == dump.step.dtype == np.int64


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"mask": [[2, 1, 1], [1, 1, 0]]}, "mask 0 1"),
        ({"mask": [[1, -1, 1], [1, 1, 0]]}, "mask 0 1"),
        ({"mask": [[0.5, 1, 1], [1, 1, 0]]}, "mask 0 1"),
        ({"tokens": [[-5, 6, 7], [8, 9, 0]]}, "tokens below 0"),
    ],
)
def test_a_mask_has_0_and_1_and_tokens_are_ids(changed, says):
    with pytest.raises(ValueError, match=says.split()[0]) as error:
        from_arrays({**OURS, **changed})
    assert str(error.value) == Says(says)


def test_an_id_off_the_mask_may_be_a_mark_of_padding():
    from_arrays({**OURS, "tokens": [[5, 6, 7], [8, 9, -100]]})


def test_lines_need_no_padding_and_no_mask(tmp_path):
    """A response a line; numbers are of the response, or of the file."""
    rows = [
        {
            name: values[i][:length] if isinstance(values[i], list) else values[i]
            for name, values in {**OURS, **OPTIONAL, "text": ["a", "b"]}.items()
            if name != "mask"
        }
        for i, length in ((0, 3), (1, 2))
    ]
    dump, want = read(lines(tmp_path / "d.jsonl", rows)), from_arrays({**OURS, **OPTIONAL})
    assert dump.top_logprobs.shape == (2, 3, 2) and not dump.top_logprobs[1, 2].any()
    for name in ("tokens", "mask", "sampler_logprobs", "entropy", "weights_version"):
        np.testing.assert_array_equal(dump.arrays()[name], want.arrays()[name])


def test_one_version_for_all_is_of_every_response():
    dump = from_arrays({**OURS, "weights_version": 5, "prompt_length": np.array(3), "step": [6, 6]})
    assert dump.weights_version.tolist() == [5, 5] and dump.prompt_length.tolist() == [3, 3]
    assert dump.step == 6


NEMO_RL = [
    {
        "token_ids": [[1, 2, *row]],
        "token_loss_mask": [[0, 0, *mask]],
        "sample_loss_mask": [kept],
        "generation_logprobs": [[0.0, 0.0, *sampler]],
        "prev_logprobs": [[0.0, 0.0, *trainer]],
        "content": ["text"],
        "rewards": [1.0],
        "idx": i,
    }
    for i, (row, mask, sampler, trainer, kept) in enumerate(
        zip(*OURS.values(), (1.0, 0.0), strict=True)
    )
]


def test_nemo_rls_lines_are_batches_of_one_with_their_prompts(tmp_path):
    """As its log_batched_dict_as_jsonl writes them; a masked response is none."""
    dump = read(lines(tmp_path / "train_data_step3.jsonl", NEMO_RL))
    assert dump.tokens.tolist() == [[1, 2, 5, 6, 7], [1, 2, 8, 9, 0]]
    assert dump.mask.tolist() == [[False, False, True, True, True], [False] * 5]
    assert dump.trainer_logprobs[0].tolist() == [0, 0, -1.1, -2.1, -3.1]
    assert dump.prompt_length[0] == 2


def tensors(**columns):
    return {name: torch.tensor(values) for name, values in columns.items()}


@pytest.mark.parametrize("framework", ["verl", "trl", "trl without prompts"])
@pytest.mark.parametrize("masked", [True, False])
def test_prompts_stand_before_the_responses_that_verl_and_trl_save_apart(
    framework, masked, tmp_path
):
    """Left-padded; so that `--model` sees what the tokens were drawn after."""
    rng = np.random.default_rng(0)
    prompts, tokens = (torch.tensor(rng.integers(1, 9, (12, n))) for n in (5, 7))
    there = torch.arange(5) >= torch.arange(12)[:, None] % 4
    sides = [-torch.rand(12, 7), -torch.rand(12, 7).double()]
    mask = (torch.arange(7) < 3 + torch.arange(12)[:, None]) | ~torch.tensor(masked)
    if framework == "verl":
        columns = {"responses": tokens, "prompts": prompts * there}
        columns |= {"attention_mask": torch.cat((there.long(), mask.long()), 1)}
        names = ("rollout_log_probs", "old_log_probs", "response_mask")
    else:
        columns = {"completion_ids": tokens, "prompt_ids": prompts * there, "prompt_mask": there}
        names = ("sampling_per_token_logps", "old_per_token_logps", "completion_mask")
    columns |= dict(zip(names, [*sides, *[mask] * masked], strict=False))
    width = 5
    if framework == "trl without prompts":
        del columns["prompt_ids"]
        width = 0
    torch.save(columns, tmp_path / "step.pt")
    dump = read(tmp_path / "step.pt")
    assert dump.tokens.shape == (12, width + 7) and not dump.mask[:, :width].any()
    assert dump.mask[:, width:].tolist() == mask.tolist()
    assert dump.prompt_length.tolist() == there.sum(1).tolist()
    kept = mask.numpy()
    for found, side in ((dump.sampler_logprobs, sides[0]), (dump.trainer_logprobs, sides[1])):
        np.testing.assert_allclose(found[:, width:][kept], side.numpy()[kept])
    for row, response in enumerate(gather([dump], 12).each if width else []):
        ids = torch.cat((prompts[row][there[row]], tokens[row][mask[row]]))
        assert response.ids.tolist() == ids.tolist()
        assert response.begin == int(there[row].sum())


RECORDING = {
    "NeMo-RL": "vLLM log-probs",
    "verl": "actor_rollout_ref.rollout.calculate_log_probs=true",
    "TRL": "use_vllm rollout_func num_iterations 2",
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("lacking", ["sampler_logprobs", "trainer_logprobs"])
def test_a_side_that_a_framework_leaves_out_is_named(framework, lacking):
    names = FRAMEWORKS[framework]
    with pytest.raises(ValueError) as error:
        from_arrays({names[ours][0]: values for ours, values in OURS.items() if ours != lacking})
    assert str(error.value) == Says(f"{lacking} mask {RECORDING[framework]}")


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float8_e5m2])
def test_tensors_that_numpy_has_not_are_read(tmp_path, kind):
    columns = tensors(**OURS) | {"entropy": torch.full((2, 3), 0.5, requires_grad=True)}
    sampler = columns["sampler_logprobs"].to(kind)
    torch.save({**columns, "sampler_logprobs": sampler}, tmp_path / "d.pt")
    dump = read(tmp_path / "d.pt")
    assert dump.sampler_logprobs.tolist() == sampler.float().tolist()
    assert dump.entropy.tolist() == [[0.5] * 3] * 2


SAVED = "torch.save({k: v for k, v in %s.items() if hasattr(v, 'shape')}, 'step.pt')"


def test_a_file_that_unpacks_to_more_than_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("nemo_algos.engines.dumps.dump.LARGEST", 500)
    write(tmp_path / "d.npz", from_arrays(OURS))
    with zipfile.ZipFile(tmp_path / "d.npz") as archive:
        assert sum(e.file_size for e in archive.infolist()) > 500
    with pytest.raises(ValueError, match="fewer"):
        read(tmp_path / "d.npz")


def npz(**change):
    """Our columns as a file, with a change that does not fit."""
    file = io.BytesIO()
    np.savez(file, **{**OURS, **change})
    return file.getvalue()


def pt(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


LACKS = "tokens sampler_logprobs trainer_logprobs"
VERL = {"input": "a", "output": "b", "gts": "c", "score": 1.0, "step": 3}
NO_DUMP = "{} " + SAVED % "batch.batch"  # never torch's own text, which says how to run its code


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("d.npz", npz(tokens=[1, 2]), "{} tokens [2] [responses positions]"),
        ("d.npz", npz(entropy=[0.1]), "{} entropy [1] [2 3]"),
        ("d.npz", npz(weights_version=[1, 2, 3]), "{} weights_version [3] [2] [2 3]"),
        ("d.npz", npz(mask=[[0, 0, 0]] * 2), "{} mask"),
        ("d.npz", npz(sampler_logprobs=[[0.5] * 3] * 2), "{} sampler_logprobs 0"),
        ("d.npz", npz(tokens=[["a"] * 3] * 2), "{} tokens <U1"),
        ("d.npz", npz(mask=[[np.nan] * 3] * 2), "{} mask"),
        ("d.npz", npz(step=[]), "{} step [0] []"),
        ("d.npz", npz(weights_version=[4, np.nan]), "{} weights_version NaN 2^53"),
        ("d.pt", b"hello world", NO_DUMP),
        ("d.pt", b"", NO_DUMP),
        ("d.pt", pickle.dumps(VERL), NO_DUMP),
        ("d.pt", pt(torch.zeros(3)), "{} Tensor " + SAVED % "batch.batch"),
        ("d.csv", b"", "{} .npz .jsonl .pt"),
        ("d.npz", None, "{}"),
        ("d.npz", b"PK", "{}: .npz numpy.savez"),
        ("d.jsonl", b"", "{} line"),
        ("d.jsonl", b"[1]\n", "{} 1 JSON object"),
        (
            "d.jsonl",
            b'{"tokens": [1], "sampler_logprobs": [-1]}\n',
            "{}: trainer_logprobs mask sampler_logprobs tokens numpy.savez",
        ),
        (
            "d.jsonl",
            b'{"tokens": [1, 2], "sampler_logprobs": [-1], "trainer_logprobs": [-1, -1]}\n',
            "{}: 1 sampler_logprobs [1] tokens [2]",
        ),
        (
            "d.jsonl",
            b'{"tokens": [1], "sampler_logprobs": ["x"], "trainer_logprobs": [-1]}\n',
            "{} sampler_logprobs numbers",
        ),
        (
            "3.jsonl",
            json.dumps(VERL).encode() + b"\n",
            f"{{}}: {LACKS} gts input output score step verl " + SAVED % "batch.batch",
        ),
        ("completions_00001.parquet", b"", "{} .npz .jsonl .pt TRL " + SAVED % "inputs"),
    ],
)
def test_what_is_no_dump_is_told_what_to_be(tmp_path, name, content, sentence):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError) as error:
        read(tmp_path / name)
    assert str(error.value) == Says(sentence.replace("{}", str(tmp_path / name), 1))
    assert "weights_only" not in str(error.value)
