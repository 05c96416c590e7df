"""A function per look of a cause; `RULES` is the order in which they are asked, the first decides.

First what cannot be mistaken, then what leaves some tokens exact, then what is everywhere.
"""

from __future__ import annotations

from collections.abc import Callable

from nemo_algos.lab.mismatch.picture import Evidence, Picture
from nemo_algos.lab.mismatch.rules import every_token, numbers, some_responses, some_tokens

Rule = Callable[[Picture], Evidence | None]


def everywhere(rule: Callable[[Picture], Evidence]) -> Rule:
    """The look does not fit where some tokens are exact."""
    return lambda p: (e := rule(p))._replace(fits=e.fits and not p.two)


RULES: list[tuple[str, Rule]] = [
    ("shift", numbers.a_place_away),
    ("vocabulary", numbers.larger_softmax),
    ("truncation", numbers.cut),
    ("temperature", numbers.tempered),
    ("vocabulary", some_tokens.certain_ids),
    ("old_weights", some_tokens.aged),
    ("lora", some_tokens.grown),
    ("prefix", some_responses.padded),
    ("packing", some_responses.far_prompts),
    ("stale_cache", some_responses.whole_prompts),
    ("packing", some_responses.packed),
    ("packing", some_responses.of_no_prompt),
    ("shift", some_tokens.template),
    ("prefix", some_tokens.first_places),
    ("packing", some_tokens.certain_places),
    ("stale_cache", some_responses.whole_responses),
    ("routing", some_tokens.scattered),
    ("shift", everywhere(every_token.template)),
    ("stale_cache", everywhere(every_token.stale)),
    ("prefix", everywhere(every_token.fading)),
    ("packing", everywhere(every_token.growing)),
    ("routing", everywhere(every_token.heavy)),
    ("shift", everywhere(every_token.other_tokens)),
    ("shift", everywhere(every_token.other_template)),
    ("prefix", everywhere(every_token.other_beginning)),
    ("prefix", everywhere(every_token.other_prompt)),
    ("shift", everywhere(every_token.other_context)),
    ("packing", everywhere(every_token.of_no_token)),
    ("old_weights", everywhere(every_token.updated)),
    ("precision", everywhere(every_token.rounded)),
    ("lora", everywhere(every_token.adapted)),
    ("bad_layer", everywhere(every_token.damaged)),
]
