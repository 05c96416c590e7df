"""A LoRA adapter, from the folder that PEFT writes."""

import json
from pathlib import Path

from torch import Tensor

from nemo_algos.config import first_line
from nemo_algos.lab.mismatch.network import Network


def lora(folder: Path, network: Network) -> dict[str, Tensor]:
    """What it adds to each parameter. Raises ValueError where it does not fit the network."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder} has no .safetensors file. Name the folder of a PEFT adapter.")
    try:
        found = {k: v for file in files for k, v in load_file(file).items()}
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
    except (OSError, ValueError, LookupError, TypeError, SafetensorError, RuntimeError) as error:
        raise ValueError(f"{folder} is not a PEFT adapter: {first_line(error)}") from None
    scale = alpha / rank**0.5 if config.get("use_rslora") else alpha / rank
    parameters = dict(network.model.named_parameters())
    added = {}
    for name, a in found.items():
        if ".lora_A" in name:
            own = name.split(".lora_A")[0].removeprefix("base_model.model.") + ".weight"
            b = found[name.replace("lora_A", "lora_B")]
            if own not in parameters or parameters[own].shape != (len(b), a.shape[1]):
                raise ValueError(
                    f"{folder} does not fit --model: {own} is missing there or has a different size"
                )
            added[own] = scale * b.float() @ a.float()
    return added
