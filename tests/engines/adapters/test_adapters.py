"""TRL's, verl's and NeMo-RL's adapters over stand-ins: which numbers reach the loss."""

import logging
import warnings
from argparse import Namespace
from types import SimpleNamespace

import pytest
import stand_ins
import torch
from batches import close
from omegaconf import OmegaConf
from torch import Tensor

from nemo_algos import ConfigError, LossConfig, Rollouts, batch_loss, build
from nemo_algos.engines.adapters import slime_settings

GROUP = 4
REWARDS = torch.tensor(
    [[1.0, 0.5], [0, 0.9], [0, 0.2], [1, 0.7], [0, 0.1], [0, 0.3], [1, 0.4], [0, 0.8]]
)
WEIGHTS = [1.0, 0.1]


def right(*given):
    return []


def brief(*given):
    return []


def turn_2(*given):
    return []


def generated(**changed: Tensor) -> dict:
    """Two groups of 4 responses of up to 4 tokens, as TRL hands them on."""
    rng = torch.Generator().manual_seed(0)
    old = -1 - torch.rand(8, 4, generator=rng, dtype=torch.float64)
    lengths = torch.tensor([4, 3, 4, 2, 4, 4, 1, 4])
    batch = {
        "completion_mask": (torch.arange(4) < lengths[:, None]).long(),
        "completion_ids": torch.zeros(8, 4).long(),
        "prompt_ids": torch.zeros(8, 1).long(),
        "prompt_mask": torch.ones(8, 1).long(),
        "old_per_token_logps": old,
    }
    own = {"rewards": REWARDS, "weights": WEIGHTS, "group_size": GROUP}
    return batch | own | changed


def direct(batch: dict, old: Tensor, rewards: Tensor = REWARDS, **more: object) -> Rollouts:
    return Rollouts(
        group=torch.arange(8) // GROUP,
        rewards=(rewards.nan_to_num() * torch.tensor(WEIGHTS)).sum(1),
        mask=batch["completion_mask"].bool(),
        old_logprobs=old,
        **more,
    )


def trained(
    monkeypatch, method, batch, functions=(right, brief), dropout=0.0, **args: object
) -> tuple[stand_ins.GRPOTrainer, Tensor]:
    """The trainer, and its loss on the batch, whose gradient is the model's."""
    adapter = stand_ins.trl(monkeypatch)
    logprobs = batch["old_per_token_logps"] + 0.3 * torch.sin(torch.arange(32.0)).view(8, 4)
    model = stand_ins.Model(logprobs.clamp(max=-0.1), dropout)
    trainer = adapter.MethodTrainer(
        model, [*functions], args=stand_ins.GRPOConfig(**args), method=method, batch=batch
    )
    loss = trainer._compute_loss(model, trainer._prepare_inputs([{}]))
    loss.backward()
    return trainer, loss


@pytest.mark.parametrize("method", ["etr", "gspo", "apmpo+", "erpo"])
def test_trls_batch_reaches_the_loss(monkeypatch, method):
    """With TRL's old log-probs, and entropies where the method needs them."""
    block = {"name": method}
    if method == "apmpo+":
        block = {"name": "apmpo", "success_reward": "right"}
    batch = generated()
    old = batch["old_per_token_logps"]
    more = {"reward_parts": {"right": REWARDS[:, 0], "brief": REWARDS[:, 1]}}
    if method == "erpo":
        batch["ref_per_token_logps"] = old - 0.1
        more |= {"ref_logprobs": old - 0.1}
    trainer, loss = trained(monkeypatch, block, batch, num_iterations=4)
    logprobs = trainer.model.logprobs
    if method == "erpo":  # TRL is asked for entropies, and gives the log-probs of one forward
        old = logprobs.detach()
        more |= {"entropy": -logprobs.detach()}
    leaf = logprobs.detach().clone().requires_grad_()
    want, _ = batch_loss(build(block), leaf, direct(batch, old, **more))
    want.backward()
    close(loss, want.detach())
    close(logprobs.grad, leaf.grad)
    assert trainer.scored == (2 if method == "erpo" else 1)


def test_one_update_has_a_ratio_of_1_whatever_the_dropout(monkeypatch):
    """Old log-probs that another dropout mask has given do not count."""
    batch = generated()
    trainer, loss = trained(monkeypatch, {"name": "gspo", "clip_low": 3e-4}, batch, dropout=0.1)
    assert trainer._metrics["train"]["ratio/max"] == [1.0]
    leaf = trainer.model.logprobs.detach().clone().requires_grad_()
    want, _ = batch_loss("gspo", leaf, direct(batch, leaf.detach()))
    close(loss, want.detach())


@pytest.mark.parametrize(
    ("args", "dropout", "words"),
    [
        ({"num_iterations": 2}, 0.1, ["dropout"]),
        ({"num_iterations": 2}, 0.0, []),
        ({}, 0.1, ["one update"]),
        ({"num_iterations": 4, "save_strategy": "steps", "save_steps": 6}, 0.0, ["save_steps"]),
        ({"num_iterations": 4, "save_strategy": "steps", "save_steps": 8}, 0.0, []),
    ],
)
def test_what_makes_ratios_and_resumed_runs_another_thing_is_told(
    monkeypatch, args, dropout, words
):
    block = {"name": "etr", "success_reward": "right"}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trained(monkeypatch, block, generated(), dropout=dropout, **args)
    assert len(said) == len(words)
    assert all(word in str(each.message) for word, each in zip(words, said, strict=True))


def test_a_reward_that_every_completion_earns_is_told_in_trl(monkeypatch):
    with pytest.warns(UserWarning, match=r"method\.success_reward"):
        trained(monkeypatch, {"name": "etr"}, generated(), num_iterations=2)


@pytest.mark.parametrize("name", ["gdpo", "turn_etr"])
def test_trls_functions_are_parts_of_the_reward(monkeypatch, name):
    """What a function has nothing to say of is 0, as in TRL's sum."""
    rewards = REWARDS.clone()
    rewards[2, 1] = torch.nan
    batch = generated(rewards=rewards)
    if name == "turn_etr":  # two turns of a token, and one between
        batch["tool_mask"] = torch.tensor([1, 0, 1, 1]).expand(8, 4)
    trainer, loss = trained(
        monkeypatch, {"name": name}, batch, functions=(right, turn_2), num_iterations=2
    )
    parts = {"right": rewards[:, 0], "turn_2": rewards[:, 1].nan_to_num()}
    weights = dict(zip(parts, WEIGHTS, strict=True))
    given = direct(batch, batch["old_per_token_logps"], rewards)
    mask = given.mask & batch.get("tool_mask", torch.ones(8, 4)).bool()
    rollouts = Rollouts(
        given.group,
        given.rewards,
        mask,
        given.old_logprobs,
        reward_parts=parts,
        reward_weights=weights,
    )
    leaf = trainer.model.logprobs.detach().clone().requires_grad_()
    want, _ = batch_loss(name, leaf, rollouts)
    close(loss, want.detach(), 1e-7)  # TRL adds its float32 rewards


def test_rewards_without_the_name_are_refused(monkeypatch):
    for method, functions, path in (
        ({"name": "etr", "success_reward": "write"}, (right, brief), "method.success_reward"),
        ({"name": "gdpo"}, (right, right), "reward_funcs"),
    ):
        with pytest.raises(ConfigError) as refused:
            trained(monkeypatch, method, generated(), functions=functions, num_iterations=2)
        assert [finding.path for finding in refused.value.findings] == [path]


CHANGED = {
    "top_p": ({"top_p": 0.9}, "args.top_p"),
    "top_k": ({"top_k": 50}, "args.top_k"),
    "min_p": ({"min_p": 0.1}, "args.min_p"),
    "penalty": ({"repetition_penalty": 1.2}, "args.repetition_penalty"),
    "regex": ({"vllm_structured_outputs_regex": "a+"}, "args.vllm_structured_outputs_regex"),
    "own": ({"generation_kwargs": {"top_p": 0.9}}, "args.generation_kwargs.top_p"),
    "bias": ({"generation_kwargs": {"logit_bias": {3: 1}}}, "args.generation_kwargs.logit_bias"),
    "greedy": ({"generation_kwargs": {"do_sample": False}}, "args.generation_kwargs.do_sample"),
    "unknown": ({"generation_kwargs": {"dry": 0.5}}, "args.generation_kwargs.dry"),
    "hotter": ({"generation_kwargs": {"temperature": 0.5}}, "args.generation_kwargs.temperature"),
}
HARMLESS = {"stop": ["x"], "seed": 3, "temperature": 0.7, "top_p": 1.0, "top_k": -1, "n": 1}


@pytest.mark.parametrize(("changed", "path"), CHANGED.values(), ids=CHANGED)
@pytest.mark.parametrize("by", ["vllm", "rollout_func"])
def test_a_sampler_of_another_distribution_is_refused_beside_a_correction(
    monkeypatch, changed, path, by
):
    adapter = stand_ins.trl(monkeypatch)
    correct = {"use_importance_sampling_correction": True}
    vllm = {"use_vllm": by == "vllm", "vllm_importance_sampling_correction": False}
    args = stand_ins.GRPOConfig(**vllm, **changed, num_iterations=2)
    with pytest.raises(ConfigError) as refused:
        adapter.judge("grpo", correct, args, by == "rollout_func")
    assert [finding.path for finding in refused.value.findings] == [path]
    adapter.judge("grpo", {}, args, by == "rollout_func")  # without a correction they may
    plain = stand_ins.GRPOConfig(**vllm, temperature=0.7, generation_kwargs=HARMLESS)
    adapter.judge("grpo", correct, plain, by == "rollout_func")


# ---- verl


class Batch(SimpleNamespace):
    """verl's KVBatchMeta."""

    def __len__(self) -> int:
        return len(self.keys)


def written(monkeypatch, padding: list[bool]) -> tuple[object, stand_ins.Queue, dict[str, float]]:
    """The adapter, and what its driver half put into the queue and the metrics."""
    batch = generated()
    queue = stand_ins.Queue(
        {
            "uid": torch.arange(8) // GROUP,
            "response_mask": batch["completion_mask"],
            "rm_scores": REWARDS[:, :1],
            "old_log_probs": batch["old_per_token_logps"],
        }
    )
    adapter = stand_ins.verl(monkeypatch, queue)
    trainer = object.__new__(adapter.MethodTrainer)
    trainer.algorithm = build("apmpo")
    trainer.global_steps = 1
    whole = {"sequences": 8, "tokens": 26}
    trainer._counts = lambda mask: {k: torch.full((8, 1), n) for k, n in whole.items()}
    metrics: dict[str, float] = {}
    tags = [{"is_padding": each} for each in padding]
    keys = [f"{i}_0" for i in range(8)]
    trainer._compute_advantage(Batch(keys=keys, partition_id=0, tags=tags), metrics)
    return adapter, queue, metrics


@pytest.mark.parametrize("padded", [0, 1])
def test_verls_batch_reaches_the_loss(monkeypatch, padded):
    """Rows that verl has added to fill a batch are masked, not the others."""
    padding = [False] * (8 - padded) + [True] * padded
    adapter, queue, metrics = written(monkeypatch, padding)
    batch = generated()
    old = batch["old_per_token_logps"]
    kept = ~torch.tensor(padding)
    rollouts = Rollouts(
        group=torch.arange(8) // GROUP,
        rewards=REWARDS[:, 0],
        mask=batch["completion_mask"].bool(),
        old_logprobs=old,
        sample_mask=kept if padded else None,
    )
    signals = build("apmpo").signals(rollouts)
    assert metrics == pytest.approx(signals.metrics)
    assert metrics.get("rollouts/masked_share", 0) == padded / 8
    close(queue.put["method_advantages"], signals.advantages)
    leaf = (old + 0.1).clamp(max=-0.1).requires_grad_()
    rows = stand_ins.Rows({**queue.rows, **queue.put, "dp_size": 2})
    given = {"algorithm": build("apmpo"), "config": LossConfig()}
    loss, told = adapter.method_loss({"log_probs": leaf}, rows, **given)
    if not padded:
        want, wanted = batch_loss("apmpo", leaf, rollouts)
        close(loss, 2 * want)
        assert told["ratio/mean"] == ("sum", pytest.approx(2 * wanted["ratio/mean"]))
        assert told["ratio/max"] == ("max", pytest.approx(wanted["ratio/max"]))


ROLLOUT = {"calculate_log_probs": True, "temperature": 1.0, "logprobs_mode": "processed_logprobs"}
OTHERS = {
    "top_p": ({"top_p": 0.9}, "top_p"),
    "top_k": ({"top_k": 20}, "top_k"),
    "penalty": ({"repetition_penalty": 1.2}, "repetition_penalty"),
    "greedy": ({"do_sample": False}, "do_sample"),
    "raw": ({"logprobs_mode": "raw_logprobs", "temperature": 0.7}, "logprobs_mode"),
    "engine": (
        {"engine_kwargs": {"vllm": {"override_generation_config": {"min_p": 0.1}}}},
        "engine_kwargs.vllm.override_generation_config.min_p",
    ),
    "processor": (
        {"engine_kwargs": {"vllm": {"logits_processors": ["mine"]}}},
        "engine_kwargs.vllm.logits_processors",
    ),
    "none": ({"top_p": 1.0, "top_k": -1, "do_sample": True, "engine_kwargs": {"vllm": {}}}, None),
}


@pytest.mark.parametrize(("changed", "name"), OTHERS.values(), ids=OTHERS)
def test_verls_sampler_is_judged_likewise(monkeypatch, changed, name):
    adapter = stand_ins.verl(monkeypatch, stand_ins.Queue())
    rollout = OmegaConf.create(ROLLOUT | changed)
    paths = [finding.path for finding in adapter._sampler_findings(rollout)]
    assert paths == ([f"actor_rollout_ref.rollout.{name}"] if name else [])


# ---- NeMo-RL


def nemo_batch(**changed) -> dict:
    """Two prompts with groups of 4; NeMo-RL's columns begin with the prompt's last token."""
    batch = generated()
    old = torch.nn.functional.pad(batch["old_per_token_logps"], (1, 0))
    mask = torch.nn.functional.pad(batch["completion_mask"], (1, 0))
    given = {
        "prompt_ids": torch.arange(8)[:, None] // GROUP,
        "rewards": REWARDS[:, 0].double(),
        "mask": mask,
        "logprobs_policy": old,
    }
    return given | changed


def test_a_row_that_stands_in_for_a_response_is_of_no_group(monkeypatch):
    """NeMo-RL's valid_mask: two such rows are two groups, and nobody's others."""
    estimator = stand_ins.nemo(monkeypatch, "estimator").Estimator(build("grpo"))
    came = torch.tensor([1, 1, 1, 1, 1, 1, 0, 0])
    found = estimator.compute_advantage(**nemo_batch(valid_mask=came))[:, 1]
    rewards = REWARDS[:, 0].double()
    first = (rewards[:4] - rewards[:4].mean()) / (rewards[:4].std() + 1e-6)
    close(found[:4].double(), first, 1e-6)
    assert found[4:].tolist() == [0.0] * 4  # the rest of the second group is flat


def test_successes_are_told_by_the_rewards_before_nemo_rls_length_penalty(monkeypatch):
    """A right response that it has taken everything from is one, in the bounds of ETR."""
    shaped = torch.tensor([0.0, 0.9, 0.0, 0.0, 1.05, 0.95, 1.0, 1.0])
    right = torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    estimator = stand_ins.nemo(monkeypatch, "estimator").Estimator(build("etr"))
    for batch, share in (({}, [0.25, 1.0]), ({"env_reward": right}, [0.5, 1.0])):
        given = nemo_batch(rewards=shaped, repeated_batch=batch)
        advantages = estimator.compute_advantage(**given)[:, 1]
        assert advantages[1] > 0 > advantages[0] and advantages[4] > 0 > advantages[5]
        p = torch.tensor(share).repeat_interleave(4)
        want = 0.2 + 0.1 * advantages.tanh() + 0.1 * 4 * p * (1 - p)
        close(estimator.step.signals.low[:, 0].float(), want, 1e-6)


def test_a_memory_is_kept_and_given_to_the_next_batch(monkeypatch):
    kept = list[dict]()
    module = stand_ins.nemo(monkeypatch, "estimator")
    estimator = module.Estimator(build("ema_baseline"), keep=kept.append)
    estimator.compute_advantage(**nemo_batch())
    estimator.compute_advantage(**nemo_batch(rewards=torch.zeros(8)))
    assert [each["advantages"]["baseline"] for each in kept] == pytest.approx([0.375, 0.3375])
    plain = module.Estimator(build("grpo"), keep=kept.append)
    plain.compute_advantage(**nemo_batch())
    assert len(kept) == 2


def test_a_reward_that_every_response_earns_is_told_in_nemo_rl(monkeypatch, capsys):
    """In the first batch alone."""
    estimator = stand_ins.nemo(monkeypatch, "estimator").Estimator(build("etr"))
    for _ in range(2):
        estimator.compute_advantage(**nemo_batch(rewards=REWARDS.sum(1)))
    said = capsys.readouterr().out
    assert said.count("method.success_reward") == 1 and said.startswith("warning: ")


def in_nemo_rl(monkeypatch):
    estimator = stand_ins.nemo(monkeypatch, "estimator").Estimator(build("etr"))
    estimator.compute_advantage(**nemo_batch(rewards=REWARDS.sum(1)))


def in_trl(monkeypatch):
    trainer, _ = trained(monkeypatch, {"name": "etr"}, generated(), num_iterations=2)
    scheduler = SimpleNamespace(base_lrs=[2e-6], lr_lambdas=[lambda step: 1])
    made = {"create_scheduler": lambda *_: scheduler}
    monkeypatch.setattr(type(trainer).__mro__[1], *made.popitem(), raising=False)
    vars(trainer.args).update(generation_batch_size=8, num_generations=4, eval_strategy="no")
    trainer.args.eval_steps = None
    trainer.create_scheduler(10)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("module", "speak"), [("nemo.estimator", in_nemo_rl), ("adapters.trl", in_trl)]
)
def test_what_is_said_inside_a_trainer_can_be_routed_and_silenced(
    module, speak, monkeypatch, capsys, caplog
):
    package = logging.getLogger("nemo_algos")
    speak(monkeypatch)
    assert capsys.readouterr().out.count("\n") == 1
    caplog.clear()
    monkeypatch.setattr(package, "handlers", [caplog.handler])
    speak(monkeypatch)
    assert [record.name for record in caplog.records] == [f"nemo_algos.engines.{module}"]
    with caplog.at_level(logging.ERROR, "nemo_algos"):
        speak(monkeypatch)
    assert len(caplog.records) == 1 and capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["grpo", "etr", "gspo", "quatro"])
def test_the_loss_in_nemo_rl_is_the_embedded_engines(monkeypatch, name):
    """A log-ratio beyond the clamp too, which NeMo-RL's own GRPO does not know."""
    algorithm = build(name)
    batch = nemo_batch()
    estimator = stand_ins.nemo(monkeypatch, "estimator").Estimator(algorithm)
    advantages = estimator.compute_advantage(**batch)
    columns = estimator.signals_for(advantages)
    module = stand_ins.nemo(monkeypatch, "loss")
    section = {"force_on_policy_ratio": False, "token_level_loss": algorithm.mean == "token"}
    section |= {"ratio_clip_min": 0.2, "ratio_clip_max": 0.2}
    loss = module.AlgorithmLoss(stand_ins.LossSection(**section), algorithm)
    old = batch["logprobs_policy"].clone()
    old[1, 2] = -30.0  # now likely: the log-ratio is 29
    mask = batch["mask"]
    leaf = (old[:, 1:] + 0.1).clamp(max=-0.1)
    leaf[1, 1] = -1.0
    leaf = leaf.requires_grad_()
    data = {
        "token_mask": mask,
        "sample_mask": torch.ones(8),
        "prev_logprobs": old,
        "generation_logprobs": old,
        "advantages": advantages.double(),
        **columns,
    }
    counts = mask[:, 1:].bool().any(1).sum(), mask[:, 1:].sum()
    value, metrics = loss(leaf, data, *counts)
    rollouts = Rollouts(
        group=torch.arange(8) // GROUP,
        rewards=batch["rewards"],
        mask=mask[:, 1:].bool(),
        old_logprobs=old[:, 1:],
    )
    other = leaf.detach().clone().requires_grad_()
    want, wanted = batch_loss(name, other, rollouts)
    if name in ("grpo", "gspo"):  # NeMo-RL's own ratio, which is not clamped
        assert metrics["ratio/mean"] > 10 * wanted["ratio/mean"]
        return
    value.backward()
    want.backward()
    close(value.detach(), want.detach(), 1e-6)
    close(leaf.grad, other.grad, 1e-5)
    assert metrics["ratio/mean"] == pytest.approx(wanted["ratio/mean"], rel=1e-6)


# ---- slime


def slime_args(**changed) -> Namespace:
    stock = {key: value for key, (value, _) in slime_settings.REPLACED.items()}
    rollout = {"rollout_top_p": 1.0, "rollout_top_k": -1, "rollout_temperature": 1.0}
    sizes = {"rollout_batch_size": 8, "n_samples_per_prompt": 4, "global_batch_size": 32}
    own = {"grpo_std_normalization": True, "rollout_max_response_len": 64}
    given = slime_settings.ASKED | stock | rollout | sizes | own
    return Namespace(**given | {"method": {"name": "etr"}, "loss_fn": {}} | changed)


@pytest.mark.parametrize(
    ("changed", "paths"),
    [
        ({}, []),
        ({"rollout_top_k": 20}, ["rollout_top_k"]),
        ({"rollout_top_p": 0.9}, []),  # slime replays what top-p kept, with a top-k too
        ({"rollout_top_p": 0.9, "rollout_top_k": 20}, []),
        ({"rollout_temperature": 0.7}, []),  # its trainer divides by it as well
    ],
)
def test_slimes_sampler_is_judged_likewise(changed, paths):
    args = slime_args(loss_fn={"use_importance_sampling_correction": True}, **changed)
    algorithm = build(args.method)
    config = LossConfig(**args.loss_fn)
    found = [finding.path for finding in slime_settings.misfits(algorithm, config, args)]
    assert found == paths
    assert [*slime_settings.misfits(algorithm, LossConfig(), args)] == []


@pytest.mark.parametrize(
    ("loss_fn", "updates", "words"),
    [
        ({}, 1, ["one update"]),
        ({}, 4, []),
        ({"reference_policy_kl_penalty": 0.1, "reference_policy_kl_type": "k1"}, 4, ["k1"]),
    ],
)
def test_slime_is_told_what_the_others_are(loss_fn, updates, words):
    args = slime_args(global_batch_size=32 // updates)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        slime_settings.warn(build("etr"), LossConfig(**loss_fn), args)
    assert [word in str(each.message) for word, each in zip(words, said, strict=True)] == [
        True
    ] * len(words)


def test_trls_run_is_foretold(monkeypatch):
    adapter = stand_ins.trl(monkeypatch)
    args = SimpleNamespace(
        num_iterations=2,
        steps_per_generation=4,
        gradient_accumulation_steps=2,
        generation_batch_size=64,
        num_generations=8,
        save_strategy="steps",
        save_steps=50,
        eval_strategy="no",
        eval_steps=None,
    )
    scheduler = SimpleNamespace(base_lrs=[2e-6], lr_lambdas=[lambda step: min(1, (step + 1) / 10)])
    assert adapter.foretold(args, 200, scheduler) == (
        "This run: 50 batches of 8 prompts x 8 responses, 4 updates of each; learning rate 2e-07, "
        "2e-06 at step 10, 2e-06 at step 200; saves every 50 steps; validates never"
    )
    assert "learning rate" not in adapter.foretold(args, 200, SimpleNamespace())


class AsyncGRPOTrainer:
    """By its name TRL's, of 1.16 (trl.experimental) and of 1.18 (trl)."""


@pytest.mark.parametrize("first", [True, False])
def test_trls_asynchronous_trainer_is_refused_by_name(monkeypatch, first):
    """However it is put together; else its loss, or ours without groups, would train."""
    adapter = stand_ins.trl(monkeypatch)
    bases = (adapter.MethodTrainer, AsyncGRPOTrainer)
    with pytest.raises(TypeError, match=r"AsyncGRPOTrainer .* MethodTrainer .*async_grpo"):
        type("Mine", bases if first else bases[::-1], {})


def test_trls_other_arguments_are_refused(monkeypatch):
    adapter = stand_ins.trl(monkeypatch)
    for name, said in (("AsyncGRPOConfig", "AsyncGRPOTrainer"), ("SFTConfig", "SFTConfig")):
        args = type(name, (), {})()
        with pytest.raises(ConfigError, match=rf"GRPOConfig.*{said}"):
            adapter.MethodTrainer(None, [], args=args, method="grpo", batch=generated())
