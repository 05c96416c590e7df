"""A real local Ray: loss and signals cross into workers that have only PYTHONPATH for our package.

Workers run Python without its `site` module, so that no installed nemo_algos (an editable one, say)
is found; Ray also gives them the driver's working directory, which is therefore another one.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import batches
import local_ray
import nemo_batch
import pytest
import ray
import torch

from nemo_algos.algorithms.build import build
from nemo_algos.engines.nemo import worker_env
from nemo_algos.engines.nemo.loss import AlgorithmLoss


@contextmanager
def workers() -> Iterator[None]:
    """A Ray whose workers' path is $PYTHONPATH."""
    environment = {
        "py_executable": f"{sys.executable} -S",
        "env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"], "HF_HUB_OFFLINE": "1"},
    }
    with local_ray.running(num_cpus=2, runtime_env=environment):
        yield


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At first $PYTHONPATH is NeMo-RL and what is installed."""
    installed = [p for p in sys.path if Path(p).name == "site-packages"]
    nemo_rl = os.environ["PYTHONPATH"].split(os.pathsep)[0]  # conftest.py
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([nemo_rl, *installed]))
    monkeypatch.chdir(tmp_path)


def test_loss_and_signals_reach_workers_that_have_only_pythonpath() -> None:
    worker_env.export()
    assert os.environ["PYTHONPATH"].split(os.pathsep)[0] == str(worker_env.ROOT)

    def work(loss: Any, logprobs: Any, data: Any) -> dict[str, Any]:  # local: pickled by value
        import os
        import sys

        import torch

        import nemo_algos

        leaf = logprobs.requires_grad_()
        tokens = data["token_mask"][:, 1:] * data["sample_mask"][:, None]
        value, metrics = loss(leaf, data, data["sample_mask"].sum(), tokens.sum())
        (gradient,) = torch.autograd.grad(value, leaf)
        where = {"pid": os.getpid(), "site": not sys.flags.no_site, "file": nemo_algos.__file__}
        kinds = {"data": type(data).__name__, "loss": type(loss).__name__}
        return {"value": value.detach(), "gradient": gradient, "metrics": metrics, **where, **kinds}

    with workers():
        worker_env.check()

        remote = ray.remote(num_cpus=1)(work)
        for method in ("etr", "quatro", "erpo", "apmpo", {"advantages": "erpo", "bounds": "etr"}):
            algorithm = build(method)
            rollouts, logprobs = batches.make(seed=11, large=False, dtype=torch.float32)
            data = nemo_batch.batch(algorithm, rollouts)
            shipped = any(key.startswith("nemo_algos_") for key in data)
            assert shipped != (method in ("quatro", "erpo"))  # these two have nothing to ship
            loss = AlgorithmLoss(nemo_batch.config(), algorithm)
            leaf = logprobs.where(rollouts.mask, 0.0)
            theirs = ray.get(remote.remote(loss, leaf, data), timeout=600)
            value, gradient, metrics = nemo_batch.loss_and_gradient(loss, logprobs, data)
            assert torch.equal(theirs["value"], value) and torch.equal(theirs["gradient"], gradient)
            assert theirs["metrics"] == metrics
            assert theirs["pid"] != os.getpid() and not theirs["site"]
            assert Path(theirs["file"]).parents[1] == worker_env.ROOT
            assert (theirs["data"], theirs["loss"]) == ("BatchedDataDict", "AlgorithmLoss")


def test_check_names_the_node_where_the_package_is_missing() -> None:
    """Without export(): the error that replaces an unpickling trace after the models are loaded."""
    with workers():
        with pytest.raises(ValueError, match="workers cannot import nemo_algos") as error:
            worker_env.check()
        (node,) = ray.nodes()
        assert node["NodeManagerAddress"] in str(error.value)
        assert "No module named 'nemo_algos" in str(error.value)
        assert str(worker_env.ROOT) in str(error.value)
