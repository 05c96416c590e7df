"""The model that Megatron-LM's arguments describe, and its layers by pipeline stage."""

import re
from typing import Any

from megatron_lm.known import Arguments, Refused

from nemo_algos.preflight.plan.workload import Attention, Experts, Mamba, Network, Parallel

GPT2 = 50257  # the vocabulary of Megatron's tests, where the arguments name none
VOCABULARIES = {"GPTSentencePieceTokenizer": 256000, "TikTokenizer": 131072}  # of their files


def network(a: Arguments, p: Parallel) -> Network:
    """Its shape, on these groups. Raises Refused where the layers do not divide."""
    heads, hidden = a.number("num-attention-heads"), a.number("hidden-size")
    if not heads or not hidden:
        raise Refused("num-attention-heads and hidden-size are not given")
    gated, size = bool(a["swiglu"] or a["quick-geglu"]), a.number("kv-channels", hidden // heads)
    features = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    features = a.number("ffn-hidden-size", features)
    stages, mtp = _stages(a, p)
    if len(stages) % p.pipeline:
        raise Refused(f"{len(stages)} stages do not divide by a pipeline of {p.pipeline}")
    group = a.number("make-vocab-size-divisible-by", 128) * p.tensor
    tokenizer = "TikTokenizer" if a["tiktoken-pattern"] else a["tokenizer-type"]
    known = a["vocab-size"] or VOCABULARIES.get(tokenizer or "", GPT2)
    learned = (a["position-embedding-type"] or "learned_absolute") == "learned_absolute"
    others = ("use-rotary-position-embeddings", "multi-latent-attention", "no-position-embedding")
    learned = learned and not any(a[name] for name in others)
    return Network(
        stages=stages,
        hidden=hidden,
        features=features,
        vocabulary=-(-int(known) // group) * group,
        attention=_attention(a, heads, size),
        experts=_experts(a, features),
        mamba=_mamba(a, hidden),
        mtp=mtp,
        gated=gated,
        tied=not a["untie-embeddings-and-output-weights"],
        bias=not a["disable-bias-linear"],
        query_bias=bool(a["add-qkv-bias"]),
        norm_vectors=1 if a["normalization"] == "RMSNorm" else 2,
        positions=a.number("max-position-embeddings") if learned else 0,
    )


def _attention(a: Arguments, heads: int, size: int) -> Attention:
    if a["multi-latent-attention"]:
        return Attention(
            heads=heads,
            groups=heads,
            size=a.number("qk-head-dim", 128),
            value_size=a.number("v-head-dim", 128),
            latent_query=a.number("q-lora-rank"),
            latent_kv=a.number("kv-lora-rank", 32),
            rotary=a.number("qk-pos-emb-head-dim", 64),
        )
    groups = a.number("num-query-groups", 1) if a["group-query-attention"] else heads
    return Attention(heads, groups, size, size, bool(a["qk-layernorm"]))


def _experts(a: Arguments, features: int) -> Experts | None:
    if not a["num-experts"]:
        return None
    gated, plain = bool(a["swiglu"]), bool(a["squared-relu"])
    fused = not a["no-bias-swiglu-fusion"] if gated else a["use-fused-weighted-squared-relu"]
    return Experts(
        number=a.number("num-experts"),
        chosen=a.number("moe-router-topk", 2),
        features=a.number("moe-ffn-hidden-size", features),
        shared=a.number("moe-shared-expert-intermediate-size"),
        latent=a.number("moe-latent-size"),
        fused_weighting=bool(fused) and (gated or plain),
    )


def _mamba(a: Arguments, hidden: int) -> Mamba | None:
    size = a.number("mamba-head-dim", 64)
    heads = a.number("mamba-num-heads", 2 * hidden // size)
    state, groups = a.number("mamba-state-dim", 128), a.number("mamba-num-groups", 8)
    return Mamba(heads * size, heads, state, groups) if _pattern(a) else None


def _pattern(a: Arguments) -> str:
    given = str(a["hybrid-layer-pattern"] or a["hybrid-override-pattern"] or "")
    if others := set(given) - set("*+-EM|/"):
        raise Refused(f"hybrid-layer-pattern: layers {' '.join(sorted(others))}")
    return given.replace("+", "*")  # latent attention


def _stages(a: Arguments, p: Parallel) -> tuple[tuple[tuple[str, ...], ...], tuple[Any, ...]]:
    """Layers by (virtual) stage, and those of each multi-token prediction depth."""
    if pattern := _pattern(a):
        main, *mtp = pattern.split("/")
        stages = tuple(tuple(part) for part in main.split("|"))
        if len(stages) == 1:
            stages = _even(stages[0], p.pipeline)
        return stages, tuple(tuple(depth) for depth in mtp if depth)
    layers = _layers(a)
    mtp = (layers[-1:],) * a.number("mtp-num-layers")
    if layout := a["pipeline-model-parallel-layout"]:
        return _laid_out(str(layout), layers), mtp
    first, last = (a.number(f"decoder-{end}-pipeline-num-layers") for end in ("first", "last"))
    if first or last:
        middle = layers[first : len(layers) - last]
        inner = _even(middle, p.pipeline - bool(first) - bool(last))
        ends = ((layers[:first],) if first else (), (layers[len(layers) - last :],) if last else ())
        return ends[0] + inner + ends[1], mtp
    chunks = _chunks(a, p, len(layers))
    blank = bool(a["account-for-embedding-in-pipeline-split"])
    end = bool(a["account-for-loss-in-pipeline-split"])
    padded = ("",) * blank + layers + ("",) * end
    return tuple(tuple(filter(None, s)) for s in _even(padded, p.pipeline * chunks)), mtp


def _layers(a: Arguments) -> tuple[str, ...]:
    count, every = a.number("num-layers"), str(a["moe-layer-freq"] or 1)
    if not a["num-experts"]:
        return ("*-",) * count
    if re.fullmatch(r"\d+", every):
        mixed = [i % int(every) == 0 for i in range(count)]
    else:
        runs = re.findall(r"\[([01, ]+)\](?:\*(\d+))?", every)
        mixed = [x == "1" for r, n in runs for x in re.findall("[01]", r) * int(n or 1)]
    if len(mixed) != count:
        raise Refused(f"moe-layer-freq {every} is not of {count} layers")
    return tuple("*E" if experts else "*-" for experts in mixed)


def _chunks(a: Arguments, p: Parallel, layers: int) -> int:
    if each := a.number("num-layers-per-virtual-pipeline-stage"):
        return layers // p.pipeline // each if p.pipeline > 1 else 1
    given = ("num-virtual-stages-per-pipeline-rank", "virtual-pipeline-model-parallel-size")
    return max(a.number(name, 1) for name in given)


def _even(layers: tuple[str, ...], parts: int) -> tuple[tuple[str, ...], ...]:
    if len(layers) % parts:
        raise Refused(f"{len(layers)} layers do not divide into {parts} stages")
    each = len(layers) // parts
    return tuple(layers[i * each : (i + 1) * each] for i in range(parts))


def _laid_out(layout: str, layers: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Of `Et*2|(tt|)*5t|tmL`: E embedding, t layer, m MTP, L loss, | between stages."""
    text = re.sub(r"\(([^()]*)\)\*(\d+)", lambda m: m[1] * int(m[2]), layout.replace(",", ""))
    text = re.sub(r"(\w)\*(\d+)", lambda m: m[1] * int(m[2]), text)
    counts = [stage.count("t") for stage in text.split("|")]
    starts = [sum(counts[:i]) for i in range(len(counts))]
    return tuple(layers[s : s + n] for s, n in zip(starts, counts, strict=True))
