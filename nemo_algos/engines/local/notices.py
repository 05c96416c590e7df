"""What a person should know of a step, once: rewards that fail, responses that are all cut."""

from nemo_algos.engines.local.experience import Experience
from nemo_algos.engines.rewards import Verdict

NEARLY_ALL = 0.9


class Remarks:
    """Sentences on steps; of equal failures the first alone is told."""

    def __init__(self, ends: set[int], limit: int) -> None:
        self.ends, self.limit = ends, limit  # of a response: token ids, tokens
        self.told = {""}

    def of(self, step: int, verdicts: list[Verdict], experience: Experience) -> list[str]:
        """Those on a step, from 1."""
        said, responses = list[str](), experience.responses() if step == 1 else []
        failed = [v.detail or v.status for v in verdicts if v.status != "ok"]
        if (last := failed[-1] if failed else "") not in self.told:
            self.told.add(last)
            count = f"{len(failed)} of {len(verdicts)} responses"
            said.append(f"step {step}: {count} could not be judged; the last one: {last}")
        cut = sum(tokens[-1] not in self.ends for tokens in responses)
        if responses and cut >= NEARLY_ALL * len(responses):
            count = f"{cut} of {len(responses)} responses"
            key = f"policy.generation.max_new_tokens={self.limit}"
            said.append(f"step 1: {count} were cut at {key}. Raise it.")
        return said
