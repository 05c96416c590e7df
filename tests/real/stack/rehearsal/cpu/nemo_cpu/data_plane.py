"""TransferQueue's actors, which NeMo-RL starts in an environment that pip makes for each."""

from typing import Any

from nemo_cpu import replace, shim

ADAPTER = "nemo_rl/data_plane/adapters/transfer_queue.py"


@shim("nemo_rl.data_plane.adapters.transfer_queue", (ADAPTER, 'in requires("nemo-rl")'))
def queue_actors(module: Any) -> None:
    """Its pin is an installed nemo-rl's, for a network: actors have this environment."""
    replace(module, "_patch_tq_actor_runtime_env", lambda: None)
