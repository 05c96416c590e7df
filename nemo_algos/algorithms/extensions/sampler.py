"""Whether a sampler draws from the trainer's distribution: one judgement for every trainer.

A correction compares two log-probs of a token. They are of one distribution where the sampler only
divides logits by the trainer's temperature; whatever else it does to them biases every weight.
"""

from collections.abc import Mapping
from typing import Any

# the values that leave logits alone, by the names of vLLM, SGLang and transformers; of all other
# settings nothing, 0, false and an empty list do
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (None, 0, 1),
    "do_sample": (None, True),
    "encoder_repetition_penalty": (None, 0, 1),
    "guidance_scale": (None, 0, 1),
    "num_beams": (None, 0, 1),
    "repetition_penalty": (None, 0, 1),
    "top_k": (None, 0, -1),
    "top_p": (None, 0, 1),
    "typical_p": (None, 0, 1),
}
# what a sampler is also told, and no logit depends on
HARMLESS = {
    "bos_token_id", "cache_implementation", "detokenize", "eos_token_id", "logprobs",
    "include_stop_str_in_output", "max_completion_tokens", "max_length", "max_new_tokens",
    "max_tokens", "n", "num_return_sequences", "output_kind", "pad_token_id", "prompt_logprobs",
    "seed", "skip_special_tokens", "spaces_between_special_tokens", "stop", "stop_strings",
    "stop_token_ids", "truncate_prompt_tokens", "use_cache",
}  # fmt: skip


def sampler_changes(settings: Mapping[str, Any], temperature: float) -> dict[str, str]:
    """Why the sampler's log-probs are not the trainer's: a sentence for each setting that does it.

    settings: by the sampler's names; temperature: the trainer's. A setting with a name that is not
    known here may reshape the logits, so it is among them.
    """
    why = dict[str, str]()
    for name, value in settings.items():
        if name == "temperature":
            same = value in (None, temperature)
        else:
            same = name in HARMLESS or (value in NEUTRAL[name] if name in NEUTRAL else not value)
        if not same:
            trained = f" (the trainer's is {temperature})" if name == "temperature" else ""
            why[name] = (
                f"with {name}={value}{trained} the sampler's log-probs are of another distribution "
                "than the trainer's, so the correction is biased. Remove it, or the correction."
            )
    return why
