"""Where every ratio is 1: what is left of each method is what its record says."""

from batches import change, close, every_method, make, on_policy, run

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.extensions.loss_config import LossConfig
from nemo_algos.algorithms.extensions.old_policy import inert_on_policy, on_policy_objective
from nemo_algos.algorithms.kernel import group_advantages


def score(name, batch):
    """The gradient of -mean(A log pi), A the method's own, [B,S], its mean the method's own."""
    algorithm = build({"name": name, **GENTLE.get(name, {})})
    A = algorithm.signals(batch.rollouts, {}).advantages
    mask = batch.rollouts.mask
    rows = mask.any(1)
    count = mask.sum(1, keepdim=True) * rows.sum() if algorithm.mean == "sequence" else mask.sum()
    count = rows.sum() if name == "turn_quatro" else count  # a turn's product, each turn alike
    return (-A / count.clamp(min=1)).where(mask, 0.0)


# quatro's product of ratios has |o| times the gradient of a sequence mean
GENTLE = {"quatro": {"ratio": "geometric_mean"}}


@every_method
def test_what_is_left_is_what_the_record_says(name):
    """Score function of its own advantages, or more where the record says that more is left."""
    batch, block = on_policy(make()), {"name": name, **GENTLE.get(name, {})}
    batch = change(batch, gen_logprobs=batch.rollouts.old_logprobs + 0.5)  # the sampler is far
    algorithm, got = build(block), run(block, batch, LossConfig()).grad
    left, grpos = on_policy_objective(algorithm), algorithm.advantages.method.advantages
    if left.startswith("REINFORCE") or (not inert_on_policy(algorithm) and name in PLAINLY):
        close(got, score(name, batch))
    else:
        assert name in MORE
        assert float((got - score(name, batch)).abs().max()) > 1e-4
    group = grpos is group_advantages
    assert left.endswith("group baseline") == (bool(left) and group and name not in MORE)


PLAINLY = {"gpg", "m2po", "opd"}  # nothing of theirs is a function of the ratio
MORE = {"gepo", "opsm"}  # a denominator of its own; a comparison with the sampler
