"""What a person should know of a step, once: rewards that fail, responses that are all cut."""

from collections.abc import Iterator

from nemo_algos.local.experience import Experience
from nemo_algos.rewards import Verdict

NEARLY_ALL = 0.9


class Remarks:
    """Sentences on steps; of equal failures the first alone is told."""

    def __init__(self, ends: set[int], limit: int) -> None:
        self.ends, self.limit = ends, limit  # of a response: token ids, tokens
        self.told = set[str]()

    def of(self, step: int, verdicts: list[Verdict], experience: Experience) -> list[str]:
        """Those on a step, from 1."""
        found = list(self._unjudged(verdicts))
        if step == 1:
            found += self._cut(experience)
        return [f"step {step}: {sentence}" for sentence in found]

    def _unjudged(self, verdicts: list[Verdict]) -> Iterator[str]:
        failed = [v for v in verdicts if v.status != "ok"]
        last = (failed[-1].detail or failed[-1].status) if failed else ""
        if last and last not in self.told:
            self.told.add(last)
            count = f"{len(failed)} of {len(verdicts)} responses"
            yield f"{count} could not be judged; the last: {last}"

    def _cut(self, experience: Experience) -> Iterator[str]:
        responses = experience.responses()
        cut = sum(tokens[-1] not in self.ends for tokens in responses)
        if cut >= NEARLY_ALL * len(responses):
            key = "policy.generation.max_new_tokens"
            yield f"{cut} of {len(responses)} responses were cut at {key}={self.limit}: raise it"
