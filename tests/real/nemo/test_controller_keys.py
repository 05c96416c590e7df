"""What `nemo-algos check` says of the single controller is what NeMo-RL's own validators say."""

import itertools
import warnings
from pathlib import Path
from typing import Any

import checkout
import pytest
from omegaconf import OmegaConf

from nemo_algos import config as strict
from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.extensions.old_policy import reconcile
from nemo_algos.config import ConfigError
from nemo_algos.engines.nemo import versions
from nemo_algos.engines.nemo.derived_config import OURS, derive
from nemo_algos.preflight.check import judge, launcher
from nemo_algos.preflight.check.compose import compose

pytestmark = pytest.mark.skipif(not versions.present(versions.CONTROLLER), reason="v0.7.0 has none")
WRITTEN = Path(__file__).parents[2] / "preflight" / "check" / "controller.yaml"
FAILURE = "async_rl.rollout_failure"
# runs over which each key is changed
STARTS: dict[str, dict[str, Any]] = {
    "in_order": {
        "checkpointing.enabled": True,
        f"{FAILURE}.native.env_timeout_s": 300,
        f"{FAILURE}.on_dropped_prompt": "replace",
    },
    "ready_first": {"old_policy": "trainer", "async_rl.sampler.name": "ready_first"}
    | {"loss_fn.use_importance_sampling_correction": True},
    "windowed": {"async_rl.sampler.name": "windowed"},
    "router": {"async_rl.sampler.name": "weight_fifo"}
    | {"async_rl.generation_router.enabled": True, f"{FAILURE}.nemo_gym.rollout_timeout_s": None},
}
BESIDE = (
    "grpo.num_prompts_per_step", "grpo.num_generations_per_prompt",
    "grpo.skip_reference_policy_logprobs_calculation", "policy.train_global_batch_size",
    "loss_fn.use_importance_sampling_correction", "loss_fn.force_on_policy_ratio",
    "loss_fn.reference_policy_kl_penalty",
)  # fmt: skip
VALUES = (None, True, -1, 0, 5, 1000, "x", "replace", "custom")
RANKED = [("checkpointing.metric_name", name) for name in ("val:accuracy", "train:loss")]
FEWER = (False, 1, 1000)  # of the starts but the first


def keys() -> list[str]:
    found = checkout.release().declared
    below = {path.rpartition(".")[0] for path in found}
    return [*sorted(p for p in found if p.startswith("async_rl.") and p not in below), *BESIDE]


def composed(changed: dict[str, Any]) -> Any:
    written = strict.read(WRITTEN)
    for path, value in changed.items():
        OmegaConf.update(written, path, value, force_add=True)
    return written


def refused_by_nemo_rl(written: Any) -> str:
    """What its types, or its validator, say of what would train."""
    from nemo_rl.algorithms.single_controller_utils import config

    plain = reconcile(compose(written, checkout.release()).plain)
    derive(plain, build(plain["method"], plain.get("rollout_correction")))
    try:
        with warnings.catch_warnings(action="ignore"):
            master = config.MasterConfig(**{k: v for k, v in plain.items() if k not in OURS})
            config.validate_single_controller_config(master)
    except (ValueError, TypeError, AttributeError) as error:
        return str(error) or "refused"
    return ""


@pytest.mark.parametrize("start", STARTS)
def test_what_nemo_rls_validator_refuses_check_refuses_by_key(start: str) -> None:
    assert not refused_by_nemo_rl(composed(STARTS[start])) and not errors(composed(STARTS[start]))
    values, refused, missed = FEWER if start in [*STARTS][1:] else VALUES, 0, []
    pairs = itertools.product(keys(), values)
    for key, value in [*((k, v) for k, v in pairs if v is not None or k not in BESIDE), *RANKED]:
        written = composed(STARTS[start] | {key: value})
        reason = refused_by_nemo_rl(written.copy())
        paths = errors(written) if reason else []
        refused += bool(reason)
        if reason and not [p for p in paths if p == key or p.rpartition(".")[2] in reason]:
            missed.append((key, value, reason, paths))
    assert not missed, "\n".join(map(str, missed))
    assert refused > 30


def errors(written: Any) -> list[str]:
    """The keys at which `check` refuses."""
    try:
        found = judge.judge(written, checkout.release())[1]
    except ConfigError as error:
        found = error.findings
    return [f.path for f in found if f.severity == "error"]


def test_the_launcher_asks_nemo_rls_own_validator(monkeypatch: pytest.MonkeyPatch) -> None:
    from nemo_rl.algorithms.single_controller_utils import config

    def newer(master: Any) -> None:
        raise ValueError("async_rl.diagnostics has a rule of its own")

    launcher.compose(composed({}))
    monkeypatch.setattr(config, "validate_single_controller_config", newer)
    with pytest.raises(ConfigError, match=r"async_rl: async_rl\.diagnostics has a rule"):
        launcher.compose(composed({}))


def own_sampler(name: str, **keys: Any) -> Any:
    """The controller's config with a sampler of this module, without the base config's keys."""
    section = {"name": "custom", "target": f"{__name__}:{name}", **keys}
    own = {"_override_": True, "min_groups_for_streaming_train": 32, "sampler": section}
    return OmegaConf.merge(strict.read(WRITTEN), {"async_rl": own})


def own_class() -> type:
    from nemo_rl.algorithms.async_utils.staleness_sampler import WindowedSampler

    class Own(WindowedSampler):
        def __init__(self, buffer: Any, window: int, *, fresh: bool = False) -> None:
            super().__init__(buffer, max_staleness_versions=window, sample_freshest_first=fresh)

    return Own


@pytest.fixture
def _classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "Own", own_class())
    monkeypatch.setitem(globals(), "Partial", type("Partial", (), {"admit": None}))


@pytest.mark.usefixtures("_classes")
def test_a_sampler_of_ones_own_is_given_its_keys() -> None:
    from nemo_rl.algorithms.async_utils.staleness_sampler import create_sampler

    launch = launcher.compose(own_sampler("Own", window=3, fresh=True))
    made = create_sampler(None, launch.master_config.async_rl.sampler)
    assert type(made) is globals()["Own"]
    assert (made.max_staleness_versions, made.sample_freshest_first) == (3, True)


@pytest.mark.usefixtures("_classes")
@pytest.mark.parametrize(
    ("name", "keys", "said"),
    [
        ("Own", {"window": 3, "windw": 1}, "async_rl.sampler: .*windw"),
        ("Own", {}, "async_rl.sampler: .*window"),
        ("Partial", {}, "async_rl.sampler.target: .*select, evict"),
        ("Nobody", {}, "async_rl.sampler.target: .*Nobody"),
    ],
)
def test_what_create_sampler_would_raise_is_refused(
    name: str, keys: dict[str, int], said: str
) -> None:
    from nemo_rl.algorithms.async_utils.staleness_sampler import (
        CustomSamplerConfig,
        create_sampler,
    )

    section: Any = {"target": f"{__name__}:{name}", **keys}
    with pytest.raises((TypeError, AttributeError)):
        create_sampler(None, CustomSamplerConfig(**section))
    with pytest.raises(ConfigError, match=said):
        launcher.compose(own_sampler(name, **keys))
