"""Facts of the models that NeMo-RL's own configs name."""

from nemo_algos.findings import at
from nemo_algos.preflight.check.known_models import model, table

DEEPSEEK = "deepseek-ai/DeepSeek-V3"


def facts_of(config, plain):
    """The facts of a config's model, or None: NeMo-RL's DeepSeek recipes name no path."""
    name = at(plain, "policy.model_name")
    if "deepseek.md" in name and ("deepseek-v3" in config or "dsv3" in config):
        return model(DEEPSEEK)
    return model(name) if name in table() else None
