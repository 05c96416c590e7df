"""LoRA by peft: small matrices are trained, the model's own weights stay as they are."""

import copy
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nemo_algos.engines.local.experience import Experience, Policy
from nemo_algos.engines.local.schema import LoraSection
from nemo_algos.findings import ConfigError, Finding, first_line

KEY = "policy.dtensor_cfg.lora_cfg"


def add_adapters(model: nn.Module, section: LoraSection) -> nn.Module:
    """The model with adapters, which alone have gradients. Raises ConfigError."""
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(
        r=section.dim,
        lora_alpha=section.alpha,
        target_modules=_pattern(section.target_modules) or "all-linear",
        exclude_modules=_pattern(section.exclude_modules),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        try:
            made: Any = get_peft_model(model, settings)  # pyright: ignore[reportArgumentType]
        except ValueError as error:
            raise ConfigError([Finding(f"{KEY}.target_modules", first_line(error))]) from None
        for name, parameter in made.named_parameters():
            if section.lora_A_init == "xavier" and ".lora_A." in name:
                nn.init.xavier_normal_(parameter)
    return made


def _pattern(names: list[str]) -> str | None:
    """A regular expression of NeMo-RL's module names, in which * stands for anything."""
    wild = (re.escape(name).replace(r"\*", ".*") for name in names)
    if names:
        return rf"(.*\.)?({'|'.join(wild)})"
    return None


def merge(model: Any) -> Any:
    """A copy with the adapters added to its weights; a model without any as it is."""
    if hasattr(model, "peft_config"):
        return copy.deepcopy(model).merge_and_unload()
    return model


def trainable_state(model: nn.Module) -> dict[str, Tensor]:
    """Of the state of a model what training changes."""
    named = model.named_parameters(remove_duplicate=False)
    frozen = {name for name, parameter in named if not parameter.requires_grad}
    return {name: x for name, x in model.state_dict().items() if name not in frozen}


def load_trained(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Raises RuntimeError for the state of another model."""
    odd = state.keys() ^ trainable_state(model).keys()
    if odd:
        raise RuntimeError(f"it belongs to another model or other adapters: {sorted(odd)[0]}")
    model.load_state_dict(state, strict=False)


def without_adapters(policy: Policy, experience: Experience, rows: Tensor) -> Tensor:
    """See Policy.logprobs. Of the policy before training, in the same weights."""
    model: Any = policy.model
    with model.disable_adapter():
        return policy.logprobs(experience, rows)
