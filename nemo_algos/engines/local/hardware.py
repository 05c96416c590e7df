"""What a policy runs on: its device, precision and threads, `auto` resolved on this machine."""

import torch

from nemo_algos.engines.local.schema import SHAPES, PolicySection
from nemo_algos.findings import ConfigError, Finding


def device_of(policy: PolicySection) -> torch.device:
    """Raises ConfigError where it is not there. auto: a GPU, but for countdown models the CPU."""
    name = policy.device
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        found = [] if policy.model_name in SHAPES else [d for d, has in there.items() if has]
        name = next(iter(found), "cpu")
    for key, asked in {"policy.device": name, "policy.taught.device": policy.taught.device}.items():
        if not there.get(asked, True):
            raise ConfigError([Finding(key, f"{asked} is not available here. Set it to cpu.")])
    return torch.device(name)


def precision_of(policy: PolicySection) -> str:
    """As asked; auto: bfloat16 where the device has units for it, but a countdown model float32."""
    if policy.precision != "auto":
        return policy.precision
    if policy.model_name in SHAPES:
        return "float32"
    kind = device_of(policy).type
    if kind == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:  # without the units its products take several times as long as float32's
        cpu = torch.cpu
        fast = kind == "cpu" and (cpu._is_avx512_bf16_supported() or cpu._is_amx_tile_supported())
    return "bfloat16" if fast else "float32"


def threads_of(policy: PolicySection) -> int:
    """CPU threads. Unset: all cores (or $OMP_NUM_THREADS), but one for countdown models."""
    return policy.threads or (1 if policy.model_name in SHAPES else torch.get_num_threads())


def describe(policy: PolicySection) -> str:
    """Such as `cpu (2 threads), float32`; a GPU by its name."""
    device = device_of(policy)
    precision = precision_of(policy)
    if device.type == "cpu":
        threads = threads_of(policy)
        return f"cpu ({threads} thread{'s' * (threads > 1)}), {precision}"
    name = torch.cuda.get_device_name() if device.type == "cuda" else "Apple GPU"
    return f"{device.type} ({name}), {precision}"
