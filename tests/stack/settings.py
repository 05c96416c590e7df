"""What a case asks for beside its method: of the oracle, and by NeMo-RL's keys and ours."""

from typing import Any, NamedTuple

from oracle import Setting

KL = 0.2
TIS, PRODUCT, KEPT, NLL = 1.05, 1.2, 0.01, 0.5


class Asked(NamedTuple):
    """wanted: of the oracle; loss: below loss_fn; correction: rollout_correction; terms: method's."""

    wanted: Setting
    loss: dict[str, Any] = {}
    correction: dict[str, Any] = {}
    terms: dict[str, Any] = {}


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
    "bypass": Asked(Setting(kl=KL, bypass=True), correction={"bypass_mode": True}),
}


def of(case: str) -> tuple[str, Asked]:
    """METHOD or METHOD-SETTING."""
    method, _, name = case.partition("-")
    return method, ASKED[name]
