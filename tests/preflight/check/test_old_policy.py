"""`old_policy:` and `rollout_correction:`, in step with verl's; methods at one update."""

import pytest
from matrix import some_of
from releases import MAIN
from says import Says

from nemo_algos.algorithms.extensions.correction import PRESETS
from nemo_algos.algorithms.methods import METHODS
from nemo_algos.config import SHIPPED, load
from nemo_algos.findings import ConfigError
from nemo_algos.preflight.check import judge as module
from nemo_algos.preflight.check.judge import check
from nemo_algos.preflight.check.local.judge import judge_by
from nemo_algos.preflight.check.local.rules import RULES, one_update

BATCH = "policy.train_global_batch_size"
ONE, NOISE = f"{BATCH}=512", "policy.precision=nvfp4"
NEMO_RL, LOCAL = "nemo_rl.yaml", "etr.yaml"
CONTRADICTIONS = [
    (["old_policy=sampler", "rollout_correction.bypass_mode=false"], "sampler false"),
    (["old_policy=trainer", "rollout_correction.bypass_mode=true"], "trainer true"),
    (["old_policy=trainer", "rollout_correction.preset=bypass_ppo_clip"], "trainer true"),
    (["old_policy=smpler"], "sampler"),
]


def built(name, overrides):
    """The algorithm of a run of either engine."""
    if name == LOCAL:
        return judge_by(RULES, load(SHIPPED / name, overrides))
    written = module.apply_overrides(module.read(SHIPPED / name), overrides)
    return module.judge(written, MAIN)[0]


def said(name, overrides):
    """What is found of updates per batch."""
    if name == LOCAL:
        found = judge_by([one_update], load(SHIPPED / name, overrides)).warnings
    else:
        found = check(name, overrides, MAIN)
    return [f"{f.severity} {f}" for f in found if f.path == BATCH]


@pytest.mark.parametrize("name", [NEMO_RL, LOCAL])
@pytest.mark.parametrize(
    ("overrides", "sampler"),
    [
        ([], False),
        (["old_policy=trainer"], False),
        (["old_policy=sampler"], True),
        (["rollout_correction.bypass_mode=true"], True),
        (["old_policy=sampler", "rollout_correction.bypass_mode=true"], True),
        (["old_policy=sampler", "rollout_correction.loss_type=ppo_clip"], True),
        (["old_policy=sampler", "rollout_correction.preset=bypass_ppo_clip_k3_rs"], True),
        (["rollout_correction.preset=decoupled_geo_rs"], False),
    ],
)
def test_the_two_keys_are_one(name, overrides, sampler):
    run = built(name, overrides)
    assert run.algorithm.correction.bypass_mode == sampler
    if name == LOCAL:
        assert run.config.rollout_correction.bypass_mode == sampler
        assert run.config.old_policy == ("sampler" if sampler else "trainer")
        again = judge_by(RULES, run.config.model_dump(mode="json"))
        assert again.config == run.config
    else:
        assert run.bypass_mode == sampler


@pytest.mark.parametrize("name", [NEMO_RL, LOCAL])
@pytest.mark.parametrize(("overrides", "words"), CONTRADICTIONS)
def test_a_contradiction_is_refused_by_name(name, overrides, words):
    if name == LOCAL:
        with pytest.raises(ConfigError) as error:
            built(name, overrides)
        found = error.value.findings
    else:
        found = check(name, overrides, MAIN)
    errors = [str(f) for f in found if f.severity == "error"]
    assert errors and {f.partition(":")[0] for f in errors} == {"old_policy"}
    assert Says(f"old_policy: {words}") in errors


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_says_whom_the_ratio_is_to(preset):
    method = "{name: gpg, advantages: grpo}" if "_pg_" in preset else "etr"
    given = [f"rollout_correction.preset={preset}", f"method={method}"]
    if preset.startswith("bypass"):
        assert built(LOCAL, [*given, "old_policy=sampler"]).algorithm.correction.bypass_mode
    else:
        assert not built(LOCAL, [*given, "old_policy=trainer"]).algorithm.correction.bypass_mode


@pytest.mark.parametrize(
    ("name", "overrides", "told"),
    [
        (NEMO_RL, [ONE], "etr old_policy"),
        (NEMO_RL, [ONE, "old_policy=sampler"], None),
        (NEMO_RL, [ONE, "rollout_correction.preset=bypass_ppo_clip"], None),
        (NEMO_RL, [f"{BATCH}=256"], None),
        (NEMO_RL, [ONE, "method.name=gpg"], None),
        (LOCAL, [ONE], "etr REINFORCE 512"),
        (LOCAL, [ONE, "grpo.num_update_epochs=2"], None),
        (LOCAL, [ONE, "old_policy=sampler"], "etr REINFORCE 512"),
        (LOCAL, [ONE, NOISE], "etr old_policy"),
        (LOCAL, [ONE, NOISE, "old_policy=sampler"], None),
    ],
)
def test_one_update_is_told_where_every_ratio_is_1(name, overrides, told):
    found = said(name, overrides)
    assert found == ([Says(f"warning {BATCH}: {told}")] if told else [])


@pytest.mark.parametrize("third", some_of(range(3), 1))
def test_the_sampler_is_named_only_where_the_method_takes_it(third):
    """Of all methods, by thirds: the cure that is named is one that `check` accepts."""
    for name in [*METHODS][third::3]:
        given = [ONE, f"method={name}"]
        named = ["old_policy: sampler" in text for text in said(NEMO_RL, given)]
        paths = {f.path for f in check(NEMO_RL, [*given, "old_policy=sampler"], MAIN)}
        assert named in ([], ["rollout_correction" not in paths]), name


WEIGHED = "loss_fn.use_importance_sampling_correction"
BYPASS = "rollout_correction.bypass_mode=true"
FP8 = ["policy.generation.vllm_cfg.precision=fp8"]
ASYNC = ["grpo.async_grpo.enabled=true", "policy.generation.vllm_cfg.async_engine=true"]


def errors(overrides):
    return [str(f) for f in check("nemo_rl.yaml", overrides, MAIN) if f.severity == "error"]


@pytest.mark.parametrize("given", [FP8, ASYNC], ids=["fp8", "asynchronous"])
@pytest.mark.parametrize("correction", ["preset=decoupled_token_is", "bypass_mode=true"])
def test_what_asks_for_a_correction_takes_either(given, correction):
    asked = [e for e in errors(given) if e.startswith(WEIGHED)]
    assert len(asked) == 1 and asked[0] == Says("rollout_correction.preset")
    found = errors([*given, f"rollout_correction.{correction}"])
    assert not [e for e in found if e.startswith(WEIGHED)]


@pytest.mark.parametrize(("given", "warned"), [([], True), ([BYPASS], False)])
def test_two_precisions_are_corrected_for(given, warned):
    half = "policy.generation.vllm_cfg.precision=float16"
    found = [f.path for f in check("nemo_rl.yaml", [half, *given], MAIN)]
    assert ("policy.generation.vllm_cfg.precision" in found) == warned
