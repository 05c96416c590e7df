"""The adapter in verl's real trainer, queue, engine and loss, all on a CPU."""

# pyright: reportMissingImports=false

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest
import ray
import torch
import transfer_queue as tq
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from says import Says
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorStack
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.utils import need_reference_policy
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.utils import tensordict_utils as tu
from verl.utils.config import validate_config
from verl.workers.config import ActorConfig
from verl.workers.engine.utils import prepare_micro_batches
from verl.workers.utils.losses import ppo_loss

from nemo_algos import ConfigError, Counts, LossConfig, Rollouts, policy_loss
from nemo_algos.engines.adapters.verl import REPLACED, MethodTrainer, method_loss

PROMPTS, GROUP, MINI = 6, 4, 3  # prompts to an optimizer batch: two of them
METHODS = {
    "etr": {"name": "etr", "micro": 0.05},
    "quatro": {"name": "quatro"},
    "erpo": {"name": "erpo"},
    "apmpo": {"name": "apmpo"},
    "erpo+etr": {"advantages": "erpo", "bounds": "etr"},
    "gspo+etr": {"name": "gspo", "bounds": "etr"},
    "grpo": {"name": "grpo"},
    "gpg": {"name": "gpg"},
    "cispo": {"name": "cispo"},
}
LOSS = LossConfig(reference_policy_kl_penalty=0.01)
OWN = ["method_advantages", "method_sequences", "method_tokens"]
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
exactly = partial(torch.testing.assert_close, rtol=0, atol=1e-12)
OVERRIDES = [
    "trainer.v1.trainer_mode=nemo_algos",
    "critic.enable=False",
    "data.train_batch_size=6",
    "actor_rollout_ref.rollout.name=vllm",
    f"actor_rollout_ref.rollout.n={GROUP}",
    f"actor_rollout_ref.actor.ppo_mini_batch_size={MINI}",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
]


def config(
    method: Any = "grpo", *overrides: str, loss: Any = None, name: str = "ppo_trainer"
) -> Any:
    """verl's own config, composed by Hydra as on its command line; method, loss: the blocks."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        composed = compose(name, overrides=[*OVERRIDES, *overrides])
    OmegaConf.resolve(composed)
    return OmegaConf.merge({"method": method, "loss_fn": loss}, composed)


def trainer(method: Any, *overrides: str, ranks: int = 1) -> MethodTrainer:
    made = MethodTrainer(config(method, *overrides))
    made.actor_rollout_wg = SimpleNamespace(_dispatch_info={"actor": list(range(ranks))})
    return made


@pytest.fixture(scope="module")
def queue():
    """verl's TransferQueue, in a Ray of our own."""
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    settings = config().transfer_queue
    settings.backend.SimpleStorage.num_data_storage_units = 1
    tq.init(settings)
    yield
    tq.close()
    ray.shutdown()


def nested(rows: list[Tensor]) -> Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def responses(seed: int = 0, empty: int | None = 5) -> dict[str, Tensor]:
    """Fields of a batch, [B] lists of rows: ragged, holes in the masks, one response masked out."""
    random = torch.Generator().manual_seed(seed)
    normal = partial(torch.randn, generator=random, dtype=torch.float64)
    integers = partial(torch.randint, generator=random)
    size = PROMPTS * GROUP
    lengths = integers(3, 9, (size,)).tolist()
    masks = [(torch.rand(n, generator=random) > 0.2).long() for n in lengths]
    for row, mask in enumerate(masks):
        mask[0], mask[1:] = (0, 0) if row == empty else (1, mask[1:])
    rewards = integers(0, 2, (size,)).double() * 0.75
    rewards[:GROUP] = 1.0  # a flat group
    old = [-2 * torch.rand(n, generator=random, dtype=torch.float64) for n in lengths]
    tokens = [integers(3, 60, (2 + row % 3 + n,)) for row, n in enumerate(lengths)]
    return {
        "prompts": [t[: len(t) - n] for t, n in zip(tokens, lengths, strict=True)],
        "responses": [t[len(t) - n :] for t, n in zip(tokens, lengths, strict=True)],
        "input_ids": tokens,
        "position_ids": [torch.arange(len(t)) for t in tokens],
        "response_mask": masks,
        "loss_mask": masks,
        "rm_scores": [r * torch.eye(n)[-1] for r, n in zip(rewards, lengths, strict=True)],
        "old_log_probs": old,
        "ref_log_prob": [x + 0.1 * normal(len(x)) for x in old],
        "rollout_log_probs": [x + 0.1 * normal(len(x)) for x in old],
        "entropy": [2 * torch.rand(n, generator=random, dtype=torch.float64) for n in lengths],
    }


def order(size: int) -> list[int]:
    """The rows as verl's balancing leaves them: a group is anywhere."""
    return torch.randperm(size, generator=torch.Generator().manual_seed(1)).tolist()


def stored(rows: dict[str, list[Tensor]]) -> KVBatchMeta:
    """The batch in verl's queue, written prompt by prompt, in the order of a balanced one."""
    size = len(rows["prompts"])
    names = [f"{index // GROUP:02}" for index in range(size)]
    keys = [f"{name}_{index % GROUP}_0" for index, name in enumerate(names)]
    fields = {k: nested(v) for k, v in rows.items()} | {"uid": NonTensorStack(*names)}
    tags = [{"seq_len": len(t)} for t in rows["input_ids"]]
    batch = tq.kv_batch_put(keys, "train", TensorDict(fields, batch_size=size), tags)
    batch.reorder(order(size))
    return batch


def padded(rows: list[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def direct(rows: dict[str, list[Tensor]]) -> Rollouts:
    """The same batch in our terms, in the balanced order, by other means than the adapter's."""
    taken = {k: padded([v[i] for i in order(len(v))]) for k, v in rows.items()}
    return Rollouts(
        group=[index // GROUP for index in order(len(taken["prompts"]))],
        rewards=taken["rm_scores"].double().sum(1),
        mask=taken["response_mask"] > 0,
        old_logprobs=taken["old_log_probs"],
        ref_logprobs=taken["ref_log_prob"],
        entropy=taken["entropy"],
        gen_logprobs=taken["rollout_log_probs"],
    )


def fetched(batch: KVBatchMeta) -> TensorDict:
    """All fields, as a worker of verl's gets them."""
    return tq.kv_batch_get(batch.keys, batch.partition_id)


def full_length(logprobs: Tensor, data: TensorDict) -> Tensor:
    """[B,S] of responses as a model gives them: of every token, one place earlier, nested."""
    rows = []
    for row, prompt, response in zip(
        logprobs, data["prompts"].unbind(), data["responses"].unbind(), strict=True
    ):
        before, last = row.new_zeros(len(prompt) - 1), row.new_zeros(1)
        rows.append(torch.cat([before, row[: len(response)], last]))
    return nested(rows)


def updates(data: TensorDict, ranks: int, micro: dict[str, Any]) -> list[list[list[TensorDict]]]:
    """[optimizer batches][ranks][micro-batches], cut by verl's own functions."""
    parts = []
    for piece in tu.chunk_tensordict(data, ranks):
        tu.assign_non_tensor(piece, **micro)
        cuts = []
        for mini in tu.make_iterator(piece, MINI * GROUP // ranks, epochs=1, seed=0):
            tu.assign_non_tensor(mini, dp_size=ranks)
            cuts.append(prepare_micro_batches(mini, same_micro_num_in_dp=False)[0])
        parts.append(cuts)
    return [list(x) for x in zip(*parts, strict=True)]


CUTS = {
    "whole": (1, {"use_dynamic_bsz": False, "micro_batch_size_per_gpu": MINI * GROUP}),
    "one by one, 2 ranks": (2, {"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 1}),
    "by length, 2 ranks": (2, {"use_dynamic_bsz": True, "max_token_len_per_gpu": 25}),
}


@every_method
def test_verls_advantage_step_is_our_driver_half(queue, method):
    rows, metrics = responses(), {}
    made = trainer(method, ranks=2)
    sent = fetched(made._compute_advantage(stored(rows), metrics))
    data = sent.exclude("uid").to_padded_tensor()
    want = made.algorithm.signals(direct(rows))
    named = {**vars(want), **want.extras}
    for name, per_token in made.algorithm.per_token.items():
        inside = direct(rows).mask if per_token else slice(None)
        exactly(data[f"method_{name}"][inside], named[name][inside])
    assert metrics == pytest.approx(want.metrics, abs=1e-12)
    shown = want.advantages.expand(direct(rows).mask.shape)
    inside = padded([torch.ones(len(x)) for x in sent["responses"].unbind()]) > 0
    exactly(data["advantages"][inside], shown[inside])  # what verl's metrics read


@pytest.mark.parametrize(("ranks", "micro"), CUTS.values(), ids=CUTS)
@every_method
def test_the_loss_is_ours_however_verl_cuts(queue, method, ranks, micro):
    rows = responses()
    made, rollouts = trainer(method, ranks=ranks), direct(rows)
    batch = made._compute_advantage(stored(rows), {})
    data = fetched(batch)
    data["row"] = torch.arange(len(rollouts))[:, None]
    noise = torch.randn(rollouts.mask.shape, generator=torch.Generator().manual_seed(2))
    leaf = (rollouts.old_logprobs + 0.3 * noise).requires_grad_()
    signals, seen = made.algorithm.signals(rollouts), []
    for parts in updates(data, ranks, micro):
        members = torch.cat([m["row"].flatten().long() for rank in parts for m in rank])
        got, metrics = [], {}
        for micros in parts:
            for piece in micros:
                taken = leaf[piece["row"].flatten().long()]
                loss, numbers = method_loss(
                    {"log_probs": full_length(taken, piece)},
                    piece,
                    algorithm=made.algorithm,
                    config=LOSS,
                )
                got.append(loss / ranks)
                for key, value in numbers.items():
                    metrics.setdefault(key, []).append(value)
        gradient = torch.autograd.grad(sum(got), leaf)[0]
        counts = Counts.of(rollouts.mask[members])
        want = policy_loss(
            made.algorithm, leaf[members], rollouts[members], signals[members], counts, LOSS
        )
        exactly(sum(got), want.value)
        exactly(gradient, torch.autograd.grad(want.value, leaf)[0])
        summary = want.stats.summary()
        total = {k: sum(m.aggregate() for m in v) / ranks for k, v in metrics.items()}
        total["ratio/max"] = max(m.aggregate() for m in metrics["ratio/max"])
        assert total == pytest.approx({k: summary[k] for k in total}, abs=1e-9)
        assert {"clip/fraction", "kl/old", "kl/ref", "ratio/mean", "kl_loss"} <= total.keys()
        seen += members.tolist()
    assert sorted(seen) == list(range(len(rollouts)))  # two optimizer batches, each row once


@pytest.mark.parametrize("mean", ["token", "sequence"])
def test_grpo_is_verls_own_loss_at_equal_settings(queue, mean):
    rows = responses(empty=None)  # verl's mean of sequences counts empty ones too
    made = trainer({"name": "grpo", "aggregation": mean, "clip_high": 0.28, "dual_clip": 3.0})
    data = fetched(made._compute_advantage(stored(rows), {}))
    theirs = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        use_dynamic_bsz=True,
        clip_ratio_high=0.28,
        loss_agg_mode={"token": "token-mean", "sequence": "seq-mean-token-mean"}[mean],
        use_kl_loss=True,
        kl_loss_coef=LOSS.reference_policy_kl_penalty,
    )
    rollouts, size = direct(rows), MINI * GROUP
    noise = torch.randn(rollouts.mask.shape, generator=torch.Generator().manual_seed(3))
    for first in (0, size):
        part = tu.index_select_tensor_dict(data, torch.arange(first, first + size))
        tokens = int(part["response_mask"].values().sum())
        tu.assign_non_tensor(part, dp_size=1, batch_num_tokens=tokens, global_batch_size=size)
        leaf = (rollouts.old_logprobs + 0.3 * noise)[first : first + size].requires_grad_()
        output = {"log_probs": full_length(leaf, part)}
        got, _ = method_loss(output, part, algorithm=made.algorithm, config=LOSS)
        want, _ = ppo_loss(theirs, output, part)
        closely = partial(torch.testing.assert_close, rtol=0, atol=1e-8)  # verl's / (|o| + 1e-8)
        closely(got, want)
        closely(*(torch.autograd.grad(x, leaf, retain_graph=True)[0] for x in (got, want)))


def test_verls_padding_takes_no_part(queue):
    """A batch that does not fill its optimizer batches: verl appends rows, and none counts."""
    rows = {k: v[: 5 * GROUP] for k, v in responses().items()}
    made, metrics = trainer("apmpo"), {}
    batch = upsample_batch_to_divisible_size(stored(rows), MINI * GROUP, eos_token_id=2)
    assert [tag.get("is_padding", False) for tag in batch.tags] == [False] * 20 + [True] * 4
    data = fetched(made._compute_advantage(batch, metrics)).select(*OWN).to_padded_tensor()
    whole = direct(rows)
    want = made.algorithm.signals(whole)
    exactly(data["method_advantages"][:20], want.advantages)
    assert data["method_advantages"][20:].tolist() == [[0.0]] * 4
    assert metrics.pop("rollouts/masked_share") == 4 / 24
    assert metrics == pytest.approx(want.metrics, abs=1e-12)
    for name, real in {"sequences": whole.mask.any(1), "tokens": whole.lengths}.items():
        count = [float(x.sum()) for x in real.split(MINI * GROUP)]
        assert data[f"method_{name}"].flatten().tolist() == [*12 * count[:1], *12 * count[1:]]


def test_several_outputs_of_one_response_are_refused(queue):
    batch = stored(responses())
    first = batch.keys[0]
    batch.keys[1] = f"{first.rpartition('_')[0]}_1"
    data = tq.kv_batch_get([first], "train")
    tq.kv_batch_put([batch.keys[1]], "train", data)
    with pytest.raises(ValueError) as error:
        trainer("grpo")._compute_advantage(batch, {})
    assert str(error.value) == Says("outputs one response")


def test_the_loss_reaches_the_workers(monkeypatch):
    """Set once verl has made them, and whole after the trip that Ray gives it."""
    sent = []
    group = SimpleNamespace(set_loss_fn=lambda f: sent.append(cloudpickle.dumps(f)))
    made = MethodTrainer(config({"advantages": "erpo", "bounds": "etr"}))
    base = MethodTrainer.__mro__[1]
    monkeypatch.setattr(base, "_setup", lambda self: setattr(self, "actor_rollout_wg", group))
    made._setup()
    (loss,) = map(cloudpickle.loads, sent)
    assert loss.func is method_loss
    assert loss.keywords == {"algorithm": made.algorithm, "config": made.loss_config}


REFUSED = {  # another value for each setting that our loss replaces
    "actor_rollout_ref.actor.clip_ratio": 0.3,
    "actor_rollout_ref.actor.clip_ratio_c": 4.0,
    "actor_rollout_ref.actor.clip_ratio_high": 0.28,
    "actor_rollout_ref.actor.clip_ratio_low": 0.1,
    "actor_rollout_ref.actor.entropy_coeff": 0.01,
    "actor_rollout_ref.actor.kl_loss_coef": 0.01,
    "actor_rollout_ref.actor.kl_loss_type": "k3+",
    "actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-mean",
    "actor_rollout_ref.actor.loss_scale_factor": 100,
    "actor_rollout_ref.actor.policy_loss.loss_mode": "gspo",
    "actor_rollout_ref.actor.shuffle": True,
    "actor_rollout_ref.actor.tau_neg": 1.0,
    "actor_rollout_ref.actor.tau_pos": 1.1,
    "actor_rollout_ref.actor.use_kl_loss": True,
    "algorithm.adv_estimator": "grpo",
    "algorithm.gamma": 0.99,
    "algorithm.kl_ctrl.kl_coef": 0.01,
    "algorithm.kl_penalty": "abs",
    "algorithm.lam": 0.95,
    "algorithm.norm_adv_by_std_in_grpo": False,
    "algorithm.rollout_correction.rollout_is": "token",
    "algorithm.use_kl_in_reward": True,
    "algorithm.use_pf_ppo": True,
    "distillation.enabled": True,
}


HONOURED = {  # what else these sections of verl's have, with verl's engine or queue
    "actor_rollout_ref.actor": "_target_ calculate_entropy calculate_sum_pi_squared checkpoint "
    "data_loader_seed entropy_checkpointing entropy_from_logits_chunk_size "
    "entropy_from_logits_with_chunking freeze_vision_tower fsdp_config grad_clip optim "
    "pad_to_length ppo_epochs ppo_max_token_len_per_gpu ppo_micro_batch_size "
    "ppo_micro_batch_size_per_gpu ppo_mini_batch_size profiler qat rollout_n strategy "
    "ulysses_sequence_parallel_size use_dynamic_bsz use_fused_kernels use_prefix_grouper "
    "use_remove_padding use_torch_compile",
    "algorithm": "_target_ filter_groups pf_ppo",
}


@pytest.mark.parametrize(("written", "value"), REFUSED.items(), ids=REFUSED)
def test_what_our_loss_replaces_is_refused_by_name(written, value):
    with pytest.raises(ConfigError) as error:
        MethodTrainer(config("grpo", f"{written}={value}"))
    key = next(k for k in (written, written.rpartition(".")[0]) if k in REPLACED)
    assert [f.path for f in error.value.findings] == [key]
    assert error.value.findings[0].message.endswith(REPLACED[key])


def test_no_setting_of_verls_is_ignored():
    """Each key of the sections of its loss and advantages is refused, or honoured by verl."""
    for section, names in HONOURED.items():
        keys = set(OmegaConf.select(config(), section))
        refused = {k.removeprefix(f"{section}.") for k in REPLACED if k.startswith(f"{section}.")}
        assert keys == set(names.split()) | refused, section
    assert {k for k in REPLACED if not any(w.startswith(k) for w in REFUSED)} == set()


def test_everything_wrong_is_said_at_once():
    overrides = ["critic.enable=null", "actor_rollout_ref.rollout.calculate_log_probs=False"]
    block = {"use_importance_sampling_correction": True}
    with pytest.raises(ConfigError) as error:
        MethodTrainer(config("grpo", *overrides, "algorithm.lam=0.9", loss=block))
    assert [f.path for f in error.value.findings] == [
        "algorithm.lam",
        "critic.enable",
        "actor_rollout_ref.rollout.calculate_log_probs",
    ]
    with pytest.raises(ConfigError, match=r"^method: .*name"):
        MethodTrainer(config(None))
    with pytest.raises(ConfigError, match="loss_fn: `kl_coef`"):
        MethodTrainer(config(loss={"kl_coef": 0.1}))


def test_a_block_that_the_adapter_has_not_is_refused():
    with pytest.raises(ConfigError) as error:
        MethodTrainer(config("grpo", "+rollout_correction.preset=decoupled_geo_rs"))
    said = Says("rollout_correction: loss_fn.use_importance_sampling_correction")
    assert [str(f) for f in error.value.findings] == [said]


def test_the_defaults_are_those_of_verl_with_megatron_too():
    fsdp, megatron = (config(name=name) for name in ("ppo_trainer", "ppo_megatron_trainer"))
    for key in REPLACED:
        values = [OmegaConf.select(x, key, throw_on_missing=True) for x in (fsdp, megatron)]
        assert values[0] == values[1], key


@pytest.mark.parametrize(
    ("method", "loss", "kept"),
    [("grpo", {}, False), ("erpo", {}, True), ("grpo", {"reference_policy_kl_penalty": 0.1}, True)],
)
def test_the_reference_is_kept_where_it_is_needed(method, loss, kept):
    made = MethodTrainer(config(method, loss=loss))
    assert made.use_reference_policy is kept
    assert (made.use_critic, made.trainer_mode) == (False, "sync")
    assert type(made.replay_buffer).__name__ == "ReplayBuffer"  # of the synchronous trainer


def test_the_example_is_a_command_line_of_verls(tmp_path):
    """Its words go to a stand-in for python, then through verl's own Hydra and our trainer."""
    stub = tmp_path / "python3"
    stub.write_text('#!/bin/sh\necho "$VERL_USE_EXTERNAL_MODULES"\nprintf "%s\\n" "$@"\n')
    stub.chmod(0o755)
    script = Path(__file__).parents[3] / "examples" / "verl_gsm8k.sh"
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": "/home/user"}
    said = subprocess.run(
        ["bash", script, "trainer.total_epochs=1"], env=path, capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr
    modules, dash_m, program, *overrides = said.stdout.splitlines()
    assert (modules, dash_m, program) == (
        "nemo_algos.engines.adapters.verl",
        "-m",
        "verl.trainer.main_ppo",
    )
    with initialize_config_module("verl.trainer.config", version_base=None):
        composed = compose("ppo_trainer", overrides=overrides)
    assert overrides[-1] == "trainer.total_epochs=1"
    need = {"use_reference_policy": need_reference_policy(composed), "use_critic": False}
    validate_config(composed, **need)
    made = get_trainer_cls(composed.trainer.v1.trainer_mode)(composed)
    assert (type(made), made.algorithm.name) == (MethodTrainer, "etr")


def test_verl_loads_the_adapter_by_name():
    program = (
        "import verl; from verl.trainer.ppo.v1 import get_trainer_cls as f; print(f('nemo_algos'))"
    )
    env = os.environ | {"VERL_USE_EXTERNAL_MODULES": "nemo_algos.engines.adapters.verl"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.stdout == "<class 'nemo_algos.engines.adapters.verl.MethodTrainer'>\n", done.stderr
