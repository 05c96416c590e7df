"""What of a policy this machine has: its device, and its model's files."""

from importlib.util import find_spec
from pathlib import Path

from nemo_algos.engines.local.schema import SHAPES, PolicySection
from nemo_algos.engines.named import findings_of
from nemo_algos.extras import install
from nemo_algos.findings import Finding

NO_PEFT = f"needs peft: {install('peft', 'lora')}"


def device(policy: PolicySection) -> list[Finding]:
    """This machine has it."""
    if policy.device in ("cpu", "auto"):
        return []
    from nemo_algos.engines.local.hardware import device_of

    return findings_of(device_of, policy)


def model(policy: PolicySection) -> list[Finding]:
    """A folder or file holds a model's config, weights and tokenizer; hub names are not asked."""
    name = policy.model_name
    if policy.dtensor_cfg.lora_cfg.enabled and not find_spec("peft"):
        return [Finding("policy.dtensor_cfg.lora_cfg.enabled", NO_PEFT)]
    on_disk = name.startswith(("/", ".", "~")) or name.endswith(".gguf") or Path(name).is_dir()
    if name in SHAPES or not on_disk:
        return []
    from transformers import AutoConfig

    from nemo_algos.engines.local import hf

    key = "policy.model_name"
    if name.endswith(".gguf"):
        there = hf.gguf_path(name).exists()
        return [] if there else [Finding(key, f"cannot load {name}: {hf.NO_GGUF}")]
    findings = findings_of(hf.from_pretrained, AutoConfig, key, name)
    if Path(name).is_dir() and not any(Path(name).glob("*.safetensors")):
        findings.append(
            Finding(key, f"{name} contains no .safetensors file. Save the model in that format.")
        )
    return findings or findings_of(hf.load_tokenizer, policy)
