"""LoRA in a NeMo-RL run: which modules have adapters, and whether the rollouts get them.

Refit sends `W + alpha / dim * B A`. An element that changes by less than half the spacing of
BF16 at W is sent as it was, so that the rollouts do not see that part of the update.
"""

import json
import re
import struct
from collections.abc import Iterator, Sequence
from math import erf, frexp, ldexp, sqrt
from pathlib import Path
from statistics import NormalDist, mean
from typing import NamedTuple

from nemo_algos.findings import Finding, did_you_mean
from nemo_algos.preflight.check.decoder import modules
from nemo_algos.preflight.check.layout import VLLM
from nemo_algos.preflight.check.rule import Preflight, error, warning
from nemo_algos.preflight.check.rules.training import LORA, OPTIMIZER
from nemo_algos.preflight.forecast.rates import rate_key

DIGITS = {"bfloat16": 8, "float16": 11}  # of a significand, the implicit one included
ASSUMED = NormalDist(0, 0.02).quantiles(400)  # the scale at which most models are initialised
TAKEN = 4096  # elements of a file's tensor
# the output layer by the trainer's name for it, and the modules that are adapted in its place
HEAD = {
    "lm_head": ["*_proj"],
    "output_layer": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"],
}
EXPERTS = "model.layers.0.mlp.experts"
# linear layers by Megatron's names: attention, MLA, MLPs, Mamba-2, multi-token prediction
OF_MEGATRON = (
    "linear_qkv", "linear_proj", "linear_q_proj", "linear_q_down_proj", "linear_q_up_proj",
    "linear_kv_down_proj", "linear_kv_up_proj", "linear_fc1", "linear_fc2", "in_proj", "out_proj",
    "eh_proj", "output_layer", "router", "linear_q", "linear_k", "linear_v", "linear_fc1_up",
    "linear_fc1_gate",
)  # fmt: skip


class Adapter(NamedTuple):
    """width: the layer's inputs; xavier: how A is initialised, else uniformly; B is 0 at first."""

    dim: int
    alpha: float
    width: int
    xavier: bool

    def update(self, moved: float) -> float:
        """The standard deviation of an update's elements, of A and B that moved so far."""
        spread = 2 / (self.width + self.dim) if self.xavier else 1 / (3 * self.width)
        return self.alpha / self.dim * moved * sqrt(self.dim * (spread + moved**2))


def unchanged(weights: Sequence[float], update: float, digits: int) -> float:
    """The share of normally distributed updates that are below half the spacing at the weights."""
    halves = (ldexp(1.0, frexp(weight)[1] - 1 - digits) for weight in weights if weight)
    return mean(erf(half / (update * sqrt(2))) for half in halves)


def stored(folder: Path) -> list[float]:
    """Elements of the linear layers in a folder's safetensors; none where there are none."""
    found = list[float]()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            for name, tensor in json.loads(file.read(size)).items():
                kind = {"BF16": "H", "F16": "e", "F32": "f"}.get(tensor.get("dtype"))
                if kind is None or not name.endswith("_proj.weight"):
                    continue
                start, end = tensor["data_offsets"]
                file.seek(8 + size + start)
                read = file.read(min(end - start, TAKEN * struct.calcsize(kind)))
                values = struct.unpack(f"<{len(read) // struct.calcsize(kind)}{kind}", read)
                if kind == "H":  # the upper half of a float32
                    values = [struct.unpack("<f", struct.pack("<I", v << 16))[0] for v in values]
                found += values
    return found


def adapted_modules(run: Preflight) -> Iterator[Finding]:
    """Modules are named in one way, by patterns that the model has; Triton excludes TP."""
    split = not run.megatron and run.layout.tensor > 1
    if split and run[f"{LORA}.enabled"] and run[f"{LORA}.use_triton"]:
        yield error(f"{LORA}.use_triton", "it excludes tensor parallelism. Set it to false.")
    path = _section(run)
    ways = [*_patterns(run)]
    if path and len(ways) > 1:
        off = "false" if ways[0] == "match_all_linear" else "[]"
        yield error(
            f"{path}.{ways[0]}",
            f"it excludes {ways[1]}. Set this to {off}, or remove `{ways[1]}`.",
        )
    names = _linear(run)
    known = sorted({name.rpartition(".")[2] for name in names})
    asked = _patterns(run).get("target_modules", [])
    unmet = []
    for pattern in asked:
        # as both match: the module's own name, or the full one by the pattern
        if pattern not in known and not any(_matches(pattern, name) for name in names):
            unmet.append(pattern)
    if path is None or not names or not unmet:
        return
    none = len(unmet) == len(asked)
    effect = "so no adapter would be trained" if none else "so these have no effect"
    say = error if none else warning
    yield say(
        f"{path}.target_modules",
        f"no module of the model matches {', '.join(unmet)}{did_you_mean(unmet[0], known)}, "
        f"{effect}. Correct the names.",
    )


def _linear(run: Preflight) -> set[str]:
    """The full names of the model's linear layers; none of a family whose names are not known."""
    if run.model is None or run.megatron:
        if run.megatron:
            return {f"decoder.layers.0.mlp.{name}" for name in OF_MEGATRON}
        return set()
    found = set[str]()
    for layer in range(len(run.model.layers)):
        for parts in modules(run.model, layer).values():
            found |= {f"model.layers.{layer}.{name}" for name in parts}
    return found | {"lm_head"} if found else set()


def adapted_head(run: Preflight) -> Iterator[Finding]:
    """The rollouts never get an adapter of an output layer that is tied to the embeddings."""
    path = _section(run)
    head = "output_layer" if run.megatron else "lm_head"
    tied = run.model.tied if run.model else None
    patterns = _patterns(run)
    key = next(iter(patterns), "target_modules")
    adapted = run.megatron  # without any pattern Automodel takes *_proj alone
    if patterns:
        named = any(_matches(pattern, head) for pattern in patterns[key])
        adapted = not named if key == "exclude_modules" else named
    if path is None or tied is False or not adapted:
        return
    names = f"target_modules: {HEAD[head]}".replace("'", '"')
    cure = f"match_all_linear: false and {names}" if key == "match_all_linear" else names
    what = f"the adapters include {head}, which vLLM does not have as a separate weight"
    drift = "Refit drops that adapter, and the sampler drifts from the trainer."
    if tied:
        yield error(
            f"{path}.{key}",
            f"{what}, because this model ties it to the embeddings. {drift} Set {cure}.",
        )
    else:
        yield warning(
            f"{path}.{key}",
            f"{what} if the model ties it to the embeddings (not known here). {drift} If "
            f"tie_word_embeddings is true or absent in its config.json, set {cure}.",
        )


def adapted_experts(run: Preflight) -> Iterator[Finding]:
    """NeMo-RL's refit merges adapters of linear layers alone, not Automodel's of whole experts."""
    mixture = run.model is None or run.model.experts
    named = any(_matches(pattern, EXPERTS) for pattern in _patterns(run).get("target_modules", []))
    if mixture and named and not run.megatron and _section(run):
        say = error if run.model else warning
        yield say(
            f"{LORA}.target_modules",
            "NeMo-RL does not merge the adapters of experts when it refits vLLM. Name linear "
            "layers, such as *_proj.",
        )


def merged_update(run: Preflight) -> Iterator[Finding]:
    """Both backends merge adapters at refit, which loses what is below the weights' spacing."""
    path = _section(run)
    model = run.model
    found = (DIGITS.get(str(run[key])) for key in ("policy.precision", f"{VLLM}.precision"))
    digits = min((digits for digits in found if digits), default=None)
    optimizer = f"{OPTIMIZER}.optimizer" if run.megatron else "policy.optimizer.name"
    rate = run[rate_key(run)] if "adam" in str(run[optimizer]).lower() else None
    inside = run["policy.generation.backend"] == "megatron"
    if not (path and model and digits and rate) or inside:
        return
    key = "lora_A_init_method" if run.megatron else "lora_A_init"
    xavier = run[f"{path}.{key}"] == "xavier"
    adapter = Adapter(run[f"{path}.dim"], run[f"{path}.alpha"], model.hidden_size, xavier)
    measured = stored(Path(run["policy.model_name"]))
    weights = measured or ASSUMED
    epochs = run["grpo.num_update_epochs"] or 1
    batch = run["policy.train_global_batch_size"]
    steps = max(1, run["grpo.max_num_steps"] * epochs * run.rollouts // batch)
    noise = unchanged(weights, adapter.update(rate * sqrt(steps)), digits)
    straight = unchanged(weights, adapter.update(rate * steps), digits)
    if noise > 0.5:
        source = "the model's weights" if measured else "weights of standard deviation 0.02"
        yield warning(
            f"{path}.alpha",
            f"refit merges the adapters into {run['policy.precision']} weights, whose rounding"
            f" drops small changes. After {steps} updates vLLM would get {noise:.0%} of the weights"
            f" as they were before training, or {straight:.0%} if all updates point one way."
            f" Its rollouts would not follow the trainer. (Estimated for Adam at {rate:g} and"
            f" {source}.) Raise `alpha` or the learning rate, or set `policy.precision` and"
            f" `{VLLM}.precision` to float32.",
        )


def _section(run: Preflight) -> str | None:
    if run[f"{run.adapters}.enabled"]:
        return run.adapters
    return None


def _patterns(run: Preflight) -> dict[str, list[str]]:
    """The patterns of each key that has some; the first key decides, and a switch has `*`."""
    found = dict[str, list[str]]()
    for key in ("match_all_linear", "target_modules", "exclude_modules"):
        value = run[f"{run.adapters}.{key}"]
        if value is True:
            value = "*"
        if isinstance(value, str):
            value = [value]
        if isinstance(value, list) and value:
            found[key] = [str(pattern) for pattern in value]
    return found


def _matches(pattern: str, name: str) -> bool:
    """As Automodel and Megatron-Bridge compare a module's name: `*` stands for anything."""
    return bool(re.fullmatch(re.sub(r"(\\\.)?\\\*", ".*", re.escape(pattern)), name))
