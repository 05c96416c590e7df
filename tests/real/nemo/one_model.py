"""A worker of NeMo-RL's over the model of cpu_policy."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any


class OneModel:
    """For a worker of NeMo-RL's: cpu_policy's model, not one that a GPU loads."""

    def __init__(self, workers: Any) -> None:
        self.model, self.reference = workers.model, workers.reference
        self.cfg, self.sampling_params = workers.cfg, workers.sampling
        self.megatron_cfg = SimpleNamespace(model=SimpleNamespace(vocab_size=64))
        self.mcore_state = SimpleNamespace(straggler_timer=None)
        self.timer = SimpleNamespace(start=lambda _: None, stop=lambda _: None)
        self.media_placeholder_token_id = None
        self.delegate_pack_to_model = self.delegate_mtp_loss_mask_to_model = False
        self.model_slices_context_parallel_inputs = False
        self._router_replay_enabled = self.defer_fp32_logits = False

    @contextmanager
    def use_reference_model(self) -> Iterator[None]:
        self.model, self.reference = self.reference, self.model
        yield
        self.model, self.reference = self.reference, self.model
