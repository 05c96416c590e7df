"""Responses with an environment's turns: masks with holes train by the direct formula."""

import pytest
import small_llama
import torch
from says import Says

from nemo_algos import config
from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.engines.data.tasks import Task
from nemo_algos.engines.local.evaluation import attempts
from nemo_algos.engines.local.hf import HFPolicy
from nemo_algos.engines.local.sampling import unpack
from nemo_algos.engines.local.trainer import Trainer
from nemo_algos.engines.local.updates import Batch
from nemo_algos.engines.rewards import Verdict
from nemo_algos.preflight.check.judge import check
from nemo_algos.preflight.check.local.judge import parse

SAID = ["so", "what", "is", "25", "?"]
LOW, HIGH, TEMPERATURE = 0.8, 1.2, 0.7


class Asks(Task):
    """Replies to responses of an even number of words, twice at most."""

    turns = 2

    def examples(self, step, number):
        return [f"{i} + {step}" for i in range(number)]

    def prompt(self, example):
        return f"what is {example} ?"

    def reply(self, example, response):
        assert "?" in self.prompt(example)
        return " ".join(SAID) if len(response.split()) % 2 == 0 else None

    def verify(self, examples, responses):
        return [Verdict(float(len(r) % 3), "ok") for r in responses]


class Pays(Asks):
    """Says what each turn has earned: a tenth a word, and a bonus at the end."""

    def verify(self, examples, responses):
        verdicts = []
        for response in responses:
            said = [len(turn.split()) / 10 for turn in response.split(" ".join(SAID))]
            parts = {f"turn_{k + 1}": Verdict(paid, "ok") for k, paid in enumerate(said)}
            parts |= {f"turn_{k}": Verdict(0.0, "ok") for k in range(len(said) + 1, 4)}
            verdicts.append(Verdict(sum(said) + 0.5, "ok", parts=parts))
        return verdicts


def trainer_of(folder, *overrides):
    written = [
        f"policy.model_name={folder}",
        f"data.task={__name__}:Asks",
        "grpo.num_prompts_per_step=4",
        "grpo.num_generations_per_prompt=4",
        "policy.generation.max_new_tokens=4",
        f"policy.generation.temperature={TEMPERATURE}",
        "policy.dynamic_batching.train_mb_tokens=40",
        "policy.device=cpu",
        *overrides,
    ]
    cfg, algorithm = parse(config.load(config.SHIPPED / "math.yaml", written))
    policy = HFPolicy(cfg.policy, torch.device("cpu"))
    return Trainer(cfg, algorithm, policy, Asks(cfg.data, 0), None)


def direct(trainer, experience, i):
    """Log-probs [n] of response i's own tokens, from its whole text alone, without padding."""
    present = experience.present[i]
    prompt = experience.prompts[experience.group[i]][experience.prompt_mask[experience.group[i]]]
    ids = torch.cat((prompt, experience.tokens[i][present]))
    logits = trainer.policy.model(ids[None]).logits[0, len(prompt) - 1 : -1] / TEMPERATURE
    logprobs = logits.log_softmax(-1).gather(1, ids[len(prompt) :, None])[:, 0]
    return logprobs[experience.mask[i][present]]


def test_what_is_generated(folder):
    trainer, replies = trainer_of(folder), []
    reply, asked = trainer.task.reply, (trainer.task.examples(0, 4), 4, trainer.generator)
    trainer.task.reply = lambda *said: replies.append(reply(*said)) or replies[-1]
    experience, _, texts, _ = attempts(trainer.policy, trainer.task, *asked)
    ids, turns = trainer.policy.ids(" ".join(SAID)), set()
    for i, (tokens, mask) in enumerate(zip(experience.tokens, experience.mask, strict=True)):
        shown = experience.present[i]
        assert not mask[~shown].any() and shown[: shown.sum()].all()
        spoken = tokens[shown & ~mask].tolist()
        assert spoken == ids * (len(spoken) // len(ids))
        turns.add(len(spoken) // len(ids))
        assert texts[i].tokens == mask.sum() and texts[i].count("25 ?") >= len(spoken) // len(ids)
        for column in (experience.logprobs, experience.entropy, experience.gen_logprobs):
            assert (column[i][~mask] == 0).all() and (column[i][mask] != 0).any()
    assert turns == {0, 1, 2}
    assert len(replies) == 16 + sum(said is not None for said in replies[:16])  # ended: not asked


@pytest.mark.parametrize("method", ["grpo", "gpg"])
def test_loss_and_gradient_are_the_direct_formulas(folder, method):
    trainer = trainer_of(folder, f"method.name={method}")
    experience, rollouts = trainer.collect()
    signals = trainer.algorithm.signals(rollouts)
    holes = experience.present & ~experience.mask
    assert (holes.sum(1) > 0).sum() >= 4 and rollouts.mask is experience.mask
    before = [direct(trainer, experience, i).detach() for i in range(16)]
    for old, row, mask in zip(before, experience.logprobs, experience.mask, strict=True):
        torch.testing.assert_close(row[mask], old, rtol=0, atol=2e-5)
    with torch.no_grad():
        for parameter in trainer.policy.model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    every = torch.arange(16)
    counts = Counts.of(rollouts.mask)
    stats = trainer.update.accumulate(every, Batch(experience, rollouts, signals), counts)
    got = [p.grad.clone() for p in trainer.policy.model.parameters()]
    trainer.policy.model.zero_grad()
    terms, clipped = [], 0
    for i, old in enumerate(before):
        new, advantage = direct(trainer, experience, i), signals.advantages[i].float()
        ratio = (new - old).exp()
        worst = torch.minimum(ratio * advantage, ratio.clamp(LOW, HIGH) * advantage)
        clipped += int((worst != ratio * advantage).sum())
        terms.append(worst if method == "grpo" else new * advantage)
    assert clipped > 3
    means = torch.stack([term.mean() for term in terms])
    loss = -(means.mean() if method == "grpo" else torch.cat(terms).mean())
    loss.backward()
    assert stats.summary()["loss"] == pytest.approx(loss.item(), abs=1e-5)
    for parameter, gradient in zip(trainer.policy.model.parameters(), got, strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=2e-4, atol=2e-5)


def test_a_turn_is_paid_for_what_follows_it(folder):
    trainer = trainer_of(folder, "method.name=turn_rloo", f"data.task={__name__}:Pays")
    trainer.task = Pays(trainer.config.data, 0)
    experience, rollouts = trainer.collect()
    advantages = trainer.algorithm.signals(rollouts).advantages
    returns = {}
    for i, (mask, shown) in enumerate(zip(experience.mask, experience.present, strict=True)):
        segments = [[]]
        for token, own in zip(experience.tokens[i][shown].tolist(), mask[shown], strict=True):
            if own:
                segments[-1].append(token)
            elif segments[-1]:
                segments.append([])
        paid = [len(trainer.policy.text(tokens).split()) / 10 for tokens in segments]
        returns[i] = [sum(paid[k:]) + 0.5 for k in range(len(paid))]
    assert {len(of) for of in returns.values()} == {1, 2, 3}
    for i, own in returns.items():
        others = [of for j, of in returns.items() if j // 4 == i // 4 and j != i]
        for k, earned in enumerate(own):
            stand = [of[min(k, len(of) - 1)] for of in others]
            here = experience.mask[i] & (rollouts.turn[i] == k)
            want = earned - sum(stand) / 3
            torch.testing.assert_close(
                advantages[i][here], torch.full((int(here.sum()),), want).double()
            )
    assert trainer.step()["turns/mean"] > 1


def test_a_task_of_one_turn_is_refused():
    (finding,) = check("grpo.yaml", ["method.name=turn_etr"], "main")
    assert str(finding) == Says("data.task: turn_etr countdown")


def test_support_replay_in_trees_and_turns(folder):
    """Log-probs of the trainer are the sampler's, over its sets; without replay they are not."""
    filters = ["policy.generation.top_k=4", "policy.generation.top_p=0.8"]
    gaps = []
    for replay in ("true", "false"):
        chunks = ["policy.generation_batch_size=5", f"policy.generation.support_replay={replay}"]
        trainer = trainer_of(folder, *filters, *chunks)
        drawn, rollouts = trainer.collect()
        assert (drawn.present & ~drawn.mask).any() and drawn.gen_logprobs[
            drawn.mask
        ].exp().min() > 0.05
        gaps.append((rollouts.old_logprobs - drawn.gen_logprobs)[drawn.mask])
        assert trainer.step()["ratio/mean"] > 0
        if replay == "true":
            sizes = unpack(drawn.support, len(small_llama.WORDS)).sum(-1)
            assert set(sizes[drawn.mask].tolist()) <= {1, 2, 3, 4}
            assert (sizes[~drawn.mask] == len(small_llama.WORDS)).all()
    assert gaps[0].abs().max() < 2e-5 and gaps[1].mean() < -0.1


def test_the_likeliest_tokens_of_every_turn_reach_the_loss(folder):
    """Before the first update the policy is the sampler, so they have the same log-probs."""
    on = ["loss_fn.score_centering=true", "policy.generation.top_logprobs=3"]
    trainer = trainer_of(folder, "method.name=gpg", *on)
    drawn, _ = trainer.collect()
    assert (drawn.present & ~drawn.mask).any()
    heads = trainer.policy.logprobs_and_heads(drawn, torch.arange(len(drawn.mask)))[1]
    assert (heads - drawn.likeliest_logprobs)[drawn.mask].abs().max() < 2e-5
    assert trainer.step()["grad_norm"] > 0


def test_a_step_with_turns_is_traced_and_counts_its_own_tokens(folder):
    trainer = trainer_of(folder)
    metrics = trainer.step()
    assert metrics["length/max"] <= 12 and metrics["mismatch/mean"] < 1e-4
    assert all(len(line["tokens"]) == len(line["ratio"]) for line in trainer.traces)


def test_the_countdown_model_takes_no_turns():
    (finding,) = check("grpo.yaml", [f"data.task={__name__}:Asks"], "main")
    assert str(finding) == (Says(f"policy.model_name: countdown-tiny {__name__}:Asks"))
