"""Our metrics against the peers' own code: verl's bootstrap, rouge-score, nltk's BLEU.

`make test-peers` runs this in an environment that has them.
"""

import random

import numpy as np
import pytest
from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu
from rouge_score.rouge_scorer import RougeScorer
from verl.trainer.ppo.metric_utils import bootstrap_metric

from nemo_algos.algorithms.core.pass_at_k import best_at_k_bootstrap
from nemo_algos.lab.evals.metrics.diversity import TOKEN, Texts, rouge_l, self_bleu

TEXT = r"Let the sum be x_1 = \frac{1}{2} + 37, so 2x equals 75 naïve -- thus: (a+b)^2 ."


def made_up(seed: int, number: int, longest: int) -> list[str]:
    """Texts over few words; some repeated, the shortest of one word."""
    rng = random.Random(seed)
    texts = [" ".join(rng.choices(TEXT.split(), k=rng.randint(1, longest))) for _ in range(number)]
    return texts + rng.choices(texts, k=2)


@pytest.mark.parametrize("n", [2, 8, 32])
@pytest.mark.parametrize("seed", range(3))
def test_best_of_k_is_verls(n, seed):
    """verl takes k = 2, 4, ..., n, and seed 42."""
    rng = np.random.default_rng(seed)
    scores = np.stack([rng.random(n), rng.random(n) < 0.1, rng.normal(size=n)])
    ks = [k for k in (2, 4, 8, 16, 32) if k <= n]
    want = [[bootstrap_metric(list(row), k, [np.max], seed=42)[0][0] for k in ks] for row in scores]
    np.testing.assert_allclose(best_at_k_bootstrap(scores, ks), want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_rouge_l_is_rouge_scores(seed):
    texts = Texts.of([t.replace("naïve", "naive") for t in made_up(seed, 12, 60)] + ["-- ."])
    scorer = RougeScorer(["rougeL"])
    want = [[scorer.score(a, b)["rougeL"].fmeasure for b in texts.unique] for a in texts.unique]
    np.testing.assert_allclose(rouge_l(texts), want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("longest", [3, 12, 200])
def test_self_bleu_is_nltks(longest, seed):
    responses = made_up(seed, 10, longest)
    tokens = [TOKEN.findall(text.lower()) for text in responses]
    smoothing = SmoothingFunction().method1
    want = [
        sentence_bleu(tokens[:i] + tokens[i + 1 :], text, smoothing_function=smoothing)
        for i, text in enumerate(tokens)
    ]
    assert self_bleu(Texts.of(responses)) == pytest.approx(np.mean(want), abs=1e-12, rel=0)
