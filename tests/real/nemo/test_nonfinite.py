"""A number that is not finite ends a run of any trainer before its checkpoint; `report` warns."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from plugged import METHODS, Plugged
from test_async import trained

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.extensions.loss_config import LossConfig
from nemo_algos.engines.nemo import versions
from nemo_algos.engines.nemo.estimator import Estimator, tensor_of
from nemo_algos.engines.nemo.policy import DataPlaneProxy, PolicyProxy

# what is broken, its value, and what is said of it
FAULTS = {
    "prev_logprobs": (torch.nan, "trainer's log-prob of 1 of 3 .*sequence 1, position 2"),
    "generation_logprobs": (-torch.inf, "sampler's log-prob of 1 of 3"),
    "reference_policy_logprobs": (torch.nan, "reference model's log-prob of 1 of 3"),
    "loss": (torch.nan, "the loss of update 2 of 2 is nan"),
    "grad_norm": (torch.inf, "the grad_norm of update 2 of 2 is inf"),
}
CONTROLLER = versions.present(versions.CONTROLLER)  # v0.7.0 has none
PROXIES = ["policy", "data plane", *(["controller"] if CONTROLLER else [])]


class Policy:
    """Workers' answers to a batch, with one of the faults."""

    def __init__(self, fault: str, place: tuple[int, int]) -> None:
        shape = (2, 4)
        columns = ("prev_logprobs", "generation_logprobs", "reference_policy_logprobs")
        self.columns = {name: -torch.ones(shape) for name in columns}
        self.columns |= {
            "input_ids": torch.ones(shape).long(),
            "input_lengths": torch.tensor([3, 4]),
        }
        self.columns["token_mask"] = torch.tensor([[0.0, 1, 1, 0], [0, 0, 1, 0]])
        self.columns["sample_mask"] = torch.ones(2)
        self.results = {"loss": torch.zeros(2), "grad_norm": torch.ones(2), "all_mb_metrics": {}}
        value = FAULTS[fault][0]
        if fault in self.columns:
            self.columns[fault][place] = value
        else:
            self.results[fault][1] = value
        self.trained = 0

    def train(self, *_: Any, **__: Any) -> Any:
        self.trained += 1
        return self.results

    train_from_meta = finish_train_step = train

    def read_from_dataplane(self, meta: Any, *, select_fields: list[str], **_: Any) -> Any:
        return BatchedDataDict({name: self.columns[name] for name in select_fields})

    def write_to_dataplane(self, meta: Any, fields: dict[str, Any]) -> None:
        pass


def step(kind: str, policy: Policy, config: LossConfig) -> None:
    """One training step of each of the three ways to the workers."""
    estimator = Estimator(build("grpo"))
    data = BatchedDataDict(policy.columns)
    mask = data["token_mask"]
    result = estimator.compute_advantage(
        torch.ones(2, 1).long(), torch.tensor([0.0, 1.0]), mask, logprobs_policy=-mask
    )
    advantages = {"advantages": tensor_of(result)}
    if kind == "policy":
        PolicyProxy(policy, estimator, loss=config).train(
            BatchedDataDict({**data, **advantages}), None
        )
    elif kind == "data plane":
        proxy = DataPlaneProxy(policy, estimator, loss=config)
        proxy.read_from_dataplane(None, select_fields=[n for n in data if n != "sample_mask"])
        proxy.write_to_dataplane(None, advantages | {"sample_mask": data["sample_mask"]})
        proxy.train_from_meta()
    else:
        from nemo_algos.engines.nemo.single_controller import StepProxy

        proxy = StepProxy(policy, estimator, loss=config)
        proxy.take(dict(data), advantages)
        proxy.finish_train_step()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", PROXIES)
def test_the_first_that_is_not_finite_is_named(
    kind: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = Policy(fault, (1, 2))
    with pytest.raises(FloatingPointError, match=rf"step 1: .*{FAULTS[fault][1]}.*on_nonfinite"):
        step(kind, policy, LossConfig())
    assert policy.trained == (fault not in policy.columns)  # of a broken batch no weight learns
    step(kind, Policy(fault, (1, 2)), LossConfig(on_nonfinite="report"))
    assert "warning: step 1: the" in capsys.readouterr().out
    if fault in policy.columns:  # no response token
        step(kind, Policy(fault, (1, 3)), LossConfig())


def test_a_model_that_becomes_nan_ends_after_its_last_whole_checkpoint(
    tmp_path: Path, in_process: None
) -> None:
    made = Plugged(tmp_path, METHODS["etr"], ["checkpointing.save_period=1"])
    train = made.run.policy.train
    steps: list[int] = []

    def then_broken(*args: Any, **kwargs: Any) -> Any:
        results = train(*args, **kwargs)
        steps.append(len(steps))
        next(made.run.policy.workers.model.model.parameters()).data.fill_(torch.nan)
        return results

    made.run.policy.train = then_broken
    with pytest.raises(FloatingPointError, match=r"step 2: .*(log-prob|loss)"):
        made.train()
    assert steps == [0]
    if hasattr(made.run.checkpointer, "shutdown"):
        made.run.checkpointer.shutdown()
    assert [path.name for path in tmp_path.rglob("step_*") if path.is_dir()] == ["step_1"]


def test_the_asynchronous_trainer_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: None
) -> None:
    """v0.7.0's prints what is raised and ends: the launcher raises what the proxy keeps."""
    proxies: list[PolicyProxy] = []

    def broken(proxy: PolicyProxy, results: Any) -> Any:
        proxies.append(proxy)
        return stock(proxy, results | {"grad_norm": torch.tensor(torch.nan)})

    stock = PolicyProxy._logged
    monkeypatch.setattr(PolicyProxy, "_logged", broken)
    with contextlib.suppress(FloatingPointError):
        trained(tmp_path, "etr", "unpacked", monkeypatch, [])
    assert len(proxies) == 1 and "step 1: the grad_norm of update 1 of 1 is nan" in str(
        proxies[0].stopped
    )
