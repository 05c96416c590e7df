"""A Ray of this machine alone, started however busy the machine is."""

from typing import Any

import psutil
import ray

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
