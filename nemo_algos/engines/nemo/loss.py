"""NeMo-RL's own loss, fed with a method's log_ratio', A' and bounds.

    ClippedPGLossFn( prev + log_ratio',  advantages = A',  ratio_clip = bounds,
    curr_logprobs_unfiltered = log pi )

Terms beside the surrogate are added to it. KL, dual clip, the base metrics, and the
importance-sampling correction of token ratios stay NeMo-RL's; of turns' and sequences' ratios it is
ours, and multiplies A'. B sequences of S tokens; data is [B,S], aligned with the tokens, and
NeMo-RL's losses use [:, 1:] of it. GRPO and GSPO pass through untouched but for that correction.
"""

from typing import Any

import torch
import torch.nn.functional as F
from nemo_rl.algorithms.loss import ClippedPGLossFn, interfaces
from torch import Tensor

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.algorithms.core import surrogate
from nemo_algos.algorithms.extensions import terms
from nemo_algos.algorithms.extensions.correction import WEIGHTS, bypass_weights, sampler_weights
from nemo_algos.algorithms.extensions.loss_config import LossConfig
from nemo_algos.algorithms.kernel import Signals, clip_bounds, token_log_ratio
from nemo_algos.algorithms.record import Params
from nemo_algos.algorithms.shapes import Mask, PerToken
from nemo_algos.engines.nemo import columns, loss_metrics
from nemo_algos.engines.nemo.derived_config import UNWEIGHTED, method_keys, weighs
from nemo_algos.engines.nemo.loss_metrics import MicroBatch

WITHOUT_ENTROPY = (
    "{name} needs the entropy with its gradient, which NeMo-RL's own workers do not give their "
    "loss. Launch the run by nemo-algos train, which starts ours."
)


class AlgorithmLoss(ClippedPGLossFn):
    """A method as NeMo-RL's loss function; what it decides replaces NeMo-RL's `loss_fn` section."""

    def __init__(self, cfg: Any, algorithm: Algorithm, **kwargs: Any) -> None:
        shared = {}
        for k in LossConfig.model_fields:
            if hasattr(cfg, k):
                shared[k] = getattr(cfg, k)
        self.algorithm, self.config = algorithm, LossConfig(**shared)
        ours = UNWEIGHTED if weighs(algorithm) else {}
        self.takes_entropy = "entropy_gradient" in algorithm.needs
        # grpo_train then computes no old log-probs, and this loss takes the present ones itself
        self.on_policy = cfg.force_on_policy_ratio
        ours = ours | {"force_on_policy_ratio": False}
        super().__init__(cfg.model_copy(update=method_keys(algorithm) | ours), **kwargs)
        normalizer = getattr(interfaces, "MetricNormalizer", None)  # not in v0.7.0
        if normalizer:
            per_token = loss_metrics.PER_TOKEN
            per_sequence = loss_metrics.PER_SEQUENCE
            of_tokens = (*per_token, loss_metrics.REJECTED)
            self.metric_normalizations |= dict.fromkeys(of_tokens, normalizer.TOKENS)
            self.metric_normalizations |= dict.fromkeys(per_sequence, normalizer.SEQUENCES)

    def __call__(
        self,
        next_token_logprobs: Tensor,
        data: Any,
        global_valid_seqs: Tensor,
        global_valid_toks: Tensor,
        entropy: PerToken | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """A micro-batch's share of the global batch's loss, and its metrics; see NeMo-RL.

        entropy [B,S-1]: with gradient, from our workers. Raises ValueError where a term lacks it.
        """
        if self.takes_entropy and entropy is None:
            raise ValueError(WITHOUT_ENTROPY.format(name=self.algorithm.name))
        batch, signals = self._batch(next_token_logprobs, data)
        shares = terms.losses(self.algorithm.terms, batch.logprobs, entropy, batch.mask, signals)
        # on their way to the host before NeMo-RL's loss waits for its own: they add no wait
        stock = is_stock(self.algorithm)
        sent = loss_metrics.send(
            self.algorithm,
            batch,
            data,
            global_valid_seqs=global_valid_seqs,
            global_valid_toks=global_valid_toks,
            stock=stock,
            terms=shares,
        )
        if stock:
            logprobs, data = self._pass_through(batch, data)
        else:
            logprobs, data = _substitute(self.algorithm, batch, data)
            self.ratio_clip_min, self.ratio_clip_max = self.algorithm.ratio_bounds(batch.shaped)
        loss, values = super().__call__(logprobs, data, global_valid_seqs, global_valid_toks)
        values |= sent.wait()
        values["loss"] += sum(values[name] for name in shares)  # what Megatron's workers report
        return sum(shares.values(), loss), values

    def _batch(self, logprobs: PerToken, data: Any) -> tuple[MicroBatch, Signals]:
        algorithm = self.algorithm
        weight = data["token_mask"][:, 1:] * data["sample_mask"][:, None]
        mask = weight.bool()
        prev = logprobs.detach() if self.on_policy else data["prev_logprobs"][:, 1:]
        gen = data["generation_logprobs"][:, 1:]
        gap = logprobs.detach() - prev
        limit = torch.inf if is_stock(algorithm) else algorithm.base.params.max_log_ratio
        source = logprobs.detach() if _is_direct(algorithm) else logprobs
        log_ratio = surrogate.difference(source, prev, mask, limit)
        signals = columns.read(data, algorithm)
        shaped = algorithm.transform(log_ratio, mask, signals)
        finite = gap.isfinite() | ~mask
        zero = (signals.advantages == 0) & algorithm.base.flat_group_is_inert
        factor = self._factor(logprobs.where(finite, prev), prev, gen, mask, signals)
        if factor is not None:
            zero = zero | (factor == 0)
        batch = MicroBatch(
            logprobs=logprobs,
            prev=prev,
            weight=weight,
            mask=mask,
            gap=gap,
            finite=finite,
            limit=limit,
            log_ratio=log_ratio,
            shaped=shaped,
            zero=zero,
            factor=factor,
        )
        return batch, signals

    def _factor(
        self, logprobs: PerToken, prev: Tensor, gen: Tensor, mask: Mask, signals: Signals
    ) -> Tensor | None:
        """[B,S-1]: what a token's term is multiplied by; None: by 1."""
        correction = self.algorithm.correction
        mean = self.algorithm.mean
        if correction.bypass_mode:
            return bypass_weights(correction, logprobs, prev, mask, mean)
        if correction.active:
            return signals.extras.get(WEIGHTS)
        method = self.algorithm.base.method
        config = self.config
        if weighs(self.algorithm) and config.use_importance_sampling_correction:
            turn = signals.extras.get("turn")
            weights = sampler_weights(method, config.cut, prev, gen, mask, turn)
            return weights.expand(mask.shape)
        return None

    def _pass_through(self, batch: MicroBatch, data: Any) -> tuple[Tensor, dict[str, Any]]:
        """NeMo-RL's own log-probs and batch; where A is 0 and the ratio overflows, a ratio of 1."""
        silent = _silent(batch)
        own = batch.logprobs.detach().where(batch.logprobs.isfinite(), 0.0)
        data = {**data, "prev_logprobs": _align(torch.where(silent, own, batch.prev))}
        if batch.factor is not None:
            weighed = data["advantages"][:, 1:] * batch.factor
            data["advantages"] = _align(weighed.where(~batch.zero, 0.0))
        if self.reference_policy_kl_penalty:  # gradients of both are summed in NeMo-RL's order
            return batch.logprobs, data
        return torch.where(silent, own, batch.logprobs), data


def is_stock(algorithm: Algorithm) -> bool:
    """Whether NeMo-RL's loss is this one: GRPO's or GSPO's, constant bounds, the default clamp."""
    (method, params), bounds = algorithm.base, algorithm.bounds.method
    return (
        method.stock
        and (bounds.bounds, bounds.constant_bounds) == (None, clip_bounds)
        and params.max_log_ratio == Params().max_log_ratio  # NeMo-RL clamps none
    )


def _is_direct(algorithm: Algorithm) -> bool:
    """Whether the gradient reaches log pi past `transform`: NeMo-RL's ratio is of log pi itself."""
    return is_stock(algorithm) or algorithm.base.method.log_ratio is token_log_ratio


def _substitute(
    algorithm: Algorithm, batch: MicroBatch, data: Any
) -> tuple[Tensor, dict[str, Any]]:
    """Log-probs for NeMo-RL's ratio, and its batch with the method's A' and true log-probs for KL.

    Response tokens whose log-probs are not finite make loss and gradient NaN: the clamp would hide
    an infinite one.
    """
    logprobs = _ratio_logprobs(algorithm, batch).where(batch.finite, batch.logprobs)
    silent = _silent(batch)
    prev = batch.prev.where(batch.prev.isfinite() | ~silent, 0.0)
    advantages = batch.shaped.advantages.where(batch.finite, torch.nan)
    if batch.factor is not None:
        advantages = advantages * batch.factor
    advantages = advantages.where(~batch.zero, 0.0)  # also where the factor is no number
    own = {"advantages": _align(advantages), "prev_logprobs": _align(prev)}
    data = {"curr_logprobs_unfiltered": batch.logprobs, **data, **own}
    return torch.where(silent, prev, logprobs), data


def _ratio_logprobs(algorithm: Algorithm, batch: MicroBatch) -> Tensor:
    """log pi where NeMo-RL's own ratio is the method's, else prev + log_ratio'; [B,S-1]."""
    if algorithm.base.form == "logprob":
        return batch.logprobs
    if algorithm.base.method.log_ratio is token_log_ratio:
        within = batch.mask & (batch.gap.abs() <= batch.limit)
        return batch.logprobs.where(within, batch.prev + batch.log_ratio)
    return batch.prev + batch.shaped.log_ratio.expand(batch.mask.shape)


def _silent(batch: MicroBatch) -> Tensor:
    """[B,S-1] where an A of 0 meets a ratio that is not finite: 0 by selection there."""
    ratio = batch.shaped.log_ratio.detach().exp()
    return batch.zero & ~(batch.finite & ratio.isfinite())


def _align(x: Tensor) -> Tensor:
    """[B,S-1] -> [B,S], as NeMo-RL's batches."""
    return F.pad(x, (1, 0))
