"""How four methods use NeMo-RL's own loss, by hand: `python examples/nemo_rl_by_hand.py`.

It needs NeMo-RL, so run it in NeMo-RL's environment or image, with this checkout on PYTHONPATH.
Read it after grpo_to_etr.py. NeMo-RL's ClippedPGLossFn computes

    ratio = exp(logprobs - prev_logprobs)
    loss  = - mean of min(ratio A, clip(ratio, 1 - ratio_clip_min, 1 + ratio_clip_max) A)

Each function below feeds it one method: other advantages, other bounds, other log-probs. Nothing of
the loss is rewritten. The last column is nemo_algos in a NeMo-RL run, which does the same for every
method. All three columns agree to 1e-6.
"""

import grpo_to_etr as plain
import torch
import torch.nn.functional as F
from grpo_to_etr import Batch
from nemo_rl.algorithms.loss import ClippedPGLossConfig, ClippedPGLossFn
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from torch import Tensor

from nemo_algos import build
from nemo_algos.engines.nemo.estimator import Estimator, Forward, tensor_of
from nemo_algos.engines.nemo.loss import AlgorithmLoss

NO_KL = {"reference_policy_kl_penalty": 0.0}
UNCLIPPED = torch.inf


def grpo(logprobs: Tensor, batch: Batch) -> Tensor:
    """GRPO is what NeMo-RL's loss computes as it is."""
    A = plain.per_group(plain.normalise, batch)[:, None]  # [B,1]
    return nemo_rl_loss(logprobs, batch, A)


def etr(logprobs: Tensor, batch: Batch) -> Tensor:
    """ETR gives it bounds [B,1] in place of two numbers: they broadcast over the tokens."""
    A = plain.per_group(plain.normalise, batch)[:, None]
    p = plain.per_group(lambda R: (R > 0).double().mean(), batch)[:, None]
    radius = 0.2 + 0.1 * A.tanh() + 0.1 * 4 * p * (1 - p)
    return nemo_rl_loss(logprobs, batch, A, radius)


def quatro(logprobs: Tensor, batch: Batch) -> Tensor:
    """QUATRO gives it a response's log-ratio at each of its tokens, and no clip."""
    log_s = ((logprobs - batch.old) * batch.mask).sum(1, keepdim=True)  # [B,1]
    A = plain.per_group(plain.within_kl, batch)[:, None] - log_s.detach()
    of_response = batch.old + log_s  # less old, NeMo-RL has log_s again
    return nemo_rl_loss(of_response, batch, A, UNCLIPPED)


def erpo(logprobs: Tensor, batch: Batch) -> Tensor:
    """ERPO gives it an advantage for each token [B,S], and the mean over all tokens."""
    return nemo_rl_loss(logprobs, batch, plain.token_advantages(batch), over_tokens=True)


def nemo_rl_loss(
    logprobs: Tensor,
    batch: Batch,
    A: Tensor,
    bounds: Tensor | float = 0.2,
    over_tokens: bool = False,
) -> Tensor:
    """NeMo-RL's own loss [] of log-probs [B,S] and advantages [B,1] or [B,S]."""
    loss = ClippedPGLossFn(ClippedPGLossConfig(**NO_KL, token_level_loss=over_tokens))
    loss.ratio_clip_min = bounds
    loss.ratio_clip_max = bounds
    data = columns(batch) | {"advantages": shifted(A.expand_as(batch.old))}
    return loss(logprobs, BatchedDataDict(data), *counts(batch))[0]


def in_a_run(name: str, logprobs: Tensor, batch: Batch) -> Tensor:
    """What nemo_algos does in NeMo-RL: an estimator in the trainer, a loss in the workers."""
    algorithm = build({"name": name})
    data = columns(batch)
    estimator = Estimator(algorithm)
    estimator.forward = Forward(shifted(batch.entropy))
    advantages = tensor_of(
        estimator.compute_advantage(
            prompt_ids=batch.group[:, None],
            rewards=batch.rewards,
            mask=data["token_mask"],
            logprobs_policy=data["prev_logprobs"],
            logprobs_reference=data["reference_policy_logprobs"],
        )
    )
    data |= {"advantages": advantages, **estimator.signals_for(advantages)}
    loss = AlgorithmLoss(ClippedPGLossConfig(**NO_KL), algorithm)
    return loss(logprobs, BatchedDataDict(data), *counts(batch))[0]


def columns(batch: Batch) -> dict[str, Tensor]:
    """A batch as NeMo-RL's workers get it: one more position in front, for the next token's."""
    return {
        "input_ids": torch.zeros(len(batch.old), batch.old.shape[1] + 1, dtype=torch.long),
        "prev_logprobs": shifted(batch.old),
        "generation_logprobs": shifted(batch.old),
        "reference_policy_logprobs": shifted(batch.ref),
        "token_mask": shifted(batch.mask.double()),
        "sample_mask": torch.ones(len(batch.old), dtype=torch.float64),
    }


def counts(batch: Batch) -> tuple[Tensor, Tensor]:
    """The responses and tokens of the whole batch, by which NeMo-RL divides."""
    return torch.tensor(float(len(batch.old))), batch.mask.sum()


def shifted(x: Tensor) -> Tensor:
    """[B,S] -> [B,S+1]."""
    return F.pad(x, (1, 0))


def main() -> None:
    """Print the losses; an AssertionError says where one, or a gradient, is another."""
    print(f"{'loss':8}{'plain PyTorch':>16}{'NeMo-RL by hand':>18}{'nemo_algos':>14}")
    for fed in (grpo, etr, quatro, erpo):
        name = fed.__name__
        logprobs, batch = plain.random_batch()
        three = (
            getattr(plain, name)(logprobs, batch),
            fed(logprobs, batch),
            in_a_run(name, logprobs, batch),
        )
        print(f"{name:8}{three[0]:16.6f}{three[1]:18.6f}{three[2]:14.6f}")
        gradients = [torch.autograd.grad(loss, logprobs, retain_graph=True)[0] for loss in three]
        for loss, gradient in zip(three[1:], gradients[1:], strict=True):
            torch.testing.assert_close(loss.double(), three[0], atol=1e-6, rtol=0)
            torch.testing.assert_close(gradient, gradients[0], atol=1e-6, rtol=0)


if __name__ == "__main__":
    main()
