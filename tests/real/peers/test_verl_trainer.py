"""verl's own trainer on a CPU (verl_cpu_run.py) against a loop of our own on the same batches."""

# pyright: reportMissingImports=false

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config

from nemo_algos import Counts, LossConfig, Rollouts, build, policy_loss

STEPS, MINI = 2, 8  # sequences of an optimizer batch: half of a rollout batch
LOSS = LossConfig(reference_policy_kl_penalty=0.01)
CLIP = 0.05  # close enough for these steps to reach
METHOD = {"advantages": "erpo", "bounds": {"name": "etr", "clip_base": CLIP, "micro": CLIP / 2}}
SHOWN = ("loss", "kl_loss", "grad_norm", "clip/fraction", "kl/old", "kl/ref", "entropy/updated")
CPU = {
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)]),
    "VERL_ENGINE_DEVICE": "cuda",
    "VERL_PLATFORM": "cpu",
    "VERL_USE_EXTERNAL_MODULES": "verl_cpu,nemo_algos.engines.adapters.verl",
}


@pytest.fixture(params=[1, 2], ids="{} ranks".format)
def run(request, tmp_path):
    """(model, batches, metrics by step, ranks): a run of verl's trainer."""
    ranks = request.param
    model = tiny(tmp_path)
    rows = [
        {"prompt": [{"role": "user", "content": 3 * c}], "data_source": "-"} for c in "ABCDEFGH"
    ]
    pandas.DataFrame(rows).to_parquet(tmp_path / "data.parquet")
    settings = ["+method.advantages=erpo"]
    settings += [f"+method.bounds.{k}={v}" for k, v in METHOD["bounds"].items()]
    settings += [f"+loss_fn.reference_policy_kl_penalty={LOSS.reference_policy_kl_penalty}"]
    settings += [f"trainer.total_training_steps={STEPS}"]
    script = Path(__file__).with_name("verl_cpu_run.py")
    command = [sys.executable, script, tmp_path, str(ranks), *settings]
    env = os.environ | CPU | {"VERL_FILE_LOGGER_PATH": str(tmp_path / "metrics.jsonl")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=env)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    metrics = [json.loads(line)["data"] for line in lines]
    batches = torch.load(tmp_path / "batches.pt", weights_only=True)
    return model, batches, metrics, ranks


def tiny(folder: Path) -> Any:
    """A language model of 64 characters, with its tokenizer, saved."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64}
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    model = AutoModelForCausalLM.from_config(
        Qwen2Config(**sizes, **heads, **ends, tie_word_embeddings=True), attn_implementation="eager"
    )
    model.save_pretrained(folder)
    words = ["<pad>", "<s>", "</s>", "<unk>", *map(chr, range(33, 93))]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        chat_template="{{ messages[0]['content'] }}",
    ).save_pretrained(folder)
    return model


def scored(model: Any, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of the responses, [B,S] each, one sequence at a time."""
    rows = []
    for tokens, response in zip(batch["input_ids"], batch["responses"], strict=True):
        logits = model(tokens[None]).logits[0, -len(response) - 1 : -1].log_softmax(-1)
        entropy = -(logits.exp() * logits).sum(-1)
        rows.append((logits.gather(1, response[:, None])[:, 0], entropy))
    logprobs, entropies = zip(*rows, strict=True)
    return pad_sequence(logprobs, batch_first=True), pad_sequence(entropies, batch_first=True)


def members(size: int, ranks: int) -> list[Tensor]:
    """The rows of each optimizer batch: the k-th piece of every rank's share."""
    pieces = torch.arange(size).view(ranks, -1, MINI // ranks)
    return list(pieces.transpose(0, 1).reshape(-1, MINI))


def expected(model: Any, reference: Any, batches: Any, ranks: int) -> list[Any]:
    """verl's optimizer on our loss: the metrics of each step, means over its optimizer batches."""
    algorithm, steps = build(METHOD), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    for batch in batches:
        mask = pad_sequence(batch["response_mask"], batch_first=True) > 0
        rewards = torch.stack([x.sum() for x in batch["rm_scores"]])
        labels = [sorted(set(batch["uid"])).index(uid) for uid in batch["uid"]]
        with torch.no_grad():
            (old, entropy), (ref, _) = scored(model, batch), scored(reference, batch)
        rollouts = Rollouts(labels, rewards, mask, old, ref, entropy)
        signals, seen = algorithm.signals(rollouts), []
        for rows in members(len(mask), ranks):
            now, exact = scored(model, batch)
            given = (now[rows], rollouts[rows], signals[rows], Counts.of(mask[rows]), LOSS)
            loss = policy_loss(algorithm, *given, exact[rows])
            optimizer.zero_grad()
            loss.value.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            seen.append(loss.stats.summary() | {"grad_norm": float(norm)})
        steps.append(({k: sum(s[k] for s in seen) / len(seen) for k in SHOWN}, signals.metrics))
    return steps


def test_verls_trainer_takes_the_steps_of_our_loop(run):
    model, batches, metrics, ranks = run
    reference = AutoModelForCausalLM.from_config(model.config, attn_implementation="eager")
    reference.load_state_dict(model.state_dict())
    want = expected(model, reference, batches, ranks)
    assert [m["training/global_step"] for m in metrics] == [1, 2] == list(range(1, STEPS + 1))
    for got, (shown, driver) in zip(metrics, want, strict=True):
        assert {k: got[f"actor/{k}"] for k in SHOWN} == pytest.approx(shown, rel=1e-3, abs=1e-6)
        assert {k: got[k] for k in driver} == pytest.approx(driver, rel=1e-3, abs=1e-6)
    assert want[0][0]["clip/fraction"] > 0 and want[1][1]["erpo/process_signal"] > 0
