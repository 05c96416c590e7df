"""TransferQueue's actors, in this environment."""

from typing import Any

from nemo_cpu import replace, shim

ADAPTER = "nemo_rl/data_plane/adapters/transfer_queue.py"


@shim("nemo_rl.data_plane.adapters.transfer_queue", (ADAPTER, 'requires("nemo-rl")'))
def installed_queue(module: Any) -> None:
    """NeMo-RL has pip install TransferQueue for each actor, as its own metadata say: it is here."""
    replace(module, "_patch_tq_actor_runtime_env", lambda: None)
