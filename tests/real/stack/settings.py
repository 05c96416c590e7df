"""What a case asks for beside its method: of the oracle, and by NeMo-RL's keys and ours."""

from dataclasses import dataclass, field
from typing import Any

from oracle import Setting

KL = 0.2
TIS, PRODUCT, KEPT, NLL, BONUS = 1.05, 1.2, 0.01, 0.5, 0.3


@dataclass(frozen=True)
class Asked:
    """wanted: of the oracle; the others are below loss_fn, rollout_correction, method.terms."""

    wanted: Setting
    loss: dict[str, Any] = field(default_factory=dict)
    correction: dict[str, Any] = field(default_factory=dict)
    terms: dict[str, Any] = field(default_factory=dict)


ASKED = {
    "": Asked(Setting(kl=KL)),
    "corrected": Asked(
        Setting(kl=KL, tis=TIS),
        loss={
            "use_importance_sampling_correction": True,
            "truncated_importance_sampling_type": "tis",
            "truncated_importance_sampling_ratio": TIS,
        },
    ),
    "weighed": Asked(
        Setting(kl=KL, tis=PRODUCT, product=True),
        correction={"rollout_is": "sequence", "rollout_is_threshold": PRODUCT},
    ),
    "rejecting": Asked(
        Setting(kl=KL, kept=KEPT, nll=NLL),
        correction={"rollout_rs": "token_k2", "rollout_rs_threshold": KEPT},
        terms={"nll": {"coef": NLL, "aggregation": "token"}},
    ),
    "bonus": Asked(Setting(kl=KL, bonus=BONUS), terms={"entropy": {"coef": BONUS}}),
    "bypass": Asked(Setting(kl=KL, bypass=True), correction={"bypass_mode": True}),
}


def of(case: str) -> tuple[str, Asked]:
    """METHOD or METHOD-SETTING."""
    method, _, name = case.partition("-")
    return method, ASKED[name]
