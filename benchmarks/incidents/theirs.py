"""What NeMo-RL itself says of composed configs before it makes a cluster: a program for its Python.

    PYTHONPATH=NEMO_RL python theirs.py <configs.json >said.json

It validates its MasterConfig, and runs GRPO's `setup` up to the first cluster, as its launcher
does. Rows of data and a tokenizer are stand-ins. Nothing is drawn, loaded or started.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import sys
import tempfile
from typing import Any
from unittest import mock


class Reached(BaseException):
    """The cluster would be made here: nothing was refused."""


class Rows(list):
    """A data set that is long enough for any step."""

    def __init__(self, count: int = 10_000) -> None:
        super().__init__({"idx": n} for n in range(count))


class Tokenizer:
    """What setup reads of one."""

    pad_token_id = eos_token_id = 0
    pad_token = eos_token = "<eos>"


def stop(*_: Any, **__: Any) -> None:
    """In place of the first cluster."""
    raise Reached


def said(plain: dict[str, Any]) -> str:
    """The first error, or "starts"."""
    from nemo_rl.algorithms import grpo  # pyright: ignore[reportMissingImports]
    from nemo_rl.models.generation import configure_generation_config  # pyright: ignore[reportMissingImports]

    grpo.RayVirtualCluster = stop
    grpo.Logger = mock.MagicMock()
    try:
        config = grpo.MasterConfig(**copy.deepcopy(plain))
        config.policy["generation"] = configure_generation_config(
            config.policy["generation"],
            Tokenizer(),
            has_refit_draft_weights=bool(config.policy["draft"]["enabled"]),
            trains_mtp=False,
        )
        grpo.setup(config, Tokenizer(), Rows(), Rows())
    except Reached:
        return "starts"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip()}"
    return "starts"


def main() -> None:
    """Answers all configs of standard input."""
    answers = {}
    os.chdir(tempfile.mkdtemp())  # a checkpoint's folder may be made
    with contextlib.redirect_stdout(sys.stderr):
        for name, plain in json.load(sys.stdin).items():
            answers[name] = said(plain)
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
