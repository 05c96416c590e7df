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
import verl_peer
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from says import Says
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorStack
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl import DataProto
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.trainer.ppo.utils import need_reference_policy
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.utils import tensordict_utils as tu
from verl.utils.config import validate_config
from verl.workers.engine.utils import prepare_micro_batches
from verl.workers.utils.losses import ppo_loss

from nemo_algos import ConfigError, Counts, LossConfig, Rollouts, policy_loss
from nemo_algos.engines.adapters.verl import REPLACED, MethodTrainer, method_loss
from nemo_algos.engines.dumps.dump import read

PROMPTS, GROUP, MINI = 6, 4, 3  # prompts to an optimizer batch: two of them
METHODS = {name: {"name": name} for name in ("quatro", "erpo", "apmpo", "grpo", "gpg", "cispo")}
METHODS |= {
    "etr": {"name": "etr", "micro": 0.05},
    "erpo+etr": {"advantages": "erpo", "bounds": "etr"},
    "gspo+etr": {"name": "gspo", "bounds": "etr"},
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


@pytest.mark.parametrize(("ranks", "micro"), CUTS.values(), ids=CUTS)
@every_method
def test_the_loss_is_ours_however_verl_cuts(queue, method, ranks, micro):
    rows = responses()
    made, rollouts = trainer(method, ranks=ranks), direct(rows)
    driver: dict[str, Any] = {}
    data = fetched(made._compute_advantage(stored(rows), driver))
    shown = data["advantages"].to_padded_tensor(0.0)  # what verl's metrics read
    inside = padded([torch.ones(len(x)) for x in data["responses"].unbind()]) > 0
    data["row"] = torch.arange(len(rollouts))[:, None]
    noise = torch.randn(rollouts.mask.shape, generator=torch.Generator().manual_seed(2))
    leaf = (rollouts.old_logprobs + 0.3 * noise).requires_grad_()
    signals, seen = made.algorithm.signals(rollouts), []
    assert driver == pytest.approx(signals.metrics, abs=1e-12)
    exactly(shown[inside], signals.advantages.expand(shown.shape)[inside])
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
    theirs = verl_peer.actor(
        clip_ratio_high=0.28,
        loss_agg_mode=verl_peer.MODES[mean],
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


def written_otherwise(key: str) -> str:
    """`KEY=VALUE` with another value than verl's own, of a section's first key."""
    stock = OmegaConf.select(config(), key)
    while OmegaConf.is_dict(stock):
        name = "loss_mode" if "loss_mode" in stock else next(k for k in stock if k != "_target_")
        key, stock = f"{key}.{name}", stock[name]
    if isinstance(stock, bool):
        return f"{key}={not stock}"
    if isinstance(stock, int | float):
        return f"{key}={stock + 1}"
    return f"{key}=another"


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


@pytest.mark.parametrize("key", REPLACED)
def test_what_our_loss_replaces_is_refused_by_name(key):
    with pytest.raises(ConfigError) as error:
        MethodTrainer(config("grpo", written_otherwise(key)))
    assert [f.path for f in error.value.findings] == [key]
    assert error.value.findings[0].message.endswith(REPLACED[key])


def test_no_setting_of_verls_is_ignored():
    """Each key of the sections of its loss and advantages is refused, or honoured by verl."""
    for section, names in HONOURED.items():
        keys = set(OmegaConf.select(config(), section))
        refused = {k.removeprefix(f"{section}.") for k in REPLACED if k.startswith(f"{section}.")}
        assert keys == set(names.split()) | refused, section


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


# ---- what verl itself writes of a step: texts, which are refused with the remedy, and a batch


def test_verls_rollout_data_are_texts_alone(tmp_path):
    texts = (["a"], ["b"], ["c"], [1.0], {})
    RayPPOTrainer._write_generations(*texts, str(tmp_path), 3)
    with pytest.raises(ValueError, match=r"rollout_data_dir .*torch"):
        read(tmp_path / "3.jsonl")


def test_the_remedys_line_writes_what_is_read(tmp_path, monkeypatch):
    """Of verl's DataProto; its own save_to_disk is a pickle, and not loaded."""
    columns = {
        "prompts": [[0, 1]],
        "responses": [[2, 3]],
        "attention_mask": [[0, 1, 1, 1]],
        "response_mask": [[1, 1]],
        "rollout_log_probs": [[-1.0, -2.0]],
        "old_log_probs": [[-1.5, -2.0]],
    }
    batch = DataProto.from_dict({name: torch.tensor(rows) for name, rows in columns.items()})
    monkeypatch.chdir(tmp_path)
    torch.save({k: v for k, v in batch.batch.items() if hasattr(v, "shape")}, "step.pt")
    dump = read(tmp_path / "step.pt")
    assert dump.tokens.tolist() == [[0, 1, 2, 3]] and dump.prompt_length.tolist() == [1]
    assert dump.trainer_logprobs[dump.mask].tolist() == [-1.5, -2.0]
    assert dump.mask.tolist() == [[False, False, True, True]]
    batch.save_to_disk("whole.pt")
    with pytest.raises(ValueError, match="tensors"):
        read(tmp_path / "whole.pt")
