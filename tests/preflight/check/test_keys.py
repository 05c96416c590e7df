"""Every misspelt key of `data` and `env` is refused: of each recipe, and of NeMo-RL's configs."""

import pytest
from omegaconf import OmegaConf
from recipe_files import BASES, FILES
from releases import MAIN

from nemo_algos import config
from nemo_algos.config import SHIPPED
from nemo_algos.engines.nemo.derived_config import uses_gym
from nemo_algos.preflight.check import keys
from nemo_algos.preflight.check.keys import unknown_keys

SECTIONS = ("data", "env")
USUAL = "grpo_math_1B.yaml"
UNREAD = ("dataset_name", "prompt_file")  # of one of NeMo-RL's configs, below `data` itself
# whose keys are not NeMo-RL's: servers of NeMo-Gym, a second policy, environments that scripts of
# theirs register, and ours, whose keys the rule own_rewards judges
FREE = [f"env.{name}" for name in ("nemo_gym", "reward_model", "sliding_puzzle_game", "dapo")]
FREE += ["env.countdown", "env.code_verify", "env.sql_verify"]
NAMES = (
    *MAIN.environments,
    *("clevr-cogent", "geometry3k", "refcoco"),
    *("avqa", "audiomcq", "mmpr-tiny"),
)
OURS = [*FILES.values(), *BASES.values(), SHIPPED / "nemo_rl.yaml"]
OURS += (SHIPPED / "recipes" / "cpu").glob("*.yaml")


@pytest.fixture(autouse=True)
def without_hints(monkeypatch):
    """The key that was meant: to look for it takes nearly all of the time, and is tested apart."""
    monkeypatch.setattr(keys, "_near", lambda *_: "")


def misspelt(section, above):
    """Each key's path, and the section with that key misspelt."""
    for key, value in section.items():
        path = f"{above}.{key}"
        yield path, {**section, f"{key}x": value}
        if isinstance(value, dict):
            yield from ((p, {**section, key: changed}) for p, changed in misspelt(value, path))
        for i, one in enumerate(value) if isinstance(value, list) else ():
            for deeper, changed in misspelt(one, path) if isinstance(one, dict) else ():
                yield deeper, {**section, key: [*value[:i], changed, *value[i + 1 :]]}


def accepted(own, base):
    """The paths that were misspelt in vain, and all paths; of a config that has none wrong."""
    own = {name: own[name] for name in SECTIONS if own.get(name)}
    assert not unknown_keys(own, base, MAIN)
    walk = [
        (path, {**own, name: changed})
        for name in own
        for path, changed in misspelt(own[name], name)
    ]
    said = {path: [f.path for f in unknown_keys(w, base, MAIN)] for path, w in walk}
    return {path for path, found in said.items() if f"{path}x" not in found}, set(said)


def is_free(path):
    """An environment's name is: `environments` refuses the one that no data set names."""
    name = ".".join(path.split(".")[:2])
    return name in FREE or "kwargs." in path or path in {f"env.{name}" for name in NAMES}


def test_every_misspelt_key_of_nemo_rls_configs_is_refused():
    walked = set()
    for name, own in MAIN.grpo.items():
        if uses_gym(own["env"]):  # refused as a whole; leftovers of other environments are in them
            continue
        own = own | {"data": {k: v for k, v in own["data"].items() if k not in UNREAD}}
        wrong, paths = accepted(own, MAIN.configs[USUAL])
        assert not {path for path in wrong if not is_free(path)}, name
        walked |= paths - wrong
    assert {"data.shuffle", "data.validation.repeat", "env.math.math_verify_impl"} <= walked
    assert len(walked) >= 25


def test_every_misspelt_key_of_our_recipes_is_refused():
    walked = 0
    for file in OURS:
        own = OmegaConf.to_container(config.read(file))
        name = (own.get("nemo_rl") or {}).get("config", USUAL)
        if own.get("engine") == "nemo_rl" and name in MAIN.grpo:
            wrong, paths = accepted(own, MAIN.configs[name])
            assert not {path for path in wrong if not is_free(path)}, file.name
            walked += len(paths - wrong)
    assert walked > 100


def test_variables_of_workers_are_free():
    """They are another program's: also beside those that a base config sets."""
    base = MAIN.configs["recipes/llm/performance/grpo-qwen3-30ba3b-4n8g.yaml"]
    assert base["policy"]["megatron_cfg"]["env_vars"]
    section = {"env_vars": {"NVTE_FP8_BLOCK_SCALING_FP32_SCALES": "1"}}
    assert not unknown_keys({"policy": {"megatron_cfg": section}}, base, MAIN)
    misspelt = {"policy": {"megatron_cfg": {"env_var": {}}}}
    assert [f.path for f in unknown_keys(misspelt, base, MAIN)] == ["policy.megatron_cfg.env_var"]
