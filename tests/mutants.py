"""`make mutants`: each of these mistakes must turn a test of the default suite red.

A mutant is a place in the package, what stands there, what is put there instead, and the tests that
should notice. `python tests/mutants.py [WORD]` takes those whose place or mistake has the word.
The file is put back afterwards.
"""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
METHODS = "nemo_algos/algorithms/methods/"
ZOO = METHODS + "zoo/"
METRICS = "nemo_algos/algorithms/core/metrics.py"
OF_METRICS = "tests/algorithms/core/test_metrics.py"
LOCAL = "nemo_algos/engines/local/"
LOCAL_TESTS = "tests/engines/local/test_"
PLAN = "nemo_algos/preflight/plan/"
OF_MEMORY = "tests/preflight/plan/test_memory_model.py"
VERDICT = "nemo_algos/lab/mismatch/verdict.py"
OF_VERDICT = "tests/lab/mismatch/test_verdict.py"
OF_MEMORIES = "tests/algorithms/methods/test_memory.py"
OF_ZOO = "tests/algorithms/methods/test_zoo.py"
TURNS = "nemo_algos/algorithms/core/turns.py"
BY_TURN = "tests/algorithms/methods/test_by_turn.py"
GOLDEN = "tests/algorithms/golden/test_committed.py"


class Mutant(NamedTuple):
    """The tests are paths, with spaces between."""

    path: str
    right: str
    wrong: str
    tests: str = GOLDEN


MUTANTS = [
    # the methods' formulas
    Mutant(ZOO + "off_policy.py", "log_ratio.clamp(max=0).exp()", "log_ratio.exp()"),
    Mutant(ZOO + "off_policy.py", '["gap"] - core', '["gap"] + core'),
    Mutant(ZOO + "clipping.py", "params.tau_negative", "params.tau_positive"),
    Mutant(ZOO + "clipping.py", "weight.clamp(0.8, 1.0)", "weight.clamp(0.8, 1.2)"),
    Mutant(ZOO + "clipping.py", "mask.cumsum(1)", "mask.new_ones(mask.shape).cumsum(1)"),
    Mutant(ZOO + "entropy.py", "(-log_ratio).exp()", "log_ratio.exp()"),
    Mutant(ZOO + "clipping.py", "params.beta_low", "params.beta_high"),
    Mutant(ZOO + "entropy.py", "lower) | (values", "lower) & (values"),
    Mutant(ZOO + "off_policy.py", "int((means <", "int((ranked <"),
    Mutant(
        ZOO + "memory.py", "= [a, b, way]", "= [a, b, past.get(key, [0, 0, way])[2]]", OF_MEMORIES
    ),
    Mutant(ZOO + "entropy.py", "values >= low", "values > low", OF_ZOO),
    Mutant(
        ZOO + "clipping.py",
        "ratio.where(ratio >= 1 - signals.low",
        "ratio.where(ratio >= 1 - signals.high",
    ),
    Mutant(ZOO + "clipping.py", "kl <= params.high", "kl <= params.low"),
    Mutant(
        ZOO + "clipping.py", "above = ratio >= 1 - signals.low", "above = ratio >= 1 - signals.high"
    ),
    Mutant(ZOO + "clipping.py", "within = (ratio >= 1 - signals", "within = (ratio >= -signals"),
    Mutant(ZOO + "off_policy.py", "params.k_positive", "params.k_negative"),
    Mutant(ZOO + "sequence.py", ".where(rollouts.lengths > 0, 0.0)\n    groups", "\n    groups"),
    Mutant(
        ZOO + "clipping.py", "(log_ratio.abs() < params.max_log_ratio", "(log_ratio.abs() <= 1e9"
    ),
    Mutant(ZOO + "advantages.py", "correction=1", "correction=0"),
    Mutant(ZOO + "sequence.py", "* rollouts.lengths)", "* rollouts.lengths.clamp(max=3))"),
    Mutant(METHODS + "gmpo.py", "expm1(params.log_clip_high)", "expm1(params.log_clip_low)"),
    Mutant(METHODS + "erpo.py", "params.process_weight", "0.5 * params.process_weight"),
    Mutant(METHODS + "apmpo.py", "high = params.clip_min", "high = params.clip_max"),
    Mutant(TURNS, ".minimum(last)", ".minimum(last.clamp(min=1))", BY_TURN),
    Mutant(TURNS, "- before.cumsum(1)", "- before", BY_TURN),
    Mutant(TURNS, "turn.long().where(mask, 0)", "turn.long().clamp(min=0)", BY_TURN),
    Mutant(ZOO + "turns.py", "of_turn.clamp(min=1)", "of_turn.clamp(min=9)", BY_TURN),
    Mutant(ZOO + "turns.py", "rewards=v, outcomes=None", "rewards=v", BY_TURN),
    Mutant(METHODS + "etr.py", "params.macro * 4", "params.macro * 3"),
    Mutant("nemo_algos/algorithms/core/tokens.py", "rank <= count", "rank < count"),
    # the memory model of `plan`
    Mutant(PLAN + "memory.py", "2 * 2 * largest", "2 * largest", OF_MEMORY),
    Mutant(PLAN + "memory.py", " + p.extra_forward", "", OF_MEMORY),
    Mutant(PLAN + "memory.py", "layer(run, parts) + 2 * norm", "layer(run, parts)", OF_MEMORY),
    # what the embedded engine does and says
    Mutant(METRICS, "min(limit, REACH)", "REACH", OF_METRICS),
    Mutant(METRICS, "torch.ge, row_sum", "torch.gt, row_sum", OF_METRICS),
    Mutant(METRICS, "(index + 1)", "index", OF_METRICS),
    Mutant(LOCAL + "observer.py", "correction=0", "correction=1", LOCAL_TESTS + "step_metrics.py"),
    Mutant(
        LOCAL + "updates.py",
        'if state["rates"] == self._rates()',
        "if True",
        LOCAL_TESTS + "optimizer.py",
    ),
    Mutant(
        LOCAL + "low_precision.py",
        "q.weight(weight.T).T",
        "q.weight(weight)",
        LOCAL_TESTS + "low_precision.py",
    ),
    # verdicts and measures
    Mutant(VERDICT, " and size.max() < 20 * CLEAN", "", OF_VERDICT),
    Mutant(VERDICT, "TOKENS = 200", "TOKENS = 100", OF_VERDICT),
    Mutant(VERDICT, "RESPONSES = 8", "RESPONSES = 4", OF_VERDICT),
    Mutant(
        "nemo_algos/lab/evals/metrics/diversity.py",
        "1 - t + ROUNDING",
        "1 - t",
        "tests/lab/evals/test_metrics_texts.py",
    ),
]


def lost_place(mutant: Mutant) -> str:
    """What is wrong with the mutant's own record: a refactoring has moved what it names."""
    if (ROOT / mutant.path).read_text().count(mutant.right) != 1:
        return f"{mutant.path}: {mutant.right!r} is not there once"
    missing = [path for path in mutant.tests.split() if not (ROOT / path).exists()]
    return f"{mutant.path}: {missing[0]} is not there" if missing else ""


def survives(mutant: Mutant) -> bool:
    """Whether its tests stay green."""
    path = ROOT / mutant.path
    source = path.read_text()
    path.write_text(source.replace(mutant.right, mutant.wrong))
    try:
        tests = ["pytest", "-q", "-x", "-n", "0", "--no-header", *mutant.tests.split()]
        status = subprocess.run(tests, cwd=ROOT, capture_output=True).returncode
    finally:
        path.write_text(source)
    assert status in (0, 1), f"pytest ended with {status}: neither green nor red"
    return status == 0


if __name__ == "__main__":
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [m for m in MUTANTS if word in m.path + m.right + m.wrong]
    if lost := [found for mutant in chosen if (found := lost_place(mutant))]:
        sys.exit("\n".join(lost))
    alive = 0
    for mutant in chosen:
        lives = survives(mutant)
        alive += lives
        print(f"{'SURVIVES' if lives else 'red':8}  {mutant.path}: {mutant.wrong}", flush=True)
    sys.exit(alive > 0)
