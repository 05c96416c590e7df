"""The twelve causes: what each is, how it looks, and what to do next."""

from __future__ import annotations

from typing import NamedTuple


class Cause(NamedTuple):
    """title: as a person says it; looks: in the numbers; next_step: what settles or mends it."""

    title: str
    looks: str
    next_step: str


TEMPERATURE = Cause(
    "temperature",
    "the change of a token's odds is a function of the odds, and turns its sign with them",
    "use one temperature: the trainer divides its logits by policy.generation.temperature, and the "
    "engine returns processed log-probs (vLLM: logprobs_mode: processed_logprobs)",
)
TRUNCATION = Cause(
    "top-p or top-k truncation",
    "every token is at least as likely to the sampler, which shares out the mass that it has cut",
    "set top_p: 1.0 and top_k: null (-1 in vLLM), or let the trainer apply the same filter",
)
OLD_WEIGHTS = Cause(
    "weights of an earlier step",
    "the level grows with the weights' age; without ages: training moves single tokens everywhere",
    "check that every refit arrives before the next rollout (asynchronous: that the age is within "
    "max_trajectory_age_steps), then correct what remains (loss_fn.use_importance_sampling_"
    "correction). Dumps with weights_version tell this from a LoRA merge",
)
SHIFT = Cause(
    "log-probs shifted by a token, or another template",
    "the same numbers, one place away",
    "check which position an engine's log-prob belongs to, and that both sides see the same ids of "
    "the chat template",
)
PREFIX = Cause(
    "wrong pad or BOS",
    "responses behind padding are off, or all are from their first token on, and recover",
    "compare the ids that both sides were given, token by token: BOS once, the same template, "
    "padding masked, positions counted without it",
)
PRECISION = Cause(
    "precision",
    "small noise on every token's logits that knows neither token nor place; d is largest for rare "
    "tokens",
    "run both in one precision, or the sampler's last layers and logits in higher; correct what "
    "remains (loss_fn.use_importance_sampling_correction)",
)
BAD_LAYER = Cause(
    "a bad layer or an excluded module",
    "everywhere, larger than rounding and with heavier tails, at every age of the weights",
    "compare both engines' hidden states layer by layer on one prompt; compare the names that each "
    "leaves out of quantisation or of the refit",
)
PACKING = Cause(
    "packing boundary or position",
    "exact responses stand evenly between others that are off; or off from a place on; or growing "
    "with it",
    "score the same responses unpacked (policy.sequence_packing.enabled=false) and without context "
    "parallelism; compare rope_theta, rope_scaling and the position ids of both sides",
)
STALE_CACHE = Cause(
    "a prefix cache gone stale",
    "some responses, mostly of the same prompts, are off as a whole, the others are exact",
    "reset the sampler's prefix cache after every refit, or turn it off "
    "(policy.generation.vllm_cfg.enable_prefix_caching: false)",
)
VOCABULARY = Cause(
    "another tokenizer, or padding of the vocabulary",
    "certain token ids are off in every context; or every token by a share of the softmax",
    "compare vocabulary sizes and the ids' texts on both sides; mask the entries that padding adds "
    "before the softmax",
)
ROUTING = Cause(
    "MoE routing flips",
    "scattered tokens are far off and others exact, until the first of them in a response",
    "replay the sampler's routes in training (router replay), or compute the router in float32 on "
    "both sides",
)
LORA = Cause(
    "a wrong LoRA merge",
    "grows with the version on all responses, from nothing; else as after training, with heavy "
    "tails",
    "merge once, with alpha / rank of the training, and compare one merged weight on both sides. "
    "Dumps with weights_version tell this from old weights",
)
CAUSES = {
    "temperature": TEMPERATURE,
    "truncation": TRUNCATION,
    "old_weights": OLD_WEIGHTS,
    "shift": SHIFT,
    "prefix": PREFIX,
    "precision": PRECISION,
    "bad_layer": BAD_LAYER,
    "packing": PACKING,
    "stale_cache": STALE_CACHE,
    "vocabulary": VOCABULARY,
    "routing": ROUTING,
    "lora": LORA,
}
