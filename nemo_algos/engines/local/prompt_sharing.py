"""Responses as trees: a prompt is the trunk, and what responses begin with alike is one branch.

N responses of S tokens in R trees, each a row of the model's T tokens; M distinct next tokens.
Exact: a token attends to its own prompt and branch only, at its own positions.
"""

from dataclasses import dataclass
from math import isqrt

import torch
from torch import Tensor

from nemo_algos.engines.local.experience import Experience
from nemo_algos.engines.local.schema import PolicySection


@dataclass(frozen=True)
class Forest:
    """Rows of a model: a prompt, the tokens of its responses that others follow, padding.

    ids, positions [R,T]; filled [R,T]: no padding; sees [R,T,T]: what a token attends to. The
    m-th next token, tokens[m], follows the one at row[m], column[m]. place [N,S]: 1 + m of each
    response's tokens, 0 after its end.
    """

    ids: Tensor
    positions: Tensor
    filled: Tensor
    sees: Tensor
    row: Tensor
    column: Tensor
    tokens: Tensor
    place: Tensor


def budget(prompt: int, width: int) -> int:
    """Response tokens that share a tree with a prompt of L tokens, in a model of width D.

    A token costs the linear layers as much as attending to 6 D others. So k responses of S tokens
    in a tree cost 6 D (L / k + S) + (L + k S)^2 / k each, least where (k S)^2 = L (L + 6 D).
    """
    return isqrt(prompt * (prompt + 6 * width))


def trees(experience: Experience, rows: Tensor, policy: PolicySection, width: int) -> Tensor:
    """The tree [N] of each response: a prompt's fill one after the other; width 0: one each."""
    limit = policy.dynamic_batching.train_mb_tokens if policy.dynamic_batching.enabled else None
    prompts, lengths = (x.tolist() for x in _lengths(experience, rows))
    # of a prompt: tree, tokens
    out = list[int]()
    last = dict[int, tuple[int, int]]()
    known = 0
    for group, prompt, length in zip(
        experience.group[rows].tolist(), prompts, lengths, strict=True
    ):
        room = budget(prompt, width) if width else 0
        tree, used = last.get(group, (0, room + 1))
        if used + length > (room if limit is None else min(room, limit - prompt)):
            tree = known
            used = 0
            known = known + 1
        last[group] = tree, used + length
        out.append(tree)
    return torch.tensor(out, dtype=torch.long)


def micro_batches(
    experience: Experience, rows: Tensor, policy: PolicySection, width: int
) -> list[Tensor]:
    """rows [N] in micro-batches of train_micro_batch_size sequences.

    With dynamic_batching whole trees, of like length, of at most train_mb_tokens tokens after
    padding.
    """
    if not policy.dynamic_batching.enabled:
        if len(rows):
            return list(rows.split(policy.train_micro_batch_size))
        return []
    tree, (prompts, lengths) = trees(experience, rows, policy, width), _lengths(experience, rows)
    tokens = torch.zeros_like(tree.unique()).scatter(0, tree, prompts).index_add(0, tree, lengths)
    batches = list[Tensor]()
    start = 0
    order = tokens.argsort(stable=True)
    for end, padded in enumerate(tokens[order].tolist()):
        if end > start and (end + 1 - start) * padded > policy.dynamic_batching.train_mb_tokens:
            batches.append(order[start:end])
            start = end
    return [rows[torch.isin(tree, kept)] for kept in (*batches, order[start:]) if len(kept)]


def _lengths(experience: Experience, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens [N] of each response's prompt, and its own."""
    prompts = experience.prompt_mask.sum(1)[experience.group[rows]]
    return prompts, experience.present[rows].sum(1)


def forest(experience: Experience, rows: Tensor, tree: Tensor) -> Forest:
    """The responses `rows` [N] in the trees `tree` [N]."""
    tokens = experience.tokens[rows]
    shown = experience.present[rows]
    group = torch.zeros(int(tree.max()) + 1, dtype=torch.long)
    group[tree] = experience.group[rows]
    lengths = experience.prompt_mask[group].sum(1)
    vocabulary = int(tokens.max()) + 1
    known = 1
    # of the level above, by row of the model
    place = torch.zeros_like(tokens)
    node = tree
    row = torch.arange(len(group))
    column = lengths - 1
    fill = lengths.clone()
    nexts = [(tree[:0],) * 3]
    branches = list[tuple[Tensor, ...]]()
    for s in range(int(shown.sum(1).max())):
        on = shown[:, s]
        keys, index = (node[on] * vocabulary + tokens[on, s]).unique(return_inverse=True)
        parent = keys // vocabulary
        token = keys % vocabulary
        node = node.masked_scatter(on, index)
        place[on, s], known = known + index, known + len(keys)
        nexts.append((row[parent], column[parent], token))
        followed = torch.zeros(len(keys), dtype=torch.bool)
        if s + 1 < shown.shape[1]:
            followed[node[shown[:, s + 1]]] = True
        row = row[parent]
        above = column[parent]
        column = torch.zeros_like(keys)
        at = row[followed]
        column[followed] = fill[at] + torch.arange(len(at)) - torch.searchsorted(at, at)
        fill += at.bincount(minlength=len(fill))
        branches.append((at, column[followed], above[followed], token[followed], lengths[at] + s))
    ids, positions, filled, sees = _rows(experience, group, fill, branches)
    row, column, after = map(torch.cat, zip(*nexts, strict=True))
    return Forest(ids, positions, filled, sees, row, column, after, place)


def _rows(
    experience: Experience, group: Tensor, fill: Tensor, branches: list[tuple[Tensor, ...]]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """ids, positions, filled, sees of the prompts and what grows from them."""
    lengths = experience.prompt_mask[group].sum(1)
    columns = torch.arange(int(fill.max()))
    trunk = columns < lengths[:, None]
    ids = torch.zeros_like(trunk, dtype=torch.long)
    positions = columns.where(trunk, 0)
    ids[trunk] = experience.prompts[group][experience.prompt_mask[group]]
    sees = torch.eye(len(columns), dtype=torch.bool) | (trunk[:, None] & trunk[:, :, None]).tril()
    for row, column, above, token, position in branches:
        ids[row, column], positions[row, column] = token, position
        sees[row, column] |= sees[row, above]
    return ids, positions, columns < fill[:, None], sees
