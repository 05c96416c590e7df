"""Facts of a model that decide where it fits: the shipped models.json, or a folder's config.json.

models.json is written by scripts/model_facts.py from the config values of models.yaml. A folder's
are read off the modules that transformers builds: nothing is allocated (the meta device) or
downloaded, and no code but transformers' is run.
"""

import functools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from nemo_algos.findings import did_you_mean, validate
from nemo_algos.preflight.check.decoder import Attention, Experts, Mamba, Model

HERE = Path(__file__).parent
FILE = "config.json"
TEMPLATE = "chat_template.jinja"
LARGEST = 1 << 24  # bytes of a file beside it
TRAINED = re.compile(r"(-(Instruct|Base|Chat|Thinking|2507))+$")  # of a name
POSITIONS = "max_position_embeddings"  # the one key of config.json that changes no shape
CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_k")
WINDOWS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
INSTALL = "Install transformers 5: pip install 'transformers>=5,<6'."


@functools.cache
def table() -> dict[str, Model]:
    """The shipped facts by model name."""
    return TypeAdapter(dict[str, Model]).validate_json((HERE / "models.json").read_bytes())


@functools.cache
def configs() -> dict[str, dict[str, Any]]:
    """What the config.json of each model of the table says of its shape."""
    return yaml.safe_load((HERE / "models.yaml").read_text())


def model(name: str, overrides: Mapping[str, Any] | None = None) -> Model:
    """By name in the table, or by folder or path of a config.json, with these values in it changed.

    Other names are looked for in the local cache of Hugging Face's hub, then among the table's by
    their stems. Raises ValueError for a model that is not known or that transformers cannot build.
    """
    path = os.path.join(name, FILE) if os.path.isdir(name) else name
    over = overrides or {}
    if name not in table() and not os.path.isfile(path):
        path = _cached(name)
    if os.path.isfile(path):
        try:
            values = json.loads(Path(path).read_text())
        except ValueError as error:
            raise ValueError(
                f"{path} is not a model's {FILE}: {error}. Name the folder or the file of one."
            ) from None
        if not isinstance(values, dict):
            raise ValueError(f"{path} must contain a JSON object of key: value pairs")
        return _built(json.dumps({**over, **_override(values, over)}), path)
    if name not in table():
        # a model of the same weights' shape, another only in how it was trained: the one of the
        # most positions, which a later release may have extended
        alike = []
        for known in table():
            if TRAINED.sub("", known) == TRAINED.sub("", name):
                alike.append(known)
        if not alike:
            near = did_you_mean(name, sorted(table()))
            raise ValueError(
                f"Model {name} is unknown{near}. Get it by `hf download {name} {FILE}`, or name a "
                f"folder with its {FILE}."
            )
        name = max(alike, key=lambda known: table()[known].max_position_embeddings)
    if not over:
        return table()[name]
    values = configs()[name]
    changed = _override(values, over)
    if {k for k in changed if k not in values or values[k] != changed[k]} <= {POSITIONS}:
        facts = table()[name].model_dump()
        facts[POSITIONS] = changed.get(POSITIONS, facts[POSITIONS])
        return validate(Model, facts, "policy.hf_config_overrides")
    return _built(json.dumps(changed), name)


def config_of(name: str) -> Mapping[str, Any]:
    """What is known of a model's config.json, by a name as `model` takes; empty of another one."""
    path = os.path.join(name, FILE) if os.path.isdir(name) else _cached(name)
    try:
        values = json.loads(Path(path).read_text()) if os.path.isfile(path) else configs()[name]
        return values if isinstance(values, dict) else {}
    except (OSError, ValueError, KeyError):
        return {}


def template_of(name: str) -> str:
    """The chat template of a model, by folder or hub's name; empty where none is known here."""
    folder = Path(name if os.path.isdir(name) else os.path.dirname(_cached(name)) or os.devnull)
    files = {}
    for name in (TEMPLATE, "tokenizer_config.json"):
        path = folder / name
        if os.path.isfile(path) and os.path.getsize(path) <= LARGEST:
            files[name] = path
    try:
        if TEMPLATE in files:
            return files[TEMPLATE].read_text()
        told = json.loads(files["tokenizer_config.json"].read_text()).get("chat_template")
        named = {one["name"]: one["template"] for one in told if isinstance(one, dict)}
        found = named.get("default", told)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""
    return found if isinstance(found, str) else ""


def _cached(name: str) -> str:
    """The path of a model's config.json in the hub's cache; it need not be there."""
    folder = hub() / f"models--{name.replace('/', '--')}"
    try:
        return str(folder / "snapshots" / (folder / "refs" / "main").read_text().strip() / FILE)
    except (OSError, ValueError):
        return ""


def home() -> Path:
    return Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()


def hub() -> Path:
    return Path(os.environ.get("HF_HUB_CACHE") or home() / "hub").expanduser()


def _override(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with those of `over` in their place, of which only those that say a shape."""
    changed = {k: v for k, v in over.items() if k in values or k in _of_shape()}
    both = {}
    for k, v in values.items():
        if _sections(v, over.get(k)):
            both[k] = _override(v, over[k])
    return {**values, **changed, **both}


def _sections(*values: Any) -> bool:
    return all(isinstance(value, Mapping) for value in values)


@functools.cache
def _of_shape() -> set[str]:
    """Keys by which any model of the table says its shape; where one has none, a default does."""
    named = {"attention_bias"}
    for config in configs().values():
        for section in (config, *filter(_sections, config.values())):
            named |= {key for key, value in section.items() if not _sections(value)}
    return named


@functools.cache  # `plan` asks `check` about many layouts of one model
def _built(values: str, where: str) -> Model:
    return facts(json.loads(values), where)


def facts(values: Mapping[str, Any], where: str) -> Model:
    """Of the values of a config.json, which messages call `where`. Raises ValueError."""
    built = _network_of(values, where)
    try:
        return _read(built)
    except (AttributeError, LookupError, TypeError, ValueError) as problem:
        family = type(built).__name__
        raise ValueError(
            f"{where}: `plan` does not support the modules of {family} ({problem}). "
            "It supports decoders of attention, MLP, expert, Mamba-2 and gated-delta-net layers."
        ) from None


def _network_of(values: Mapping[str, Any], where: str) -> Any:
    try:
        import torch
        import transformers
    except ImportError:
        raise ValueError(
            f"{where}: this model is not in the shipped table, so its config is read with "
            f"transformers, which is not installed. {INSTALL}"
        ) from None
    transformers.logging.set_verbosity_error()
    try:
        # the architecture's own class, which is also of families under another model_type
        kind = getattr(transformers, (values.get("architectures") or [""])[0], None)
        if kind is None:
            config = transformers.AutoConfig.for_model(**values)
            kind = _class(type(config), transformers)
        else:
            config = kind.config_class.from_dict(dict(values))
        with torch.device("meta"):
            return kind._from_config(config)
    except Exception as problem:
        said = " ".join(str(problem).split())[:300]
        raise ValueError(
            f"{where} (model_type {values.get('model_type')}) cannot be built by transformers "
            f"{transformers.__version__}: {said}. Correct the file, or install a version that "
            "supports this model. Code of the model is not run."
        ) from None


def _class(config: type, transformers: Any) -> Any:
    for auto in (transformers.AutoModelForImageTextToText, transformers.AutoModelForCausalLM):
        if config in auto._model_mapping:
            return auto._model_mapping[config]
    raise ValueError(f"{config.__name__} has no model that generates text")


def _read(built: Any) -> Model:
    config = built.config.get_text_config()
    decoder = built.get_decoder()
    layers = next(list(m) for m in decoder.modules() if type(m).__name__ == "ModuleList")
    kinds = [_mixers(layer) for layer in layers]
    first = {}
    for kind in reversed(kinds):
        first.update(kind)
    windows = _windows(config, len(kinds))
    names = ["".join(sorted(kind, key="M*E-".index)) for kind in kinds]
    pairs = zip(names, windows, strict=True)
    norms = [name for name, m in layers[0].named_children() if not _matrices(m)]
    gated = any("gate_" in name for part in "E-" for name in _names(first.get(part)))
    head = built.get_output_embeddings().weight
    attention = first["*"]
    read = _attention(attention, config)
    _confirm([kind["*"] for kind in kinds if "*" in kind], read.matrices(config.hidden_size))
    inside = {*decoder.parameters(), head}
    return Model(
        model_type=config.model_type,
        layers=tuple(name.replace("*", "W") if window else name for name, window in pairs),
        hidden_size=config.hidden_size,
        intermediate_size=_matrices(first["-"]) // _width(config, gated) if "-" in first else 0,
        vocab_size=head.shape[0],
        max_position_embeddings=config.max_position_embeddings,
        attention=read,
        mixture=_experts(first["E"], config, gated) if "E" in first else None,
        mamba=_mamba(first["M"]) if "M" in first else None,
        window=max(windows),
        gated=gated,
        tied=head is built.get_input_embeddings().weight,
        bias=_has_bias(attention, ("o_proj", "c_proj", "dense")),
        query_bias=_has_bias(attention, ("q_proj", "qkv_proj", "c_attn", "query_key_value")),
        norm_vectors=2 if _has_bias(layers[0], norms) else 1,
        parameters=_count(built),
        encoders=_count(built) - sum(p.numel() for p in inside),
    )


def _confirm(attentions: Iterable[Any], matrices: int) -> None:
    """Raises ValueError where a mixer is no attention of these projections.

    The sum of a model's parameters would not show it: experts outweigh it, and the cache hangs on
    it alone.
    """
    for module in attentions:
        own = _matrices(module) - _matrices(getattr(module, "indexer", None))
        if own != matrices:
            raise ValueError(
                f"{type(module).__name__} has {own:,} weights, attention would have {matrices:,}"
            )


def _parts(layer: Any) -> Iterator[tuple[str, Any]]:
    """The mixers of a layer by letter; norms and dropouts have no matrices."""
    for name, module in layer.named_children():
        names = _names(module)
        if "A_log" in names:
            yield "M", module
        elif any(p.dim() == 3 for n, p in module.named_parameters() if "conv" not in n):
            yield "E", module
        elif _matrices(module):
            attends = "attn" in name.lower() or any("q_proj" in n for n in names)
            yield ("*" if attends else "-"), module


def _mixers(layer: Any) -> dict[str, Any]:
    """By letter. Raises ValueError where two have the same one."""
    found = list(_parts(layer))
    kinds = dict(found)
    if len(found) > len(kinds):
        names = ", ".join(type(module).__name__ for _, module in found)
        raise ValueError(f"a layer has several mixers of one kind: {names}")
    return kinds


def _windows(config: Any, layers: int) -> list[int]:
    """Tokens that each layer's attention sees; 0: all."""
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        used = getattr(config, "use_sliding_window", True)
        return [(used and getattr(config, "sliding_window", None)) or 0] * layers
    windows = []
    for kind in kinds:
        window = getattr(config, WINDOWS[kind]) if kind in WINDOWS else None
        windows.append(window or 0)
    return windows


def _attention(module: Any, config: Any) -> Attention:
    heads = config.num_attention_heads
    names = _names(module)
    normed = any("q_norm" in name for name in names)
    if any("kv_b_proj" in name for name in names):
        return Attention(
            heads=heads,
            groups=heads,
            size=config.qk_nope_head_dim,
            value_size=config.v_head_dim,
            latent_query=config.q_lora_rank or 0,
            latent_kv=config.kv_lora_rank,
            rotary=config.qk_rope_head_dim,
        )
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    queries = getattr(module, "q_proj", None)
    gated = queries is not None and queries.weight.shape[0] == 2 * heads * size
    return Attention(heads, groups, size, size, query_key_norm=normed, gated=gated)


def _experts(module: Any, config: Any, gated: bool) -> Experts:
    """Routed experts are the tensors of three dimensions; the shared one has the name."""
    routed = [p for p in module.parameters() if p.dim() == 3]
    latent = getattr(config, "moe_latent_size", None) or 0
    width = (2 + gated) * (latent or config.hidden_size)
    shared = 0
    for name, parameter in module.named_parameters():
        if "shared" in name and parameter.dim() == 2 and min(parameter.shape) > 1:
            shared += parameter.numel()
    chosen = 0
    for name in CHOSEN:
        chosen = chosen or getattr(config, name, None)
    if not chosen:
        raise ValueError("config.json does not say how many experts a token meets")
    return Experts(
        number=routed[0].shape[0],
        chosen=chosen,
        features=sum(p.numel() for p in routed) // (routed[0].shape[0] * width),
        shared=shared // _width(config, gated),
        latent=latent,
    )


def _mamba(module: Any) -> Mamba:
    names = ("ssm_state_size", "n_groups"), ("head_k_dim", "num_k_heads")
    state, groups = next(two for two in names if hasattr(module, two[0]))
    return Mamba(
        inner=module.out_proj.weight.shape[1],
        heads=module.A_log.shape[0],
        state=getattr(module, state),
        groups=getattr(module, groups),
        convolution=module.conv1d.weight.shape[-1],
    )


def _width(config: Any, gated: bool) -> int:
    """Numbers of an MLP per feature."""
    return (2 + gated) * config.hidden_size


def _has_bias(module: Any, names: Iterable[str]) -> bool:
    found = (getattr(module, name, None) for name in names)
    return any(getattr(m, "bias", None) is not None for m in found)


def _names(module: Any) -> list[str]:
    if module is not None:
        return [name for name, _ in module.named_parameters()]
    return []


def _matrices(module: Any) -> int:
    if module is not None:
        return sum(p.numel() for p in module.parameters() if p.dim() == 2)
    return 0


def _count(module: Any) -> int:
    return sum(p.numel() for p in module.parameters())
