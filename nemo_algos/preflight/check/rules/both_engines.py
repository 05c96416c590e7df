"""What is wrong in either engine."""

from collections.abc import Iterator

from nemo_algos.algorithms.riders.correction import vanishing
from nemo_algos.config import Finding
from nemo_algos.preflight.check.rule import AnyRun, error


def group_of_one(run: AnyRun) -> Iterator[Finding]:
    """Advantages compare the responses of a prompt, unless they remember earlier ones."""
    a, key = run.algorithm, "grpo.num_generations_per_prompt"
    if run[key] == 1 and not (a and "memory" in a.advantage_needs):
        yield error(key, "a group of one has no advantage, so nothing is learned: set 8 or more")


def vanishing_weights(run: AnyRun) -> Iterator[Finding]:
    """The product of a long response's weights is nearly always cut or near 0."""
    tokens = run["policy.generation.max_new_tokens"] or run["policy.max_total_sequence_length"]
    if run.algorithm and tokens:
        yield from vanishing(run.algorithm.correction, tokens)
