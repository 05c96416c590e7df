"""Whether new weights arrive: what both sides say of the same tokens after the same ids, twice."""

from dataclasses import dataclass

import numpy as np

from nemo_algos.engines.dumps.dump import Dump
from nemo_algos.engines.dumps.responses import responses

READ = 64  # tokens of a response: later ones are rarely met again
LEAST = 8  # contexts
MOVED = 10.0  # of what a side's own repetitions differ by: then the weights did it
APART = 4.0  # of the rounding between the sides, of which each of two times has its own
FLOAT32 = 1e-6  # nats: no float32 forward repeats itself better where its batch differs


@dataclass(frozen=True)
class Arrival:
    """Of `contexts` tokens at two times, in nats. sampler, trainer: mean |change| of each side.

    apart: mean |difference of these changes|; rounding: mean |trainer - sampler| at first;
    repeats: the most that either side differs from itself at one time.
    """

    contexts: int
    sampler: float
    trainer: float
    apart: float
    rounding: float
    repeats: float
    unchanged: bool

    @property
    def state(self) -> str:
        """none: nothing has arrived; part: not all of it, or late; else nothing to say."""
        floor = max(self.repeats, FLOAT32)
        if self.contexts < LEAST or self.trainer <= MOVED * floor:
            return ""
        if self.unchanged:
            return "none"
        explained = max(self.rounding, self.repeats, MOVED * FLOAT32)
        if self.apart > APART * explained:
            return "part"
        return ""

    @property
    def sentence(self) -> str:
        """What was seen, and where to look; "" where weights arrive as far as one can see."""
        seen = (
            f"on {self.contexts} probed tokens the trainer's log-probs moved by {self.trainer:.2g}"
        )
        if self.state == "none":
            return (
                f"new weights do not reach the sampler: {seen} nats, the sampler's not at all. "
                "Check that the refit runs and sends the trained weights"
            )
        if self.state == "part":
            return (
                f"new weights reach the sampler in part, or late: {seen} nats, the sampler's by "
                f"{self.sampler:.2g}. The changes differ by {self.apart:.2g} nats, and rounding "
                f"explains {self.rounding:.1g}. Check which parameters the refit sends, and when"
            )
        return ""


def compared(before: Dump, after: Dump) -> Arrival:
    """What is in both, at two times. Zeros where nothing is."""
    first = _contexts(before)
    then = _contexts(after)
    pairs = []  # of what each has at first
    repeats = []
    for key, early in first.items():
        if key in then:
            pairs.append((early[0], then[key][0]))
            repeats += [np.ptp(early, axis=0), np.ptp(then[key], axis=0)]
    if not pairs:
        return Arrival(0, 0.0, 0.0, 0.0, 0.0, 0.0, False)
    was, now = np.array(pairs).swapaxes(0, 1)
    moved = now - was
    most = np.max(repeats, axis=0)
    return Arrival(
        contexts=len(pairs),
        sampler=float(np.abs(moved[:, 0]).mean()),
        trainer=float(np.abs(moved[:, 1]).mean()),
        apart=float(np.abs(moved[:, 1] - moved[:, 0]).mean()),
        rounding=float(np.abs(was[:, 1] - was[:, 0]).mean()),
        repeats=float(most.max()),
        unchanged=bool((np.abs(moved[:, 0]) <= most[0]).all()),
    )


def _contexts(dump: Dump) -> dict[bytes, list[list[float]]]:
    """[sampler, trainer] of each token, by the ids up to it; as often as these are there."""
    found: dict[bytes, list[list[float]]] = {}
    for r in responses(dump, READ):
        for at, *sides in zip(r.at, r.sampler, r.trainer, strict=True):
            found.setdefault(r.ids[: at + 1].tobytes(), []).append(sides)
    return found
