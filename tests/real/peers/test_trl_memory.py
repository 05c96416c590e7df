"""`adaptive_entropy` in TRL's trainer: coefficient, gradient, and what a checkpoint keeps."""

import pytest
import torch
import trl_runs
from datasets import Dataset
from trl_model import one_thread, saved  # noqa: F401
from trl_runs import settings, trainer

from nemo_algos import Counts, build, policy_loss

TARGET, START, STEP, LARGEST = 2.0, 0.2, 0.1, 0.3
ADAPTIVE = {"target": TARGET, "start": START, "delta": STEP, "largest": LARGEST}
METHOD = {"name": "grpo", "terms": {"adaptive_entropy": ADAPTIVE}}
SGD = {"optim": "sgd", "learning_rate": 0.01, "max_grad_norm": 0.0, "num_generations": 4}
SGD |= {"per_device_train_batch_size": 12, "num_generations_eval": 4, "max_steps": 12}
COEF = "adaptive_entropy/coef"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("countdown"), 100)


def adaptive(model, **changed):
    """A trainer on given completions."""
    asked = [{"prompt": f"{i} 2 > 5 :", "numbers": [i, 2], "target": 5} for i in range(3)]
    named = {"rollout_func": trl_runs.given, "reward_funcs": trl_runs.even}
    named["eval_dataset"] = Dataset.from_list(asked)
    return trainer(model, settings(model, **SGD | changed), METHOD, **named)


def coefs_of(run):
    return [row[COEF] for row in run.state.log_history if COEF in row]


def moved(c, e):
    """c_(k+1), of the entropy at the coefficient's batch."""
    return min(max(c + (STEP if e < TARGET else -STEP), 0.0), LARGEST)


class Watch:
    """At each training step the adapter's loss and L_grpo - a_k mean H, differentiated."""

    def __init__(self, run):
        self.run, self.compute, self.pairs = run, run._compute_loss, []
        self.plain, self.batch, self.next, self.used = build("grpo"), None, START, []
        run._compute_loss = self.loss

    def loss(self, model, inputs):
        value = self.compute(model, inputs)
        if model.training:
            weights = [p for p in model.parameters() if p.requires_grad]
            both = (value, self.direct(model, inputs))
            self.pairs.append(
                [(x.detach(), *torch.autograd.grad(x, weights, retain_graph=True)) for x in both]
            )
        return value

    def direct(self, model, inputs):
        logprobs, entropy = self.run._score(model, inputs)
        whole, rows = self.run._own[True][0], inputs["rows"]
        rollouts, signals = whole[rows], self.plain.signals(whole)[rows]
        mean = entropy[rollouts.mask].mean()
        if whole is not self.batch:  # the policy is still the one that sampled it
            e, c, self.batch = mean.item(), self.next, whole
            self.used.append(c if e <= TARGET else 0.0)
            self.next = moved(c, e)
        counts = Counts.of(rollouts.mask)
        surrogate = policy_loss(self.plain, logprobs, rollouts, signals, counts).value
        return surrogate - self.used[-1] * mean


def test_loss_and_gradient_are_the_direct_formulas(model):
    """Two updates a batch; evaluations between them, in which nothing moves."""
    run = adaptive(model, num_iterations=2, eval_strategy="steps", eval_steps=1)
    watch = Watch(run)
    run.train()
    assert len(watch.pairs) == 12 and len(watch.used) == 6
    for got, want in watch.pairs:
        for x, y in zip(got, want, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-6)
    assert {0.0, LARGEST} < set(watch.used)  # switched off, at its limit, and between
    assert coefs_of(run) == pytest.approx(watch.used)


def test_a_resumed_run_goes_on_with_the_coefficient(model, tmp_path):
    whole = adaptive(model)
    whole.train()
    kept = {"output_dir": str(tmp_path), "save_strategy": "steps", "save_steps": 3}
    adaptive(model, max_steps=3, **kept).train()
    run = adaptive(model, **kept)
    run.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert coefs_of(run) == coefs_of(whole)
    for name, weight in whole.model.state_dict().items():
        torch.testing.assert_close(run.model.state_dict()[name], weight, rtol=0, atol=1e-6)


def test_a_method_without_a_memory_leaves_no_callback_to_look_for(model, tmp_path, caplog):
    """Transformers warns of each one in a checkpoint that the resumed trainer has not."""
    asked = [{"prompt": f"{i} 2 > 5 :", "numbers": [i, 2], "target": 5} for i in range(3)]
    named = {"rollout_func": trl_runs.given, "reward_funcs": trl_runs.even}
    kept = {"output_dir": str(tmp_path), "save_strategy": "steps", "save_steps": 1}

    def plain(steps):
        args = settings(model, **SGD | kept | {"max_steps": steps})
        return trainer(
            model, args, {"name": "grpo"}, eval_dataset=Dataset.from_list(asked), **named
        )

    plain(1).train()
    run = plain(2)
    run.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert not [key for key in run.state.stateful_callbacks if key.startswith("nemo_algos")]
