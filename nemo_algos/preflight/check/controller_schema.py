"""The types of NeMo-RL's section async_rl, as single_controller_utils/config.py has them.

Copied because NeMo-RL checks them once its models load, and `check` runs without NeMo-RL;
tests/real/nemo/test_controller_keys.py holds both equal.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt

from nemo_algos.config import ConfigError, Finding, validate

SECTION = "async_rl"  # which NeMo-RL v0.7.0 does not have
KNOWN = "NeMo-RL main of 2026-08-22"  # whose single controller, and whose gaps, the rules know


class Keys(BaseModel):
    """Other keys are found by `keys.unknown_keys`; a text is no number, unlike in NeMo-RL."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Native(Keys):
    """Deadlines of the rollouts that are NeMo-RL's own."""

    generation_timeout_s: PositiveFloat | None = None
    env_timeout_s: PositiveFloat | None = None


class NemoGym(Keys):
    """What NeMo Gym's rollouts alone read."""

    rollout_timeout_s: PositiveFloat | None = None
    max_row_attempts: PositiveInt = 3


class RolloutFailure(Keys):
    """What becomes of a rollout that fails, and of its step."""

    max_infra_attempts_per_prompt: PositiveInt = 5
    max_data_attempts_per_prompt: PositiveInt = 2
    backoff_base_s: PositiveFloat = 1.0
    max_backoff_s: PositiveFloat = 30.0
    max_skipped_prompts: NonNegativeInt = 0
    max_consecutive_dropped_prompts: NonNegativeInt = 0
    min_step_batch_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 0.9
    on_dropped_prompt: Literal["shrink", "replace"] = "shrink"
    max_replacement_attempts: NonNegativeInt = 1
    replacement_reserve_prompts: NonNegativeInt = 1
    native: Native = Native()
    nemo_gym: NemoGym = NemoGym()


class FleetHealth(Keys):
    """The engines' probes."""

    enabled: bool = False
    probe_interval_s: PositiveFloat = 5.0
    probe_timeout_s: PositiveFloat = 2.0
    unhealthy_threshold: PositiveInt = 3
    healthy_threshold: PositiveInt = 2
    selection: Literal["least_outstanding"] = "least_outstanding"
    on_dead_shard: Literal["fail_fast"] = "fail_fast"
    max_restart_attempts_per_shard: PositiveInt = 5
    min_healthy_shards: PositiveInt = 1


class Router(Keys):
    """What stands before the engines for NeMo Gym."""

    enabled: bool = False
    port_range_low: PositiveInt = 6000
    port_range_high: PositiveInt = 6099
    backend_timeout_s: PositiveFloat = 600.0
    connect_timeout_s: PositiveFloat = 5.0
    no_healthy_backend_status: PositiveInt = 409


class Watchdog(Keys):
    """Stalls."""

    interval_s: PositiveFloat = 30.0
    stall_timeout_s: PositiveFloat = 600.0
    stall_action: Literal["warn", "abort"] = "warn"
    gym_subprocess_check: bool = True


class InOrder(Keys):
    """Of the sampler in_order."""

    max_lookahead_versions: NonNegativeInt = 1


class Stale(Keys):
    """Of weight_fifo and ready_first."""

    max_staleness_versions: NonNegativeInt = 1


class Windowed(Stale):
    """Of windowed."""

    sample_freshest_first: bool = False


class Custom(Keys):
    """Of a class of one's own, whose constructor is given all other keys."""

    target: str
    """Your class, as module:Class."""


# the keys that a sampler reads beside its name
SAMPLERS: dict[str, type[Keys]] = {
    "in_order": InOrder,
    "weight_fifo": Stale,
    "ready_first": Stale,
    "windowed": Windowed,
    "custom": Custom,
}


class AsyncRL(Keys):
    """The section; sampler: by SAMPLERS."""

    sampler: dict[str, Any] = {}
    rollout_failure: RolloutFailure = RolloutFailure()
    stall_watchdog: Watchdog = Watchdog()
    generation_fleet_health: FleetHealth = FleetHealth()
    generation_router: Router = Router()
    recompute_kv_cache_after_weight_updates: bool = False
    min_groups_for_streaming_train: int = 32
    max_inflight_prompts: int = 32
    max_buffered_rollouts: int = 64
    diagnostics: bool = False


def type_findings(plain: Mapping[str, Any]) -> Iterator[Finding]:
    """The keys of the section that NeMo-RL's types refuse."""
    section = plain.get(SECTION)
    if not isinstance(section, Mapping):
        return
    found = section.get("sampler")
    sampler = found if isinstance(found, Mapping) else {}
    named = sampler.get("name", "in_order")
    if named is None:
        yield Finding(f"{SECTION}.sampler.name", f"must be one of {', '.join(SAMPLERS)}, got null")
    kind = SAMPLERS.get(str(named))
    parts = {SECTION: (AsyncRL, section)}
    parts |= {f"{SECTION}.sampler": (kind, sampler)} if kind else {}
    for path, (schema, value) in parts.items():
        try:
            validate(schema, dict(value), path)
        except ConfigError as error:
            yield from error.findings
