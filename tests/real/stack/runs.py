"""A run of the program in a folder of its own, and what holds for it."""

import math
from pathlib import Path

import torch
import whole_run
from rehearsal.training import Attempt
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

STEPS, TIMEOUT = 4, 1500  # seconds, on a machine that does other things
ROLLOUTS = 16 * 16
CONTROLLER = "--config=recipes/cpu/countdown-1n2g-controller.yaml"
Env = dict[str, str]


class Run:
    """A run in a folder of its own beside the common start."""

    def __init__(self, place: tuple[Path, Env], name: str, method: str, *overrides: str) -> None:
        above, self.env = place
        self.folder = above / name
        self.folder.mkdir()
        (self.folder / "start").symlink_to(above / "start")
        self.overrides = (
            f"method.name={method}",
            f"grpo.max_num_steps={STEPS}",
            f"policy.model_name={above}/start/model",
            f"checkpointing.checkpoint_dir={self.results}",
            *overrides,
        )

    @property
    def results(self) -> Path:
        """Its checkpoints."""
        return self.folder / "results"

    def start(self, **options: Path) -> Attempt:
        return whole_run.train(self.folder, self.env, *self.overrides, **options)

    def whole(self, status: int = 0, **options: Path) -> "Run":
        assert self.start(**options).ended(TIMEOUT) == status, self.said()[-20_000:]
        return self

    def said(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def curve(self, name: str) -> list[float]:
        values = whole_run.curve(self.folder, f"train/{name}")
        assert list(values) == list(range(1, len(values) + 1)), (name, values)
        return list(values.values())

    def weights(self, step: int) -> dict[str, torch.Tensor]:
        folder = self.results / f"step_{step}" / "policy" / "weights"
        if files := sorted(folder.rglob("*.safetensors")):  # adapters
            return {name: tensor for file in files for name, tensor in load_file(file).items()}
        (metadata,) = folder.rglob(".metadata")
        dcp_to_torch_save(metadata.parent, self.folder / "weights.pt")
        saved = torch.load(self.folder / "weights.pt", weights_only=True)
        return saved.get("model", saved)


def is_sound(run: Run, steps: int = STEPS) -> None:
    """What holds for every run: the sampler is the trainer, and every response is judged."""
    rewards = run.curve("reward")
    assert len(rewards) == steps and all(0.05 < reward < 0.95 for reward in rewards)
    assert max(run.curve("mismatch/max")) < 1e-4
    assert run.curve("verifier/ok") == [ROLLOUTS] * steps
    assert all(map(math.isfinite, run.curve("loss") + run.curve("grad_norm")))
    assert min(run.curve("grad_norm")) > 0


def moved(run: Run, step: int) -> float:
    """How far the largest weight is from its start, in the checkpoint of a step."""
    start = load_file(run.folder / "start" / "model" / "model.safetensors")
    saved = run.weights(step)
    assert set(start) <= set(saved)
    return max(float((saved[name] - start[name]).abs().max()) for name in start)


OWN = {
    "grpo": set(),
    "etr": {"etr/radius_positive", "etr/radius_negative"},
    "quatro": {"quatro/capped_share", "quatro/lambda"},
    "erpo": {"erpo/gate", "erpo/gate_open_share", "erpo/process_signal", "erpo/progress_std"},
    "apmpo": {"apmpo/eps_ada", "apmpo/fss", "apmpo/exponent"},
}


def own(run: Run) -> dict[str, list[float]]:
    """Its metrics of any method."""
    every = whole_run.curves(run.folder)
    return {
        name: list(steps.values())
        for name, steps in ((n.removeprefix("train/"), s) for n, s in every.items())
        if name.split("/")[0] in OWN
    }


def kill_after_step_2(run: Run, actor: str) -> None:
    attempt = run.start()
    reached = attempt.reaches(run.results / "step_2", TIMEOUT)
    status = attempt.lose_workers(actor, TIMEOUT)
    assert reached and status not in (0, None), run.said()[-20_000:]
