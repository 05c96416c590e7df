"""NeMo Gym: what NeMo-RL's own script asserts of a run whose servers roll out."""

from collections.abc import Iterator

from nemo_algos.config import Finding
from nemo_algos.engines.nemo.derived_config import GYM, uses_gym
from nemo_algos.preflight.check.layout import MCORE
from nemo_algos.preflight.check.nemo_run import Preflight
from nemo_algos.preflight.check.rule import error, warning
from nemo_algos.preflight.check.rules.data import datasets
from nemo_algos.preflight.check.rules.generation import GENERATION

PROCESSOR = "nemo_gym_data_processor"  # the one that gives rows of Gym
CONFIGS = f"{GYM}.config_paths"
MODEL = "responses_api_models/vllm_model/configs/vllm_model_for_training.yaml"
PENALTIES = ("grpo.invalid_tool_call_advantage", "grpo.malformed_thinking_advantage")


def gym_servers(run: Preflight) -> Iterator[Finding]:
    """The servers are started, find an engine that answers over HTTP, and give what is trained."""
    if not uses_gym(run["env"]):
        return
    if run[f"{GENERATION}.backend"] == "megatron" and not run[f"{MCORE}.expose_http_server"]:
        reason = "NeMo Gym's servers ask the engine over HTTP"
        yield error(f"{MCORE}.expose_http_server", f"{reason}. Set it to true.")
    paths = run[CONFIGS]
    if not paths:
        reason = "they name NeMo Gym's servers"
        yield error(CONFIGS, f"{reason}. List {MODEL} and your environment's.")
    elif not any(str(path).endswith("_for_training.yaml") for path in paths):
        reason = (
            "servers of another model than `..._for_training.yaml` return no tokens to train on"
        )
        yield warning(CONFIGS, f"{reason}. List {MODEL}, unless yours return them.")


def gym_data(run: Preflight) -> Iterator[Finding]:
    """Rows are Gym's, and the whole data set validates."""
    if not uses_gym(run["env"]):
        return
    for path, data in datasets(run):
        if data.get("processor") != PROCESSOR:
            reason = f"NeMo Gym takes rows of its own, which {data.get('processor')} does not give"
            yield error(f"{path}.processor", f"{reason}. Set it to {PROCESSOR}.")
    if run["grpo.max_val_samples"] is not None:
        reason = "NeMo Gym validates on the whole data set"
        yield error("grpo.max_val_samples", f"{reason}. Set it to null.")
    path = f"{GYM}.is_trajectory_collection"
    if run[path]:
        reason = "NeMo-RL would write down rollouts, and train nothing"
        yield error(path, f"{reason}. Set it to false, or run NeMo-RL's run_grpo_nemo_gym.py.")
    for key in ("top_k", "val_top_k"):
        if run[f"{GENERATION}.{key}"]:
            reason = "NeMo Gym's requests have no top_k"
            yield error(f"{GENERATION}.{key}", f"{reason}. Set it to null.")


def gym_parts(run: Preflight) -> Iterator[Finding]:
    """A method of several rewards gets those of a server where NeMo-RL hands them on."""
    a = run.algorithm
    if a is None or not uses_gym(run["env"]) or not {"reward_parts", "turn_rewards"} & a.needs:
        return
    if not run.nemo_rl.facts["NeMo Gym gives rewards in parts"]:
        reason = f"{a.name} needs several rewards, and this NeMo-RL keeps their sum alone"
        yield warning("env.should_use_nemo_gym", f"{reason}. Take a newer NeMo-RL.")


def penalised_messages(run: Preflight) -> Iterator[Finding]:
    """A penalty of a message needs one who marks messages, and an advantage for each token."""
    for path in PENALTIES:
        if run[path] is None:
            continue
        if not uses_gym(run["env"]):
            reason = "only NeMo Gym marks such messages, and it does not run here"
            yield error(path, f"{reason}. Set it to null.")
        elif run["data_plane.enabled"]:
            reason = "NeMo-RL penalises no message where tensors travel through the data plane"
            yield error(path, f"{reason}. Set it to null, or set `data_plane.enabled: false`.")
        elif run.algorithm and run.algorithm.one_advantage:
            reason = f"{run.algorithm.name} needs one advantage for all tokens of a response"
            cure = "Set it to null, or choose a method with a token ratio (grpo, etr, cispo)."
            yield error(path, f"{reason}. {cure}")
