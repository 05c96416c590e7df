"""A judged config to a run of NeMo-RL's own trainer, with the method plugged in.

The steps are those of NeMo-RL's examples/run_grpo.py, or run_vlm_grpo.py; with NeMo Gym also `gym`.
"""

import copy
import functools
import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from nemo_rl.algorithms import grpo
from nemo_rl.algorithms.utils import get_tokenizer
from nemo_rl.data.utils import setup_response_data
from nemo_rl.distributed.virtual_cluster import init_ray
from nemo_rl.models.generation import configure_generation_config
from nemo_rl.utils.logger import get_next_experiment_dir
from rich.console import Console

from nemo_algos.algorithms.algorithm import Algorithm
from nemo_algos.algorithms.extensions.loss_config import MismatchConfig
from nemo_algos.engines.nemo import (
    environment,
    gym,
    run_script,
    self_test,
    trial,
    versions,
    worker_env,
)
from nemo_algos.engines.nemo.derived_config import SELF_TEST, is_vlm, uses_gym
from nemo_algos.engines.nemo.estimator import Estimator, keep_memory, restore_memory
from nemo_algos.engines.nemo.loss import AlgorithmLoss
from nemo_algos.engines.nemo.patches import (
    in_place,
    previous_logprobs_skipped,
    shut_down,
)
from nemo_algos.engines.nemo.policy import DataPlaneProxy, PolicyProxy, columns_registered, listen
from nemo_algos.engines.nemo.trace import Traced
from nemo_algos.engines.remarks import Remarks
from nemo_algos.findings import Finding
from nemo_algos.jsonl import replace

RECORD = "nemo_algos.json"
WORKERS = {"megatron_cfg": "megatron_worker", "dtensor_cfg": "dtensor_worker"}
SKIPPED = Finding(
    SELF_TEST,
    "it is false: whether this NeMo-RL computes what the method needs is not tested. Compare its "
    "first losses with another run's.",
    severity="warning",
)
KINDS = {"entropy": "EntropyWorker", "entropy_gradient": "GradientWorker"}  # the first is both


class Launch(NamedTuple):
    """A judged run: NeMo-RL's MasterConfig, what is ours, and the warnings and notes.

    foretold: lines on what it will do. self_test: whether NeMo-RL's own step is tried; stated: all
    keys as they train, for the record in the log folder.
    """

    master_config: Any
    algorithm: Algorithm
    mismatch: MismatchConfig
    remarks: list[Finding]
    foretold: tuple[str, ...] = ()
    update_epochs: int = 1
    traced: Traced = Traced()
    self_test: bool = True
    stated: Mapping[str, Any] = MappingProxyType({})


def ready(judged: Launch, console: Console) -> AlgorithmLoss:
    """Everything before Ray: test this NeMo-RL, say the remarks, make the log folder and the loss.

    Raises ConfigError where this NeMo-RL is not one that we can serve; OSError for the folder.
    """
    master_config = judged.master_config
    news = run_script.news(run_script.of(master_config))
    if judged.self_test:
        check(master_config, judged.algorithm)
    else:
        news = [*news, SKIPPED]
    for remark in [*judged.remarks, *news]:
        console.print(f"{remark.severity}: {remark}", markup=False, soft_wrap=True)
    for line in judged.foretold:
        console.print(line, markup=False, soft_wrap=True)
    loss = AlgorithmLoss(master_config.loss_fn, judged.algorithm, **fused_logprobs(master_config))
    worker_env.export()
    log_dir = get_next_experiment_dir(master_config.logger["log_dir"])
    master_config.logger["log_dir"] = log_dir
    record(Path(log_dir), judged.stated)
    return loss


def run(judged: Launch, loss: AlgorithmLoss) -> None:
    init_ray()
    worker_env.check()
    train(
        judged.master_config,
        judged.algorithm,
        loss,
        mismatch=judged.mismatch,
        epochs=judged.update_epochs,
        traced=judged.traced,
    )


def record(folder: Path, stated: Mapping[str, Any]) -> None:
    """nemo_algos.json beside NeMo-RL's logs, for `nemo-algos report`: it has no method in its."""
    folder.mkdir(parents=True, exist_ok=True)
    replace(folder / RECORD, json.dumps({"config": dict(stated)}, indent=2))


def check(master_config: Any, algorithm: Algorithm) -> None:
    """Raises ConfigError where this NeMo-RL is not one that we can serve; before Ray."""
    if uses_gym(master_config.env):
        versions.check_gym()
    try:
        name, step = trial_of(master_config)
        rehearse(master_config, algorithm)
    except Exception as error:  # whatever NeMo-RL's code raises
        said = f"before training, with a small tokenizer: {type(error).__name__}: {error}"
        versions.refuse([said, self_test.SKIP])
        raise AssertionError from error
    loss = master_config.loss_fn
    penalty = not loss.use_kl_in_reward and loss.reference_policy_kl_penalty != 0
    self_test.check(name, step, penalty)


def trial_of(master_config: Any) -> tuple[str, self_test.Step]:
    """The name of NeMo-RL's trainer for this config, and its step."""
    if uses_single_controller(master_config):
        from nemo_algos.engines.nemo import controller_trial

        return "the single controller", functools.partial(controller_trial.step, master_config)
    chosen = trainer(master_config)
    function = getattr(chosen, "func", chosen)
    return function.__name__, functools.partial(trial.step, function)


def rehearse(master_config: Any, algorithm: Algorithm) -> None:
    """The steps of `train` up to NeMo-RL's setup that need no Ray, on a copy of the config.

    Raises what they raise; TypeError where a function takes other arguments.
    """
    config = copy.deepcopy(master_config)
    tokenizer = trial.tokenizer()
    prepare(config, tokenizer)
    factory = policy_factory(config, algorithm)
    if factory:
        inspect.signature(factory)  # ValueError where it takes no argument of the name
    estimator_of(algorithm, config, tokenizer, trial.START)
    if uses_single_controller(config):
        from nemo_algos.engines.nemo import single_controller

        single_controller.rehearse(config, tokenizer, factory)
        return
    data = inspect.signature(setup_response_data)
    if uses_gym(config.env):
        data.bind(tokenizer, config.data, env_configs=None)
    else:
        data.bind(tokenizer, config.data, config.env, is_vlm=False)
    named = {"policy_factory": factory, "processor": None}
    inspect.signature(grpo.setup).bind(config, tokenizer, None, None, **named)


def train(
    master_config: Any,
    algorithm: Algorithm,
    loss: AlgorithmLoss,
    mismatch: MismatchConfig,
    epochs: int = 1,
    traced: Traced = Traced(),
) -> None:
    """From Ray to the end of training; the stock setup, trainers and shutdown."""
    tokenizer, processor = read_tokenizer(master_config)
    prepare(master_config, tokenizer)
    factory = policy_factory(master_config, algorithm)
    last = versions.get(master_config.grpo, "max_num_steps")
    traced = traced._replace(last=last, decode=tokenizer.decode)
    if uses_single_controller(master_config):
        from nemo_algos.engines.nemo import single_controller

        single_controller.train(
            master_config,
            algorithm,
            loss,
            mismatch=mismatch,
            tokenizer=tokenizer,
            policy=factory,
            traced=traced,
            precision=precision_of(master_config),
            remarks=remarks_of(master_config),
        )
        return
    if uses_gym(master_config.env):
        dataset, val_dataset = gym.data_sets(master_config, tokenizer)
        task_to_env = val_task_to_env = dict[str, Any]()
    else:
        # a newer NeMo-RL may return more behind these
        dataset, val_dataset, task_to_env, val_task_to_env, *_ = setup_response_data(
            processor or tokenizer, master_config.data, master_config.env, is_vlm=bool(processor)
        )
    made = versions.setup_result(
        grpo.setup,
        master_config,
        tokenizer,
        dataset,
        val_dataset,
        policy_factory=factory,
        processor=processor,
    )
    servers = made.pop(gym.TASK, None)
    if servers is not None:
        task_to_env[gym.TASK] = servers
    cfg = made["master_config"]
    policy = made["policy"]
    remarks = remarks_of(cfg)
    listen(made["logger"], remarks)
    environment.log_statuses(made["logger"], task_to_env, val_task_to_env)
    estimator = estimator_of(algorithm, cfg, tokenizer, made)
    with ExitStack() as stack:
        stack.callback(remarks.end)
        # the policy too: left to its __del__ at the interpreter's end, that may be a SIGSEGV
        workers = dict.fromkeys((made["policy_generation"], policy))
        stack.callback(shut_down, workers, task_to_env, val_task_to_env)
        # also after an error, asynchronous saves end before the workers do; v0.7.0 has none
        stack.callback(getattr(made["checkpointer"], "shutdown", lambda: None))
        stack.enter_context(in_place(estimator))
        proxy = DataPlaneProxy if data_plane(cfg) else PolicyProxy
        if data_plane(cfg):
            stack.enter_context(columns_registered(estimator))
        elif algorithm.correction.bypass_mode:
            stack.enter_context(previous_logprobs_skipped())
        train = trainer(cfg)
        watched = proxy(
            policy,
            estimator,
            mismatch,
            folder=Path(master_config.logger["log_dir"]),
            step=versions.get(made["grpo_save_state"], "total_steps", 0),
            loss=loss.config,
            compares=not loss.on_policy,
            epochs=epochs,
            traced=traced,
            generation=made["policy_generation"],
            precision=precision_of(cfg),
            remarks=remarks,
        )
        own = {
            "policy": watched,
            "tokenizer": tokenizer,
            "loss_fn": loss,
            "task_to_env": task_to_env,
            "val_task_to_env": val_task_to_env,
        }
        if processor:
            own["processor"] = processor
        stack.enter_context(gym.watched(servers))
        train(**versions.arguments(train, made | own))
        if watched.stopped:  # v0.7.0's asynchronous trainer prints it, and ends
            raise watched.stopped


def read_tokenizer(master_config: Any) -> tuple[Any, Any]:
    """The model's tokenizer, and its processor where there are images."""
    vlm = is_vlm(master_config.data)
    reader = get_tokenizer(versions.get(master_config.policy, "tokenizer"), get_processor=vlm)
    if vlm:
        return (reader.tokenizer, reader)
    return (reader, None)


def prepare(master_config: Any, tokenizer: Any) -> None:
    """Make generation and environments known to NeMo-RL."""
    policy = master_config.policy
    draft = versions.get(versions.get(policy, "draft"), "enabled")
    layers = versions.get(versions.get(policy, "megatron_cfg"), "mtp_num_layers")
    generation = configure_generation_config(
        versions.get(policy, "generation"),
        tokenizer,
        has_refit_draft_weights=bool(draft),
        trains_mtp=bool(layers),
    )
    versions.put(policy, "generation", generation)
    if uses_gym(master_config.env):
        gym.configure(master_config, tokenizer)
    environment.register(master_config.env)


def estimator_of(algorithm: Algorithm, cfg: Any, tokenizer: Any, made: dict[str, Any]) -> Estimator:
    """The driver half; its where it has one, is in NeMo-RL's checkpoints."""
    own: dict[str, Any] = {}
    if "memory" in algorithm.needs:
        own["memory"] = restore_memory(made["checkpointer"])
        own["keep"] = functools.partial(keep_memory, made["grpo_save_state"])
    if "prompt" in algorithm.needs:
        own["pad"] = tokenizer.pad_token_id
    group_size = versions.get(cfg.grpo, "num_generations_per_prompt")
    batch_size = versions.get(cfg.policy, "train_global_batch_size")
    return Estimator(algorithm, group_size, batch_size, **own)


def remarks_of(cfg: Any) -> Remarks:
    """Of the sizes of a run."""
    group = versions.get(cfg.grpo, "num_generations_per_prompt")
    responses = group * versions.get(cfg.grpo, "num_prompts_per_step")
    limit = versions.get(cfg.policy["generation"], "max_new_tokens")
    steps = versions.get(cfg.grpo, "max_num_steps")
    return Remarks(group, responses, limit, planned=steps)


def precision_of(cfg: Any) -> str:
    """The lowest of vLLM and Megatron, where it is FP8."""
    served = versions.get(versions.get(cfg.policy["generation"], "vllm_cfg"), "precision")
    trained = versions.get(versions.get(cfg.policy, "megatron_cfg"), "fp8_cfg")
    if versions.get(trained, "enabled"):
        return "fp8"
    return str(served)


def fused_logprobs(master_config: Any) -> dict[str, bool]:
    """The argument of NeMo-RL's loss for models that return log-probs; unknown to v0.7.0."""
    megatron = versions.get(master_config.policy, "megatron_cfg")
    fused = versions.get(megatron, "enabled") and versions.get(
        megatron, "use_fused_linear_logprobs"
    )
    if fused:
        return {"use_fused_linear_logprobs": True}
    return {}


def uses_single_controller(master_config: Any) -> bool:
    """Whether the single controller trains: its configs alone have this section."""
    return getattr(master_config, "async_rl", None) is not None


def data_plane(master_config: Any) -> bool:
    """Whether tensors travel through TransferQueue."""
    return bool(versions.get(master_config.data_plane or {}, "enabled", False))


def trainer(master_config: Any) -> Callable[..., None]:
    asynchronous = versions.get(master_config.grpo, "async_grpo", {})
    if versions.get(asynchronous, "enabled", False):
        age = versions.get(asynchronous, "max_trajectory_age_steps", 1)
        return functools.partial(grpo.async_grpo_train, max_trajectory_age_steps=age)
    if data_plane(master_config):
        from nemo_rl.algorithms.grpo_sync import grpo_train_sync

        return grpo_train_sync
    return grpo.grpo_train


def policy_factory(master_config: Any, algorithm: Algorithm) -> Callable[..., Any] | None:
    """NeMo-RL's policy; with workers that give entropies where the method needs them."""
    extension: dict[str, Any] = {}
    kind = next((KINDS[need] for need in KINDS if need in algorithm.needs), None)
    if kind:
        sections = {name: versions.get(master_config.policy, name) for name in WORKERS}
        backend = next(name for name in sections if versions.get(sections[name], "enabled"))
        name = worker_env.register_worker(WORKERS[backend], kind)
        extension = {"worker_extension_cls_fqn": name}
    if data_plane(master_config):
        from nemo_rl.models.policy.tq_policy import TQPolicy

        return functools.partial(TQPolicy, dp_cfg=master_config.data_plane, **extension)
    if not extension:
        return None
    from nemo_rl.models.policy.lm_policy import Policy

    return functools.partial(Policy, **extension)
