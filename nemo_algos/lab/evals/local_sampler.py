"""Responses of the embedded engine's models, perturbed where that is asked for.

The perturbation is ERPO's figure 1b: how much of the accuracy hangs on tokens of high entropy. Of a
response's T tokens ceil(share T) are marked: those of highest entropy, of lowest, or any. At one of
them, drawn at random, the response is cut, a random other token takes its place, and the policy
goes on from there. An end token is neither marked nor put in.
"""

import hashlib
from itertools import groupby
from math import ceil
from pathlib import Path

import torch
from torch import Tensor

from nemo_algos.engines.data.countdown import Rules
from nemo_algos.engines.local import checkpoint
from nemo_algos.engines.local.build import policy_of
from nemo_algos.engines.local.experience import Experience, Policy
from nemo_algos.engines.local.hardware import device_of, threads_of
from nemo_algos.engines.local.lora import load_trained
from nemo_algos.engines.local.schema import SHAPES, GenerationSection, PolicySection
from nemo_algos.engines.local.tiny import Tiny
from nemo_algos.engines.local.tiny_policy import TinyPolicy
from nemo_algos.findings import first_line
from nemo_algos.lab.evals.problem import Add, Generation, Problem, Wanted, seed_of
from nemo_algos.lab.evals.schema import LocalModel, Perturbation, SamplingSection
from nemo_algos.terminal import Console


class LocalSampler:
    """A policy that speaks text: countdown's tokens, or a chat template's.

    Raises ValueError where there is no such run, checkpoint, model or device.
    """

    def __init__(self, model: LocalModel, sampling: SamplingSection) -> None:
        self.seed = sampling.seed
        self.perturbation = sampling.perturbation
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
                raise ValueError(
                    "the embedded engine does not support images. Set `model.engine: endpoint`."
                )
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


ORDER = {"high_entropy": -1.0, "low_entropy": 1.0, "any": 0.0}


def perturb(
    policy: Policy,
    prompt: list[int],
    drawn: Experience,
    asked: Perturbation,
    limit: int,
    generator: torch.Generator,
) -> list[list[int]]:
    """Token ids of the responses to `prompt`, each perturbed, of at most `limit` tokens.

    A response that is an end token alone stays as it is.
    """
    chance = torch.Generator().manual_seed(generator.initial_seed())
    found = drawn.responses()
    begun: dict[int, list[int]] = {}
    for i, tokens in enumerate(found):
        content = [token for token in tokens if token not in policy.ends]
        if content:
            entropy = drawn.entropy[i, : len(content)]
            begun[i] = _begun(content, entropy, policy.words, asked, chance)
    by_length = sorted(begun, key=lambda i: len(begun[i]))  # a batch's prompts have one length
    for _, rows in groupby(by_length, key=lambda i: len(begun[i])):
        batch = list(rows)
        ends = policy.generate([[*prompt, *begun[i]] for i in batch], 1, generator).responses()
        for i, end in zip(batch, ends, strict=True):
            found[i] = [*begun[i], *end][:limit]
    return found


def _begun(
    tokens: list[int],
    entropy: Tensor,
    words: list[int],
    asked: Perturbation,
    chance: torch.Generator,
) -> list[int]:
    """The tokens before the perturbed one, and what takes its place."""
    order = torch.randperm(len(tokens), generator=chance)  # of equal entropies any may be marked
    ranked = order[(ORDER[asked.tokens] * entropy[order]).argsort(stable=True)]
    place = int(ranked[_below(ceil(asked.share * len(tokens)), chance)])
    others = [word for word in words if word != tokens[place]]
    return [*tokens[:place], others[_below(len(others), chance)]]


def _below(n: int, chance: torch.Generator) -> int:
    return int(torch.randint(n, (), generator=chance))
