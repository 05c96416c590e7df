"""NeMo-RL's single controller, in this process, over real workers and a real queue.

Rollouts are put into the queue as they come from a rollout; refits do nothing. The rest of a step
is its own: selection, log-probs, advantages, chunks, update, metrics.
"""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import configs
import settings
import torch
from drawn import GROUP, Drawn
from driver import Driver
from nemo_rl.algorithms import grpo_sync
from nemo_rl.data_plane import column_io
from nemo_rl.models.policy import tq_policy

from nemo_algos import build
from nemo_algos.engines.nemo.trace import Traced
from nemo_algos.jsonl import read_lines
from nemo_algos.lab.evals.records import TraceLine

STOCK = [
    (m, "DP_TRAIN_FIELDS", m.DP_TRAIN_FIELDS)
    for m in (tq_policy, grpo_sync)
    if hasattr(m, "DP_TRAIN_FIELDS")
]
STOCK += [(column_io, "TOKEN_ALIGNED_FIELDS", column_io.TOKEN_ALIGNED_FIELDS)]
GROUPS = configs.ROWS // GROUP
BASE = "grpo_math_1B_megatron_single_controller.yaml"
CHUNKS = (GROUPS, 2, 1)
BLOCKS = {"apmpo_group": {"name": "apmpo", "statistics": "group"}}
ASKED = (
    f"policy.train_global_batch_size={configs.ROWS}",
    "++grpo.skip_reference_policy_logprobs_calculation=false",
    "async_rl.sampler={name: windowed}",
    "++data_plane.storage_capacity=1000",
    "++data_plane.num_storage_units=1",
)


class Controlled(Driver):
    """A driver whose steps are the controller's."""

    def composed(self, backend: str, model: Path, overrides: tuple[str, ...]) -> Any:
        from nemo_rl.algorithms.single_controller_utils import MasterConfig

        return configs.composed(backend, model, (*ASKED, *overrides), BASE, MasterConfig)

    def made(self, *args: Any, **kwargs: Any) -> Any:
        from nemo_rl.models.policy.tq_policy import TQPolicy

        return TQPolicy(*args, dp_cfg=self.master.data_plane, **kwargs)

    def updates(self, case: str, chunk: int) -> dict[str, Any]:
        """As the driver's; chunk: groups that are trained on at once, at least and at most."""
        method, asked = settings.of(case)
        proxy = self.proxied(build({"name": method, "terms": asked.terms}, asked.correction))
        algorithm, start = proxy._estimator.algorithm, self.plain.detached(self.ids)[0]
        controller = controller_of(self, self._loss(algorithm, asked), proxy._estimator)
        found: dict[str, Any] = {name: ([], []) for name in ("losses", "norms", "mismatch")}
        for number in (1, 2):
            given = Drawn.of(number, self.valid)
            given = given._replace(old=given.old * 0, reference=given.reference * 0)
            logprobs, entropies = self.plain.detached(self.ids)
            batch = self.batch(logprobs, entropies, start, given)
            got = stepped(controller, self.rows(given), chunk)
            wanted = self.plain.train(method, asked.wanted, batch, self.ids)
            for name, pair in found.items():
                pair[0].extend(got[name])
                pair[1].extend(wanted[name])
        found["moved"] = self.apart(self.plain.detached(self.ids)[0], start)
        return found | self.errors() | {"weights": self.plain.apart(self.sent(), self.ids.numel())}

    def sides(self, case: str) -> dict[str, dict[str, list[float]]]:
        """A step's numbers by the synchronous trainer's calls, and by chunks of groups.

        Of each: its loss and norm, and the advantages of all tokens that take part.
        """
        method, asked = settings.of(case)
        block = BLOCKS.get(method, {"name": method}) | {"terms": asked.terms}
        algorithm = build(block, asked.correction)
        given = Drawn.of(1, self.valid)
        given = given._replace(old=given.old * 0, reference=given.reference * 0)
        proxy = self.proxied(algorithm)
        seen = advantages_of(proxy._estimator)
        step = self.step(proxy, asked, given)
        found = {"synchronous": numbers(step, seen)}
        for chunk in CHUNKS:
            self.reset()
            estimator = self.proxied(algorithm)._estimator
            seen = advantages_of(estimator)
            controller = controller_of(self, self._loss(algorithm, asked), estimator)
            found[f"chunks of {chunk}"] = numbers(
                stepped(controller, self.rows(given), chunk), seen
            )
        return found

    def traced(self, case: str, folder: Path, chunk: int) -> tuple[list[Any], list[list[float]]]:
        """A step's trace, and the ratios to the sampler after it, of the rows of two groups."""
        method, asked = settings.of(case)
        estimator = self.proxied(build({"name": method}, asked.correction))._estimator
        loss, traced = self._loss(estimator.algorithm, asked), Traced(1, 2)
        controller = controller_of(self, loss, estimator, folder=folder, traced=traced)
        rows = self.rows(Drawn.of(1, self.valid))
        stepped(controller, rows, chunk)
        ratios = (self.forward()[0] - rows["generation_logprobs"]).exp()
        mask = (rows["token_mask"] * rows["sample_mask"][:, None]).bool()
        shown = [ratios[i][mask[i]].tolist() for i in range(2 * GROUP)]
        return [*read_lines(folder / "trace.jsonl", TraceLine)], shown

    def rows(self, given: Drawn) -> dict[str, torch.Tensor]:
        """What a rollout leaves."""
        logprobs, _ = self.forward()
        return {
            "input_ids": self.data["input_ids"],
            "input_lengths": self.data["input_lengths"],
            "generation_logprobs": logprobs + given.sampler,
            "token_mask": self.data["token_mask"],
            "sample_mask": self.data["sample_mask"],
            "prompt_ids_for_adv": torch.arange(configs.ROWS)[:, None] // GROUP,
            "total_reward": given.rewards,
        }


def advantages_of(estimator: Any) -> list[float]:
    """What it gives from now on, of the tokens that take part, row by row."""
    from nemo_algos.engines.nemo.estimator import tensor_of

    stock, seen = estimator.compute_advantage, list[float]()

    def compute_advantage(**given: Any) -> Any:
        result = stock(**given)
        seen.extend(tensor_of(result)[given["mask"].bool()].tolist())
        return result

    estimator.compute_advantage = compute_advantage
    return seen


def numbers(step: dict[str, list[float]], advantages: list[float]) -> dict[str, list[float]]:
    """Of a step, for a comparison."""
    return {"loss and norm": [*step["losses"], *step["norms"]], "advantages": advantages}


def controller_of(driver: Controlled, loss: Any, estimator: Any, **watched: Any) -> Any:
    """The actor's own class, its logger keeping what it is told; watched: what is not usual."""
    from nemo_rl.algorithms.async_utils.replay_buffer import TQReplayBuffer
    from nemo_rl.algorithms.grpo import _initial_grpo_save_state
    from nemo_rl.algorithms.metric_utils import SetupTimingMetrics
    from nemo_rl.algorithms.single_controller_utils.setup import SingleControllerActorArgs

    from nemo_algos.algorithms.extensions.loss_config import MismatchConfig
    from nemo_algos.engines.nemo.single_controller import ControllerImpl

    nothing = SimpleNamespace(
        sync_weights=lambda **_: None,
        requires_kv_scale_sync=False,
        set_weight_version=lambda version: None,
    )
    client = driver.policy.dp_client
    args = SingleControllerActorArgs(
        **dict.fromkeys(("train_cluster", "inference_cluster", "dataloader")),
        gen_handle=nothing,
        trainer_handle=driver.policy,
        env_handles={},
        dp_client=client,
        weight_synchronizer=nothing,
        advantage_estimator=estimator,
        loss_fn=loss,
        rollout_manager=nothing,
        tq_buffer=TQReplayBuffer(client, "rollout_data", pad_value_dict={}),
        partition_id="rollout_data",
        save_state=_initial_grpo_save_state(),
        last_checkpoint_path=None,
    )
    watched = {"mismatch": MismatchConfig(), "step": 0, "loss": loss.config} | watched
    for module, name, value in STOCK:  # this process has more than one
        setattr(module, name, value)
    return ControllerImpl(driver.master, args, SetupTimingMetrics(), watched=watched)


def stepped(controller: Any, rows: dict[str, torch.Tensor], chunk: int) -> dict[str, list[float]]:
    """A step of these rows: its loss, norm and mismatch, as logged."""
    logged: dict[str, float] = {}
    controller._logger.log_metrics = lambda metrics, step, prefix="", **_: logged.update(metrics)
    controller._async_cfg.min_groups_for_streaming_train = chunk
    controller._master_config.grpo.max_num_steps = controller._train_steps + 1
    asyncio.run(_step(controller, rows, chunk))
    names = {"losses": "loss", "norms": "grad_norm", "mismatch": "mismatch/max"}
    return {name: [logged[key]] for name, key in names.items() if key in logged} | {
        name: [] for name, key in names.items() if key not in logged
    }


async def _step(controller: Any, rows: dict[str, torch.Tensor], chunk: int) -> None:
    """A chunk's groups arrive when the one before is trained on."""
    pump = asyncio.create_task(controller._train_pump())
    for first in range(0, GROUPS, chunk):
        for group in range(first, first + chunk):
            await _commit(controller, {k: v[group * GROUP :][:GROUP] for k, v in rows.items()})
        while len(controller._buffer) and not pump.done():
            await asyncio.sleep(0.01)
    await pump


async def _commit(controller: Any, rows: dict[str, torch.Tensor]) -> None:
    from nemo_rl.algorithms.async_utils import replay_buffer

    longest = int(rows["input_lengths"].max())
    cut = {
        k: v[:, :longest] if v.dim() == 2 and v.shape[1] > longest else v for k, v in rows.items()
    }
    replay_buffer.record_to_train_batch = lambda record, pad_value_dict: record
    await controller._buffer_capacity.acquire()
    version = controller._trainer_version
    group = controller._buffer.reserve(weight_version=version)
    await controller._buffer.commit(group, cut, version, version)
