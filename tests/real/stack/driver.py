"""NeMo-RL's workers beside one plain process: the same rows, the same method, the same updates.

`Driver` lives where `Workers` does; what it returns is numbers.
"""

from pathlib import Path
from typing import Any

import configs
import in_workers
import oracle
import settings
import torch
from drawn import Drawn
from plain import Plain
from torch import Tensor
from workers import Workers

from nemo_algos import build

STEPS = 2  # each of two updates: what is kept of one must not reach the next


class Driver(Workers):
    def __init__(self, backend: str, model: Path, *args: Any, **paths: Path) -> None:
        super().__init__(backend, model, *args, **paths)
        self.start = model
        self.reset()

    def limits(self) -> tuple[float, ...]:
        """Test_workers.Limits of the precision; a lost update is 16,000 in the weights.

        The terms of a gradient cancel: their rounding is up to some times that of their sum.
        """
        float32 = self.config["precision"] == "float32"
        return (2e-5, 1e-5, 1e-6, 4.0) if float32 else (0.05, 0.003, 0.005, 12e3)

    def apart(self, got: Tensor, wanted: Tensor) -> float:
        return float((got - wanted)[self.valid].abs().max())

    def reset(self) -> None:
        """Both start again from the saved weights."""
        self.in_workers(in_workers.restore)
        lora = configs.lora(self.config)["enabled"]
        adapters = self.in_workers(in_workers.adapters) if lora else {}
        self.plain = Plain(self.start, self.config, adapters)

    def errors(self) -> dict[str, float]:
        """How far log-probs and entropies are apart; the largest entropy beyond a row's end."""
        got, wanted = self.forward(), self.plain.detached(self.ids)
        logprobs, entropies = (self.apart(*pair) for pair in zip(got, wanted, strict=True))
        beyond = float(got[1][~self.valid].abs().max())
        return {"logprobs": logprobs, "entropies": entropies, "beyond": beyond}

    def updates(self, case: str) -> dict[str, Any]:
        """Steps by NeMo-RL's Policy and by the plain process, and the errors after them.

        losses of all updates, norms, each step's last, and each step's largest mismatch: pairs,
        NeMo-RL's and the plain; own: each step's first losses, NeMo-RL's and that of its own
        log-probs; moved: how far the plain log-probs went; reference: how far the reference's did;
        recorded: forwards of the reference that computed entropies; weights: the largest error of a
        weight, in units of what float32 allows.
        """
        method, asked = settings.of(case)
        before, _ = self.plain.detached(self.ids)
        recorded = self.in_workers(in_workers.recordings)
        reference = self.reference()
        recorded = self.in_workers(in_workers.recordings) - recorded
        found = self._steps(method, asked, self.plain.reference(self.ids))
        found["moved"] = self.apart(self.plain.detached(self.ids)[0], before)
        found["reference"] = self.apart(self.reference(), reference)
        found["recorded"] = recorded
        found |= self.errors()
        return found | {"weights": self.plain.apart(self.sent(), self.ids.numel())}

    def _steps(self, method: str, asked: settings.Asked, start: Tensor) -> dict[str, Any]:
        """The pairs of `updates`."""
        proxy = self.proxied(build({"name": method, "terms": asked.terms}, asked.correction))
        found: dict[str, Any]
        found = {name: ([], []) for name in ("losses", "norms", "mismatch", "own")}
        for number in range(1, STEPS + 1):
            given = Drawn.of(number, self.valid)
            batch = self.batch(*self.plain.detached(self.ids), start, given)
            own = self._first_loss(method, asked.wanted, given)
            got = self.step(proxy, asked, given)
            wanted = self.plain.train(method, asked.wanted, batch, self.ids)
            got["own"], wanted["own"] = got["losses"][:1], [own]
            for name, pair in found.items():
                pair[0].extend(got[name])
                pair[1].extend(wanted[name])
        return found

    def _first_loss(self, method: str, asked: oracle.Setting, given: Drawn) -> float:
        """Of the workers' own numbers before a step, by the oracle."""
        logprobs, entropies = self.forward()
        batch = asked.prepared(self.batch(logprobs, entropies, self.reference(), given))
        signals = oracle.signals(method, batch)
        rows = torch.arange(self.config["train_global_batch_size"])
        part = {name: value[rows] for name, value in signals.items()}
        numbers = (x[rows].double() for x in (logprobs, entropies))
        return float(asked.loss(method, *numbers, batch[rows], part))
