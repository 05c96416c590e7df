"""A method's parameters: which of its functions read each, and its usual size. No torch."""

from typing import Annotated, Literal, NamedTuple, TypeVar

from pydantic import AfterValidator, Field

from nemo_algos.config import Section

Slot = Literal["advantages", "bounds", "loss"]
Std = Literal["sample", "population", "none"]
T = TypeVar("T")
# which functions read a parameter; one without a mark is read by those of the loss
OfAdvantages = Annotated[T, "advantages"]
OfBounds = Annotated[T, "bounds"]
OfLoss = Annotated[T, "loss"]


class Usual(NamedTuple):
    """The sizes in papers and their ablations, with room; `check` warns of others."""

    low: float
    high: float


TokenClip = Annotated[float, Usual(0.05, 0.5)]
SequenceClip = Annotated[float, Usual(1e-4, 0.3)]


def _undivided(std: Std) -> Std:
    if std != "none":
        reason = "this method does not divide by a standard deviation"
        raise ValueError(f"{reason}. Remove `advantage_std`.")
    return std


Undivided = OfAdvantages[Annotated[Std, AfterValidator(_undivided)]]


class Params(Section):
    """Parameters of every method; its own class adds its paper's, with the paper's defaults."""

    advantage_std: OfAdvantages[Std] = "sample"
    """Standard deviation that divides a group's advantages: sample (n - 1), population (n) or none.
    """
    max_log_ratio: float = Field(default=20.0, gt=0, le=20)
    """Limit of |log r|, nats: beyond it a token has no gradient."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Upper limit of the ratio where A < 0 (arXiv 1912.09729)."""

    @property
    def needs(self) -> frozenset[str]:
        """What the method needs with these values, beside what its record says."""
        return frozenset()

    @property
    def whole_batch(self) -> bool:
        """As the record's, where the values decide."""
        return False

    @property
    def flat_group_is_inert(self) -> bool:
        """As the record's, where the values decide."""
        return False

    @property
    def steep(self) -> bool:
        """Whether its gradient needs clipping (`policy.max_grad_norm`)."""
        return False

    @property
    def changed(self) -> list[str]:
        """The parameters that have other values than their defaults."""
        fields = type(self).model_fields.items()
        defaults = {k: field.get_default(call_default_factory=True) for k, field in fields}
        return [k for k, default in defaults.items() if getattr(self, k) != default]


class ClipParams(Params):
    """Constant bounds: the ratio is clipped to [1 - clip_low, 1 + clip_high]."""

    clip_low: OfBounds[TokenClip] = Field(default=0.2, ge=0, le=1)
    """Lower bound's distance from 1."""
    clip_high: OfBounds[TokenClip] = Field(default=0.2, ge=0)
    """Upper bound's distance from 1."""
