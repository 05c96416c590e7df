"""An independent program computes each method's loss and gradient norm on batches that are traps.

It was written from the papers' formulas, the specification and the pages of docs/methods, without
reading the package, and imports nothing of it. Advantages are loops over rows; an objective is its
formula in torch float64, which autograd differentiates. `sg` of a formula is `.detach()`.

    python tests/golden/oracle.py          writes methods.json.gz beside this file

The file: {"batches": {name: inputs}, "cases": [{"method", "params", "batch", "loss", "grad_norm",
"advantages"}]}. `grad_norm` is the L2 norm of d loss / d logprobs; `advantages` is the sum over
response tokens of |A| as it enters the loss, before any re-weighting by the current ratio. `params`
are the method's own, by the documented keys; `kl_coef` is the coefficient of the k3 penalty (kl_cov
has a parameter of that name, its own). Methods with memory also have `later`: loss and gradient
norm of a second call, with `rewards_next` in place of `rewards`, and of a third, with `rewards`.
"""

import gzip
import json
import math
import random
from dataclasses import dataclass, replace
from pathlib import Path

import torch

ROWS = 16
STEPS = 8
MAX_LOG_RATIO = 20.0
DELTA = 1e-6  # added to every standard deviation
NAN = float("nan")


# Batches -----------------------------------------------------------------------------------------


def uniform(source: random.Random, low: float, high: float) -> float:
    """A number in [low, high) has four digits behind the point."""
    return round(low + (high - low) * source.random(), 4)


def shrink(source: random.Random, reach: float) -> float:
    """A number in (-reach, reach) is more often small than large."""
    return reach * (2 * source.random() - 1) * source.random()


def table(entry) -> list[list]:
    """A [B, S] table holds entry(row, step)."""
    return [[entry(row, step) for step in range(STEPS)] for row in range(ROWS)]


def make_batch(seed: int, group=None, mask=None, log_ratio=None, rewards=None) -> dict:
    """A batch has four groups of four full rows and moderate log-ratios, unless told otherwise."""
    source = random.Random(seed)
    if group is None:
        group = [row // 4 for row in range(ROWS)]
    if mask is None:
        mask = [[1] * STEPS for _ in range(ROWS)]
    if log_ratio is None:
        log_ratio = table(lambda row, step: shrink(source, 0.8))
    # A log-prob is at most 0, so a token whose ratio is large was unlikely.
    old = table(
        lambda row, step: (
            -round(max(log_ratio[row][step], 0.0) + 0.05 + 3 * source.random() ** 2, 4)
        )
    )
    logprobs = table(lambda row, step: round(old[row][step] + log_ratio[row][step], 4))
    ref = table(lambda row, step: min(-0.0001, round(old[row][step] + shrink(source, 0.6), 4)))
    gen = table(lambda row, step: min(-0.0001, round(old[row][step] + shrink(source, 0.9), 4)))
    entropy = table(lambda row, step: round(2.5 * source.random() ** 2, 4))
    graded = [uniform(source, 0, 1) for _ in range(ROWS)]
    binary = [float(source.random() < 0.5) for _ in range(ROWS)]
    if rewards is None:  # right or wrong in every other group, partial rewards elsewhere
        order = sorted(set(group))
        rewards = [
            graded[row] if order.index(group[row]) % 2 else binary[row] for row in range(ROWS)
        ]
    first = [round(rewards[row] * source.random(), 4) for row in range(ROWS)]
    drift = {label: uniform(source, 0, 0.02) for label in sorted(set(group))}
    return {
        "group": group,
        "prompt": [f"prompt {label}" for label in group],
        "rewards": rewards,
        "rewards_next": [uniform(source, 0, 1) for _ in range(ROWS)],
        "parts": {
            "right": first,
            "format": [round(rewards[row] - first[row], 9) for row in range(ROWS)],
        },
        "drift": [drift[label] for label in group],
        "mask": mask,
        "old_logprobs": old,
        "logprobs": logprobs,
        "ref_logprobs": ref,
        "gen_logprobs": gen,
        "entropy": entropy,
    }


def lengths_mask(lengths: list[int]) -> list[list]:
    """Rows of a mask begin with so many ones."""
    return table(lambda row, step: int(step < lengths[row]))


def holes() -> dict:
    """Tokens of other speakers lie within the responses, and before them."""
    source = random.Random(20)
    mask = table(lambda row, step: int(source.random() < 0.65))
    for row in range(ROWS):
        mask[row][row % STEPS] = 1
    return make_batch(2, mask=mask)


def empty_rows() -> dict:
    """Two single responses and a whole group have no token."""
    lengths = [8, 0, 5, 3, 7, 8, 0, 2, 1, 6, 8, 4, 0, 0, 0, 0]
    return make_batch(3, mask=lengths_mask(lengths))


def flat_groups() -> dict:
    """Two of four groups have equal rewards; the parts of one of these differ."""
    rewards = [1.0] * 4 + [0.0, 1.0, 1.0, 0.0] + [0.25] * 4 + [0.125, 0.75, 0.5, 0.625]
    batch = make_batch(4, rewards=rewards)
    batch["parts"]["right"][0:4] = [0.5] * 4
    batch["parts"]["format"][0:4] = [0.5] * 4
    return batch


def all_flat() -> dict:
    """No group has a signal, nor have the parts."""
    rewards = [0.0] * 4 + [1.0] * 4 + [0.3] * 4 + [0.7] * 4
    batch = make_batch(5, rewards=rewards)
    batch["parts"] = {
        "right": [0.5 * reward for reward in rewards],
        "format": [0.5 * reward for reward in rewards],
    }
    return batch


def extreme() -> dict:
    """Single tokens have log-ratios of 3 and 6 in both directions; no sum over a row passes 20."""
    source = random.Random(70)
    jumps = [3.0, -3.0, 6.0, -6.0]
    log_ratio = table(lambda row, step: shrink(source, 0.3))
    for row in range(ROWS):
        log_ratio[row][row % STEPS] = jumps[row % 4] + shrink(source, 0.5)
        log_ratio[row][(row + 3) % STEPS] = jumps[(row // 4 + row) % 4] + shrink(source, 0.5)
    return make_batch(7, log_ratio=log_ratio)


def beyond_clamp() -> dict:
    """Single tokens have log-ratios of 25 in both directions, others of 3 and 6; sums pass 20."""
    source = random.Random(71)
    jumps = [25.0, -25.0, 6.0, -3.0, 3.0, 25.0, -6.0, -25.0]
    log_ratio = table(lambda row, step: shrink(source, 0.3))
    for row in range(ROWS):
        log_ratio[row][(3 * row) % STEPS] = jumps[(row + row // 4) % 8]
    batch = make_batch(8, log_ratio=log_ratio)
    for row in range(ROWS):
        for step in range(STEPS):
            # Unlikely before and after: no threshold hangs on a clamped q.
            if abs(log_ratio[row][step]) > MAX_LOG_RATIO:
                for name in ("old_logprobs", "logprobs", "ref_logprobs", "gen_logprobs"):
                    batch[name][row][step] = round(batch[name][row][step] - 4.0, 4)
    return batch


def nan_off_mask() -> dict:
    """Whatever lies off the mask is NaN."""
    source = random.Random(80)
    mask = table(lambda row, step: int(source.random() < 0.7))
    mask[5] = [0] * STEPS
    batch = make_batch(9, mask=mask)
    for name in ("old_logprobs", "logprobs", "ref_logprobs", "gen_logprobs", "entropy"):
        for row in range(ROWS):
            for step in range(STEPS):
                if not mask[row][step]:
                    batch[name][row][step] = NAN
    return batch


def shuffled() -> dict:
    """Rows of a group are apart, and labels are no positions."""
    group = [40, 3, 11, 40, 7, 3, 7, 11, 3, 40, 11, 7, 7, 40, 3, 11]
    return make_batch(
        12, group=group, mask=lengths_mask([8, 3, 5, 1, 2, 8, 6, 7, 4, 4, 8, 1, 5, 2, 7, 3])
    )


def on_policy() -> dict:
    """The policy is still the one that sampled."""
    return make_batch(13, log_ratio=table(lambda row, step: 0.0))


def clip_activity() -> dict:
    """Every log-ratio is about 1 or -1, so that bounds cut nearly all tokens that they can."""
    source = random.Random(90)
    return make_batch(
        14,
        log_ratio=table(
            lambda row, step: math.copysign(uniform(source, 0.7, 1.3), source.random() - 0.5)
        ),
    )


def one_token() -> dict:
    """A response is one token, anywhere in its row; one has none: no quantile is then a token."""
    source = random.Random(91)
    places = [int(STEPS * source.random()) for _ in range(ROWS)]
    places[9] = -1
    return make_batch(15, mask=table(lambda row, step: int(step == places[row])))


def huge_rewards() -> dict:
    """Rewards are thousands, of both signs, and negative throughout one group."""
    source = random.Random(92)
    rewards = [math.copysign(1000.0, source.random() - 0.5) for _ in range(ROWS)]
    rewards[4:8] = [-1000.0, -999.5, -1000.0, -750.25]
    rewards[8:12] = [1000.0, 1000.0005, 999.9995, 1000.0]  # within the tolerance of 1e-3: flat
    rewards[12] = 0.0
    return make_batch(16, rewards=rewards)


def near_ties() -> dict:
    """A group within 1e-9 is flat; one 2e-5 apart is not."""
    rewards = [0.5, 0.5 + 1e-9, 0.5, 0.5 - 1e-9]
    rewards += [0.5, 0.50002, 0.5, 0.5]
    rewards += [1.0, 1.0 - 1e-9, 0.0, 1e-9]
    rewards += [0.75, 0.5, 0.5 + 1e-9, 0.25]
    return make_batch(17, rewards=rewards)


BATCHES = {
    "plain": lambda: make_batch(1),
    "holes": holes,
    "empty_rows": empty_rows,
    "flat_groups": flat_groups,
    "all_flat": all_flat,
    "groups_of_one": lambda: make_batch(6, group=list(range(ROWS))),
    "extreme": extreme,
    "beyond_clamp": beyond_clamp,
    "nan_off_mask": nan_off_mask,
    "lengths": lambda: make_batch(10, mask=lengths_mask([1 + row % STEPS for row in range(ROWS)])),
    "unequal_groups": lambda: make_batch(11, group=[0] * 2 + [1] * 3 + [2] * 5 + [3] * 6),
    "shuffled": shuffled,
    "on_policy": on_policy,
    "clip_activity": clip_activity,
    "one_token": one_token,
    "huge_rewards": huge_rewards,
    "near_ties": near_ties,
    "sparse": lambda: make_batch(18, rewards=[float(row == 6) for row in range(ROWS)]),
    "one_group_right": lambda: make_batch(
        19, rewards=[float(8 <= row < 11) for row in range(ROWS)]
    ),
    "kl_penalty": lambda: make_batch(
        21, mask=lengths_mask([1 + (5 * row) % STEPS for row in range(ROWS)])
    ),
}


@dataclass
class Batch:
    """A batch holds its rows as tensors [B, S] with zeros off the mask, and lists [B]."""

    inputs: dict

    def __post_init__(self) -> None:
        self.mask = torch.tensor(self.inputs["mask"]).bool()
        self.group: list = self.inputs["group"]
        self.prompt: list[str] = self.inputs["prompt"]
        self.rewards: list[float] = self.inputs["rewards"]
        self.parts: dict[str, list[float]] = self.inputs["parts"]
        self.drift: list[float] = self.inputs["drift"]
        self.logprobs = self.select("logprobs").requires_grad_()
        self.old = self.select("old_logprobs")
        self.ref = self.select("ref_logprobs")
        self.gen = self.select("gen_logprobs")
        self.entropy = self.select("entropy")

    def select(self, name: str) -> torch.Tensor:
        return torch.where(self.mask, torch.tensor(self.inputs[name]), 0.0)

    @property
    def members(self) -> list[list[int]]:
        """Rows of each group."""
        labels = dict.fromkeys(self.group)
        return [[row for row in range(ROWS) if self.group[row] == label] for label in labels]


@dataclass
class Objective:
    """J is maximised; A [B, S] is the advantage; J and the KL penalty are averaged `how`."""

    J: torch.Tensor
    A: torch.Tensor
    how: str


# Statistics of the rewards -----------------------------------------------------------------------


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def deviation(values: list[float], kind: str) -> float:
    """The standard deviation divides by n - 1 (`sample`) or n (`population`)."""
    squares = math.fsum((value - mean(values)) ** 2 for value in values)
    return math.sqrt(squares / (len(values) - (kind == "sample")))


def tolerance(values: list[float]) -> float:
    return 1e-6 * max(1.0, *(abs(value) for value in values))


def is_flat(values: list[float]) -> bool:
    return len(values) == 1 or max(values) - min(values) <= tolerance(values)


def normalise(values: list[float], std: str, epsilon: float = DELTA) -> list[float]:
    """(x - mean) / (std + epsilon); 0 in a flat pool and within the tolerance of the mean."""
    if is_flat(values):
        return [0.0] * len(values)
    divisor = 1.0 if std == "none" else deviation(values, std) + epsilon
    centred = [value - mean(values) for value in values]
    return [0.0 if abs(value) <= tolerance(values) else value / divisor for value in centred]


def by_group(batch: Batch, values: list[float], of_pool) -> list[float]:
    """A list [B] has of_pool(values of a group) at the group's rows."""
    result = [0.0] * ROWS
    for rows in batch.members:
        for row, value in zip(rows, of_pool([values[row] for row in rows]), strict=True):
            result[row] = value
    return result


def at_tokens(batch: Batch, rows: list[float]) -> torch.Tensor:
    """Each token of a row has the row's value; positions off the mask have 0."""
    return torch.tensor(rows)[:, None] * batch.mask


def pooled(batch: Batch, of_pool) -> torch.Tensor:
    """At each token, what of_pool makes of the rewards of its group."""
    return at_tokens(batch, by_group(batch, batch.rewards, of_pool))


def group_advantages(batch: Batch, std: str = "sample") -> torch.Tensor:
    """A_i = (R_i - mean) / (std + 1e-6) of the group, at each token."""
    return pooled(batch, lambda rewards: normalise(rewards, std))


# Parts of objectives -----------------------------------------------------------------------------


def clamp(log_ratio: torch.Tensor) -> torch.Tensor:
    """A log-ratio is cut at +-20, and has no gradient beyond."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def log_ratios(batch: Batch) -> torch.Tensor:
    return clamp(batch.logprobs - batch.old)


def token_ratio(batch: Batch) -> torch.Tensor:
    return log_ratios(batch).exp()


def row_sum(batch: Batch, x: torch.Tensor) -> torch.Tensor:
    """Sums over a row's tokens are [B, 1]."""
    return torch.where(batch.mask, x, 0.0).sum(1, keepdim=True)


def row_mean(batch: Batch, x: torch.Tensor) -> torch.Tensor:
    return row_sum(batch, x) / batch.mask.sum(1, keepdim=True).clamp(min=1)


def average(batch: Batch, x: torch.Tensor, how: str) -> torch.Tensor:
    """`sequence`: of rows with tokens, of each row's mean; `token`: of all tokens."""
    if how == "token":
        return row_sum(batch, x).sum() / batch.mask.sum()
    return row_mean(batch, x).sum() / batch.mask.any(1).sum()


def averaged(batch: Batch, J: torch.Tensor, A: torch.Tensor, how: str) -> Objective:
    return Objective(average(batch, J, how), A, how)


def clipped(ratio: torch.Tensor, A: torch.Tensor, low, high) -> torch.Tensor:
    """min(r A, clip(r, 1 - low, 1 + high) A): constant above for A > 0 and below for A < 0."""
    J = torch.where((A > 0) & (ratio > 1 + high), (1 + high) * A, ratio * A)
    return torch.where((A < 0) & (ratio < 1 - low), (1 - low) * A, J)


def ppo(batch: Batch, A: torch.Tensor, p: dict, how: str) -> Objective:
    """GRPO's surrogate takes the token ratios and bounds clip_low, clip_high."""
    J = clipped(token_ratio(batch), A, p["clip_low"], p["clip_high"])
    return averaged(batch, J, A, how)


def within_clamp(batch: Batch, A: torch.Tensor) -> torch.Tensor:
    """A where the token's own log-ratio is inside the clamp, else 0."""
    return torch.where((batch.logprobs - batch.old).abs() < MAX_LOG_RATIO, A, 0.0)


def scored(batch: Batch, weight: torch.Tensor, A: torch.Tensor) -> Objective:
    """J = mean sg[w] A log pi, token mean.

    Decided: w is of the clamped ratio, and log pi has its gradient beyond the clamp too, as cispo's
    page says; but a method with a penalty (prime_rl, dro, kimi, ipo) has none there but the pull.
    """
    return averaged(batch, (weight * A).detach() * batch.logprobs, A, "token")


def pulled(batch: Batch, surrogate: Objective, pull: torch.Tensor) -> Objective:
    """A penalty adds sg[pull] log pi: the gradient `pull`, beyond the clamp as well."""
    # AMBIGUOUS: the loss's value. -beta / 2 l^2 may count as that or, as here, as its surrogate;
    # docs have "form: score, A' = A - beta l", and the design notes "value differs". The gradient
    # is the same. In ipo, which is no score, the value is that of the penalty.
    term = average(batch, pull.detach() * batch.logprobs, surrogate.how)
    return replace(surrogate, J=surrogate.J + term)


def k3(batch: Batch) -> torch.Tensor:
    d = clamp(batch.ref - batch.logprobs)
    return d.exp() - d - 1


# The four papers' methods ------------------------------------------------------------------------


def etr(batch: Batch, p: dict) -> Objective:
    """radius_i = clip_base +- micro tanh(A_i) + macro 4 p_g (1 - p_g), p_g: share of successes."""
    A = group_advantages(batch)
    # Decided: a success is above the tolerance of the batch's rewards
    least = tolerance(batch.rewards)
    p_g = pooled(batch, lambda R: [sum(x > least for x in R) / len(R)] * len(R))
    sign = {"asymmetric": 1.0, "inverse": -1.0}[p["direction"]]
    radius = p["clip_base"] + sign * p["micro"] * A.tanh() + p["macro"] * 4 * p_g * (1 - p_g)
    return averaged(batch, clipped(token_ratio(batch), A, radius, radius), A, "sequence")


def quatro_advantages(rewards: list[float], delta: float, max_kl_fraction: float) -> list[float]:
    """A_i = R_i / lambda - log mean exp(R / lambda), lambda so that mean(e^A A) = radius."""
    if is_flat(rewards):
        return [0.0] * len(rewards)
    best = max(rewards)
    scaled = [(reward - best) / (best - min(rewards)) for reward in rewards]
    share = sum(best - reward <= tolerance(rewards) for reward in rewards) / len(rewards)
    radius = min(delta, max_kl_fraction * -math.log(share))

    def advantages(inverse: float) -> list[float]:
        log_mean = math.log(mean([math.exp(inverse * x) for x in scaled]))
        return [inverse * x - log_mean for x in scaled]

    low = 0.0
    high = 1e9
    while low < (low + high) / 2 < high:  # bisection: the KL grows with 1 / lambda
        inverse = (low + high) / 2
        within = mean([math.exp(a) * a for a in advantages(inverse)]) < radius
        low = inverse if within else low
        high = high if within else inverse
    return advantages(low)


def quatro(batch: Batch, p: dict) -> Objective:
    """J = mean_i s_i (A_i - sg[log s_i]), s_i = exp(sum_t l) or exp(mean_t l); no clip."""
    A = pooled(batch, lambda R: quatro_advantages(R, p["delta"], p["max_kl_fraction"]))
    over_row = {"sequence": row_sum, "geometric_mean": row_mean}[p["ratio"]]
    log_s = clamp(over_row(batch, log_ratios(batch)))
    penalty = log_s.detach() if p["log_ratio_penalty"] else 0.0
    return averaged(batch, log_s.exp() * (A - penalty), A, "sequence")


def zscore(x: torch.Tensor) -> torch.Tensor:
    """(x - mean) / (population std + 1e-6)."""
    return (x - x.mean()) / (x.std(correction=0) + DELTA)


def bucket_of(batch: Batch, buckets: int) -> torch.Tensor:
    """The j-th token of a row, j from 0, lies in bucket (j K) // |o_i|."""
    place = batch.mask.cumsum(1) - 1
    return place * buckets // batch.mask.sum(1, keepdim=True).clamp(min=1)


def erpo(batch: Batch, p: dict) -> Objective:
    """A_it = z(A_i + eta psi), psi = sigma_target W sgn(A_i) s~ / (std + 1e-6); GRPO's clip.

    W = sigmoid(gamma z(H)); s~ = z(beta (log pi_old - log pi_ref)) of the group's tokens in a
    bucket; all other z and std are over the group's tokens.
    """
    outcome = group_advantages(batch)
    buckets = bucket_of(batch, p["buckets"])
    A = torch.zeros(ROWS, STEPS)
    for rows in batch.members:
        tokens = torch.zeros(ROWS, STEPS, dtype=torch.bool)
        tokens[rows] = batch.mask[rows]
        if not tokens.any():
            continue
        gate = torch.sigmoid(p["gate_sharpness"] * zscore(batch.entropy[tokens]))
        progress = p["progress_scale"] * (batch.old - batch.ref)[tokens]
        for bucket in range(p["buckets"]):
            inside = buckets[tokens] == bucket
            if inside.any():
                progress[inside] = zscore(progress[inside])
        psi = gate * outcome[tokens].sign() * progress
        psi = psi * p["target_std"] / (psi.std(correction=0) + DELTA)
        A[tokens] = zscore(outcome[tokens] + p["process_weight"] * psi)
    return ppo(batch, A, p, "token")


def apmpo(batch: Batch, p: dict) -> Objective:
    """J_i = sgn(A_i) [mean_t |min(r A, clip(r, 1 - clip_low, 1 + eps_ada) A)|^p]^(1/p).

    p = exp(-gamma mu), eps_ada = clip_min + (clip_max - clip_min) tanh(mu / (sigma + 1e-6)).
    """
    # AMBIGUOUS: empty rows. "Batch: all B" and "an empty row's reward counts in them" (also in
    # decisions.md) against "rows without tokens, empty: they change nothing of another response but
    # what their reward does in its group". All B count here; likewise in lite_ppo, gdpo, spo, ema.
    A = group_advantages(batch, "population")
    pools = batch.members if p["statistics"] == "group" else [list(range(ROWS))]
    exponent = torch.zeros(ROWS, 1)
    high = torch.zeros(ROWS, 1)
    for rows in pools:
        rewards = [batch.rewards[row] for row in rows]
        fss = mean(rewards) / (deviation(rewards, "population") + DELTA)
        exponent[rows] = math.exp(-p["gamma"] * mean(rewards))
        high[rows] = p["clip_min"] + (p["clip_max"] - p["clip_min"]) * math.tanh(fss)
    phi = clipped(token_ratio(batch), A, p["clip_low"], high).abs()
    power_mean = row_mean(batch, torch.where(A != 0, phi, 1.0) ** exponent).clamp(min=1e-300)
    J = A.sign() * power_mean ** (1 / exponent)
    return averaged(batch, J, A, "sequence")


# Baselines ---------------------------------------------------------------------------------------


def grpo(batch: Batch, p: dict) -> Objective:
    """J = mean min(r A, clip(r) A)."""
    return ppo(batch, group_advantages(batch), p, p["aggregation"])


def sequence_ratio(batch: Batch) -> torch.Tensor:
    """s_i = exp(mean_t l), at each of the row's positions."""
    return clamp(row_mean(batch, log_ratios(batch))).exp().expand(ROWS, STEPS)


def gspo(batch: Batch, p: dict) -> Objective:
    """J = mean_i min(s_i A_i, clip(s_i) A_i)."""
    A = group_advantages(batch)
    J = clipped(sequence_ratio(batch), A, p["clip_low"], p["clip_high"])
    return averaged(batch, J, A, "sequence")


def gmpo(batch: Batch, p: dict) -> Objective:
    """J = mean_i A_i exp(mean_t t), t = l cut at log_clip_high (A > 0), -log_clip_low (A < 0)."""
    A = group_advantages(batch)
    cut = log_ratios(batch)
    cut = torch.where((A > 0) & (cut > p["log_clip_high"]), p["log_clip_high"], cut)
    cut = torch.where((A < 0) & (cut < -p["log_clip_low"]), -p["log_clip_low"], cut)
    return averaged(batch, A * clamp(row_mean(batch, cut)).exp(), A, "sequence")


def gpg(batch: Batch, p: dict) -> Objective:
    """J = mean A log pi, A = R - mean; without a ratio there is no clamp (see `score`)."""
    A = group_advantages(batch, "none")
    return averaged(batch, A * batch.logprobs, A, "token")


def cispo(batch: Batch, p: dict) -> Objective:
    """J = mean sg[clip(r)] A log pi."""
    weight = token_ratio(batch).clamp(1 - p["clip_low"], 1 + p["clip_high"])
    return scored(batch, weight, group_advantages(batch))


# Other advantages --------------------------------------------------------------------------------


def dr_grpo(batch: Batch, p: dict) -> Objective:
    """A_i = (R_i - mean) |o_i| / max_tokens; sequence mean."""
    A = group_advantages(batch, "none") * batch.mask.sum(1, keepdim=True) / p["max_tokens"]
    return ppo(batch, A, p, "sequence")


def rloo(batch: Batch, p: dict) -> Objective:
    """A_i = (R_i - mean) n / (n - 1)."""

    def of_pool(rewards: list[float]) -> list[float]:
        return [x * len(rewards) / max(len(rewards) - 1, 1) for x in normalise(rewards, "none")]

    return ppo(batch, pooled(batch, of_pool), p, "token")


def opo(batch: Batch, p: dict) -> Objective:
    """A_i = R_i - sum_j |o_j| R_j / sum_j |o_j|, 0 in a flat group and within the tolerance."""
    lengths = batch.mask.sum(1).tolist()
    result = [0.0] * ROWS
    for rows in batch.members:
        rewards = [batch.rewards[row] for row in rows]
        tokens = sum(lengths[row] for row in rows)
        if is_flat(rewards) or tokens == 0:
            continue
        baseline = math.fsum(lengths[row] * batch.rewards[row] for row in rows) / tokens
        for row in rows:
            if abs(batch.rewards[row] - baseline) > tolerance(rewards):
                result[row] = batch.rewards[row] - baseline
    return ppo(batch, at_tokens(batch, result), p, "token")


def maxrl(batch: Batch, p: dict) -> Objective:
    """A_i = (R_i - mean) / mean, 0 where no response succeeds."""
    A = pooled(batch, lambda R: [x / mean(R) if x else 0.0 for x in normalise(R, "none")])
    return ppo(batch, A, p, "token")


def pass_at_k(batch: Batch, p: dict) -> Objective:
    """A_i = R_i - R_second of the single best response; 0 for the others, and ties."""

    def of_pool(rewards: list[float]) -> list[float]:
        ranked = sorted(rewards)
        if is_flat(rewards) or ranked[-1] - ranked[-2] <= tolerance(rewards):
            return [0.0] * len(rewards)
        return [ranked[-1] - ranked[-2] if x == ranked[-1] else 0.0 for x in rewards]

    return ppo(batch, pooled(batch, of_pool), p, "token")


def lite_ppo(batch: Batch, p: dict) -> Objective:
    """A_i = (R_i - mean of the group) / (std of the batch's rewards + 1e-6)."""
    # AMBIGUOUS: n - 1, as everywhere unless a page says population.
    A = group_advantages(batch, "none") / (deviation(batch.rewards, "sample") + DELTA)
    return ppo(batch, A, p, "token")


def whiten(batch: Batch, rows: list[float]) -> torch.Tensor:
    """(x - M) / sqrt(V + 1e-8), M and V over the batch's tokens; flat groups are not 0 here."""
    # AMBIGUOUS: V divides by n - 1, as verl's masked_whiten, with which the page compares.
    values = at_tokens(batch, rows)[batch.mask]
    if is_flat(values.tolist()):
        return torch.zeros(ROWS, STEPS)
    centred = at_tokens(batch, [x - float(values.mean()) for x in rows])
    centred = torch.where(centred.abs() <= tolerance(values.tolist()), 0.0, centred)
    return centred / (values.var() + 1e-8).sqrt()


def reinforce_pp(batch: Batch, p: dict) -> Objective:
    """A_i = (R_i - M) / sqrt(V + 1e-8)."""
    return ppo(batch, whiten(batch, batch.rewards), p, "token")


def reinforce_pp_baseline(batch: Batch, p: dict) -> Objective:
    """A_i = (x_i - M) / sqrt(V + 1e-8), x_i = R_i - mean of the group."""
    centred = by_group(batch, batch.rewards, lambda R: normalise(R, "none"))
    return ppo(batch, whiten(batch, centred), p, "token")


# Parts of the reward, memory ---------------------------------------------------------------------


def gdpo(batch: Batch, p: dict) -> Objective:
    """A^k_i is normalised in the group, S_i = sum_k w_k A^k_i in the batch (both sample std)."""
    S = [0.0] * ROWS
    for name, values in batch.parts.items():
        part = by_group(batch, values, lambda pool: normalise(pool, "sample", p["epsilon"]))
        S = [S[row] + p["reward_weights"].get(name, 1.0) * part[row] for row in range(ROWS)]
    return ppo(batch, at_tokens(batch, normalise(S, "sample", p["epsilon"])), p, "sequence")


def dvao(batch: Batch, p: dict) -> Objective:
    """A_i = sum_k w_k (r_k - mean_k) / sum_k w_k sigma_k, population sigma, of parts not flat."""

    def of_group(rows: list[int]) -> list[float]:
        above = 0.0
        below = [0.0] * len(rows)
        for name, values in batch.parts.items():
            pool = [values[row] for row in rows]
            if is_flat(pool):
                continue
            weight = p["reward_weights"].get(name, 1.0)
            above += weight * deviation(pool, "population")
            centred = normalise(pool, "none")
            below = [x + weight * y for x, y in zip(below, centred, strict=True)]
        return [x / above for x in below] if above else below

    A = [0.0] * ROWS
    for rows in batch.members:
        for row, value in zip(rows, of_group(rows), strict=True):
            A[row] = value
    return ppo(batch, at_tokens(batch, A), p, "token")


def wapo(batch: Batch, p: dict) -> Objective:
    """J = 1 / G+ sum_g 1 / (n_g max_tokens) sum_{i in g} sum_t min(r, cap) A_i, A_i > 0 alone."""
    A = group_advantages(batch, "none").clamp(min=0)
    above = by_group(batch, batch.rewards, lambda pool: normalise(pool, "none"))
    winning = [rows for rows in batch.members if any(above[row] > 0 for row in rows)]
    ratio = token_ratio(batch)
    J = torch.zeros(())
    weights = torch.zeros(ROWS, 1)
    for rows in winning:
        weights[rows] = 1 / (len(rows) * p["max_tokens"] * len(winning))
    terms = torch.where(batch.mask, ratio.clamp(max=p["cap"]) * A, 0.0)
    J = J + (weights * terms).sum()
    # the package's A has the factors that turn a sequence mean into this sum
    alive = batch.mask.any(1).sum()
    return Objective(J, A * weights * batch.mask.sum(1, keepdim=True) * alive, "sequence")


def spo(batch: Batch, p: dict, memory: dict) -> Objective:
    """a_i = R_i - alpha / (alpha + beta) of before the batch, normalised over the batch.

    Then alpha <- rho alpha + sum R, beta <- rho beta + sum (1 - R) over the prompt's responses,
    rho = clip(2^(-D / half_life), rho_min, rho_max).
    """
    # AMBIGUOUS: the first alpha and beta. Both are `prior`, as in verl-recipe's spo without offline
    # values; the paper's 1 / (1 - rho_min) = 8 pseudo-responses give 4 and 4. `later` tells.
    counts = [memory.get(prompt, (p["prior"], p["prior"])) for prompt in batch.prompt]
    above = [batch.rewards[row] - counts[row][0] / sum(counts[row]) for row in range(ROWS)]
    for prompt in set(batch.prompt):
        rows = [row for row in range(ROWS) if batch.prompt[row] == prompt]
        # the drift is the whole batch's. D is 0 for a prompt that is new; each batch here asks all
        # prompts, so it is the batch's drift after that
        moved = batch.drift[0] if prompt in memory else 0.0
        rho = min(max(2 ** (-moved / p["half_life"]), p["rho_min"]), p["rho_max"])
        right = math.fsum(batch.rewards[row] for row in rows)
        alpha = rho * counts[rows[0]][0] + right
        memory[prompt] = (alpha, rho * counts[rows[0]][1] + len(rows) - right)
    return ppo(batch, at_tokens(batch, normalise(above, "sample")), p, "sequence")


def ema_baseline(batch: Batch, p: dict, memory: dict) -> Objective:
    """A_i = R_i - b, then b <- decay b + (1 - decay) mean(R); the first b is the batch's mean."""
    baseline = memory.get("baseline", mean(batch.rewards))
    above = [reward - baseline for reward in batch.rewards]
    above = [0.0 if abs(x) <= tolerance(batch.rewards) else x for x in above]
    memory["baseline"] = p["decay"] * baseline + (1 - p["decay"]) * mean(batch.rewards)
    return ppo(batch, at_tokens(batch, above), p, "sequence")


# Some tokens only --------------------------------------------------------------------------------


def high_entropy(batch: Batch, p: dict) -> Objective:
    """A_it = A_i where H_t >= the (1 - share) quantile (linear) over the batch's tokens, else 0."""
    chosen = batch.entropy >= torch.quantile(batch.entropy[batch.mask], 1 - p["share"])
    return ppo(batch, torch.where(chosen, group_advantages(batch), 0.0), p, "token")


def covariance(batch: Batch, A: torch.Tensor) -> torch.Tensor:
    """C_t = (A - mean A)(log pi_old - mean log pi_old), means over the batch's tokens."""
    C = (A - A[batch.mask].mean()) * (batch.old - batch.old[batch.mask].mean())
    return torch.where(batch.mask, C, -torch.inf)


def largest(batch: Batch, values: torch.Tensor, share: float) -> torch.Tensor:
    """The share of the batch's tokens with the largest finite values."""
    # AMBIGUOUS: how many, where share x tokens is no integer. As verl: max(1, int(share x tokens)).
    count = max(1, int(share * int(batch.mask.sum())))
    return (values >= values.flatten().sort(descending=True).values[count - 1]) & values.isfinite()


def clip_cov(batch: Batch, p: dict) -> Objective:
    """A_it = 0 for the share of tokens with the largest lower < C_t < upper, else A_i."""
    A = group_advantages(batch)
    cov = covariance(batch, A)
    cov = torch.where((cov > p["lower"]) & (cov < p["upper"]), cov, -torch.inf)
    return ppo(batch, torch.where(largest(batch, cov, p["share"]), 0.0, A), p, "token")


def kl_cov(batch: Batch, p: dict) -> Objective:
    """J = mean r A - kl_coef |l| on the share of tokens with the largest C_t; no clip."""
    # AMBIGUOUS: which token pays where no group has a signal and all C_t tie: left out.
    A = group_advantages(batch)
    pays = largest(batch, covariance(batch, A), p["share"])
    J = token_ratio(batch) * A - torch.where(pays, p["kl_coef"] * log_ratios(batch).abs(), 0.0)
    return averaged(batch, J, A, "token")


def m2po(batch: Batch, p: dict) -> Objective:
    """A_it = A_i for the most tokens, the smallest first, whose mean (old - gen)^2 < threshold."""
    moments = ((batch.old - batch.gen) ** 2)[batch.mask].sort().values
    means = moments.cumsum(0) / torch.arange(1, len(moments) + 1)
    last = moments[means < p["threshold"]][-1]
    A = torch.where((batch.old - batch.gen) ** 2 <= last, group_advantages(batch), 0.0)
    return averaged(batch, token_ratio(batch) * A, A, "token")


# Other weights -----------------------------------------------------------------------------------


def sapo(batch: Batch, p: dict) -> Objective:
    """J = mean f(r) A, f(r) = (4 / tau) sigmoid(tau (r - 1)), tau by the sign of A."""
    A = group_advantages(batch)
    tau = torch.where(A > 0, p["tau_positive"], p["tau_negative"])
    J = 4 / tau * torch.sigmoid(tau * (token_ratio(batch) - 1)) * A
    return averaged(batch, J, A, "sequence")


def aspo(batch: Batch, p: dict) -> Objective:
    """w = min(1 / r, cap) while r <= 1 + clip_high (A > 0), min(r, cap) while r >= 1 - clip_low."""
    A = group_advantages(batch)
    ratio = token_ratio(batch)
    up = torch.where(ratio <= 1 + p["clip_high"], (1 / ratio).clamp(max=p["cap"]), 0.0)
    down = torch.where(ratio >= 1 - p["clip_low"], ratio.clamp(max=p["cap"]), 0.0)
    return scored(batch, torch.where(A > 0, up, down), A)


def fipo(batch: Batch, p: dict) -> Objective:
    """A_it = A_i clip(exp(F_t), low, high), F_t = sum_{k >= t} 2^(-(k - t) / half_life) l_k."""
    # `safety`: at most the weight 1 where A < 0 and r > safety. Decided: k - t counts tokens, as
    # the method's page says; holes do not count.
    A = group_advantages(batch)
    future = torch.zeros(ROWS, STEPS)
    later = torch.zeros(ROWS)
    for step in reversed(range(STEPS)):
        faded = later * 2 ** (-1 / p["half_life"]) + log_ratios(batch)[:, step].detach()
        later = torch.where(batch.mask[:, step], faded, later)
        future[:, step] = later
    weight = future.exp().clamp(p["low"], p["high"])
    weight = torch.where((A < 0) & (token_ratio(batch) > p["safety"]), weight.clamp(0.8, 1), weight)
    return replace(ppo(batch, A * weight, p, "token"), A=A)


def opsm(batch: Batch, p: dict) -> Objective:
    """A_i = 0 where A_i < 0 and mean_t (log pi_gen - log pi_theta) > delta, then GRPO's clip."""
    A = group_advantages(batch)
    far = row_mean(batch, batch.gen - batch.logprobs) > p["delta"]
    return replace(ppo(batch, torch.where((A < 0) & far, 0.0, A), p, "sequence"), A=A)


def ce_gppo(batch: Batch, p: dict) -> Objective:
    """J = mean r A w, where r w is beta times the bound that r has passed; else w = 1.

    That is beta_low (1 - clip_low) where A < 0, beta_high (1 + clip_high) where A > 0.
    """
    A = group_advantages(batch)
    ratio = token_ratio(batch)
    above = p["beta_high"] * (1 + p["clip_high"])
    below = p["beta_low"] * (1 - p["clip_low"])
    size = torch.where((A > 0) & (ratio > 1 + p["clip_high"]), above, ratio)
    size = torch.where((A < 0) & (ratio < 1 - p["clip_low"]), below, size)
    return averaged(batch, ratio * A * (size / ratio).detach(), A, "token")


# One ratio per response --------------------------------------------------------------------------


def gspo_token(batch: Batch, p: dict) -> Objective:
    """r_t = sg[s_i] pi_t / sg[pi_t]: GSPO's value and gradient."""
    A = group_advantages(batch)
    own = log_ratios(batch)
    ratio = sequence_ratio(batch).detach() * (own - own.detach()).exp()
    return averaged(batch, clipped(ratio, A, p["clip_low"], p["clip_high"]), A, "sequence")


def luspo(batch: Batch, p: dict) -> Objective:
    """J = mean_i min(s_i A_i |o_i|, clip(s_i) A_i |o_i|); |o_i| is part of the advantage."""
    A = group_advantages(batch) * batch.mask.sum(1, keepdim=True)
    J = clipped(sequence_ratio(batch), A, p["clip_low"], p["clip_high"])
    return averaged(batch, J, A, "sequence")


def gepo(batch: Batch, p: dict) -> Objective:
    """r_i = p_i / E, p_i = exp(mean_t log pi_theta), E = sum_j q_j^2 / sum_j q_j at pi_old."""
    # AMBIGUOUS: beyond the clamp. log p_i = log q_i + mean of the clamped l, as every mean of l is.
    A = group_advantages(batch)
    log_q = row_mean(batch, batch.old)
    log_expected = torch.zeros(ROWS, 1)
    for rows in batch.members:
        q = log_q[[row for row in rows if batch.mask[row].any()]].exp()
        log_expected[rows] = ((q**2).sum() / q.sum()).log() if len(q) else 0.0
    ratio = clamp(row_mean(batch, log_ratios(batch)) + log_q - log_expected).exp()
    J = clipped(ratio.expand(ROWS, STEPS), A, p["clip_low"], p["clip_high"])
    return averaged(batch, J, A, "sequence")


def response_ratio(batch: Batch) -> torch.Tensor:
    """W = exp(sum_t l), at each of the row's positions."""
    return clamp(row_sum(batch, log_ratios(batch))).exp().expand(ROWS, STEPS)


def vespo(batch: Batch, p: dict) -> Objective:
    """J = mean sg[phi(W)] A log pi, phi = W^k exp(lambda (1 - W)), k, lambda by the sign of A."""
    A = group_advantages(batch)
    W = response_ratio(batch)
    k = torch.where(A > 0, p["k_positive"], p["k_negative"])
    rate = torch.where(A > 0, p["lambda_positive"], p["lambda_negative"])
    return scored(batch, (k * W.log() + rate * (1 - W)).exp(), A)


def topr(batch: Batch, p: dict) -> Objective:
    """J = mean sg[w] A log pi, w = 1 for successes, min(W, 1) for others."""
    won = torch.tensor(batch.rewards)[:, None] > tolerance(batch.rewards)
    weight = torch.where(won, 1.0, response_ratio(batch).clamp(max=1.0))
    return scored(batch, weight, group_advantages(batch))


# A divergence ------------------------------------------------------------------------------------


def tv_weight(batch: Batch, A: torch.Tensor, p: dict) -> torch.Tensor:
    """w = min(r, cap) while q - p <= high (A > 0) or q - p >= -low (A < 0), else 0."""
    move = batch.logprobs.exp() - batch.old.exp()
    keep = torch.where(A > 0, move <= p["high"], move >= -p["low"])
    return torch.where(keep, token_ratio(batch).clamp(max=p["cap"]), 0.0)


def dppo_tv(batch: Batch, p: dict) -> Objective:
    """J = mean sg[w] A log pi, w as in tv_weight."""
    A = group_advantages(batch)
    return scored(batch, tv_weight(batch, A, p), A)


def dppo_kl(batch: Batch, p: dict) -> Objective:
    """w = min(r, cap) while kl(p, q) <= high or q <= p (A > 0), kl <= low or q >= p (A < 0)."""
    A = group_advantages(batch)
    before = torch.where(batch.mask, batch.old.exp(), 0.5)
    after = torch.where(batch.mask, batch.logprobs.exp(), 0.5)
    kl = (1 - before) * ((1 - before) / (1 - after)).log() + before * (before / after).log()
    up = (kl <= p["high"]) | (after <= before)
    down = (kl <= p["low"]) | (after >= before)
    ratio = token_ratio(batch).clamp(max=p["cap"])
    return scored(batch, torch.where(torch.where(A > 0, up, down), ratio, 0.0), A)


def prime_rl(batch: Batch, p: dict) -> Objective:
    """J = mean sg[w] A log pi - kl_tau l^2, w as in tv_weight."""
    A = group_advantages(batch, "none")
    weight = tv_weight(batch, A, {**p, "cap": math.inf})
    surrogate = scored(batch, within_clamp(batch, weight), A)
    return pulled(batch, surrogate, -2 * p["kl_tau"] * log_ratios(batch))


def ipo(batch: Batch, p: dict) -> Objective:
    """J = mean keep r A - kl_tau l^2, keep = |q - p| <= eps."""
    # AMBIGUOUS: p is the sampler's probability in the specification, pi_old's in docs, where ipo
    # needs no gen_logprobs; pi_old's here.
    A = group_advantages(batch, "none")
    keep = (batch.logprobs.exp() - batch.old.exp()).abs() <= p["eps"]
    surrogate = averaged(batch, torch.where(keep, token_ratio(batch) * A, 0.0), A, "token")
    objective = pulled(batch, surrogate, -2 * p["kl_tau"] * log_ratios(batch))
    value = surrogate.J - p["kl_tau"] * average(batch, log_ratios(batch) ** 2, "token")
    return replace(objective, J=objective.J + (value - objective.J).detach())


def dro(batch: Batch, p: dict) -> Objective:
    """J = mean A log pi - beta / 2 l^2: A' = A - beta l."""
    A = group_advantages(batch, "none")
    weight = within_clamp(batch, torch.ones(()))
    return pulled(batch, scored(batch, weight, A), -p["beta"] * log_ratios(batch))


def kimi(batch: Batch, p: dict) -> Objective:
    """J = mean A log pi - beta / 2 L^2, L_i = sum_t l_it: A' = A - beta L at each token."""
    # Decided: beyond the clamp the surrogate stops where L is.
    A = group_advantages(batch, "none")
    L = clamp(row_sum(batch, log_ratios(batch)))
    weight = torch.where(L.abs() < MAX_LOG_RATIO, 1.0, 0.0)
    return pulled(batch, scored(batch, weight, A), -p["beta"] * L)


def opd(batch: Batch, p: dict) -> Objective:
    """J = mean r A_t, A_t = log pi_ref - log pi_old; no clip."""
    A = batch.ref - batch.old
    return averaged(batch, token_ratio(batch) * A, A, "token")


def cppo(batch: Batch, p: dict) -> Objective:
    """J = mean keep r A; keep: A (r - 1) <= 0, or w D within what the prefix has left."""
    A = group_advantages(batch)
    moved = (batch.logprobs.exp() - batch.old.exp()).abs().detach()
    keep = torch.zeros(ROWS, STEPS)
    for row in range(ROWS):
        places = [step for step in range(STEPS) if batch.mask[row, step]]
        spent, weights = 0.0, 0.0
        budget = p["delta_b"]
        if p["calibrated"] and places:
            ranked = sorted(moved[row, step].item() for step in places)
            place = 0.9 * (len(ranked) - 1)
            low = math.floor(place)
            high = min(low + 1, len(ranked) - 1)
            quantile = ranked[low] + (place - low) * (ranked[high] - ranked[low])
            budget = min(max(quantile, p["delta_b"]), 2 * p["delta_b"])
        for rank, step in enumerate(places):
            share = rank / (len(places) - 1) if rank else 0.0
            weight = 1 - (1 - p["w_min"]) * share
            this = weight * moved[row, step].item()
            back = A[row, step] * (batch.logprobs - batch.old)[row, step] <= 0
            limit = min(p["delta"], p["delta"] + budget * weights - spent)
            keep[row, step] = float(back or this <= limit)
            spent += this
            weights += weight
    return averaged(batch, keep * token_ratio(batch) * A, A, "token")


def ripo(batch: Batch, p: dict) -> Objective:
    """GRPO's minimum of r within its limits, the clip sqrt(delta / p) a side, token mean."""
    A = group_advantages(batch)
    root = batch.old.exp().rsqrt()
    low = (math.sqrt(p["delta_low"]) * root).clamp(max=1 - p["ratio_lower"])
    high = (math.sqrt(p["delta_high"]) * root).clamp(max=p["ratio_upper"] - 1)
    ratio = token_ratio(batch).clamp(p["ratio_lower"], p["ratio_upper"])
    return averaged(batch, clipped(ratio, A, low, high), A, "token")


def cfpo(batch: Batch, p: dict) -> Objective:
    """J has the gradient of r A - |A| (r - 1)^2 / (2 epsilon), the value of r A'."""
    A = group_advantages(batch)
    ratio = token_ratio(batch)
    true = ratio * A - A.abs() / (2 * p["epsilon"]) * (ratio - 1) ** 2
    value = ratio * (A - A.abs() * (ratio - 1) / p["epsilon"])
    return averaged(batch, true - true.detach() + value.detach(), A, "sequence")


# Cases -------------------------------------------------------------------------------------------

# Bounds whose defaults are equal are unequal here, so that swapped sides show.
CLIP = {"clip_low": 0.2, "clip_high": 0.28}
ETR = {"clip_base": 0.2, "micro": 0.1, "macro": 0.15, "direction": "asymmetric"}
QUATRO = {"delta": 0.01, "ratio": "sequence", "log_ratio_penalty": True, "max_kl_fraction": 0.95}
ERPO = {"gate_sharpness": 5.0, "process_weight": 0.2, "buckets": 10, "target_std": 1.0}
APMPO = {"gamma": 0.8, "clip_min": 0.2, "clip_max": 0.4, "clip_low": 0.25, "statistics": "batch"}
GDPO = {**CLIP, "epsilon": 1e-6, "reward_weights": {}}
SPO = {"half_life": 0.06, "rho_min": 0.875, "rho_max": 0.96, "prior": 0.5}
VESPO = {"k_positive": 2.0, "lambda_positive": 3.0, "k_negative": 3.0, "lambda_negative": 2.0}
CPPO = {"delta": 0.15, "w_min": 0.8, "delta_b": 0.015, "calibrated": False}

METHODS = [
    (etr, ETR),
    (etr, {**ETR, "direction": "inverse"}),
    (quatro, QUATRO),
    (quatro, {**QUATRO, "ratio": "geometric_mean", "delta": 0.5}),  # some groups are capped
    (erpo, {**CLIP, **ERPO, "progress_scale": 0.1}),
    (apmpo, APMPO),
    (apmpo, {**APMPO, "statistics": "group"}),
    (grpo, {**CLIP, "aggregation": "sequence"}),
    (grpo, {**CLIP, "aggregation": "token"}),
    (gspo, CLIP),
    (gmpo, {"log_clip_low": 0.4, "log_clip_high": 0.3}),
    (gpg, {}),
    (cispo, CLIP),
    (dr_grpo, {**CLIP, "max_tokens": 3000}),
    (rloo, CLIP),
    (opo, CLIP),
    (maxrl, CLIP),
    (pass_at_k, CLIP),
    (lite_ppo, CLIP),
    (reinforce_pp, CLIP),
    (reinforce_pp_baseline, CLIP),
    (gdpo, GDPO),
    (gdpo, {**GDPO, "reward_weights": {"right": 1.0, "format": 0.25}}),
    (dvao, {**CLIP, "reward_weights": {}}),
    (dvao, {**CLIP, "reward_weights": {"right": 1.0, "format": 0.25}}),
    (wapo, {"cap": 1.5, "max_tokens": 20}),
    (spo, {**CLIP, **SPO}),
    (ema_baseline, {**CLIP, "decay": 0.9}),
    (high_entropy, {**CLIP, "share": 0.2}),
    (clip_cov, {**CLIP, "share": 0.0002, "lower": 1.0, "upper": 5.0}),
    (clip_cov, {**CLIP, "share": 0.0625, "lower": 0.5, "upper": 1.5}),
    (kl_cov, {"share": 0.0002, "kl_coef": 1.0}),
    (kl_cov, {"share": 0.0625, "kl_coef": 1.0}),
    (m2po, {"threshold": 0.04}),
    (sapo, {"tau_positive": 1.0, "tau_negative": 1.05}),
    (aspo, {**CLIP, "cap": 3.0}),
    (fipo, {**CLIP, "half_life": 32.0, "low": 1.0, "high": 1.2, "safety": 4.0}),
    (opsm, {**CLIP, "delta": 0.1}),
    (ce_gppo, {**CLIP, "beta_low": 0.75, "beta_high": 1.0}),
    (gspo_token, CLIP),
    (luspo, {"clip_low": 0.002, "clip_high": 0.0025}),
    (gepo, CLIP),
    (vespo, VESPO),
    (topr, {}),
    (dppo_tv, {"low": 0.2, "high": 0.15, "cap": 20.0}),
    (dppo_kl, {"low": 0.05, "high": 0.03, "cap": 20.0}),
    (prime_rl, {"low": 0.2, "high": 0.15, "kl_tau": 0.001}),
    (ipo, {"eps": 0.3, "kl_tau": 0.0}),
    (ipo, {"eps": 0.3, "kl_tau": 0.01}),
    (cppo, CPPO),
    (cppo, {**CPPO, "calibrated": True}),
    (ripo, {"delta_low": 0.05, "delta_high": 0.03, "ratio_lower": 0.5, "ratio_upper": 10.0}),
    (cfpo, {"epsilon": 0.2}),
    (dro, {"beta": 0.1}),
    (kimi, {"beta": 0.1}),
    (opd, {}),
]

WITH_MEMORY = (spo, ema_baseline)

LEFT_OUT = {  # (method, batch): why
    ("apmpo", "huge_rewards"): "rewards outside [0, 1] are refused",
    ("maxrl", "huge_rewards"): "rewards outside [0, 1] are refused",
    ("spo", "huge_rewards"): "rewards outside [0, 1] are refused",
    ("kl_cov", "all_flat"): "all C_t tie",
    ("kl_cov", "groups_of_one"): "all C_t tie",
    ("kl_cov", "kl_penalty"): "its own kl_coef has the penalty's name",
}


def measure(batch: Batch, objective: Objective, kl_coef: float) -> list[float]:
    """The loss -J + kl_coef KL, and the norm of its gradient."""
    loss = -objective.J + kl_coef * average(batch, k3(batch), objective.how)
    gradient = torch.autograd.grad(loss, batch.logprobs)[0]
    assert loss.isfinite() and gradient.isfinite().all() and not gradient[~batch.mask].any()
    return [digits(loss), digits(gradient.norm())]


def digits(value: torch.Tensor) -> float:
    """A number has 12 significant digits; zero has no sign."""
    return float(f"{value.item():.12g}") + 0.0


def make_case(method, params: dict, name: str, inputs: dict) -> dict:
    """A case holds a method's numbers on one batch."""
    kl_coef = 0.05 if name == "kl_penalty" else 0.0
    batch = Batch(inputs)
    memory = [{}] if method in WITH_MEMORY else []
    objective = method(batch, params, *memory)
    numbers = measure(batch, objective, kl_coef)
    case = {
        "method": method.__name__,
        "params": {**params, "kl_coef": kl_coef} if kl_coef else params,
        "batch": name,
        "loss": numbers[0],
        "grad_norm": numbers[1],
        "advantages": digits(objective.A.abs().sum()),
    }
    if memory:
        case["later"] = []
        for rewards in (inputs["rewards_next"], inputs["rewards"]):
            later = Batch({**inputs, "rewards": rewards})
            case["later"].append(measure(later, method(later, params, *memory), kl_coef))
    return case


def without_nan(value):
    """NaN is null in the file."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_nan(item) for item in value]
    return None if value != value else value


def make_file() -> dict:
    """The file's content has every method on every batch, but those left out."""
    batches = {name: make() for name, make in BATCHES.items()}
    cases = []
    for method, params in METHODS:
        for name, inputs in batches.items():
            if (method.__name__, name) not in LEFT_OUT:
                cases.append(make_case(method, params, name, inputs))
    return {"batches": without_nan(batches), "cases": cases}


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    text = json.dumps(make_file(), separators=(",", ":"), allow_nan=False)
    Path(__file__).with_name("methods.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
