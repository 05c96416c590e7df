"""The single controller's advantage stage in this process, before Ray: one group of two responses.

NeMo-RL's own buffer writes the group, as after a rollout, with all columns and tags that its stage
may ask for. The stand-ins are those of `trial`.
"""

import asyncio
import tempfile
from typing import Any

from nemo_rl.algorithms.async_utils.replay_buffer import TQReplayBuffer
from nemo_rl.algorithms.metric_utils import SetupTimingMetrics
from nemo_rl.algorithms.single_controller_utils import setup
from nemo_rl.experience.interfaces import Completion, PromptGroupRecord

from nemo_algos.engines.nemo import trial
from nemo_algos.engines.nemo.estimator import Estimator
from nemo_algos.engines.nemo.policy import ENTROPY, columns_registered
from nemo_algos.engines.nemo.single_controller import ControllerImpl

PARTITION = "train"
# by forward passes between the rollouts and the stage
FORWARDS = {
    "prev_logprobs": trial.OLD,
    "reference_policy_logprobs": trial.REFERENCE,
    ENTROPY: trial.ENTROPIES,
}


def step(master_config: Any, estimator: Estimator, loss: Any) -> tuple[float, float]:
    """The loss of a chunk behind the controller's advantage stage, as `trial.step` gives it.

    Raises what NeMo-RL raises; ValueError where the stage trains nothing.
    """
    policy = trial.plane_policy(trial.config_of(trial.DATA_PLANE))
    with tempfile.TemporaryDirectory() as folder, columns_registered(estimator):
        config = _quiet(master_config, folder)
        args = _arguments(policy, estimator, loss)
        try:
            with trial.without_ray(policy):
                asyncio.run(_stage(config, args, policy, loss))
        except trial.WouldTrain as end:
            return end.answer
    raise ValueError("the single controller ends before the workers train")


def _quiet(master_config: Any, folder: str) -> Any:
    """The run's config, which logs and saves nothing, and reads reference log-probs."""
    config = master_config.model_copy(deep=True)
    config.logger.update({"log_dir": folder, "monitor_gpus": False})
    config.logger.update({key: False for key in config.logger if key.endswith("_enabled")})
    config.checkpointing["checkpoint_dir"] = folder
    config.grpo.skip_reference_policy_logprobs_calculation = False
    config.loss_fn.reference_policy_kl_penalty = trial.STEP["loss_fn.reference_policy_kl_penalty"]
    return config


def _arguments(policy: Any, estimator: Estimator, loss: Any) -> Any:
    """What NeMo-RL's setup hands to the actor; what has a default there keeps it."""
    kind = setup.SingleControllerActorArgs
    own = {
        "trainer_handle": policy,
        "dp_client": policy.dp_client,
        "tq_buffer": TQReplayBuffer(policy.dp_client, PARTITION, pad_value_dict=trial.PADS),
        "env_handles": {},
        "advantage_estimator": estimator,
        "loss_fn": loss,
        "partition_id": PARTITION,
        "save_state": trial.State(),
        "last_checkpoint_path": None,
    }
    return trial.filled(kind, own)


async def _stage(config: Any, args: Any, policy: Any, loss: Any) -> None:
    controller = ControllerImpl(config, args, SetupTimingMetrics(), watched={"loss": loss.config})
    policy.prepare_step(num_samples=2, group_size=2)
    policy.begin_train_step(loss)
    group = args.tq_buffer.reserve(weight_version=0)
    record, width = _record()
    meta = await args.tq_buffer.commit(group, record, start_weight_version=0, end_weight_version=0)
    columns = {}
    for name, values in FORWARDS.items():
        columns[name] = trial.widened(values, width)
    await controller._write(meta, columns)
    meta, _ = await controller._advantage_stage(meta)
    fields = getattr(controller, "_train_fields", None)  # of a NeMo-RL that fetches by name
    named = {"train_fields": fields} if fields else {}
    controller._trainer.train_microbatches_from_meta(meta, **named)


def _record() -> tuple[Any, int]:
    """The group of the trial's two responses, and the tokens of its longest row."""
    rows, metrics = trial.rolled_out()
    pairs = zip(rows["message_log"], rows["total_reward"].tolist(), strict=True)
    own = {"env_extras": {}, "truncated": False}
    completions = []
    for log, reward in pairs:
        completions.append(trial.filled(Completion, own | {"message_log": log, "reward": reward}))
    group = {
        "completions": completions,
        "prompt": rows["message_log"][0][:1],
        "metadata": {},
        "prompt_idx": 0,
        "loss_multiplier": 1.0,
        "extra_env_info": {},
        "rollout_metrics": metrics,
    }
    width = 0
    for log in rows["message_log"]:
        width = max(width, sum(len(message["token_ids"]) for message in log))
    return trial.filled(PromptGroupRecord, group), width
