"""Loss terms, parts of the reward and a memory in the embedded engine."""

from dataclasses import replace

import pytest
import small_llama
import torch
import trainers
from says import Says
from trainers import GROUP, PROMPTS, ROWS, MadeUp, trainer, update, weights

from nemo_algos import config
from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.loss import policy_loss
from nemo_algos.algorithms.rollouts import prompt_key
from nemo_algos.engines.local import checkpoint
from nemo_algos.engines.local.experience import Experience
from nemo_algos.engines.local.hf import HFPolicy
from nemo_algos.engines.local.updates import Batch
from nemo_algos.engines.rewards import Verdict
from nemo_algos.findings import ConfigError
from nemo_algos.preflight.check.local.judge import judge_by, parse
from nemo_algos.preflight.check.local.rules import RULES

ENTROPY, NLL = "method.terms.entropy.coef=0.5", "method.terms.nll.coef=0.5"
ADAPTIVE = ["method.terms.adaptive_entropy.target=9", "method.terms.adaptive_entropy.start=0.004"]
ONE_UPDATE = f"policy.train_global_batch_size={ROWS}"
REMEMBERING = [("spo", []), ("ema_baseline", []), ("etr", ADAPTIVE)]


class InParts(MadeUp):
    """The parity, and a bonus for brevity, with weights 1 and 0.5."""

    def verify(self, examples, responses):
        parity = super().verify(examples, responses)
        brief = [Verdict(float(r.tokens < 6), "ok") for r in responses]
        return [
            Verdict(p.reward + 0.5 * b.reward, "ok", parts={"parity": p, "brief": b})
            for p, b in zip(parity, brief, strict=True)
        ]


class Again(MadeUp):
    """The same puzzles at each step."""

    def examples(self, step, number):
        return super().examples(0, number)


# ---- terms


@pytest.mark.parametrize("terms", [[ENTROPY], [NLL], [ENTROPY, NLL], ADAPTIVE], ids=str)
def test_an_update_is_the_whole_batch_s_gradient_however_it_is_cut(terms):
    whole, metrics = update(ONE_UPDATE, f"policy.train_micro_batch_size={ROWS}", *terms)
    cut, other = update(ONE_UPDATE, "policy.train_micro_batch_size=4", *terms)
    torch.testing.assert_close(cut, whole, rtol=1e-4, atol=1e-7)
    own = [k for k in metrics if k.startswith("terms/")]
    assert len(own) == len({t.split(".")[2] for t in terms})
    for name in own:
        assert other[name] == pytest.approx(metrics[name], rel=1e-4) != 0
    plain, _ = update(ONE_UPDATE)
    assert (whole - plain).abs().max() > 1e-6


def test_an_update_with_terms_is_the_direct_gradient():
    """By autograd through the model's softmax: H over all tokens, NLL over those of successes."""
    made = trainer(ONE_UPDATE, ENTROPY, NLL)
    experience, rollouts = made.collect()
    before = weights(made)
    made.update(Batch(experience, rollouts, made.algorithm.signals(rollouts)))
    step = weights(made) - before

    other = trainer(ONE_UPDATE)
    logits, tokens, row, *_ = other.policy._logits(experience, torch.arange(ROWS))
    log_p = (logits / other.policy.sampling.temperature).log_softmax(-1)[row]
    chosen = log_p.gather(-1, tokens[row][..., None])[..., 0]
    won = experience.mask & (rollouts.rewards > 0)[:, None]
    entropy = -(log_p.exp() * log_p).sum(-1)[experience.mask].mean()
    signals = other.algorithm.signals(rollouts)
    counts = Counts.of(rollouts.mask)
    bare = policy_loss(other.algorithm, chosen, rollouts, signals, counts).value
    (bare - 0.5 * entropy - 0.5 * chosen[won].mean()).backward()
    other.update._step()
    torch.testing.assert_close(step, weights(other) - before, rtol=1e-4, atol=1e-7)


def test_entropies_are_asked_for_only_by_terms_that_need_their_gradient():
    for overrides, asked in (([NLL], 0), ([ENTROPY], 2), ([], 0)):
        made, calls = trainer(*overrides), []
        scored = made.policy.logprobs_and_entropy
        made.policy.logprobs_and_entropy = lambda *args, s=scored, c=calls: (
            c.append(args) or s(*args)
        )
        made.step()
        assert len(calls) == asked, overrides


def test_rows_of_a_term_are_trained_where_their_group_is_flat():
    task = MadeUp(trainers.checked()[0].data, 0)
    task.mixed = 99  # every group is flat, every second one of successes
    step, metrics = update(NLL, task=task)
    assert step.abs().max() > 1e-6 and metrics["terms/nll"] > 0 and metrics["advantage/max"] == 0
    rows, _ = trainers.counted(made := trainer(NLL, task=task))
    made.step()
    assert len(rows) == ROWS / 2  # the others are in no term and have no advantage


def test_a_transformers_model_gives_entropies_with_gradient(tmp_path):
    folder = small_llama.save(tmp_path)
    policy = HFPolicy(small_llama.section(folder), torch.device("cpu"))
    prompts = [[7, 20, 9], [5, 6]]
    drawn = policy.generate(prompts, 3, torch.Generator().manual_seed(0))
    logprobs, entropy = policy.logprobs_and_entropy(drawn, torch.arange(6))
    torch.testing.assert_close(entropy.detach(), drawn.entropy, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logprobs, policy.logprobs(drawn, torch.arange(6)))
    weight = torch.rand_like(entropy)
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    got = torch.autograd.grad((entropy * weight).sum(), parameters, allow_unused=True)
    want = torch.autograd.grad(direct_entropy(policy, drawn, weight), parameters, allow_unused=True)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def direct_entropy(policy, drawn, weight):
    """The weighted sum of entropies, each response by itself through the model's own logits."""
    total = torch.zeros(())
    for i, group in enumerate(drawn.group.tolist()):
        prompt = drawn.prompts[group][drawn.prompt_mask[group]]
        response = drawn.tokens[i][drawn.mask[i]]
        ids = torch.cat((prompt, response))[None]
        logits = policy.model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        log_p = (logits / policy.config.generation.temperature).log_softmax(-1)
        total = total - ((log_p.exp() * log_p).sum(-1) * weight[i][drawn.mask[i]]).sum()
    return total


# ---- parts of the reward


def test_parts_of_the_reward_come_to_the_method_by_name():
    overrides = [f"data.task={__name__}:InParts", "method.name=gdpo"]
    made = trainer(*overrides, task=InParts(trainers.checked()[0].data, 0))
    _, rollouts = made.collect()
    assert sorted(rollouts.reward_parts) == ["brief", "parity"]
    total = rollouts.column("parity") + 0.5 * rollouts.column("brief")
    assert torch.equal(total, rollouts.rewards)
    metrics = trainer(*overrides, task=InParts(trainers.checked()[0].data, 0)).step()
    assert {"gdpo/flat_brief", "gdpo/flat_parity", "reward/brief"} <= metrics.keys()
    assert metrics["advantage/std"] > 0


def test_rewards_without_names_have_no_parts():
    _, rollouts = trainer().collect()
    assert rollouts.reward_parts == {}


def refused(*overrides, name="math.yaml"):
    given = ["policy.model_name=a/b", "data.train.data_path=x.jsonl"] if name == "math.yaml" else []
    with pytest.raises(ConfigError) as error:
        parse(config.load(trainers.CONFIGS / name, [*given, *overrides]))
    return [str(finding) for finding in error.value.findings]


TWO = [
    "data.rewards.right.function=nemo_algos.engines.rewards.math:verify_math",
    "data.rewards.brief.function=given_rewards:brief",
]


def test_what_is_not_among_the_rewards_is_refused_before_the_run():
    assert refused("method.name=gdpo") == [Says("data.rewards: gdpo")]
    assert refused("method.name=etr", "method.success_reward=right") == [
        Says("method.success_reward: data.rewards.right.function")
    ]
    pair = ["method.name=grpo", "method.bounds.name=etr", "method.bounds.success_reward=rihgt"]
    assert refused(*TWO, *pair, "method.terms.nll.success_reward=long") == [
        Says("method.bounds.success_reward: rihgt right"),
        Says("method.terms.nll.success_reward: long right brief"),
    ]
    assert refused(*TWO, "method.name=gdpo", "method.reward_weights.breif=2.0") == [
        Says("method.reward_weights.breif: brief")
    ]
    assert refused(*TWO, "method.name=gdpo", "method.reward_weights=[1, 2, 3]") == [
        Says("method.reward_weights: brief right 3")
    ]
    parse(config.load(trainers.CONFIGS / "math.yaml", [
        "policy.model_name=a/b", "data.train.data_path=x.jsonl", *TWO, "method.name=gdpo",
    ]))  # fmt: skip


def test_weights_are_no_matter_where_a_part_is_read_by_name():
    given = ["policy.model_name=a/b", "data.train.data_path=x.jsonl", *TWO, "method.name=apmpo"]
    for more, number in (([], 1), (["method.success_reward=right"], 0)):
        plain = config.load(trainers.CONFIGS / "math.yaml", [*given, *more])
        assert len(judge_by(RULES, plain).warnings) == number  # the weights add up to 2


def test_a_group_of_one_is_for_what_remembers():
    one = ["grpo.num_generations_per_prompt=1", "policy.train_global_batch_size=8"]
    parse(config.load(trainers.CONFIGS / "spo.yaml", one))
    parse(config.load(trainers.CONFIGS / "etr.yaml", [*one, "method.advantages=spo"]))
    (finding,) = refused(*one, *ADAPTIVE, name="etr.yaml")
    assert finding == Says("grpo.num_generations_per_prompt: advantage")


# ---- the memory


@pytest.mark.parametrize(("method", "overrides"), REMEMBERING, ids=str)
def test_a_resumed_run_remembers_to_the_bit(method, overrides, tmp_path):
    task = Again(trainers.checked()[0].data, 0)
    whole = trainer(*overrides, method=method, task=task)
    whole.step()
    checkpoint.save(tmp_path, whole.state(), None)
    last = whole.step()
    resumed = trainer(*overrides, method=method, task=task, trained=trainers.policy(seed=3))
    resumed.load(checkpoint.load(tmp_path / "step_000001.pt"))
    metrics = resumed.step()
    assert torch.equal(weights(resumed), weights(whole)) and resumed.memory == whole.memory
    timed = ("time/", "tokens_per_second")
    assert {k: v for k, v in metrics.items() if not k.startswith(timed)} == {
        k: v for k, v in last.items() if not k.startswith(timed)
    }
    forgetful = trainer(*overrides, method=method, task=task)
    forgetful.load({**checkpoint.load(tmp_path / "step_000001.pt"), "memory": {}})
    forgetful.step()
    assert not torch.equal(weights(forgetful), weights(whole)) and whole.memory


def test_a_checkpoint_from_before_there_was_a_memory_goes_on():
    made = trainer()
    state = made.state()
    assert state.pop("memory") == {}
    made.load(state)
    made.step()


def test_prompts_have_their_numbers_and_a_batch_its_move():
    made = trainer(method="spo")
    experience, rollouts = made.collect()
    prompts = [experience.prompts[i].tolist() for i in experience.group.tolist()]
    assert rollouts.prompt.tolist() == [prompt_key(p) for p in prompts]
    assert rollouts.prompt.unique().numel() == PROMPTS and GROUP == 4
    assert not rollouts.drift.any()
    signals = made.algorithm.signals(rollouts, {}, 16)
    made.update(Batch(experience, rollouts, signals))
    after = made.update.logprobs(made.policy.logprobs, experience, torch.arange(ROWS))
    gap = (after - experience.logprobs)[experience.mask].abs().double().mean()
    assert made._drift(experience) == {"drift": float(gap)} and gap > 1e-4
    made.memory = {"drift": float(gap)}
    assert torch.equal(made.collect()[1].drift, gap.expand(ROWS))


def test_a_prompt_s_number_does_not_depend_on_the_padding_of_its_batch():
    zeros = torch.zeros(2, 3)
    prompts = torch.tensor([[0, 0, 5, 6], [1, 2, 3, 4]])
    drawn = Experience(
        prompts, prompts > 0, torch.tensor([0, 1]), zeros.long(), zeros > 0, *[zeros] * 3
    )
    alone = replace(drawn, prompts=prompts[:1, 2:], prompt_mask=prompts[:1, 2:] > 0)
    assert drawn.prompt_keys()[0] == replace(alone, group=torch.tensor([0])).prompt_keys()[0]
