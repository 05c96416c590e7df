"""Which modules training and rollouts compute in FP8: lists of two engines, which must agree."""

from collections import Counter
from collections.abc import Iterator

from nemo_algos.findings import Finding, did_you_mean
from nemo_algos.preflight.check.decoder import ROUTER, modules
from nemo_algos.preflight.check.layout import MEGATRON, VLLM
from nemo_algos.preflight.check.rule import Preflight, error, note, warning
from nemo_algos.preflight.check.rules.fp8 import FP8, POW2

KEYWORDS = f"{VLLM}.quantization_ignored_layer_kws"
FIRST = f"{VLLM}.num_first_layers_in_bf16"
LAST = f"{VLLM}.num_last_layers_in_bf16"
FP32_SCALES = "NVTE_FP8_BLOCK_SCALING_FP32_SCALES"  # of Transformer Engine; else powers of 2
SCALED = {"blockwise": "blocks of 128", "mxfp8": "blocks of 32"}  # else a tensor has one scale


def keywords(run: Preflight) -> Iterator[Finding]:
    """A keyword leaves everything in BF16 whose name contains it, and vLLM fuses modules."""
    words = _keywords(run) if run.model else []
    linear = set[str]()
    cut = set[str]()
    for _, name, parts in _parts(run):
        left = [any(word in part for word in words) for part in parts]
        if any(left) and not all(left) and name != "mlp.experts":  # of which any part decides
            cut.add(name)
        if name != ROUTER:
            linear |= {part.rpartition(".")[2] for part in parts}
    for word in words:
        whole = set()
        for _, name, parts in _parts(run):
            if any(word in part for part in parts):
                whole.add(name)
        near = did_you_mean(word, sorted(linear))
        torn = sorted(whole & cut)
        if torn:
            yield error(
                KEYWORDS,
                f"{word} matches only some of the parts that vLLM fuses into "
                f"{' and '.join(torn)}. vLLM would stop. Name all of its parts (as q_proj, k_proj, "
                "v_proj), or none.",
            )
        elif ROUTER in whole and len(whole) > 1:
            others = " and ".join(sorted(whole - {ROUTER}))
            yield warning(
                KEYWORDS,
                f"{word} matches the router, which is in BF16 anyway, but also {others}. Those "
                "layers would stay in BF16 too. Remove it, or name the layers in full.",
            )
        elif not whole and "did you mean" in near:  # else a module that a plain decoder has not
            yield warning(KEYWORDS, f"no linear layer's name contains {word}{near}")


def quantised_alike(run: Preflight) -> Iterator[Finding]:
    """What rollouts leave in BF16, training does not; two FP8 formats are two policies."""
    if _fp8(run):
        path = next((key for key in (KEYWORDS, FIRST, LAST) if run[key]), KEYWORDS)
        listed = ", ".join(f"{name} of {n} layers" for name, n in _left(run).items())
        if listed and run[f"{FP8}.enabled"]:
            yield warning(
                path,
                f"rollouts compute in BF16 some layers that training computes in FP8 ({listed}). "
                "Exclude fewer layers, or set `mismatch.stop_above: 0.06`.",
            )
        elif listed:
            yield note(path, f"rollouts compute these layers in BF16: {listed}")
    if not (run.vllm and run[f"{FP8}.enabled"]):
        return
    recipe = run[f"{FP8}.fp8_recipe"]
    generated = "mxfp8" if run[f"{VLLM}.is_mx"] else "blockwise"
    if not _fp8(run):
        yield warning(
            f"{VLLM}.precision",
            "the policy is trained in FP8, but rollouts are sampled in another precision. Set it "
            "to fp8.",
        )
    elif recipe != generated:
        trained = SCALED.get(recipe, "whole tensors")
        drawn = SCALED[generated]
        yield warning(
            f"{FP8}.fp8_recipe",
            f"training scales {trained}, but rollouts scale {drawn}. Set it to {generated}.",
        )
    elif recipe == "blockwise":
        variables = run[f"{MEGATRON}.env_vars"] or {}
        powers = str(variables.get(FP32_SCALES)) != "1"
        scales = "powers of 2" if powers else "any float32"
        for key in POW2:
            if bool(run[f"{VLLM}.{key}"]) != powers:
                yield warning(
                    f"{VLLM}.{key}",
                    f"training uses scales that are {scales} ({FP32_SCALES} in "
                    f"`{MEGATRON}.env_vars`), but rollouts do not. Change one of them.",
                )


def old_quantisation(run: Preflight) -> Iterator[Finding]:
    """Two slips of NeMo-RL v0.7.0, mended since."""
    if not _fp8(run):
        return
    facts = run.nemo_rl.facts
    nested = facts["ignored layers are a nested list"]
    for path in (FIRST, LAST):
        if run[path] and nested:
            yield error(
                path,
                "this NeMo-RL passes vLLM a nested list, which matches no layer. Set it to 0, and "
                "name the layers in quantization_ignored_layer_kws.",
            )
    if run[f"{VLLM}.{POW2[1]}"] and facts["powers of two stop the engine"]:
        yield error(
            f"{VLLM}.{POW2[1]}",
            "this NeMo-RL's engine would stop with a TypeError. Set it to false.",
        )


def routes(run: Preflight) -> Iterator[Finding]:
    """Two engines send a token near a tie to different experts."""
    named = "nemotron-3-nano-30b-a3b" in str(run["policy.model_name"]).lower()
    if named and run.megatron and run.layout.expert > 1:
        yield warning(
            run.size_key("expert"),
            "with expert parallelism, trainer and sampler of this model diverged within 8 updates "
            "in NVIDIA-NeMo/RL#4243. Set it to 1, or set `mismatch.stop_above`, such as to 0.05.",
        )
    path = "policy.router_replay.enabled"
    if run.megatron and run.vllm and run.model and run.model.experts and not run[path]:
        yield note(
            path,
            "training routes some tokens to different experts than the rollouts did. Watch "
            "mismatch/mean. With this key the rollouts' routes are replayed: the mismatch map "
            "measured no gain in accuracy.",
        )


def _fp8(run: Preflight) -> bool:
    return run.vllm and run[f"{VLLM}.precision"] == "fp8"


def _keywords(run: Preflight) -> list[str]:
    if _fp8(run):
        return [str(x) for x in run[KEYWORDS] or []]
    return []


def _parts(run: Preflight) -> Iterator[tuple[int, str, list[str]]]:
    """Every module of a known model: its layer, its name there, its parameters' whole names."""
    for layer in range(len(run.model.layers) if run.model else 0):
        assert run.model
        for name, parts in modules(run.model, layer).items():
            yield layer, name, [f"model.layers.{layer}.{part}" for part in parts]


def _left(run: Preflight) -> dict[str, int]:
    """Modules that FP8 rollouts leave in BF16, and in how many layers."""
    words = _keywords(run)
    total = len(run.model.layers) if run.model else 0
    first = int(run[FIRST] or 0)
    last = int(run[LAST] or 0)
    found = Counter[str]()
    for layer, name, parts in _parts(run):
        named = any(word in part for part in parts for word in words)
        if name != ROUTER and (named or not first <= layer < total - last):
            found[name] += 1
    return found
