"""What TRL's own trainer returns of rollouts, saved by the line that is documented, and its cause.

Without vLLM TRL has the sampler's log-probs from a `rollout_func`, and the trainer's own where a
batch is trained on more than once.
"""

import re
from functools import partial
from pathlib import Path

import pytest
import torch
import trl_runs
from trl_runs import one_thread, saved, settings, trainer  # noqa: F401

from nemo_algos.engines.dumps.dump import RECORDING, SAVED, read
from nemo_algos.lab.mismatch.verdict import diagnose


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The countdown model, hardly taught."""
    return saved(tmp_path_factory.mktemp("countdown"), 20)


def generated(prompts, run, temperature):
    """By transformers at a temperature, with a cache; every fourth token is the environment's."""
    asked = run.processing_class(prompts, padding=True, padding_side="left", return_tensors="pt")
    torch.manual_seed(0)
    out = run.model.generate(
        **{name: asked[name] for name in ("input_ids", "attention_mask")},
        max_new_tokens=12,
        do_sample=True,
        temperature=temperature,
        top_k=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    ids = out.sequences[:, asked["input_ids"].shape[1] :]
    own = torch.arange(ids.shape[1]).expand(ids.shape) % 4 != 3
    scores = torch.stack(out.scores, 1).log_softmax(-1).gather(2, ids[..., None])[..., 0]
    lengths = (ids != run.processing_class.pad_token_id).sum(1)
    columns = {"completion_ids": ids, "logprobs": scores.where(own, 0.0), "env_mask": own.long()}
    rows = {k: [v[i, :n].tolist() for i, n in enumerate(lengths)] for k, v in columns.items()}
    return {"prompt_ids": run.processing_class(prompts)["input_ids"], **rows}


@pytest.fixture
def dumped(model, tmp_path, monkeypatch):
    """The file of a step's rollouts."""
    monkeypatch.chdir(tmp_path)

    def step(rollout_func=None, num_iterations=2):
        args = settings(model, max_steps=1, num_iterations=num_iterations, temperature=1.0)
        run = trainer(model, args, rollout_func=rollout_func)
        returned = run._generate_and_score_completions

        def saving(rows):
            inputs = returned(rows)
            exec(SAVED % "inputs")
            return inputs

        monkeypatch.setattr(run, "_generate_and_score_completions", saving)
        run.train()
        return tmp_path / "step.pt"

    return step


@pytest.mark.parametrize(("temperature", "verdict"), [(1.0, "clean"), (0.7, "unknown")])
def test_what_trl_returns_of_its_rollouts_tells_the_cause(dumped, temperature, verdict):
    dump = read(dumped(partial(generated, temperature=temperature)))
    assert len(dump.tokens) == 64 and set(dump.prompt_length) == {5}
    assert diagnose([dump]).verdict == verdict


@pytest.mark.parametrize("method", [None, "etr"])
def test_the_recorder_of_the_page_writes_a_file_per_batch_and_process(
    model, tmp_path, monkeypatch, method
):
    """On TRL's trainer and on ours."""
    page = (Path(__file__).parents[3] / "docs/mismatch.md").read_text()
    code = re.search(r"```python\n# recorded.py\n(.*?)```", page, re.DOTALL)[1]
    base = trl_runs.MethodTrainer if method else trl_runs.GRPOTrainer
    scope = {"base": base}
    exec(code.replace("(GRPOTrainer)", "(base)"), scope)
    monkeypatch.setattr(trl_runs, base.__name__, scope["Recorded"])
    monkeypatch.chdir(tmp_path)
    args = settings(model, max_steps=4, num_iterations=2, temperature=1.0)
    trainer(model, args, method, rollout_func=partial(generated, temperature=1.0)).train()
    files = sorted(tmp_path.glob("*.pt"))
    assert [file.name for file in files] == ["step_0_rank_0.pt", "step_2_rank_0.pt"]
    assert all(len(read(file).tokens) == 64 for file in files)


@pytest.mark.parametrize(
    ("lacking", "given"),
    [("sampler_logprobs", {}), ("trainer_logprobs", {"rollout_func": trl_runs.given})],
)
def test_what_trl_leaves_out_is_named(dumped, lacking, given):
    path = dumped(**given, num_iterations=2 - len(given))
    with pytest.raises(ValueError) as error:
        read(path)
    assert f"{path}: lacks {lacking}; it has mask, " in str(error.value)
    assert str(error.value).endswith(f". {RECORDING['completion_ids']}")
