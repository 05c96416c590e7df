"""Score centering (arXiv 2609.20807), against the formula over a whole vocabulary, in numpy."""

import numpy as np
import pytest
import torch

from nemo_algos import Rollouts, batch_loss, build

B, S, V, K = 4, 3, 9, 4
TIS = {
    "use_importance_sampling_correction": True,
    "truncated_importance_sampling_type": "tis",
    "truncated_importance_sampling_ratio": 1.1,
}
ICEPOP = TIS | {
    "truncated_importance_sampling_type": "icepop",
    "truncated_importance_sampling_ratio_min": 0.8,
    "truncated_importance_sampling_ratio": 1.25,
}
WEIGHTS = {  # f(p / q) of a token
    "none": ({}, np.ones_like),
    "uncut": ({"use_importance_sampling_correction": True}, lambda r: r),
    "tis": (TIS, lambda r: np.minimum(r, 1.1)),
    "icepop": (ICEPOP, lambda r: np.where((r >= 0.8) & (r <= 1.25), r, 0.0)),
}


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def batch(seed):
    """Logits [B,S,V] of trainer and sampler, the tokens drawn, the sampler's K likeliest."""
    rng = np.random.default_rng(seed)
    z = 1.5 * rng.normal(size=(B, S, V))
    q = softmax(z + 0.4 * rng.normal(size=(B, S, V)))
    drawn = np.array([[rng.choice(V, p=q[i, t]) for t in range(S)] for i in range(B)])
    mask = np.array([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 1]], dtype=bool)
    return z, q, drawn, np.argsort(-q, axis=-1)[..., :K], mask


def gradient_by_hand(z, q, drawn, head, mask, advantages, f):
    """d loss / d z of the mean over tokens of -A (f(p_a/q_a) s_a - sum_v q^_v f(p_v/q^_v) s_v).

    s_v = e_v - p is the score of a softmax in its logits; q^ is q on the head, and beyond it p
    times the share of the mass that the sampler has there to that which the trainer has.
    """
    out = np.zeros_like(z)
    for i, t in np.argwhere(mask):
        p, own = softmax(z[i, t]), q[i, t]
        inside = np.isin(np.arange(V), head[i, t])
        modelled = np.where(inside, own, p * own[~inside].sum() / p[~inside].sum())
        score = np.eye(V) - p
        mean = (modelled * f(p / modelled)) @ score
        a = drawn[i, t]
        out[i, t] = -advantages[i] * (f(p[a] / own[a]) * score[a] - mean) / mask.sum()
    return out


def gradient(z, q, drawn, head, mask, config, method="gpg", rewards=(1, 0, 0, 0)):
    logits = torch.tensor(z, requires_grad=True)
    full, ids = logits.log_softmax(-1), torch.tensor(drawn)[..., None]
    gen = torch.tensor(q).log()
    rollouts = Rollouts(
        group=[0] * B,
        rewards=[*rewards],
        mask=torch.tensor(mask),
        old_logprobs=full.detach().gather(-1, ids)[..., 0],
        gen_logprobs=gen.gather(-1, ids)[..., 0],
    )
    likeliest = torch.tensor(head)
    heads = (full.gather(-1, likeliest), gen.gather(-1, likeliest))
    logprobs = full.gather(-1, ids)[..., 0]
    loss, _ = batch_loss(method, logprobs, rollouts, config, heads=heads)
    loss.backward()
    return logits.grad.numpy()


@pytest.mark.parametrize("name", WEIGHTS)
def test_the_gradient_is_that_of_the_score_less_its_mean_under_the_sampler(name):
    config, f = WEIGHTS[name]
    for seed in range(3):
        made = batch(seed)
        want = gradient_by_hand(*made, np.array([0.75, -0.25, -0.25, -0.25]), f)
        np.testing.assert_allclose(gradient(*made, config), want, rtol=0, atol=1e-9)


def test_with_the_sampler_as_the_old_policy_the_weights_are_of_the_policy_as_it_is():
    method = build("gpg", {"bypass_mode": True, "rollout_is": "token", "rollout_is_threshold": 1.1})
    made = batch(3)
    want = gradient_by_hand(*made, np.array([0.75, -0.25, -0.25, -0.25]), WEIGHTS["tis"][1])
    np.testing.assert_allclose(gradient(*made, {}, method=method), want, rtol=0, atol=1e-9)


def test_two_tokens_by_hand():
    """p = (.6, .4), q = (.5, .5), A = 1/2 and -1/2: -(1/2)(1/2) (e_a - q), whatever p is."""
    logits = torch.tensor([[[0.6, 0.4]], [[0.6, 0.4]]]).log().requires_grad_()
    full = logits.log_softmax(-1)
    logprobs = torch.stack([full[0, :, 0], full[1, :, 1]])
    rollouts = Rollouts([0, 0], [1, 0], [[True], [True]], logprobs.detach())
    gen = torch.full((2, 1, 2), 0.5).log()
    loss, _ = batch_loss("gpg", logprobs, rollouts, heads=(full, gen))
    loss.backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[[-0.125, 0.125]]] * 2))


def test_equal_policies_and_equal_rewards_are_centred_already():
    z, _, drawn, head, mask = batch(0)
    found = gradient(z, softmax(z), drawn, head, mask, {})
    bare = (np.eye(V)[drawn] - softmax(z)) * np.array([0.75, -0.25, -0.25, -0.25])[:, None, None]
    np.testing.assert_allclose(found, -bare * mask[..., None] / mask.sum(), atol=1e-9)
    assert not gradient(*batch(1), {}, rewards=(1, 1, 1, 1)).any()


def test_heads_off_the_mask_may_be_anything():
    rollouts = Rollouts([0, 0], [1, 0], [[True, False]] * 2, [[-1.0, 0.0]] * 2)
    ours = torch.tensor([[[-1.0, -2.0], [torch.nan, torch.nan]]] * 2, requires_grad=True)
    gen = torch.tensor([[[-2.0, -1.0], [torch.nan, -torch.inf]]] * 2)
    logprobs = torch.full((2, 2), -1.0, requires_grad=True)
    loss, _ = batch_loss("gpg", logprobs, rollouts, heads=(ours, gen))
    loss.backward()
    assert ours.grad[:, 0].all()
    assert not ours.grad[:, 1].any()


@pytest.mark.parametrize(
    ("method", "config", "words"),
    [
        ("grpo", {}, "gpg"),
        ("cispo", {}, "gpg"),
        (build("gpg", {"rollout_is": "token"}), {}, "old_policy"),
        ("gpg", ICEPOP | {"truncated_importance_sampling_type": "seq-mask-tis"}, "tis"),
    ],
)
def test_what_is_not_centred_so_is_refused(method, config, words):
    """A ratio is centred by itself, and a sequence's weight is no token's."""
    with pytest.raises(ValueError, match=words):
        gradient(*batch(0), config, method=method)


def test_heads_of_other_tokens_are_refused():
    z, q, drawn, head, mask = batch(0)
    with pytest.raises(ValueError, match=r"\[4, 3, K\]"):
        gradient(z, q, drawn, head[:, :2], mask, {})
