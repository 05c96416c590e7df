"""One step of the trainer: the same update however it is cut up, and how many updates."""

import io
from itertools import pairwise, product

import pytest
import small_llama
import torch
import trainers
from matrix import some_of
from rounding import rounding
from trainers import GROUP, ROWS, update, weights

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.engines.local.experience import Experience
from nemo_algos.engines.local.prompt_sharing import micro_batches

KL = "loss_fn.reference_policy_kl_penalty=0.05"


def close(got, want, steps=1):
    """Updates [N], two to a step."""
    torch.testing.assert_close(got, want, rtol=0, atol=rounding(2 * steps))
    assert want.abs().max() > 1e-3


def near(value, steps=1):
    """A metric, among them norms of gradients that nearly cancel."""
    return pytest.approx(value, rel=100 * rounding(2 * steps), abs=10 * rounding(2 * steps))


def micro(size):
    return [f"policy.train_micro_batch_size={size}"]


def dynamic(tokens):
    name = "policy.dynamic_batching"
    return [f"{name}.enabled=true", f"{name}.train_mb_tokens={tokens}"]


SPLITS = [micro(5), micro(1000), dynamic(100)]


@pytest.mark.parametrize(
    ("method", "split"), some_of(product(["grpo", "dapo", "quatro"], SPLITS), 5), ids=str
)
def test_micro_batches_change_neither_the_update_nor_the_metrics(method, split):
    more = [KL] if method == "dapo" else []
    want, whole = update(*more, method=method)
    got, cut = update(*more, *split, method=method)
    close(got, want)
    for name, value in whole.items():
        if "time" not in name and "second" not in name:
            assert cut[name] == near(value), name


@pytest.mark.parametrize("method", ["grpo", "gspo", "erpo"])
def test_skipping_inert_rows_changes_nothing_but_the_work(monkeypatch, method):
    got, metrics = update(method=method, steps=2)
    monkeypatch.setattr(Algorithm, "inert_rows", lambda self, signals: torch.zeros(ROWS).bool())
    want, all_rows = update(method=method, steps=2)
    close(got, want, steps=2)
    for name in ("loss", "reward/mean", "advantage/std", "groups/flat_share", "grad_norm"):
        assert metrics[name] == near(all_rows[name], steps=2), name


FLAT = set(range(4 * GROUP))  # the first 4 prompts, the whole first minibatch


@pytest.mark.parametrize(
    ("method", "more", "skipped"),
    [("grpo", [], True), ("etr", [], True), ("quatro", [], False), ("grpo", [KL], False)],
)
def test_which_rows_are_skipped(method, more, skipped):
    made = trainers.trainer(*more, method=method)
    rows, rates = trainers.counted(made)
    flat_share = made.step()["groups/flat_share"]
    trained = set(rows)
    assert len(rows) == len(trained) and len(rates) == 2
    if skipped:
        assert not trained & FLAT and len(trained) == round((1 - flat_share) * ROWS) > 0
    else:
        assert trained == set(range(ROWS))


@pytest.mark.parametrize(("epochs", "global_batch"), [(1, 32), (1, 8), (3, 16), (2, 32)])
def test_optimizer_steps_are_epochs_times_batch_over_global_batch(epochs, global_batch):
    settings = [
        f"grpo.num_update_epochs={epochs}",
        f"policy.train_global_batch_size={global_batch}",
    ]
    made = trainers.trainer(*settings, method="quatro")
    rows, rates = trainers.counted(made)
    made.step()
    assert len(rates) == epochs * ROWS // global_batch
    assert rows == list(range(ROWS)) * epochs


def test_the_gradient_is_clipped_at_max_grad_norm():
    plain, metrics = update("policy.train_global_batch_size=32")
    clipped, same = update("policy.train_global_batch_size=32", "policy.max_grad_norm=0.01")
    assert metrics["grad_norm"] == pytest.approx(same["grad_norm"]) and metrics["grad_norm"] > 0.02
    assert plain.norm().item() == pytest.approx(0.02 * metrics["grad_norm"], rel=1e-3)
    assert clipped.norm().item() == pytest.approx(0.02 * 0.01, rel=1e-3)


def test_a_state_continues_bit_for_bit():
    settings = {
        "optimizer": {"name": "torch.optim.AdamW", "kwargs": {"lr": 1e-3}},
        "scheduler": [{"name": "torch.optim.lr_scheduler.StepLR", "kwargs": {"step_size": 2}}],
    }
    one = trainers.trainer(**settings)
    one.step()
    other = trainers.trainer(**settings)
    buffer = io.BytesIO()
    torch.save(one.state(), buffer)
    buffer.seek(0)
    other.load(torch.load(buffer, weights_only=False))
    assert other.step_number == 1
    for _ in range(2):
        metrics, again = one.step(), other.step()
        for name in ("loss", "reward/mean", "lr", "grad_norm", "entropy/exact"):
            assert metrics[name] == again[name]
    assert torch.equal(weights(one), weights(other))
    fresh = trainers.trainer(**settings)
    assert not torch.equal(weights(one), weights(fresh))


def experience_of(prompt_lengths, response_lengths, group):
    """An experience of these lengths, nothing else known."""
    p, r = torch.tensor(prompt_lengths), torch.tensor(response_lengths)
    prompt_mask = torch.arange(int(p.max())).flip(0) < p[:, None]
    mask = torch.arange(int(r.max())) < r[:, None]
    of = torch.arange(len(p)).repeat_interleave(group)
    zeros = torch.zeros(mask.shape)
    return Experience(prompt_mask.long(), prompt_mask, of, mask.long(), mask, zeros, zeros, zeros)


@pytest.mark.parametrize("limit", [1, 40, 64, 150, 10_000])
def test_dynamic_batches_keep_to_their_tokens_and_cover_every_row_once(limit):
    rng = torch.Generator().manual_seed(limit)
    prompts, responses = (torch.randint(1, 30, (n,), generator=rng).tolist() for n in (20, 60))
    experience = experience_of(prompts, responses, 3)
    dynamic = {"enabled": True, "train_mb_tokens": limit}
    rows = torch.randperm(60, generator=rng)[:50]
    batches = micro_batches(
        experience, rows, small_llama.section("any", dynamic_batching=dynamic), 0
    )
    assert sorted(torch.cat(batches).tolist()) == sorted(rows.tolist())

    def cost(batch):
        width = max(prompts[i // 3] + responses[i] for i in batch)
        return len(batch) * width

    assert all(len(batch) == 1 or cost(batch) <= limit for batch in batches)
    for batch, after in pairwise(batches):  # and none has room left
        assert cost([*batch, after[0]]) > limit
    if limit == 10_000:
        assert len(batches) == 1


def test_fixed_batches_and_no_rows():
    experience, section = experience_of([3, 4], [5, 6, 7, 8], 2), small_llama.section("any")
    batches = micro_batches(experience, torch.tensor([3, 1, 0, 2, 1]), section, 0)
    assert [b.tolist() for b in batches] == [[3, 1, 0, 2], [1]]
    for enabled in (True, False):
        section = small_llama.section("any", dynamic_batching={"enabled": enabled})
        assert micro_batches(experience, torch.tensor([], dtype=torch.long), section, 0) == []
