"""What a library's user may hand in by mistake: it is taken as meant, or refused in a sentence."""

import warnings
from dataclasses import replace

import pytest
import torch
from batches import close, every_method, make

from nemo_algos import Counts, LossConfig, Rollouts, batch_loss, build, policy_loss
from nemo_algos.algorithms.kernel import DriverOutput, Method, Signals
from nemo_algos.algorithms.record import ClipParams
from nemo_algos.algorithms.rollouts import TENSORS

TOKENS = [name for name, per_row in TENSORS.items() if not per_row and name != "mask"]


def gradient(method, rollouts, logprobs, config=LossConfig()):
    leaf = logprobs.detach().clone().requires_grad_()
    algorithm = build(method)
    signals = algorithm.signals(rollouts, {})
    counts = Counts.of(rollouts.mask)
    entropy = leaf.exp() if "entropy_gradient" in algorithm.needs else None
    policy_loss(algorithm, leaf, rollouts, signals, counts, config, entropy).value.backward()
    return leaf.grad


@every_method
def test_log_probs_with_a_gradient_are_constants(name):
    """As of a forward without no_grad, from the very tensor that is trained."""
    batch, config = make(large=False), LossConfig(reference_policy_kl_penalty=0.1)
    want = gradient(name, batch.rollouts, batch.logprobs, config)
    own = batch.rollouts
    attached = {
        k: getattr(own, k).clone().requires_grad_()
        for k in TOKENS
        if getattr(own, k) is not None and k != "turn"
    }
    got = gradient(name, replace(own, **attached), batch.logprobs, config)
    assert torch.equal(got, want) and want.abs().sum() > 0


@every_method
def test_a_sequence_masked_out_is_not_in_the_loss(name):
    batch = make(large=False)
    kept = torch.ones(len(batch.rollouts), dtype=torch.bool)
    kept[batch.rollouts.lengths.argmax()] = False
    masked = replace(batch.rollouts, sample_mask=kept)
    got = gradient(name, masked, batch.logprobs)
    assert not got[~kept].any()
    cleared = replace(masked, mask=masked.mask & kept[:, None])
    assert torch.equal(got, gradient(name, cleared, batch.logprobs))


def wrong_signals():
    own = build("etr").signals(make().rollouts)
    yield "another method's", build("grpo").signals(make().rollouts)
    yield "more than it has", replace(own, extras={"lambda": own.advantages})
    yield "one row", own[:1]
    yield "another batch's", build("etr").signals(make().rollouts[:7])
    yield "per token", Signals(own.advantages.expand(-1, 12), own.low, own.high)


@pytest.mark.parametrize(
    ("reason", "signals"), [*wrong_signals()], ids=lambda x: x if isinstance(x, str) else ""
)
def test_signals_of_something_else(reason, signals):
    rollouts, logprobs = make()
    with pytest.raises(ValueError, match=r"\bsignals of etr\b"):
        policy_loss(build("etr"), logprobs, rollouts, signals, Counts.of(rollouts.mask))


@pytest.mark.parametrize("counts", [Counts(0, 0), Counts(-1, -1), Counts(0, 5), Counts(5, 0)])
def test_counts_of_nothing(counts):
    rollouts, logprobs = make()
    algorithm = build("grpo")
    with pytest.raises(ValueError, match=r"Counts\.of"):
        policy_loss(algorithm, logprobs, rollouts, algorithm.signals(rollouts), counts)


@pytest.mark.parametrize("logprobs", [None, [[0.0]], make().logprobs.numpy(), 1.0])
def test_log_probs_that_are_no_tensor(logprobs):
    with pytest.raises(ValueError, match=r"^logprobs .*\btensor\b"):
        batch_loss("grpo", logprobs, make().rollouts)


@pytest.mark.parametrize("name", ["group", "rewards", "mask", "old_logprobs"])
def test_nothing_where_every_method_needs_something(name):
    rollouts = make().rollouts
    given = {k: getattr(rollouts, k) for k in ("group", "rewards", "mask", "old_logprobs")}
    with pytest.raises(ValueError, match=rf"^{name} .*\bNone\b"):
        Rollouts(**{**given, name: None})


def test_labels_that_are_not_finite():
    with pytest.raises(ValueError, match=r"^group .*\bfinite\b"):
        Rollouts([0.0, float("nan")], [0, 1], torch.ones(2, 1).bool(), [[0.0], [0.0]])


def test_a_config_as_a_dictionary():
    rollouts, logprobs = make(large=False)
    block = {"reference_policy_kl_penalty": 0.1}
    logprobs.requires_grad_()
    want = batch_loss("grpo", logprobs, rollouts, LossConfig(**block))[0]
    assert batch_loss("grpo", logprobs, rollouts, block)[0] == want
    with pytest.raises(ValueError, match=r"loss_fn\.reference_policy_kl_penalty"):
        batch_loss("grpo", logprobs, rollouts, {"reference_policy_kl_penalty": -1})


@pytest.mark.parametrize("name", ["kl_cov", "clip_cov"])
@pytest.mark.parametrize("share", [1e-4, 0.01, 0.25])
def test_a_share_is_held_among_equal_tokens(name, share):
    """Rewards that are all equal, then log-probs of which most are exactly 0."""
    tokens = 40 * 20
    flat = Rollouts(
        torch.arange(40) // 8, torch.ones(40), torch.ones(40, 20).bool(), -torch.rand(40, 20)
    )
    sure = -torch.rand(40, 20) * (torch.rand(40, 20) > 0.7)
    mixed = replace(flat, rewards=torch.arange(40) % 2, old_logprobs=sure)
    for rollouts in (flat, mixed):
        open_bounds = {"lower": -1e9, "upper": 1e9} if name == "clip_cov" else {}
        signals = build({"name": name, "share": share, **open_bounds}).signals(rollouts)
        if name == "kl_cov":
            penalised = float(signals.extras["penalised"].sum())
            assert penalised == pytest.approx(max(1, int(share * tokens)))
        else:
            chosen = signals.metrics["clip_cov/chosen_share"] * tokens
            assert round(tokens - chosen) == max(1, int(share * tokens))


# ---- rows without tokens change no other row


def without_row(rollouts, row):
    return rollouts[torch.tensor([i for i in range(len(rollouts)) if i != row])]


def tensors(signals):
    own = {"advantages": signals.advantages, "low": signals.low, "high": signals.high}
    every = {**own, **signals.extras}
    return {name: value for name, value in every.items() if isinstance(value, torch.Tensor)}


@every_method
@pytest.mark.parametrize("how", ["masked", "empty"])
def test_a_row_without_tokens_changes_no_statistic_of_tokens(name, how):
    """What does not depend on the rewards is as if the row were not in its group."""
    algorithm = build(name)
    rollouts = make(large=False).rollouts
    row = int((rollouts.group == rollouts.group[rollouts.rewards.argmax()]).nonzero()[0])
    kept = torch.arange(len(rollouts)) != row
    if how == "masked":
        rollouts = replace(rollouts, sample_mask=kept)
    else:
        rollouts = replace(rollouts, mask=rollouts.mask & kept[:, None])
    got = tensors(algorithm.signals(rollouts, {}))
    parts = {k: 1 - v for k, v in rollouts.reward_parts.items()}
    flipped = replace(rollouts, rewards=1 - rollouts.rewards, reward_parts=parts)
    of_rewards = tensors(algorithm.signals(flipped, {}))
    alone = tensors(algorithm.signals(without_row(rollouts, row), {}))
    used = rollouts.mask.any(1)
    for key, value in got.items():
        if torch.equal(value[used], of_rewards[key][used]):
            torch.testing.assert_close(value[kept], alone[key], rtol=1e-12, atol=1e-12)


# ---- own functions


def own(**functions):
    return Method(name="mine", paper="none", params=ClipParams, **functions)


def nan_off_mask(log_ratio, mask, signals, params):
    """0 / 0 in an empty row."""
    return signals.advantages * mask.sum(1, keepdim=True) / mask.sum(1, keepdim=True)


def mean_of_nothing(log_ratio, mask, signals, params):
    return log_ratio.sum(1, keepdim=True) / mask.sum(1, keepdim=True)


def divided_by_the_mask(log_ratio, mask, signals, params):
    """0 / 0 at each token that is off the mask."""
    return log_ratio / mask


@pytest.mark.parametrize(
    ("slot", "function"),
    [
        ("reweight", nan_off_mask),
        ("log_ratio", mean_of_nothing),
        ("log_ratio", divided_by_the_mask),
    ],
)
def test_nan_off_the_mask_is_harmless(slot, function):
    rollouts, logprobs = make(large=False)
    assert (rollouts.lengths == 0).any()
    leaf = logprobs.clone().requires_grad_()
    loss, metrics = batch_loss(own(**{slot: function}), leaf, rollouts)
    loss.backward()
    assert loss.isfinite() and leaf.grad.isfinite().all()
    assert not [k for k, v in metrics.items() if v != v]


WRONG = [
    ({"reweight": lambda l_t, m, s, p: s.advantages[:, 0]}, "reweight"),
    ({"reweight": lambda l_t, m, s, p: None}, "reweight"),
    ({"log_ratio": lambda l_t, m, s, p: l_t.sum()}, "log_ratio"),
    ({"constant_bounds": lambda p: None}, "constant_bounds"),
    ({"constant_bounds": lambda p: (-0.1, 0.2)}, "constant_bounds"),
    ({"constant_bounds": lambda p: (0.2, float("nan"))}, "constant_bounds"),
    ({"bounds": lambda r, p: DriverOutput((r.rewards * torch.nan, r.rewards))}, "low"),
    ({"bounds": lambda r, p: DriverOutput((r.rewards, -1 - r.rewards))}, "high"),
    ({"bounds": lambda r, p: DriverOutput((0.2, -0.5))}, "high"),
    ({"extras": {"far": lambda r, p: DriverOutput(r.rewards / 0)}}, "far"),
    ({"advantages": lambda r, p: DriverOutput(r.rewards * torch.inf)}, "advantages"),
]


@pytest.mark.parametrize(
    ("functions", "named"), WRONG, ids=lambda x: x if isinstance(x, str) else ""
)
def test_what_a_function_of_ones_own_gives_wrongly_is_named(functions, named):
    rollouts, logprobs = make(large=False)
    with pytest.raises(ValueError, match=rf"`{named}` of mine\b"):
        batch_loss(own(**functions), logprobs.clone().requires_grad_(), rollouts)


def test_bounds_may_be_infinite():
    rollouts, logprobs = make(large=False)
    open_bounds = own(bounds=lambda r, p: DriverOutput((r.rewards + torch.inf, torch.inf)))
    assert batch_loss(open_bounds, logprobs.requires_grad_(), rollouts)[0].isfinite()


# ---- tensors that hold no log-probs


@pytest.mark.parametrize("what", [torch.exp, torch.neg], ids=["probabilities", "losses"])
@pytest.mark.parametrize("field", ["logprobs", "old_logprobs", "ref_logprobs", "gen_logprobs"])
def test_probabilities_and_losses_are_no_log_probs(field, what):
    given, logprobs = make(large=False)
    below = {k: getattr(given, k).clamp(max=-0.1) for k in TOKENS if k.endswith("logprobs")}
    logprobs = logprobs.clamp(max=-0.1)
    if field == "logprobs":
        logprobs = what(logprobs)
    else:
        below[field] = what(below[field])
    shared = {k: getattr(given, k) for k in ("group", "rewards", "mask")}
    rollouts = Rollouts(**shared, **below)
    with pytest.raises(ValueError, match=rf"^{field} has"):
        batch_loss("grpo", logprobs.requires_grad_(), rollouts)


def test_rounding_above_0_is_none():
    ones = torch.ones(2, 1)
    rollouts = Rollouts([0, 0], [0, 1], ones.bool(), 5e-4 * ones)
    assert batch_loss("grpo", (5e-4 * ones).requires_grad_(), rollouts)[0].isfinite()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("group", torch.zeros(2, dtype=torch.complex64)),
        ("rewards", torch.ones(2, dtype=torch.complex64)),
        ("old_logprobs", torch.zeros(2, 1, device="meta")),
        ("old_logprobs", torch.zeros(2, 1).to(torch.float8_e4m3fn)),
        ("sample_mask", torch.ones(2, 1).bool()),
    ],
    ids=str,
)
def test_tensors_without_numbers_to_compute_with(field, value):
    given = {"group": [0, 0], "rewards": [0.0, 1.0], "old_logprobs": [[0.0], [0.0]]}
    with pytest.raises(ValueError, match=rf"^{field} "):
        Rollouts(**{**given, "mask": torch.ones(2, 1).bool(), field: value})


@pytest.mark.parametrize("field", ["entropy", "ref_logprobs"])
def test_what_a_method_would_spread_over_a_group_is_finite(field):
    """ERPO, with a NaN on a response token; off the mask one is harmless."""
    rollouts = make().rollouts
    values = getattr(rollouts, field).clone()
    algorithm = build("erpo")
    algorithm.signals(replace(rollouts, **{field: values.where(rollouts.mask, torch.nan)}))
    row, position = rollouts.mask.nonzero()[0].tolist()
    values = values.where(rollouts.mask, 0.0)
    values[row, position] = torch.nan
    rollouts = replace(rollouts, old_logprobs=rollouts.old_logprobs.where(rollouts.mask, 0.0))
    with pytest.raises(ValueError, match=f"the {field} of a response token is not finite"):
        algorithm.signals(replace(rollouts, **{field: values}))


# ---- a loop of one's own


def test_signals_of_other_rows_are_refused():
    """Their order was changed, or the rollouts'."""
    rollouts, logprobs = make(large=False)
    algorithm = build("etr")
    signals = algorithm.signals(rollouts)
    counts = Counts.of(rollouts.mask)
    rows = torch.arange(len(rollouts)).flip(0)
    leaf = logprobs.requires_grad_()
    want = policy_loss(algorithm, leaf, rollouts, signals, counts).value
    both = policy_loss(algorithm, leaf[rows], rollouts[rows], signals[rows], counts).value
    assert float(both) == pytest.approx(float(want), rel=1e-12)
    halves = replace(rollouts, old_logprobs=rollouts.old_logprobs.bfloat16())
    policy_loss(algorithm, leaf, halves, signals, counts)  # the same rows, in a narrower dtype
    for pair in ((rollouts, signals[rows]), (rollouts[rows], signals)):
        with pytest.raises(ValueError, match="rows of `signals` are not those of `rollouts`"):
            policy_loss(algorithm, leaf, *pair, counts)


@pytest.mark.parametrize(("rows", "told"), [(6, True), (5, True), (8, False), (12, False)])
def test_a_part_that_cuts_a_group_is_told(rows, told):
    mask = torch.ones(12, 3).bool()
    whole = Rollouts(torch.arange(12) // 4, torch.arange(12) % 2, mask, -torch.rand(12, 3))
    leaf = torch.full((12, 3), -1.0, requires_grad=True)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        batch_loss("etr", leaf[:rows], whole[:rows])
        batch_loss("etr", leaf[12 - rows :], whole[12 - rows :])
    assert ["cut group" in str(each.message) for each in said] == [True, True] * told


def test_groups_may_be_named_by_texts():
    labels = ["b", "a", "b", "a"]
    mask = torch.ones(4, 2).bool()
    old = torch.full((4, 2), -1.0)
    texts = Rollouts(labels, [1, 0, 0, 0], mask, old)
    numbers = Rollouts([1, 0, 1, 0], [1, 0, 0, 0], mask, old)
    assert texts.groups.index.tolist() in ([0, 1, 0, 1], [1, 0, 1, 0])
    close(build("grpo").signals(texts).advantages, build("grpo").signals(numbers).advantages)
    other = Rollouts(["b", "c"], [1, 0], mask[:2], old[:2])  # of another rank
    assert other.group[0] == texts.group[0] and other.group[1] != texts.group[1]
