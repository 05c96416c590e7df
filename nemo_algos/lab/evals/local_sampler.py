"""Responses of the embedded engine's models."""

import hashlib
from pathlib import Path

import torch

from nemo_algos.config import first_line
from nemo_algos.engines.data.countdown import Rules
from nemo_algos.engines.local import checkpoint
from nemo_algos.engines.local.build import policy_of
from nemo_algos.engines.local.experience import Policy
from nemo_algos.engines.local.hardware import device_of, threads_of
from nemo_algos.engines.local.lora import load_trained
from nemo_algos.engines.local.schema import SHAPES, GenerationSection, PolicySection
from nemo_algos.engines.local.tiny import Tiny
from nemo_algos.engines.local.tiny_policy import TinyPolicy
from nemo_algos.lab.evals.perturbation import perturb
from nemo_algos.lab.evals.problem import Add, Generation, Problem, Wanted, seed_of
from nemo_algos.lab.evals.schema import LocalModel, SamplingSection
from nemo_algos.terminal import Console


class LocalSampler:
    """A policy that speaks text: countdown's tokens, or a chat template's.

    Raises ValueError where there is no such run, checkpoint, model or device.
    """

    def __init__(self, model: LocalModel, sampling: SamplingSection) -> None:
        self.seed, self.perturbation = sampling.seed, sampling.perturbation
        section = model.policy or model.trained.policy
        rules = Rules() if model.policy else model.trained.data.rules
        torch.set_num_threads(model.threads or threads_of(section))
        generation = GenerationSection(
            max_new_tokens=sampling.max_tokens or section.generation.max_new_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
        )
        self.limit = generation.max_new_tokens
        section = section.model_copy(update={"generation": generation})
        self.policy = _policy(section, rules, _checkpoint(model))
        self.identity = {
            "engine": "local",
            "model": section.model_name,
            "weights": _weights_hash(self.policy.model),
        }

    def sample(self, wanted: Wanted, add: Add) -> None:
        """See Sampler. Each problem has a random generator of its own, seeded by its id."""
        for problem, samples in wanted:
            generator = torch.Generator(next(self.policy.model.parameters()).device)
            generator.manual_seed(seed_of(self.seed, problem.id, samples[0]))
            if problem.images:
                reason = "the embedded engine does not support images"
                raise ValueError(f"{reason}. Set `model.engine: endpoint`.")
            prompt = self.policy.encode(problem.messages, problem.prefix)
            responses = self._responses(prompt, len(samples), generator)
            drawn = zip(samples, responses, strict=True)
            add([self._generation(problem, i, tokens) for i, tokens in drawn])

    def _responses(self, prompt: list[int], n: int, generator: torch.Generator) -> list[list[int]]:
        drawn = self.policy.generate([prompt], n, generator)
        if self.perturbation is None:
            return drawn.responses()
        return perturb(self.policy, prompt, drawn, self.perturbation, self.limit, generator)

    def _generation(self, problem: Problem, sample: int, tokens: list[int]) -> Generation:
        finish = "stop" if tokens[-1] in self.policy.ends else "length"
        return Generation(problem.id, sample, self.policy.text(tokens), len(tokens), finish)


def _policy(section: PolicySection, rules: Rules, weights: Path | None) -> Policy:
    """The policy before training, or with the weights of a checkpoint."""
    if section.model_name in SHAPES and weights is not None:
        model = Tiny(section.shape or SHAPES[section.model_name]).to(device_of(section))
        policy: Policy = TinyPolicy(model, section.generation)
    else:
        policy = policy_of(section, rules, Console(stderr=True))
    if weights is not None:
        try:
            load_trained(policy.model, checkpoint.load(weights)["model"])
        except (LookupError, TypeError, AttributeError, RuntimeError) as error:
            raise ValueError(f"{weights} cannot be loaded: {first_line(error)}") from None
    return policy


def _checkpoint(model: LocalModel) -> Path | None:
    """The checkpoint of the step, or the newest; None for the policy before training."""
    if model.run is None or model.step == 0:
        return None
    folder = Path(model.run) / "checkpoints"
    found = checkpoint.steps(folder)
    path = found.get(model.step) if model.step else checkpoint.latest(folder)
    if path is None:
        there = ", ".join(map(str, [0, *sorted(found)]))
        raise ValueError(f"model.step: {folder} does not have this checkpoint. It has: {there}")
    return path


def _weights_hash(model: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()[:16]
