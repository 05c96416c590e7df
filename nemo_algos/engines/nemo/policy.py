"""NeMo-RL's policy, which also hands over entropies and signals and watches the sampler.

Entropies are kept for the estimator, signals go into the training batch, and the sampler is
compared with the trainer before it. `PolicyProxy` for grpo_train and async_grpo_train,
`DataPlaneProxy` for grpo_train_sync, where tensors travel through TransferQueue by name and the
driver sees only what it reads.
"""

import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from nemo_algos.algorithms.extensions.correction import sampler_metrics
from nemo_algos.algorithms.extensions.loss_config import LossConfig, MismatchConfig
from nemo_algos.engines.dumps.watch import Watch
from nemo_algos.engines.nemo import columns, loss_metrics, nonfinite, trace, versions
from nemo_algos.engines.nemo.estimator import Estimator, Forward
from nemo_algos.engines.nemo.probe import Probe
from nemo_algos.engines.nemo.trace import Traced
from nemo_algos.engines.remarks import NEMO_RL, Remarks

LOG = logging.getLogger(__name__)
ENTROPY = "nemo_algos_entropy"  # the column of the data plane


def listen(logger: Any, remarks: Remarks) -> None:
    """Log remarks on each training step that NeMo-RL's logger is given.

    NeMo-RL logs a step in several calls; the last one has the rewards.
    """
    log = logger.log_metrics
    row = dict[str, Any]()

    def log_metrics(metrics: Any, step: int, prefix: str = "", **kwargs: Any) -> None:
        log(metrics, step, prefix=prefix, **kwargs)
        if prefix == "validation" and "accuracy" in metrics:
            remarks.held_out[step] = metrics["accuracy"]
        if prefix != "train":
            return
        for name, value in metrics.items():
            row[NEMO_RL.get(name) or name] = value
        if "reward" in metrics:
            judged = {k: n for k, n in row.items() if k.startswith("verifier/")}
            if judged:
                row["responses"] = sum(judged.values())
                row["reward/unverified"] = row["responses"] - judged["verifier/ok"]
            for said in remarks.of(step, row):
                LOG.warning("%s", said)
            row.clear()

    logger.log_metrics = log_metrics


class PolicyProxy:
    """Everything but what is defined here is the policy's own.

    folder: of dumps, where there is one; step: the last one done; loss: what weighs by the sampler;
    compares: whether there are old log-probs of the trainer's to compare with the sampler's;
    epochs: passes over each batch; traced: the token traces that go to the folder; generation:
    NeMo-RL's, which is probed; precision: the sampler's, by name.
    """

    def __init__(
        self,
        policy: Any,
        estimator: Estimator,
        mismatch: MismatchConfig = MismatchConfig(),
        *,
        folder: Path | None = None,
        step: int = 0,
        loss: LossConfig = LossConfig(),
        compares: bool = True,
        epochs: int = 1,
        traced: Traced = Traced(),
        generation: Any = None,
        precision: str = "",
        remarks: Remarks | None = None,
    ) -> None:
        self._policy = policy
        self._estimator = estimator
        self._watch = Watch(mismatch, folder, precision)
        self.remarks = remarks or Remarks(estimator.group_size, responses=0, limit=0)
        self._step = step
        self._loss = loss
        self._compares = compares
        self._epochs = epochs
        self._traced = traced
        self.seen: dict[str, float] = {}  # this step's metrics beside the method's
        self._read: Any = None  # what the driver last read of the data plane
        self.stopped: FloatingPointError | None = None
        self._probe: Probe | None = None
        if mismatch.probe and generation is not None:
            self._probe = Probe(generation, lambda: self._watch.due(self._step + 1))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def get_logprobs(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """As the policy's; the worker extension's entropies and the masks go to the estimator."""
        out = self._policy.get_logprobs(data, *args, **kwargs)
        self._estimator.forward = Forward(
            entropy=out.get("entropies"), masks=(data["token_mask"], data["sample_mask"])
        )
        return out

    def train(self, data: Any, loss_fn: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As the policy's, with signals and metrics.

        Raises FloatingPointError as `Monitor.of`, and where a number is not finite; `stopped` keeps
        it.
        """
        try:
            return self._train(data, loss_fn, *args, **kwargs)
        except FloatingPointError as error:
            self.stopped = error
            raise

    def _train(self, data: Any, loss_fn: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        self._see_arrival()
        self._begin_step(data)
        self._require_finite(nonfinite.in_batch(data))
        own = self._estimator.masks_for(data["token_mask"], data["sample_mask"])
        own |= self._estimator.signals_for(data["advantages"])
        if self._bypass:
            own["prev_logprobs"] = data["generation_logprobs"]
        batch = type(data)({**data, **own})
        passes = batch
        if self._epochs > 1:  # global batches are rows in order: the same ones again
            passes = type(data).from_batches([batch] * self._epochs)
        results = self._logged(self._policy.train(passes, loss_fn, *args, **kwargs))
        if self._due:
            assert self._estimator.step
            self._trace(batch, self._estimator.step.rollouts)
        return results

    @property
    def traces(self) -> bool:
        return bool(self._traced.period and self._watch.folder)

    @property
    def _due(self) -> bool:
        return self.traces and self._traced.due(self._step)

    def _trace(self, batch: Any, rollouts: Any) -> None:
        """Append traces of a batch with the method's columns; its responses are the rollouts'."""
        if not self._compares:  # no old log-probs were computed
            batch = type(batch)({**batch, "prev_logprobs": batch["generation_logprobs"]})
        ask = functools.partial(trace.current_logprobs, self._policy, batch)
        found = trace.lines(
            self._traced,
            self._step,
            batch,
            rollouts=rollouts,
            algorithm=self._estimator.algorithm,
            ask=ask,
        )
        assert self._watch.folder is not None
        trace.write(self._watch.folder, found)

    @property
    def _bypass(self) -> bool:
        """Whether the old policy's log-probs are the sampler's."""
        return self._estimator.algorithm.correction.bypass_mode

    def _begin_step(self, data: Mapping[str, Tensor]) -> None:
        """Count the step; add its batch's mismatch to metrics: [B,S] each, sample_mask [B]."""
        self._step += 1
        if self._bypass or not self._compares:
            return
        compared = {
            "mask": (data["token_mask"] * data["sample_mask"][:, None]).bool(),
            "trainer_logprobs": data["prev_logprobs"],
            "sampler_logprobs": data["generation_logprobs"],
        }
        if self._watch.settings.dump:
            compared["tokens"] = data["input_ids"]
            compared["prompt_length"] = data["token_mask"].argmax(1)
        ask = self._probe and functools.partial(self._probe.again, self._policy)
        mismatch, apart = self._watch.of(self._step, compared, ask)
        self.seen |= mismatch | self._weights(compared)
        self._say(self._step, apart)

    def _see_arrival(self) -> None:
        """Add how far the probe's log-probs moved to the metrics; say where weights are missing."""
        if not self._probe:
            return
        asked = self._probe.columns(self._policy)
        if asked is None:
            return
        moved, remark = self._watch.probed(self._step + 1, asked, self._probe.sums)
        self.seen |= moved
        self._say(self._step + 1, remark)

    def _say(self, step: int, *sentences: str) -> None:
        for said in self.remarks.note(step, sentences):
            LOG.warning("%s", said)

    def _weights(self, columns: Mapping[str, Tensor]) -> dict[str, float]:
        """Of `loss_fn.use_importance_sampling_correction`, {} without."""
        algorithm = self._estimator.algorithm
        if algorithm.correction.active or not self._loss.use_importance_sampling_correction:
            return {}
        step = self._estimator.step
        return sampler_metrics(
            algorithm.base.method,
            self._loss.cut,
            columns["trainer_logprobs"],
            gen=columns["sampler_logprobs"],
            mask=columns["mask"],
            turn=step.rollouts.turn if step else None,
        )

    def _require_finite(self, fault: str) -> None:
        """Raises FloatingPointError with the fault, or warns: as `loss_fn.on_nonfinite` says."""
        if not fault:
            return
        said = f"{fault}. {nonfinite.CURE}"
        if self._loss.on_nonfinite == "error":
            raise FloatingPointError(f"step {self._step}: {said}")
        self._say(self._step, said)

    def _logged(self, results: dict[str, Any]) -> dict[str, Any]:
        self._require_finite(nonfinite.in_results(results))
        assert self._estimator.step
        own = {}
        for name, value in (self._estimator.step.metrics | self.seen).items():
            own[name] = [value]
        self.seen = {}
        results["all_mb_metrics"] = loss_metrics.by_sign(results["all_mb_metrics"]) | own
        return results


class DataPlaneProxy(PolicyProxy):
    """A TQPolicy likewise: signals are columns [B,S], the one shape that every queue carries."""

    def get_logprobs_from_meta(self, *args: Any, **kwargs: Any) -> None:
        """As the policy's; nothing where the sampler's log-probs are taken."""
        if not self._bypass:
            self._policy.get_logprobs_from_meta(*args, **kwargs)

    def read_from_dataplane(self, meta: Any, *, select_fields: list[str], **kwargs: Any) -> Any:
        """As the policy's; with the previous log-probs come the rows' mask, and the entropies."""
        if "prev_logprobs" not in select_fields:
            return self._policy.read_from_dataplane(meta, select_fields=select_fields, **kwargs)
        wanted = [ENTROPY] if "entropy" in self._estimator.algorithm.needs else []
        there = [f for f in select_fields if f != "prev_logprobs" or not self._bypass]
        dumped = self._watch.settings.dump and not self._bypass
        looked: list[str] = []
        if dumped or self.traces:
            looked.append("input_ids")
        if self.traces:
            looked.append("input_lengths")
        ids = [name for name in looked if name not in select_fields]
        fields = [*there, "sample_mask", *wanted, *ids]
        data = self._policy.read_from_dataplane(meta, select_fields=fields, **kwargs)
        self._estimator.forward = Forward(
            entropy=data.pop(ENTROPY) if wanted else None,
            masks=(data["token_mask"], data.pop("sample_mask")),
            sampled=data["generation_logprobs"],
        )
        if self._bypass:
            data["prev_logprobs"] = data["generation_logprobs"]
        self._read = type(data)({**data})
        for name in ids:
            data.pop(name)
        return data

    def write_to_dataplane(self, meta: Any, fields: dict[str, Any]) -> None:
        """As the policy's, with the signals. Raises FloatingPointError as `train`."""
        if "advantages" in fields:
            read = {**self._read, **fields}
            self._begin_step(read)
            self._require_finite(nonfinite.in_batch(read))
            own = self._estimator.masks_for(read["token_mask"], read["sample_mask"])
            signals = self._estimator.signals_for(fields["advantages"])
            own |= columns.widen(signals, fields["advantages"].shape)
            own |= {"prev_logprobs": read["prev_logprobs"]} if self._bypass else {}
            fields = fields | own
            self._read = type(self._read)({**read, **own})
        self._policy.write_to_dataplane(meta, fields)

    def train_from_meta(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As the policy's; logs the method's metrics with the loss's."""
        train = self._policy.train_from_meta
        fields = fetched_fields(train, self._estimator, kwargs)
        results = self._logged(train(*args, **kwargs | fields))
        if self._due:
            assert self._estimator.step
            self._trace(self._read, self._estimator.step.rollouts)
        return results


def fetched_fields(
    train: Callable[..., Any], estimator: Estimator, given: Mapping[str, Any]
) -> dict[str, tuple[str, ...]]:
    """The argument `train_fields` with the method's columns, where a policy fetches by name.

    given: the arguments by name of the call of train. A NeMo-RL without the argument fetches what
    `registrations` has added.
    """
    parameter = inspect.signature(train).parameters.get("train_fields")
    if parameter is None:
        return {}
    fields = given.get("train_fields", parameter.default)
    return {"train_fields": tuple(dict.fromkeys((*fields, *_columns(estimator))))}


def _columns(estimator: Estimator) -> tuple[str, ...]:
    """What a method's batches have beside NeMo-RL's columns."""
    entropy = (ENTROPY,) if "entropy" in estimator.algorithm.needs else ()
    return (*columns.names(estimator.algorithm).values(), *entropy)


@contextmanager
def columns_registered(estimator: Estimator) -> Iterator[None]:
    """Within, the method's columns are fields of the data plane's training partition, [B,S]."""
    with versions.replace_attributes(*registrations(estimator)):
        yield


def registrations(estimator: Estimator) -> list[tuple[Any, str, Any]]:
    """What makes them so in a process: NeMo-RL's module, a name in it, and its value."""
    from nemo_rl.algorithms import grpo_sync
    from nemo_rl.data_plane import column_io
    from nemo_rl.models.policy import tq_policy

    names = _columns(estimator)
    fields = tuple(dict.fromkeys((*tq_policy.DP_TRAIN_FIELDS, *names)))
    aligned = column_io.TOKEN_ALIGNED_FIELDS | set(names)
    holders = [m for m in (tq_policy, grpo_sync) if hasattr(m, "DP_TRAIN_FIELDS")]
    ours = [(module, "DP_TRAIN_FIELDS", fields) for module in holders]
    return [*ours, (column_io, "TOKEN_ALIGNED_FIELDS", aligned)]
