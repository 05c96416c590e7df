"""Records of others beside a study's arms, and runs that are made again."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml
from says import Says

from nemo_algos.config import ConfigError
from nemo_algos.lab.study import design, records
from nemo_algos.lab.study.runner import results, write_table

A, B = "0123456789ab", "ba9876543210"
KEY = "policy.optimizer.kwargs.lr"
REGIME = {
    "claim": "-",
    "baseline": "grpo",
    "seeds": 2,
    "first_seed": 5,
    "tune": {"grid": {KEY: [1e-4, 2e-4]}, "knobs": {}, "rounds": [{"seeds": 1}]},
    "arms": {"grpo": {}, "etr": {}},
}
OURS = design.Study.model_validate({"regimes": {"r": REGIME, "s": {**REGIME, "tune": None}}})


def written(tmp_path, **changes):
    knobs = {"mine": {"method.clip_high": [0.2, 0.3]}}
    tune = {**REGIME["tune"], "knobs": knobs}
    regime = {**REGIME, "tune": tune, "arms": {"grpo": {}, "mine": {"config": "grpo.yaml"}}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"regimes": {"r": regime | changes}}))
    theirs = tmp_path / "theirs"
    (theirs / "raw").mkdir(parents=True)
    write_table(theirs / "results.csv", [{"id": A, "pass@1": 0.5}, {"id": B, "pass@1": 0.25}])
    for name in (f"{A}.jsonl", f"{A}.path.jsonl"):
        (theirs / "raw" / name).write_text(json.dumps({"of": name}) + "\n")
    return OURS.model_copy(update={"records": {str(tmp_path / "mine.yaml"): str(theirs)}})


def test_their_arms_and_runs_join_ours(tmp_path):
    study, folder = written(tmp_path), tmp_path / "ours"
    folder.mkdir()
    write_table(folder / "results.csv", [{"id": B, "pass@1": 0.75}])
    joined = records.join(study, folder)
    assert [*joined.regimes["r"].arms] == ["grpo", "mine", "etr"]
    assert joined.regimes["r"].tune.knobs == {"mine": {"method.clip_high": [0.2, 0.3]}}
    assert joined.regimes["s"] == OURS.regimes["s"]
    rows = results(folder / "results.csv")
    assert {name: row["pass@1"] for name, row in rows.items()} == {A: 0.5, B: 0.75}
    assert sorted(p.name for p in (folder / "raw").iterdir()) == [f"{A}.jsonl", f"{A}.path.jsonl"]
    assert len(records.join(study, folder).regimes["r"].arms) == 3  # and again


def test_without_records_nothing_is_written(tmp_path):
    assert records.join(OURS, tmp_path) == OURS and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seeds": 3}, "regime r change arms knobs"),
        ({"settings": {"grpo.num_update_epochs": 2}}, "regime r"),
        ({"arms": {"grpo": {}, "etr": {}, "mine": {}}}, "regimes.r.arms etr names"),
    ],
)
def test_another_regime_is_refused(tmp_path, changes, said):
    with pytest.raises(ConfigError) as error:
        records.join(written(tmp_path, **changes), tmp_path)
    assert str(error.value) == Says(said)


def test_a_run_made_again_is_compared_column_by_column(tmp_path, monkeypatch):
    runs, _ = design.runs(OURS)
    written_rows = [
        {"id": run.id, "failed": "", "pass@1": 0.5, "CPU seconds": 3.0, "time/seconds": 1.0}
        for run in runs[:3]
    ]
    write_table(tmp_path / "results.csv", written_rows)

    def train(run, folder):
        passed = 0.5 if run.id == runs[0].id else 0.25
        times = {"CPU seconds": 9, "time/seconds": 2}
        return {"id": run.id, "failed": "", "pass@1": passed, "of a later version": 1, **times}

    monkeypatch.setattr(records, "train", train)
    with ThreadPoolExecutor(1) as pool:
        found = list(records.verify(runs, tmp_path, 1.0, tmp_path / "again", pool))
        few = list(records.verify(runs, tmp_path, 0.01, tmp_path / "again", pool))
    want = {runs[0].id: {}, **{run.id: {"pass@1": (0.5, 0.25)} for run in runs[1:3]}}
    assert {v.run: v.differing for v in found} == want and len(few) == 1


def test_an_id_is_no_path(tmp_path):
    study = written(tmp_path)
    write_table(tmp_path / "theirs" / "results.csv", [{"id": "../../out", "pass@1": 0.5}])
    with pytest.raises(ValueError) as error:
        records.join(study, tmp_path / "ours")
    assert str(error.value) == Says("theirs '../../out' id")
