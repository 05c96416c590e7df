"""What the user's NeMo-RL does in its own run scripts, beside what they did when ours were written.

`launch` and `single_controller.train` take the steps of these scripts. A step that a newer NeMo-RL
adds there is not taken by ours: it is named. The scripts are read as text, never run.
"""

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nemo_algos.engines.nemo import versions
from nemo_algos.engines.nemo.derived_config import is_vlm, uses_gym
from nemo_algos.findings import Finding

DOTTED = re.compile(r"[\w.]+")
# the calls of the four scripts in v0.7.0 and main of 2026-08-22 (7ea279abf), and their keywords
CALLS = """
    MasterConfig OmegaConf.to_container SingleControllerActor.remote TQPolicy TQPolicy(dp_cfg=)
    Timer Timer(context=) _dp_cfg.get _run_with_controller_liveness_watch _select_trainer
    _should_use_nemo_gym actor_args.env_handles.items argparse.ArgumentParser async_grpo_train
    async_grpo_train(alias_to_group_alias=) async_grpo_train(checkpointer=)
    async_grpo_train(dataloader=) async_grpo_train(grpo_save_state=) async_grpo_train(logger=)
    async_grpo_train(loss_fn=) async_grpo_train(master_config=)
    async_grpo_train(max_trajectory_age_steps=) async_grpo_train(policy=)
    async_grpo_train(policy_generation=) async_grpo_train(processor=)
    async_grpo_train(task_to_env=) async_grpo_train(teacher_worker_groups=)
    async_grpo_train(tokenizer=) async_grpo_train(val_dataloader=)
    async_grpo_train(val_task_to_env=) collect_trajectories collect_trajectories(logger=)
    collect_trajectories(master_config=) collect_trajectories(policy=)
    collect_trajectories(policy_generation=) collect_trajectories(tokenizer=)
    collect_trajectories(val_dataloader=) collect_trajectories(val_task_to_env=) config.env.get
    config.policy.get configure_generation_config
    configure_generation_config(has_refit_draft_weights=)
    configure_generation_config(trains_mtp=) dp_cfg.get get_next_experiment_dir get_tokenizer
    get_tokenizer(get_processor=) grpo_train grpo_train(processor=) handle.shutdown.remote
    init_ray load_config log_container_init_timing logger.log_string_list_as_jsonl main
    materialize_vllm_video_config megatron_cfg.get nemo_gym_rollout_result.rollout_metrics.items
    os.path.abspath os.path.dirname os.path.join parse_args parse_hydra_overrides
    parser.add_argument parser.parse_known_args policy_generation.finish_generation
    policy_generation.shutdown pprint.pprint ray.get ray.kill ray.wait refit_policy_generation
    register_omegaconf_resolvers resource.shutdown rl_init_metrics.items
    rl_init_timer.get_timing_metrics rl_init_timer.record rl_init_timer.time rows_to_log.extend
    run_async_nemo_gym_rollout run_async_nemo_gym_rollout(generation_config=)
    run_async_nemo_gym_rollout(greedy=) run_async_nemo_gym_rollout(input_batch=)
    run_async_nemo_gym_rollout(max_rollout_turns=) run_async_nemo_gym_rollout(max_seq_len=)
    run_async_nemo_gym_rollout(policy_generation=) run_async_nemo_gym_rollout(task_to_env=)
    run_async_nemo_gym_rollout(tokenizer=) run_nemo_gym_rollout_sync
    run_nemo_gym_rollout_sync(generation_config=) run_nemo_gym_rollout_sync(greedy=)
    run_nemo_gym_rollout_sync(input_batch=) run_nemo_gym_rollout_sync(log_full_result_tables=)
    run_nemo_gym_rollout_sync(max_rollout_turns=) run_nemo_gym_rollout_sync(max_seq_len=)
    run_nemo_gym_rollout_sync(policy_generation=) run_nemo_gym_rollout_sync(task_to_env=)
    run_nemo_gym_rollout_sync(tokenizer=) sc.ping.remote sc.run.remote setup
    setup(policy_factory=) setup(processor=) setup_nemo_gym_config setup_response_data
    setup_response_data(env_configs=) setup_response_data(is_vlm=) setup_single_controller
    should_use_nemo_gym shutdown_environments sys.path.remove time.monotonic time.perf_counter
    trainer
"""
KNOWN = frozenset(CALLS.split())


def of(master_config: Any) -> Path:
    """NeMo-RL's script for this config."""
    asked = {
        "run_grpo_single_controller.py": getattr(master_config, "async_rl", None) is not None,
        "nemo_gym/run_grpo_nemo_gym.py": uses_gym(master_config.env),
        "run_vlm_grpo.py": is_vlm(master_config.data),
        "run_grpo.py": True,
    }
    return versions.EXAMPLES / next(name for name in asked if asked[name])


def news(script: Path) -> list[Finding]:
    """A warning with the steps of a script that ours does not know, a note where none is read."""
    try:
        found = dict.fromkeys(steps(script.read_text(encoding="utf-8")))
    except (OSError, ValueError, SyntaxError) as problem:
        said = f"{script.name} cannot be read ({problem}): compare its steps with `launch.py`'s."
        return [Finding("engine", said, severity="note")]
    unknown = [step for step in found if step not in KNOWN]
    if not unknown:
        return []
    said = (
        f"{script.name} of this NeMo-RL has steps that nemo_algos does not take: "
        f"{', '.join(unknown)}. If your run needs one of them, wait for a newer nemo_algos."
    )
    return [Finding("engine", said, severity="warning")]


def steps(text: str) -> Iterator[str]:
    """Every call in a script that is no builtin's, as it is written, and a function's keywords."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if not DOTTED.fullmatch(name) or hasattr(builtins, name):
            continue
        yield name
        if isinstance(node.func, ast.Name):
            yield from (f"{name}({word.arg}=)" for word in node.keywords if word.arg)
