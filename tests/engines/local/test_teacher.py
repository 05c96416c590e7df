"""On-policy distillation in the embedded engine: towards a teacher, and not without one."""

import io

import pytest
import torch
import trainers
from rich.console import Console

from nemo_algos.config import ConfigError
from nemo_algos.engines.data.schema import DataSection
from nemo_algos.engines.local import tiny_policy
from nemo_algos.engines.local.build import build_trainer


@pytest.fixture
def teacher(tmp_path):
    trainers.policy(seed=1).save(str(tmp_path / "teacher"))
    return tmp_path / "teacher"


def distilled(monkeypatch, tmp_path, folder):
    monkeypatch.setattr(tiny_policy, "WARM_STEPS", 2)
    monkeypatch.setenv("NEMO_ALGOS_CACHE", str(tmp_path))
    larger = ("grpo.num_prompts_per_step=32", "policy.train_global_batch_size=64")
    named = f"method.teacher={folder}"
    checked = trainers.checked(named, *larger, method="opd", optimizer=trainers.ADAM)
    made = build_trainer(*checked, Console(file=io.StringIO()))
    made.task = trainers.MadeUp(DataSection(), 0)
    return made


def distance(made):
    """Mean log pi - log pi_teacher of whole new responses to the same prompts, nats."""
    examples = made.task.examples(0, 32)
    prompts = [made.policy.encode(made.task.prompt(example)) for example in examples]
    drawn = made.policy.generate(prompts, 16, torch.Generator().manual_seed(0))
    reference = made.update.logprobs(made.reference, drawn, torch.arange(len(drawn.group)))
    return float((drawn.logprobs - reference).where(drawn.mask, 0.0).sum(1).mean())


def test_the_policy_moves_to_its_teacher(monkeypatch, tmp_path, teacher):
    made = distilled(monkeypatch, tmp_path, teacher)
    before = distance(made)
    for _ in range(12):
        made.step()
    assert before > 15 and distance(made) < 0.6 * before
    assert not any(p.requires_grad for p in made.reference.__self__.model.parameters())


@pytest.mark.parametrize(
    ("overrides", "method", "path"),
    [
        ([], "opd", "method.teacher"),
        (["method.advantages=opd"], "grpo", "method.advantages.teacher"),
        (
            ["method.teacher=x", "loss_fn.reference_policy_kl_penalty=0.1"],
            "opd",
            "loss_fn.reference_policy_kl_penalty",
        ),
    ],
)
def test_refused(overrides, method, path):
    with pytest.raises(ConfigError) as error:
        trainers.checked(*overrides, method=method)
    assert path in [finding.path for finding in error.value.findings]


def test_a_teacher_of_other_tokens_is_refused(monkeypatch, tmp_path, teacher):
    vocabulary = teacher / "tokenizer.json"
    vocabulary.write_text(vocabulary.read_text().replace('"1"', '"?"').replace('"2"', '"1"'))
    with pytest.raises(ConfigError) as error:
        distilled(monkeypatch, tmp_path, teacher)
    assert error.value.findings[0].path == "method.teacher"
