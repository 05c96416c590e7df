"""One step of a NeMo-RL trainer in this process, before Ray: two responses to one prompt.

The trainer, its rollouts, its batches, its data plane and the way to the loss are NeMo-RL's own and
ours. Stand-ins take the place of what needs Ray or a GPU: engine, environment, workers, actors. A
trial ends where the workers would train: with the loss, and its derivative along DIRECTION.
"""

import dataclasses
import io
import re
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from nemo_rl.algorithms import grpo
from nemo_rl.data.collate_fn import rl_collate_fn
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.environments.interfaces import EnvironmentInterface, EnvironmentReturn
from nemo_rl.experience.rollouts import run_multi_turn_rollout
from nemo_rl.models.generation.interfaces import GenerationInterface
from nemo_rl.models.policy.lm_policy import Policy
from nemo_rl.utils.config import load_config, register_omegaconf_resolvers
from omegaconf import OmegaConf
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from nemo_algos.engines.nemo import versions
from nemo_algos.engines.nemo.derived_config import DEFAULT
from nemo_algos.engines.nemo.estimator import Estimator
from nemo_algos.engines.nemo.patches import QUEUED, in_place
from nemo_algos.engines.nemo.policy import (
    ENTROPY,
    DataPlaneProxy,
    PolicyProxy,
    columns_registered,
)

# a prompt of one token and responses of three and two
PROMPT = [4]
PAD = 0
PADS = {"token_ids": PAD, "input_ids": PAD}
MASK = torch.tensor([[0.0, 1.0, 1.0, 1.0], [0.0, 1.0, 1.0, 0.0]])
REWARDS = torch.tensor([1.0, 0.0])
OLD = torch.tensor([[0.0, -1.0, -0.5, -2.0], [0.0, -0.7, -1.2, 0.0]])
CURRENT = OLD + torch.tensor([[0.0, 0.5, -0.1, -0.4], [0.0, -0.6, -0.3, 0.0]])
# not OLD: a loss that divides by the sampler's must give another number
SAMPLER = OLD + torch.tensor([[0.0, 0.3, -0.25, 0.15], [0.0, -0.2, 0.1, 0.0]])
REFERENCE = OLD + torch.tensor([[0.0, 0.1, -0.2, 0.05], [0.0, -0.3, 0.2, 0.0]])
ENTROPIES = torch.tensor([[0.0, 0.5, 1.0, 1.5], [0.0, 0.8, 0.2, 0.0]])
DIRECTION = torch.tensor([[1.0, 2.0, 3.0], [-1.0, 1.0, 0.0]])

TASK = "trial"
# where stand-ins are: here, and the data plane of NeMo-RL's own tests
STAND_INS = (
    __name__,
    "nemo_algos.engines.nemo.controller_trial",
    "nemo_rl.data_plane.adapters.noop",
)
SLEEP = time.sleep
ERROR = re.compile(r"[\w.]*(Error|Exception)\b")
STEP = {
    "grpo.num_prompts_per_step": 1,
    "grpo.num_generations_per_prompt": 2,
    "grpo.max_num_steps": 1,
    "grpo.val_period": 0,
    "grpo.val_at_start": False,
    "grpo.val_at_end": False,
    "loss_fn.reference_policy_kl_penalty": 0.5,
    "policy.train_global_batch_size": 2,
    "policy.train_micro_batch_size": 2,
    "policy.max_total_sequence_length": 16,
    "policy.make_sequence_length_divisible_by": 1,
    "policy.sequence_packing.enabled": False,
}
ASYNCHRONOUS = {
    "grpo.async_grpo.enabled": True,
    "loss_fn.use_importance_sampling_correction": True,
    "policy.generation.colocated.enabled": False,
    "policy.generation.vllm_cfg.async_engine": True,
}
DATA_PLANE = {"data_plane.enabled": True}


class WouldTrain(BaseException):
    """The end of a trial: no Exception, which NeMo-RL's asynchronous trainer prints and drops."""

    def __init__(self, loss: float, slope: float) -> None:
        super().__init__()
        self.answer = (loss, slope)


def step(trainer: Callable[..., None], estimator: Estimator, loss: Any) -> tuple[float, float]:
    """The loss of a trainer's own step, and its derivative along DIRECTION.

    Raises what the trainer raises; ValueError where it ends and has trained nothing.
    """
    with ExitStack() as stack:
        stack.enter_context(in_place(estimator))
        if trainer.__name__ == "grpo_train_sync":
            config = config_of(DATA_PLANE)
            policy = plane_policy(config)
            proxy = DataPlaneProxy(policy, estimator)
            stack.enter_context(columns_registered(estimator))
        else:
            config = config_of(ASYNCHRONOUS if trainer.__name__.startswith("async") else {})
            policy = without_workers(Policy, config)
            proxy = PolicyProxy(policy, estimator)
        environments = {TASK: Actor(Environment())}
        given = {
            "policy": proxy,
            "policy_generation": Engine(config.policy["generation"]),
            "dataloader": [_prompt()],
            "val_dataloader": None,
            "tokenizer": tokenizer(),
            "loss_fn": loss,
            "task_to_env": environments,
            "val_task_to_env": environments,
            "logger": Silent(),
            "checkpointer": Silent(),
            "grpo_save_state": State(),
            "master_config": config,
        }
        printed = stack.enter_context(without_ray(policy))
        try:
            trainer(**versions.arguments(trainer, given))
        except WouldTrain as end:
            return end.answer
    # v0.7.0's asynchronous trainer prints its errors and ends
    errors = []
    for line in printed.getvalue().splitlines():
        if ERROR.match(line):
            errors.append(line)
    raise ValueError(": ".join(["it ends before the workers train", *errors[-1:]]))


def judged(loss: Any, batch: Mapping[str, Any]) -> NoReturn:
    """Ends the trial with the loss of the batch that the workers have."""
    width = batch["token_mask"].shape[1]
    logprobs = widened(CURRENT, width)[:, 1:].requires_grad_()
    value, _ = loss(logprobs, batch, torch.tensor(2.0), torch.tensor(5.0))
    (gradient,) = torch.autograd.grad(value, logprobs)
    direction = widened(DIRECTION, width - 1)
    raise WouldTrain(value.item(), float((gradient * direction).sum()))


def widened(values: Tensor, width: int) -> Tensor:
    """[2,4] or [2,3] with zeros behind it, for what the environment says behind the responses."""
    return F.pad(values, (0, width - values.shape[1]))


def of_stand_in(error: Exception) -> bool:
    """Whether an exception of a step was raised by a stand-in, or speaks of one."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    kinds = (kind for kind in globals().values() if isinstance(kind, type))
    names = "|".join(kind.__name__ for kind in kinds if kind.__module__ == __name__)
    spoken = re.search(rf"'({names})'|\b({names})[.(]|\bnot ({names})\b", str(error))
    return spoken is not None or frame.f_globals["__name__"] in STAND_INS


class Workers:
    """The policy's worker group: it knows the log-probs, and ends the trial where it would train.

    policy: reads and writes the data plane for it.
    """

    def __init__(self) -> None:
        self.policy: Any = None
        self.loss: Any = None  # of a step that comes in parts

    def run_all_workers_sharded_data(
        self,
        method: str,
        *,
        data: Any = None,
        meta: Any = None,
        common_kwargs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> list[Any]:
        """The workers' answers, of one rank."""
        keywords = common_kwargs or {}
        if method.startswith("train"):
            batch = data[0] if meta is None else self._fetched(meta[0], meta[0].fields)
            judged(keywords.get("loss_fn", self.loss), batch)
        reference = method.startswith("get_reference")
        if meta is None:
            width = data[0]["input_ids"].shape[1]
            name = "reference_logprobs" if reference else "logprobs"
            values = widened(REFERENCE if reference else OLD, width)
            return [BatchedDataDict({name: values, "entropies": widened(ENTROPIES, width)})]
        width = self._fetched(meta[0], ["input_ids"])["input_ids"].shape[1]
        names = {"reference_policy_logprobs": REFERENCE}
        if not reference:
            names = {"prev_logprobs": OLD, ENTROPY: ENTROPIES}
        columns = {name: widened(values, width) for name, values in names.items()}
        self.policy.write_to_dataplane(meta[0], columns)
        return [None]

    def run_all_workers_single_data(self, method: str, **keywords: Any) -> list[Any]:
        """What moves memory and weights, or begins a step; a number where bytes are asked for."""
        self.loss = keywords.get("loss_fn", self.loss)
        return [1]

    def shutdown(self, **_: Any) -> bool:
        return True

    def get_all_worker_results(self, futures: list[Any]) -> list[Any]:
        return futures

    def _fetched(self, meta: Any, fields: Any) -> Any:
        return self.policy.read_from_dataplane(meta, select_fields=list(fields))


class OneRank:
    """The policy's sharding."""

    def get_axis_size(self, axis: str) -> int:
        return 1


def without_workers(kind: type, config: Any) -> Any:
    """NeMo-RL's policy over `Workers`, without the Ray that its constructor starts."""
    policy = object.__new__(kind)
    policy.cfg = config.policy
    policy.worker_group = Workers()
    policy.worker_group.policy = policy
    policy.sharding_annotations = OneRank()
    policy.flops_tracker = None
    policy.use_dynamic_batches = False
    policy.use_sequence_packing = False
    policy.debug_payload_metrics = False
    return policy


def plane_policy(config: Any) -> Any:
    """NeMo-RL's policy over `Workers`, and the data plane of NeMo-RL's own tests, in memory."""
    from nemo_rl.data_plane.adapters.noop import NoOpDataPlaneClient
    from nemo_rl.models.policy.tq_policy import TQPolicy

    class TensorsInMemory(NoOpDataPlaneClient):
        """Keeps tensors alone: it refuses the text that NeMo-RL's rollouts send along."""

        def put_samples(self, *args: Any, fields: Any = None, **keywords: Any) -> Any:
            if fields is not None:
                names = [name for name, values in fields.items() if isinstance(values, Tensor)]
                fields = fields.select(*names)
            return super().put_samples(*args, fields=fields, **keywords)

    policy = without_workers(TQPolicy, config)
    policy.dp_cfg = config.data_plane
    policy.dp_client = TensorsInMemory()
    policy.tq_partition_id = "train"
    policy._router_replay_enabled = False
    return policy


def _nothing(*args: Any, **keywords: Any) -> list[Any]:
    """Stands in for what only moves weights, memory or counts."""
    return []


class Engine(GenerationInterface):
    """Generation that gives the two responses."""

    init_collective = _nothing
    prepare_for_generation = _nothing
    finish_generation = _nothing
    update_weights_via_ipc_zmq = _nothing
    update_weights_from_collective = _nothing
    clear_logger_metrics = _nothing
    get_logger_metrics = _nothing
    shutdown = _nothing

    def __init__(self, config: Any) -> None:
        self.cfg = config

    def generate(self, data: Any, greedy: bool = False) -> Any:
        """The prompt with a response behind it, row by row."""
        start = data["input_lengths"]
        end = start + MASK.sum(1).long()
        ids = F.pad(data["input_ids"], (0, 3), value=5)
        return BatchedDataDict(
            {
                "output_ids": ids,
                "logprobs": widened(SAMPLER, ids.shape[1]),
                "generation_lengths": end - start,
                "unpadded_sequence_lengths": end,
                "truncated": torch.zeros(2, dtype=torch.bool),
            }
        )


class Environment(EnvironmentInterface):
    """Pays the two rewards, and says one word behind each response."""

    global_post_process_and_metrics = _nothing

    def step(self, messages: list[Any], metadata: list[Any]) -> EnvironmentReturn:
        said = [{"role": "environment", "content": "t9"} for _ in messages]
        ended = torch.ones(len(messages), dtype=torch.bool)
        return EnvironmentReturn(said, metadata, [None] * len(messages), REWARDS, ended, None)


class Replay:
    """The asynchronous trainer's buffer and its collector: one group of the two responses."""

    def size(self) -> int:
        return 1

    def has_complete_batch(self, *args: Any) -> bool:
        return True

    def sample(self, **keywords: Any) -> dict[str, Any]:
        """The group, by NeMo-RL's rollouts."""
        batch, metrics = rolled_out()
        group = {"batch": batch, "rollout_metrics": metrics}
        return {"trajectories": [group], "avg_trajectory_age": 0.0}

    def __getattr__(self, name: str) -> Any:
        return _nothing


def rolled_out() -> tuple[Any, dict[str, Any]]:
    """The two responses as a batch of NeMo-RL's own rollouts, and its metrics."""
    config = config_of({})
    return run_multi_turn_rollout(
        policy_generation=Engine(config.policy["generation"]),
        input_batch=_prompt().repeat_interleave(2),
        tokenizer=tokenizer(),
        task_to_env={TASK: Actor(Environment())},  # pyright: ignore
        max_seq_len=config.policy["max_total_sequence_length"],
        max_rollout_turns=1,
    )


class Done:
    """A future of Ray's that has its value."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Actor:
    """An actor of Ray's in this process."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)
        return Remote(lambda *args, **keywords: Done(method(*args, **keywords)))


class Remote:
    """What `options` and `remote` of Ray's are called on; make: an actor, or a method's future."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.remote = make

    def options(self, **_: Any) -> "Remote":
        return self


class Silent:
    """A logger or checkpointer: every method gives None."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **keywords: None


def filled(kind: Any, own: Mapping[str, Any]) -> Any:
    """A dataclass of NeMo-RL's: `own` fields that it has, its defaults, `Silent` for the rest."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    given = {name: value for name, value in own.items() if name in fields}
    for name in fields.keys() - given.keys():
        field = fields[name]
        if field.default is field.default_factory:  # both are missing
            given[name] = Silent()
    return kind(**given)


class State(defaultdict[str, int]):
    """The save state of a run's start; a dictionary in v0.7.0, an object in main."""

    def __init__(self) -> None:
        super().__init__(int)

    def __getattr__(self, name: str) -> int:
        return self[name]


# what NeMo-RL's setup returns at the start of a run, for the estimator
START = {"checkpointer": Silent(), "grpo_save_state": State()}


def _do_not_wait(seconds: float) -> None:
    """What a loop of NeMo-RL's waits for here never comes; other threads may sleep."""
    if threading.current_thread() is threading.main_thread():
        raise TimeoutError("it waits for what this step does not have")
    SLEEP(seconds)


def _get(futures: Any, **_: Any) -> Any:
    if isinstance(futures, list):
        return [_get(future) for future in futures]
    if isinstance(futures, Done):
        return futures.value
    return futures


@contextmanager
def without_ray(policy: Any) -> Iterator[io.StringIO]:
    """Within, Ray is this process, the data plane is memory, and what is printed goes to a text."""
    client = getattr(policy, "dp_client", None)
    replay = Remote(lambda *args, **keywords: Actor(Replay()))
    places = [
        ("ray", "get", _get),
        ("ray", "kill", lambda actor: None),
        ("time", "sleep", _do_not_wait),
        ("nemo_rl.utils.memory_tracker", "memory_summary", lambda **_: ""),
        ("nemo_rl.data_plane", "build_data_plane_client", lambda *_, **__: client),
        (QUEUED, "SyncRolloutActor", Remote(_rollouts)),
        (QUEUED, "make_actor_runtime_env", lambda _: {}),
        ("nemo_rl.algorithms.async_utils", "ReplayBuffer", replay),
        ("nemo_rl.algorithms.async_utils", "AsyncTrajectoryCollector", replay),
        ("nemo_rl.algorithms.grpo", "get_actor_python_env", lambda _: "python"),
    ]
    there = []
    for name, attribute, value in places:
        module = import_module(name) if versions.present(name) else None
        if hasattr(module, attribute):
            there.append((module, attribute, value))
    text = io.StringIO()
    with versions.replace_attributes(*there), redirect_stdout(text), redirect_stderr(text):
        yield text


def _rollouts(**keywords: Any) -> Actor:
    """NeMo-RL's actor of rollouts, in this process."""
    from nemo_rl.experience.sync_rollout_actor import SyncRolloutActor

    return Actor(SyncRolloutActor.__ray_metadata__.modified_class(**keywords))


def config_of(own: Mapping[str, Any]) -> Any:
    """NeMo-RL's default config for one step, with `own` keys by path."""
    register_omegaconf_resolvers()
    tree = load_config(str(versions.EXAMPLES / "configs" / DEFAULT))
    for key, value in {**STEP, **own}.items():
        OmegaConf.update(tree, key, value)
    plain: Any = OmegaConf.to_container(tree, resolve=True)
    return grpo.MasterConfig(**plain)


def tokenizer() -> PreTrainedTokenizerFast:
    """Of 16 words."""
    words = {"<pad>": 0, "<eos>": 1} | {f"t{i}": i for i in range(2, 16)}
    of_words = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    of_words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=of_words, pad_token="<pad>", eos_token="<eos>")


def _prompt() -> Any:
    """NeMo-RL's batch of one prompt."""
    message = {"role": "user", "content": "t4", "token_ids": torch.tensor(PROMPT)}
    datum: Any = {"message_log": [message], "length": 1, "idx": 0, "task_name": TASK}
    return rl_collate_fn([datum | {"extra_env_info": {}, "loss_multiplier": 1.0}])
