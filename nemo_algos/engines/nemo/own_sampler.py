"""The single controller's sampler of one's own, asked of its class before Ray starts.

NeMo-RL first asks it in the actor, once all models are loaded.
"""

import inspect
from collections.abc import Iterator
from pkgutil import resolve_name
from typing import Any

from nemo_rl.algorithms.async_utils import staleness_sampler

from nemo_algos.config import Finding

PATH = "async_rl.sampler"


def faults(section: Any) -> Iterator[Finding]:
    """What NeMo-RL's create_sampler would raise of its CustomSamplerConfig."""
    try:
        sampler = resolve_name(section.target)
    except (ImportError, AttributeError) as problem:
        reason = f"{section.target} cannot be imported: {problem}"
        yield Finding(f"{PATH}.target", f"{reason}. Put its folder on PYTHONPATH.")
        return
    protocol = vars(staleness_sampler.PromptGroupSampler)
    asked = [name for name in protocol if not name.startswith("_") and not hasattr(sampler, name)]
    if asked:
        reason = f"{section.target} lacks {', '.join(asked)}, which the controller calls"
        yield Finding(f"{PATH}.target", f"{reason}. Add what NeMo-RL's PromptGroupSampler has.")
    try:
        inspect.signature(sampler).bind("the buffer", **section.model_extra)
    except TypeError as problem:
        reason = f"{section.target} gets all other keys of the section: {problem}"
        hint = "`async_rl._override_: true` drops those of the base config"
        yield Finding(PATH, f"{reason}. Correct them ({hint}).")
