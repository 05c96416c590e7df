"""Files in the format of NeMo-RL's nemo_rl/evals/eval.py.

Written by its own function in tests/real/nemo/test_environment.py.
"""

import json

import pytest

from nemo_algos.lab.evals.nemo_file import ScoredResponse, read


def item(index, prompt, response, reward, info="{'ground_truth': '4'}"):
    return {
        "prompt": prompt,
        "response": response,
        "reward": reward,
        "message_log": "[{'role': 'user', 'content': ...}]",
        "extra_env_info": info,
        "sample_index": index,
    }


def save(folder, *items):
    path = folder / "evaluation_data.json"
    path.write_text(json.dumps({"evaluation_data": items}, indent=2))
    return path


def test_rows_with_samples_numbered_by_prompt(tmp_path):
    items = [
        item(0, "2+2?", "4", 1.0),
        item(1, "2+2?", "5\n\u2028", 0),
        item(2, "1+1?", "2", 1.0, "{'ground_truth': '\\\\frac{4}{2}', 'subject': 'algebra'}"),
        item(3, "2+2?", "four", 0.5, "None"),
        item(4, [{"type": "image"}], "x", 0.0, "{'no': tensor([1])}"),
    ]
    path = save(tmp_path, *items)
    assert read(path) == [
        ScoredResponse("2+2?", "4", 1.0, 0, "4"),
        ScoredResponse("2+2?", "5\n\u2028", 0.0, 1, "4"),
        ScoredResponse("1+1?", "2", 1.0, 0, r"\frac{4}{2}"),
        ScoredResponse("2+2?", "four", 0.5, 2, None),
        ScoredResponse('[{"type": "image"}]', "x", 0.0, 0, None),
    ]
    assert read(tmp_path) == read(str(path))


def test_broken_files_are_refused(tmp_path):
    path = save(tmp_path, item(0, "2+2?", "4", 1.0))
    whole = path.read_text()
    path.write_text(whole[:-20])
    with pytest.raises(ValueError, match="is not JSON"):
        read(path)
    for text in ("[]", "{}", '{"evaluation_data": []}', '{"evaluation_data": 3}'):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"json\b.*\bNeMo-RL|evaluation_data|JSON object"):
            read(path)
    with pytest.raises(ValueError, match=r"eval"):
        read(tmp_path / "nowhere.json")


@pytest.mark.parametrize("key", ["prompt", "response", "reward", "extra_env_info"])
def test_broken_items_are_named(tmp_path, key):
    broken = item(1, "2+2?", "4", 1.0)
    del broken[key]
    with pytest.raises(ValueError, match=f"item 1 .* {key}"):
        read(save(tmp_path, item(0, "2+2?", "4", 1.0), broken))
    with pytest.raises(ValueError, match="item 0 of evaluation_data"):
        read(save(tmp_path, "text"))


@pytest.mark.parametrize(
    "reward", [[1.0, 0.0], float("nan"), float("inf"), -float("inf"), 10**400, "1", None]
)
def test_a_reward_that_is_no_number_is_refused(tmp_path, reward):
    """Several parts, no number, or one with which no mean is one."""
    items = item(0, "2+2?", "4", 1.0), item(1, "2+2?", "4", reward)
    with pytest.raises(ValueError, match=r"item 1 .* reward"):
        read(save(tmp_path, *items))


def test_deep_nesting_is_no_json(tmp_path):
    path = tmp_path / "evaluation_data.json"
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match="is not JSON"):
        read(path)
