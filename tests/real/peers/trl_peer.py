"""TRL's own loss (TRL 1.16.0, `GRPOTrainer._compute_loss`) in our terms.

`BareTrainer` is a GRPOTrainer without model, data or accelerator: it has the attributes that
`_compute_loss` reads, from a real `GRPOConfig`, and its log-prob function returns the tensor given.
What a comparison has to set, because TRL differs:

- Off the mask: values must be finite (TRL multiplies by the mask).
- Empty rows: `grpo` and `gspo` average over all B rows, so TRL's value times B / (rows that are not
  empty) is ours. `dapo`, `bnpo` and `cispo` are token means. An all-empty batch is 0, as ours.
- dapo / cispo divide by `num_items_in_batch`, the tokens of the whole generation batch over the
  processes; here that is this batch's mask, one process, one step: the token mean. bnpo is the
  micro-batch's own token mean: the same here.
- Log-ratio: no clamp anywhere, neither for exp(l) nor in k3. Compare with |l|, |ref - lp| <= 20.
- KL: `use_bias_correction_kl` (default True since 1.x) multiplies k3 by the ratio; off here but
  where a test asks for it, as our `unbiased`. k3 is
  averaged like the policy term: sequence for grpo and gspo, token for dapo, bnpo and cispo.
- cispo: `epsilon_high` is the ratio's upper bound itself (recommended 5.0) and there is no lower
  bound: here `clip_high` gives epsilon_high = 1 + clip_high; ours needs clip_low = 1 (or inf).
- gspo: `importance_sampling_level="sequence"` with loss_type grpo (with dapo, bnpo or cispo TRL
  warns: it is then weighted by length). Its ratio is exp(mean l), differentiated as it stands.
- `delta` (None by default) bounds the ratio above for A < 0, as verl's dual clip c does.
- No GMPO and no GPG. Defaults: loss_type dapo, epsilon 0.2 / 0.2, beta 0.
- Advantages are made inside `_generate_and_score_completions`, which needs a model, so they are
  inputs here. TRL's: (R - mean) / (sample std + 1e-4), equal group sizes only, flat groups not
  special.
"""

# pyright: reportMissingImports=false

import tempfile
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer


def _one_process() -> SimpleNamespace:
    """The accelerator of a single process, as far as the loss and its metrics use it."""
    return SimpleNamespace(
        num_processes=1,
        gather=lambda tensor: tensor,
        pad_across_processes=lambda tensor, dim, pad_index: tensor,
        reduce=lambda tensor, reduction: tensor,
    )


class BareTrainer(GRPOTrainer):
    """A GRPOTrainer that can only compute its loss, from log-probs that are given."""

    def __init__(
        self, config: GRPOConfig, logprobs: Tensor, entropies: Tensor | None = None
    ) -> None:
        self.args = config
        self.logprobs = logprobs
        self.entropies = torch.zeros_like(logprobs) if entropies is None else entropies
        self.max_completion_length = config.max_completion_length
        self.model = SimpleNamespace(training=True)
        self.accelerator = _one_process()
        self._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
        self.current_gradient_accumulation_steps = 1
        self.aux_loss_enabled = False
        self._entropy_bonus_enabled = False
        self.use_vllm = False
        self.epsilon_low = config.epsilon
        self.epsilon_high = config.epsilon if config.epsilon_high is None else config.epsilon_high
        self.beta = config.beta
        self.loss_type = config.loss_type
        self.importance_sampling_level = config.importance_sampling_level
        self.off_policy_mask_threshold = config.off_policy_mask_threshold
        self.top_entropy_quantile = config.top_entropy_quantile

    def _get_per_token_logps_and_entropies(
        self, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor, None]:
        """(log-probs, entropies, aux loss); entropies are a metric, or choose the tokens."""
        return self.logprobs, self.entropies, None


def config(**settings: Any) -> GRPOConfig:
    """TRL's own defaults but for these, on a CPU."""
    return GRPOConfig(
        output_dir=tempfile.gettempdir(),  # named, never written to
        use_cpu=True,
        bf16=False,
        report_to="none",
        **{"use_bias_correction_kl": False, **settings},
    )


def loss(
    old_logprobs: Tensor,
    logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    ref_logprobs: Tensor | None = None,
    entropies: Tensor | None = None,
    sampled: Tensor | None = None,
    tokens: int | None = None,
    **settings: Any,
) -> Tensor:
    """`GRPOTrainer._compute_loss` in TRL's own terms; `beta` > 0 needs `ref_logprobs`.

    entropies [B,S]: of the policy; sampled [B,S]: the sampler's log-probs; tokens: of the whole
    generation batch, where the mask is a part's; settings: of GRPOConfig.
    """
    made = config(**settings)
    trainer = BareTrainer(made, logprobs, entropies)
    trainer.current_gradient_accumulation_steps = made.gradient_accumulation_steps
    ones = torch.ones(len(mask), 1, dtype=torch.long)
    batch = {
        "prompt_ids": ones,
        "prompt_mask": ones,
        "completion_ids": torch.zeros(mask.shape, dtype=torch.long),
        "completion_mask": mask.long(),  # with its holes: TRL's completion_mask * tool_mask
        "advantages": advantages,
        "old_per_token_logps": old_logprobs,
        "num_items_in_batch": mask.sum() if tokens is None else torch.tensor(tokens),
    }
    if ref_logprobs is not None:
        batch["ref_per_token_logps"] = ref_logprobs
    if sampled is not None:
        batch["sampling_per_token_logps"] = sampled
    return trainer._compute_loss(trainer.model, batch)
