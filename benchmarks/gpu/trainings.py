"""Pieces that train in NeMo-RL, and what is compared with their runs."""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import same
from nemo_run import HERE, KEEPING, PLAIN, STOCK, Part, Run, started
from piece import Piece

METHODS = ("etr", "quatro", "erpo", "apmpo", "grpo")
SEEDS = (1, 2)
NOISE = "0.15"  # nats; clip ranges begin at a log-ratio of 0.18
LARGE = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24}
LARGE |= {"num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 1024}
SMALL = {"num_hidden_layers": 3, "max_position_embeddings": 1024}
LONG = ("policy.max_total_sequence_length=512", "policy.generation.max_new_tokens=500")
LONG += ("policy.train_micro_batch_size=8",)
MEAN = ("--mean-tokens", "116")  # a random model ends at one of its 110 words
PLANNED = {"fp8": ("start", ()), "bf16": ("start", ()), "large": ("wide", (*LONG, *MEAN))}
MEASURED = ("memory", "MiB", "timing/train/total", "timing/train/policy", "timing/train/gen")
Curves = Mapping[str, Mapping[int, float]]
TIMES = "timing/train/"
OURS = ("advantage_calculation", "training_prep", "policy_training")  # where our code runs
AFTER = 3  # steps whose times are of compilation, caches and first allocations


def fp8(piece: Piece) -> None:
    """ETR under Megatron in e4m3 blocks with FP8 rollouts, 4 steps."""
    Run(piece, "fp8", "fp8", "grpo.max_num_steps=4").run(Part())


def bf16(piece: Piece) -> None:
    """The same in bf16, packed; killed after the checkpoint of step 2, and resumed."""
    saves = ("checkpointing.enabled=true", "checkpointing.save_period=2")
    words = (*saves, "checkpointing.checkpoint_dir=results", "grpo.max_num_steps=4")
    killed = Part(label="until the kill: ", kill_at="results/step_2")
    Run(piece, "bf16", "bf16", *words).run(killed, Part(label="resumed: "))


def large(piece: Piece) -> None:
    """Two steps of ETR with 1.6 billion random weights, up to 500 tokens: memory and time."""
    widen(piece)
    Run(piece, "large", "bf16", *LONG, "grpo.max_num_steps=2", start="wide").run(Part(PLAIN))


def widen(piece: Piece) -> None:
    """Makes OUT/wide where it is not: the start model's rows, random weights of other sizes."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if (piece.out / "wide").exists():
        return
    made = piece.out / "made"
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(started(piece), made)
    config = AutoConfig.from_pretrained(made / "model")
    config.update(SMALL if piece.on_cpu else LARGE)
    with torch.device("cpu" if piece.on_cpu else "cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(made / "model")
    del model
    torch.cuda.empty_cache()  # of this process nothing is to be measured
    made.rename(piece.out / "wide")


def methods(piece: Piece) -> None:
    """Two steps of each method with one update, for `same`; goes on where it ended."""
    each(piece, (_of_a_method(piece, method) for method in METHODS), NOISE=NOISE)


def _of_a_method(piece: Piece, method: str) -> Run:
    whole = ("policy.train_global_batch_size=256", "grpo.max_num_steps=2")
    return Run(piece, f"m_{method}", "bf16", f"method.name={method}", *whole)


def overhead(piece: Piece) -> None:
    """GRPO with our loss, columns and monitor, and with NeMo-RL's own: the parts of a step."""
    words = ("method.name=grpo", "grpo.max_num_steps=15")
    ours = Run(piece, "o_ours", "bf16", *words)
    theirs = Run(piece, "o_theirs", "bf16", *words)
    for run, program in ((ours, PLAIN), (theirs, STOCK)):
        if not run.done.exists():
            run.run(Part(program))
    piece.figures |= differences(ours.curves(), theirs.curves())


def differences(ours: Curves, theirs: Curves) -> dict[str, object]:
    """The medians of both, and what ours adds to the parts that our code is in."""
    found = pairs(ours, theirs)
    added = sum(found[part][0] - found[part][1] for part in OURS)
    share: dict[str, object] = {"added, % of a step": 100 * added / found["total_step_time"][1]}
    return share | {f"{name}, s: ours, NeMo-RL's": pair for name, pair in found.items()}


def pairs(one: Curves, other: Curves) -> dict[str, list[float]]:
    """The medians of a step's parts in two runs, those that both have."""
    return {
        name.removeprefix(TIMES): [settled(curve), settled(other[name])]
        for name, curve in one.items()
        if name.startswith(TIMES) and name in other
    }


def settled(curve: Mapping[int, float]) -> float:
    """The median of the steps behind the first."""
    return median(value for step, value in curve.items() if step > AFTER)


def learn(piece: Piece) -> None:
    """SmolLM2-135M on sums: five methods, ETR in FP8, two seeds; goes on where it ended."""
    if not (piece.out / "smollm2").exists():
        raise ValueError(
            f"{piece.out}/smollm2 is missing: `sums.py write` makes it (see README.md)"
        )
    runs = (_learner(piece, name, seed) for seed in SEEDS for name in (*METHODS, "fp8"))
    each(piece, runs, program=PLAIN)


def _learner(piece: Piece, name: str, seed: int) -> Run:
    """Of a method; `fp8` is ETR in FP8."""
    config = "learn_fp8" if name == "fp8" else "learn"
    method = "etr" if name == "fp8" else name
    words = (f"method.name={method}", f"grpo.seed={seed}")
    return Run(piece, f"l_{name}{seed}", config, *words, start="smollm2")


def each(
    piece: Piece, runs: Iterable[Run], program: Sequence[str] = KEEPING, **variables: str
) -> None:
    """Those that are not done, as long as there is time for another as long as the last."""
    longest = 0.0
    for run in runs:
        if run.done.exists():
            run.keep()
            continue
        if piece.left < longest:
            piece.figures["next"] = f"{run.name}: the same command goes on"
            return
        before = piece.left
        run.run(Part(program), **variables)
        longest = max(longest, before - piece.left)


def compare(piece: Piece) -> None:
    """The batches of the runs that are there, through the embedded engine; needs no GPU."""
    for file in sorted(piece.out.glob("*/batch_1.pt")):
        for name, value in same.compared(file.parent):
            piece.figures[f"{file.parent.name}, {name}"] = value


def memory(piece: Piece) -> None:
    """What `plan` predicts of three runs, beside their figures; needs no GPU."""
    for name, (model, overrides) in PLANNED.items():
        file = piece.out / f"{name}.json"
        if not file.exists():
            piece.figures[name] = "not run yet"
            continue
        taken = json.loads(file.read_text())
        card = next((card for card in ("H200", "H100", "B200") if card in taken["device"]), "H100")
        config = HERE / "configs" / ("fp8.yaml" if name == "fp8" else "bf16.yaml")
        words = ("--model", piece.out / model / "model", "--gpu", card, "--json", *overrides)
        printed = piece.python("plan", "-m", "nemo_algos", "plan", config, *words)
        piece.figures |= beside(name, json.loads(printed[printed.index("\n{") :]), taken["figures"])


def beside(name: str, planned: dict, measured: dict) -> dict[str, object]:
    """Predicted and measured of a run: GB of training, seconds of a step's parts."""
    training = planned["training_bytes"]
    found = {
        f"{name}: planned, GB": sum(training.values()) / 1e9,
        f"{name}: planned without workspace and sleeping engine, GB": sum(
            size for part, size in training.items() if part not in ("workspace", "sleeping engine")
        )
        / 1e9,
        f"{name}: planned, s a step": planned["step_seconds"],
    }
    for part, seconds in planned["seconds"].items():
        found[f"{name}: planned, s of {part}"] = seconds
    for key, value in measured.items():
        if any(word in key for word in MEASURED):
            found[f"measured, {key}"] = value
    return found
