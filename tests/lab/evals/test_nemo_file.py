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


def without(key):
    return {k: v for k, v in item(1, "2+2?", "4", 1.0).items() if k != key}


def rewarded(reward):
    """Several parts, no number, or one with which no mean is one."""
    return item(1, "2+2?", "4", reward)


GOOD = item(0, "2+2?", "4", 1.0)
BROKEN = {
    "is not JSON": [json.dumps({"evaluation_data": [GOOD]})[:-20], "[" * 100_000],
    "JSON object": ["[]"],
    "evaluation_data: ": ["{}", '{"evaluation_data": []}', '{"evaluation_data": 3}'],
    r"evaluation_data\.1: ": ["text"],
    **{rf"evaluation_data\.1\.{key}: ": [without(key)] for key in ("prompt", "response")},
    r"evaluation_data\.1\.extra_env_info: ": [without("extra_env_info")],
    r"evaluation_data\.1\.reward: ": [
        without("reward"),
        *map(rewarded, [[1.0, 0.0], float("nan"), float("inf"), -float("inf"), 10**400, "1", None]),
    ],
}


@pytest.mark.parametrize(("said", "broken"), [(s, b) for s, each in BROKEN.items() for b in each])
def test_what_is_broken_is_named(tmp_path, said, broken):
    path = save(tmp_path, GOOD, broken)
    if "1" not in said:
        path.write_text(broken)
    with pytest.raises(ValueError, match=rf"evaluation_data\.json.*{said}.*interrupted"):
        read(path)


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.json .*eval\.save_path"):
        read(tmp_path / "nowhere.json")
