"""Megatron-Bridge without CUDA and Transformer Engine."""

from functools import partial
from typing import Any

from nemo_cpu import absent, replace, shim

BRIDGE = "megatron/bridge/"
PROVIDER = BRIDGE + "models/gpt_provider.py"
FUSIONS = (
    "apply_rope_fusion",
    "persist_layer_norm",
    "masked_softmax_fusion",
    "bias_dropout_fusion",
    "bias_activation_fusion",
    "gradient_accumulation_fusion",
    "moe_permute_fusion",
)


@shim(
    "megatron.bridge.peft.lora_layers",
    (BRIDGE + "peft/lora_layers.py", "import transformer_engine.pytorch as te"),
    before=partial(absent.found, "transformer_engine"),
)
def transformer_engine(module: Any) -> None:
    """Imported for an isinstance."""
    absent.lost("transformer_engine")


@shim("megatron.bridge.peft.utils", (BRIDGE + "peft/utils.py", "elif HAVE_TE and any("))
def local_adapters(module: Any) -> None:
    """Without Transformer Engine megatron-core's names of its layers are there, and no classes."""
    replace(module, "HAVE_TE", False)


@shim(
    "megatron.bridge.peft.module_matcher",
    (BRIDGE + "peft/module_matcher.py", "and isinstance(m, linear_types)"),
)
def local_targets(module: Any) -> None:
    """The same, where no layers are named: all linear ones but those that are excluded get one."""
    for name in ("HAVE_TE_COL_LINEAR", "HAVE_TE_LN_COL_LINEAR", "HAVE_TE_ROW_LINEAR"):
        replace(module, name, False)


@shim(
    "megatron.bridge.training.checkpointing",
    (BRIDGE + "training/checkpointing.py", "from modelopt.torch.opt.plugins import"),
    before=partial(absent.found, "modelopt"),
)
def modelopt(module: Any) -> None:
    """Saves and restores the state of a quantisation; there is none."""
    absent.lost("modelopt")


@shim(
    "megatron.bridge.models.gpt_provider",
    (PROVIDER, "return transformer_engine_layer_spec(config)"),
)
def local_layers(module: Any) -> None:
    """A provider asks for Transformer Engine's layers, whatever transformer_impl is."""
    replace(module, "transformer_engine_layer_spec", module.local_layer_spec)


@shim(
    "megatron.bridge.models.gpt_provider",
    ("megatron/core/transformer/transformer_config.py", "apply_rope_fusion is not available."),
)
def no_fusions(module: Any) -> None:
    """The import from Hugging Face knows nothing of policy.megatron_cfg's fusions."""

    def finalize(self: Any) -> None:
        for name in FUSIONS:
            setattr(self, name, False)
        original(self)

    original = replace(module.GPTModelProvider, "finalize", finalize)


@shim(
    "megatron.bridge.training.initialize",
    (BRIDGE + "training/initialize.py", "assert torch.cuda.is_available()"),
)
def without_cuda(module: Any) -> None:
    """It has an argument that nobody passes."""
    original = module.initialize_megatron
    replace(module, "initialize_megatron", partial(original, allow_no_cuda=True))


@shim(
    "megatron.bridge.training.initialize", (BRIDGE + "training/initialize.py", "compile_helpers()")
)
def no_make(module: Any) -> None:
    """It would run make for the indices of data sets; the package has no Makefile."""
    replace(module, "compile_helpers", lambda: None)
