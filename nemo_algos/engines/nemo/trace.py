"""Token traces of a NeMo-RL run, in the embedded engine's format: trace.jsonl of its log folder.

Tokens, masks, advantages, bounds and old log-probs of a batch are at hand where advantages are
computed; the policy is asked once more for its log-probs, after the updates of a traced step.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nemo_algos.algorithms.rollouts import Rollouts
from nemo_algos.engines import trace
from nemo_algos.engines.nemo import columns
from nemo_algos.jsonl import append_lines


class Traced(NamedTuple):
    """What is traced: every period-th step (0: none), so many prompts; last: the run's last step.

    decode: token ids -> text.
    """

    period: int = 0
    prompts: int = 2
    last: int | None = None
    decode: Callable[[list[int]], str] = str

    def due(self, step: int) -> bool:
        return trace.due(step, self.period, self.last)


def write(folder: Path, lines: Iterator[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    append_lines(folder / trace.FILE, list(lines))


def lines(
    traced: Traced,
    step: int,
    data: Mapping[str, Any],
    rollouts: Rollouts,
    algorithm: Any,
    ask: Callable[[], Tensor],
) -> Iterator[dict[str, Any]]:
    """Of NeMo-RL's training batch with the method's columns, and of its rollouts, row by row.

    ask: the log-probs [B,S] after the updates. The ratio is to `prev_logprobs`.
    """
    rows = trace.traced_rows(rollouts.group, traced.prompts)
    own = [key for key in data if key.startswith(columns.PREFIX)]
    names = {"token_mask", "sample_mask", "prev_logprobs", "advantages", "input_ids", *own}
    part = {name: data[name][rows] for name in names}
    mask = (part["token_mask"] * part["sample_mask"][:, None])[:, 1:].bool()
    entropy = None if rollouts.entropy is None else rollouts.entropy[rows][:, 1:]
    tokens = trace.tokens_of(
        algorithm,
        mask,
        part["prev_logprobs"][:, 1:],
        signals=columns.read(part, algorithm),
        logprobs=ask()[rows][:, 1:],
    )
    numbers = {}
    for i, group in enumerate(dict.fromkeys(rollouts.group.tolist())):
        numbers[group] = i
    for i, row in enumerate(rows.tolist()):
        ids = part["input_ids"][i]
        start = int(part["token_mask"][i].argmax())
        about = {
            "step": step,
            "group": numbers[int(rollouts.group[row])],
            "prompt": traced.decode(ids[:start].tolist()),
            "tokens": [traced.decode([token]) for token in ids[1:][mask[i]].tolist()],
            "reward": float(rollouts.rewards[row]),
        }
        own = None if entropy is None else entropy[i]
        yield trace.line(about, mask[i], own, {name: x[i] for name, x in tokens.items()})


def current_logprobs(policy: Any, data: Any) -> Tensor:
    """The policy's log-probs [B,S] now; it is left ready to train, as it was."""
    policy.prepare_for_lp_inference()
    with torch.no_grad():
        found = policy.get_logprobs(data)["logprobs"]
    policy.prepare_for_training()
    return found
