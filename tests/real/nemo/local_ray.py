"""A Ray of this machine alone, started however busy the machine is."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
import ray
from ray._private import ray_constants

ATTEMPTS = 20


def start(**settings: Any) -> None:
    """ray.init, again where Ray gave up: it allows its own processes 15 to 30 s of the wall."""
    memory = {"object_store_memory": 100 << 20, "include_dashboard": False}
    before = psutil.Process().children()
    for attempt in range(1, ATTEMPTS + 1):
        try:
            ray.init(address="local", log_to_driver=False, **memory, **settings)
            return
        except Exception as error:
            for left in set(psutil.Process().children()) - set(before):
                left.kill()
            if "timed out during startup" not in str(error) or attempt == ATTEMPTS:
                raise


@contextmanager
def running(**settings: Any) -> Iterator[None]:
    """Within: one whose workers start by themselves; under `uv run` Ray would start them by it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_constants, "RAY_ENABLE_UV_RUN_RUNTIME_ENV", False, raising=False)
        start(**settings)
        try:
            yield
        finally:
            ray.shutdown()
