"""Every method's loss and the embedded engine on a GPU, against the same on the CPU."""

from dataclasses import fields, is_dataclass, replace

import batches
import pytest
import small_llama
import torch
import trainers

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.loss import policy_loss
from nemo_algos.engines.local.hf import HFPolicy

GPU = torch.device("cuda")
PROMPTS = [[7, 20, 9], [5, 6, 30, 31, 14, 8, 11, 29, 4], [33], [10, 13, 21, 4, 25]]


def moved(record, device):
    """A dataclass of tensors on another device."""
    assert is_dataclass(record) and not isinstance(record, type)
    tensors = {f.name: getattr(record, f.name) for f in fields(record)}
    if parts := tensors.pop("reward_parts", None):
        tensors["reward_parts"] = {name: x.to(device) for name, x in parts.items()}
    on_device = {k: v.to(device) for k, v in tensors.items() if isinstance(v, torch.Tensor)}
    return replace(record, **tensors | on_device)


def loss_on(device, name):
    """Value, gradient and metrics of a batch with everything awkward in it, in float32."""
    batch = batches.make(dtype=torch.float32)
    algorithm = build(name)
    rollouts = moved(batch.rollouts, device)
    logprobs = batch.logprobs.to(device).requires_grad_()
    signals = algorithm.signals(rollouts, {})
    loss = policy_loss(algorithm, logprobs, rollouts, signals, Counts.of(rollouts.mask), batches.KL)
    loss.value.backward()
    return loss.value.cpu(), logprobs.grad.cpu(), loss.stats.summary()


@batches.every_method
def test_a_loss_on_the_gpu_is_the_cpus(name):
    (value, grad, metrics), want = loss_on(GPU, name), loss_on("cpu", name)
    torch.testing.assert_close(value, want[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(grad, want[1], rtol=1e-5, atol=1e-6)
    assert metrics == pytest.approx(want[2], rel=1e-4, abs=1e-6)


def test_log_probs_of_a_hugging_face_model_are_the_cpus(tmp_path):
    folder = small_llama.save(tmp_path)
    on_cpu, on_gpu = (
        HFPolicy(small_llama.section(folder), torch.device(d)) for d in ("cpu", "cuda")
    )
    for generator in (torch.Generator(), torch.Generator("cuda")):
        policy = on_gpu if generator.device.type == "cuda" else on_cpu
        drawn = policy.generate(PROMPTS, 6, generator.manual_seed(0))
        rows = torch.arange(len(drawn.group))
        for other in (on_cpu, on_gpu):
            torch.testing.assert_close(
                other.logprobs(drawn, rows).detach(), drawn.logprobs, rtol=1e-4, atol=1e-4
            )


def test_updates_on_the_gpu_are_the_cpus():
    """Two steps on the responses that the CPU drew."""
    want, made = trainers.trainer(), trainers.trainer()
    made.policy.model.to(GPU)
    made = trainers.trainer(trained=made.policy)
    for _ in range(2):
        experience, rollouts = want.collect()
        signals = want.algorithm.signals(rollouts)
        for trainer in (want, made):
            trainer.update(experience, rollouts, signals)
            trainer.step_number += 1
        torch.testing.assert_close(
            trainers.weights(made).cpu(), trainers.weights(want), rtol=1e-4, atol=1e-5
        )
