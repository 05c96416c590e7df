"""What a step samples and trains on, and what is left of a healthy batch after masks and cuts.

In a healthy batch, trainer and sampler differ by rounding: by log-probs of about 0.01 to 0.05.
"""

from collections.abc import Iterator
from math import ceil, exp, log
from statistics import NormalDist
from typing import NamedTuple

from nemo_algos.findings import Finding
from nemo_algos.preflight.forecast.planned import Planned, error, note, warning, written_of

GAPS = (0.0, 0.01, 0.05)  # standard deviations of healthy differences, in nats per token
SICK = 100.0  # a mean exp|difference| that no batch has that still trains
THRESHOLD = "grpo.seq_logprob_error_threshold"
CORRECTION = "loss_fn.use_importance_sampling_correction"
RATIO = "loss_fn.truncated_importance_sampling_ratio"
KIND = "loss_fn.truncated_importance_sampling_type"
GROUP = "grpo.num_generations_per_prompt"
SMALL = (2, 3)  # groups of which half or more are flat at some of the rates
RATES = (0.2, 0.5, 0.8)  # pass rates
DRAWS = "grpo.dynamic_sampling_max_gen_batches"


class Batch(NamedTuple):
    """A step: prompts, responses to each, updates; flat: its share of flat groups by chance.

    flat is of a pass rate of 1/2. error: the mean exp|difference| of healthy gaps; kept: the share
    of the tokens whose weight is kept as it is, at the same gaps.
    """

    prompts: int
    responses: int
    updates: int
    flat: float
    error: tuple[float, ...]
    kept: tuple[float, ...]


def batch_of(run: Planned) -> Batch:
    """What a step of the run does."""
    group = run[GROUP]
    low, high = _weights(run)
    epochs = run["grpo.num_update_epochs"]
    if not isinstance(epochs, int) or epochs <= 0:
        epochs = 1
    return Batch(
        prompts=run["grpo.num_prompts_per_step"],
        responses=group,
        updates=epochs * max(1, run.rollouts // max(1, run["policy.train_global_batch_size"])),
        flat=flat(group, 0.5),
        error=tuple(probability_error(gap) for gap in GAPS),
        kept=tuple(kept(gap, low, high) for gap in GAPS),
    )


def flat(group: int, rate: float) -> float:
    """The chance that all responses of a group are right, or all are wrong."""
    return rate**group + (1 - rate) ** group


def probability_error(gap: float) -> float:
    """The mean of exp|d| for normal differences d of that standard deviation."""
    return 2 * exp(gap**2 / 2) * NormalDist().cdf(gap)


def kept(gap: float, low: float, high: float) -> float:
    """The share of the weights exp(d) from low to high, for normal d of that standard deviation."""
    if gap == 0:
        return float(low <= 1 <= high)
    return max(0.0, _below(high, gap) - _below(low, gap))


def _below(weight: float, gap: float) -> float:
    """The share of the weights exp(d) that are lower."""
    if weight > 0:
        return NormalDist().cdf(log(weight) / gap)
    return 0.0


def _weights(run: Planned) -> tuple[float, float]:
    """The weights that NeMo-RL's correction leaves as they are."""
    if not run[CORRECTION] or not run[KIND]:
        return 0.0, float("inf")
    low = run[f"{RATIO}_min"] or 0.0
    if run[RATIO] is None:
        return low, float("inf")
    return low, run[RATIO]


def masked_sequences(run: Planned) -> Iterator[Finding]:
    """With a threshold, sequences that differ by rounding are trained on; those far off are not."""
    found = run[THRESHOLD]
    if found is None:
        return
    scale = "It bounds a mean of exp|difference|, which is 1 where both agree"
    if found < 1:
        yield error(THRESHOLD, f"{found:g} masks every sequence. {scale}. Set e.g. 1.5.")
    elif found < probability_error(GAPS[-1]):
        yield warning(
            THRESHOLD,
            f"{found:g} masks sequences whose log-probs differ by rounding: {scale}, and up to "
            f"{probability_error(GAPS[-1]):.2f} in BF16. Set e.g. 1.5.",
        )
    elif found > SICK:
        yield warning(THRESHOLD, f"{found:g} masks nothing. {scale}. Set e.g. 1.5.")


def cut_weights(run: Planned) -> Iterator[Finding]:
    """The correction keeps the weights of samples that differ by rounding alone."""
    low, high = _weights(run)
    kind = run[KIND]
    key = RATIO if high < 1.1 else f"{RATIO}_min"
    if kind == "seq-mask-tis":
        # the geometric mean of a response's weights: of normal differences exp(-variance / 2)
        share = float(low <= exp(-(GAPS[1] ** 2) / 2) <= high)
        if low <= exp(-0.5) and high < float("inf"):
            yield warning(
                written_of(run, KIND, key, RATIO),
                f"a response's mean weight lies between {low:g} and {high:g} even where trainer "
                "and sampler differ by 1 nat per token: nothing is masked. Set e.g. 0.999, 1.002.",
            )
    else:
        share = kept(GAPS[1], low, high)
    if share >= 0.9:
        return
    what = "cuts" if kind == "tis" else "drops"
    say = error if share < 0.5 else warning
    yield say(
        key,
        f"weights are kept from {low:g} to {high:g}, but they are about 1 where trainer and "
        f"sampler agree: {kind} then {what} {1 - share:.0%} of the tokens. Let 1 lie well inside.",
    )


def enough_draws(run: Planned) -> Iterator[Finding]:
    """Dynamic sampling fills its batch before NeMo-RL gives up, at a pass rate of 1/2.

    Where hard or easy prompts would end the run, a note says from which pass rate on.
    """
    if not run["grpo.use_dynamic_sampling"]:
        return
    multiplier = run["grpo.batch_multiplier"] or 1
    prompts = run["grpo.num_prompts_per_step"]
    most = run[DRAWS]
    needed = _draws(run, 0.5)
    if needed is None or (most is not None and needed > most):
        key = "grpo.batch_multiplier" if multiplier < 1 else DRAWS
        yield error(
            key,
            f"a batch needs about {needed or 'endless'} draws of {int(prompts * multiplier)} "
            f"prompts at a pass rate of 1/2, and NeMo-RL stops after {most}. Raise it.",
        )
        return
    if most is None:
        return
    enough = 50  # percent
    while enough > 1 and (_draws(run, (enough - 1) / 100) or most + 1) <= most:
        enough -= 1
    if enough > 1:
        yield note(
            DRAWS,
            f"NeMo-RL draws at most {most} x {int(prompts * multiplier)} prompts for a batch: they "
            f"fill it at pass rates of {enough} % to {100 - enough} %. Raise it, so that easy or "
            "hard data do not end the run.",
        )


def _draws(run: Planned, rate: float) -> int | None:
    """The draws that fill a batch with groups that are not flat, at this pass rate; None: never."""
    prompts = run["grpo.num_prompts_per_step"]
    drawn = int(prompts * (run["grpo.batch_multiplier"] or 1))
    varied = drawn * (1 - flat(run[GROUP], rate))
    return ceil(prompts / varied - 1e-9) if varied else None


def flat_groups(run: Planned) -> Iterator[Finding]:
    """Of small groups most are all right or all wrong, and have no advantage."""
    group = run[GROUP]
    a = run.algorithm
    if group in SMALL and not (a and "memory" in a.advantage_needs):
        shares = ", ".join(f"{flat(group, rate):.0%} at {rate:g}" for rate in RATES)
        yield note(
            GROUP,
            f"groups of {group} are all right or all wrong by chance, and then have no advantage: "
            f"by pass rate {shares}. Set it to 8 or more to train on most rollouts.",
        )
