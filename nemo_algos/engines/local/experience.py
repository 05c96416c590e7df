"""What a policy generates and is trained on, also in turns with an environment.

P prompts of L tokens, B responses of at most S tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from nemo_algos.algorithms.rollouts import prompt_key
from nemo_algos.algorithms.shapes import Mask, PerToken
from nemo_algos.engines.data.prompts import Asked
from nemo_algos.engines.data.tasks import Task

OF_TOKENS = (
    "tokens", "mask", "logprobs", "entropy", "gen_logprobs", "support", "likeliest",
    "likeliest_logprobs",
)  # fmt: skip
Turn = dict[str, Tensor]  # the columns of OF_TOKENS that there are, one value per token


@dataclass(frozen=True)
class Experience:
    """Responses to prompts. On the CPU, whatever the policy's device: the statistics need float64.

    prompts [P,L] ids, left-padded where lengths differ (prompt_mask [P,L]); group [B]: each one's
    prompt; tokens [B,S] ids; mask [B,S] bool, the response with its end token; logprobs,
    entropy [B,S]: of the sampling policy at the sampling temperature as the training forward
    computes them (with old_policy: sampler, as the sampler did), nats, 0 off the mask; gen_logprobs
    [B,S]: as the sampler computed them;
    support [B,S,V/8]: the packed sets (`sampling.pack`) that the sampler's filters kept, where they
    are replayed: log-probs of all kinds are then renormalised over them;
    likeliest, likeliest_logprobs [B,S,N]: the tokens that the sampler took for the likeliest, and
    its log-probs of them, where scores are centred;
    shown [B,S] bool, where an environment spoke within: the mask and its tokens;
    routed_experts [B,L+S-1,layers,K]: where the sampler sent each token but the last, of a model
    with experts; distances: of the sampler from the trainer, beside the log-probs', for metrics.
    """

    prompts: Tensor
    prompt_mask: Tensor
    group: Tensor
    tokens: Tensor
    mask: Mask
    logprobs: PerToken
    entropy: PerToken
    gen_logprobs: PerToken
    shown: Tensor | None = None
    routed_experts: Tensor | None = field(default=None, kw_only=True)
    support: Tensor | None = field(default=None, kw_only=True)
    likeliest: Tensor | None = field(default=None, kw_only=True)
    likeliest_logprobs: Tensor | None = field(default=None, kw_only=True)
    distances: dict[str, float] = field(default_factory=dict, kw_only=True)

    @property
    def present(self) -> Tensor:
        """[B,S] bool: all that is no padding."""
        return self.mask if self.shown is None else self.shown

    def check_finite(self) -> None:
        """Raises FloatingPointError where a token's log-prob or entropy is not finite."""
        finite = self.logprobs.isfinite() & self.gen_logprobs.isfinite() & self.entropy.isfinite()
        broken = int((self.mask & ~finite).sum())
        if broken:
            raise FloatingPointError(
                f"{broken} of {int(self.mask.sum())} sampled tokens have a log-prob or entropy "
                "that is not finite. The learning rate is probably too high. "
                "Lower `policy.optimizer.kwargs.lr`, and resume from an earlier checkpoint."
            )

    def prompt_keys(self) -> Tensor:
        """[B] int64: the number of each response's prompt, the same in every batch."""
        rows = zip(self.prompts, self.prompt_mask, strict=True)
        return torch.tensor([prompt_key(ids[shown].tolist()) for ids, shown in rows])[self.group]

    def responses(self) -> list[list[int]]:
        """Token ids of each response, without padding."""
        lengths = self.present.sum(1).tolist()
        return [row[:n] for row, n in zip(self.tokens.tolist(), lengths, strict=True)]


Score = Callable[[Experience, Tensor], Tensor]  # as Policy.logprobs


class Policy(Protocol):
    """A causal LM that gives log-probs, speaks text and samples."""

    @property
    def model(self) -> nn.Module:
        """What the optimizer trains."""
        ...

    def logprobs(self, experience: Experience, rows: Tensor) -> Tensor:
        """[N,S] log-probs of the responses `rows` [N], with gradient; defined on the mask."""
        ...

    @property
    def ends(self) -> set[int]:
        """Token ids, each of which ends a response."""
        ...

    @property
    def words(self) -> list[int]:
        """Token ids that stand for text, special ones left out."""
        ...

    def logprobs_and_entropy(self, experience: Experience, rows: Tensor) -> tuple[Tensor, Tensor]:
        """[N,S] each: log-probs, and exact entropies, nats, both with gradient."""
        ...

    def logprobs_and_heads(self, experience: Experience, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs [N,S], and those [N,S,K] of `experience.likeliest`, both with gradient."""
        ...

    def encode(self, prompt: Asked, prefix: str = "") -> list[int]:
        """Token ids of what the user says, or of a conversation, and of how the answer begins."""
        ...

    def generate(
        self, prompts: list[list[int]], group_size: int, generator: torch.Generator
    ) -> Experience:
        """`group_size` responses to each prompt, sampled at the policy's temperature."""
        ...

    def tree_width(self, experience: Experience) -> int:
        """Hidden size of a model whose one row holds many responses to a prompt, else 0."""
        ...

    def ids(self, text: str) -> list[int]:
        """Token ids of a text within a response."""
        ...

    def text(self, tokens: list[int]) -> str:
        """What a response's token ids say, without special ones."""
        ...

    def decode(self, tokens: list[int]) -> str:
        """The token ids as they are, special ones too."""
        ...

    def save(self, folder: str) -> None: ...


def generate(
    policy: Policy, task: Task, examples: list[Any], samples: int, generator: torch.Generator
) -> Experience:
    """`samples` responses to each example, gone on with as long as the task replies."""
    prompts = [policy.encode(task.prompt(e), task.prefix(e)) for e in examples]
    experience = policy.generate(prompts, samples, generator)
    if not task.turns:
        return experience
    asked = experience.group.tolist()
    turns = [[turn] for turn in _turns(experience)]
    going = list(range(len(turns)))
    for _ in range(task.turns):
        said = {}
        for i in going:
            said[i] = task.reply(examples[asked[i]], policy.text(_tokens(turns[i])))
        replies = {}
        for i, text in said.items():
            if text is not None:
                replies[i] = policy.ids(text)
        if not replies:
            break
        for i, ids in replies.items():
            turns[i].append(_environment_turn(ids, turns[i][0]))
        heard = [[*prompts[asked[i]], *_tokens(turns[i])] for i in replies]
        for i, turn in zip(replies, _turns(policy.generate(heard, 1, generator)), strict=True):
            turns[i].append(turn)
        going = list(replies)
    return _join(experience, turns)


def _turns(experience: Experience) -> list[Turn]:
    """Each response without padding."""
    columns = {}
    for name in OF_TOKENS:
        column = getattr(experience, name)
        if column is not None:
            columns[name] = column
    turns = []
    for i, mask in enumerate(experience.mask):
        turns.append({name: column[i][mask] for name, column in columns.items()})
    return turns


def _environment_turn(ids: list[int], turn: Turn) -> Turn:
    """What the environment says: no token of it is the policy's."""
    off = {}
    for name, column in turn.items():
        off[name] = column.new_zeros(len(ids), *column.shape[1:])
    return off | {"tokens": torch.tensor(ids, dtype=torch.long)}


def _tokens(turns: list[Turn]) -> list[int]:
    return [token for turn in turns for token in turn["tokens"].tolist()]


def _join(experience: Experience, turns: list[list[Turn]]) -> Experience:
    columns = dict[str, Tensor]()
    for name in turns[0][0]:
        responses = []
        for row in turns:
            responses.append(torch.cat([turn[name] for turn in row]))
        columns[name] = pad_sequence(responses, batch_first=True)
    lengths = torch.tensor([len(_tokens(row)) for row in turns])
    shown = torch.arange(columns["mask"].shape[1]) < lengths[:, None]
    return replace(experience, **columns, shown=shown)
