"""docs/old_policy.md: what one update leaves of each method is what its record says."""

from pathlib import Path

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.methods import METHODS
from nemo_algos.algorithms.riders.old_policy import on_policy_objective
from nemo_algos.preflight.check.judge import check

PAGE = (Path(__file__).parents[2] / "docs" / "old_policy.md").read_text()
ROWS = {
    "REINFORCE with a group baseline": "REINFORCE with a group baseline",
    "REINFORCE with the advantages of {}": "REINFORCE with its own advantages",
    "{} without clipping": "itself, without clipping",
    "": "unchanged: it has no ratio, does not clip it, or divides by another policy",
}


def test_every_method_is_in_the_row_of_its_record():
    start = PAGE.index("| one update, every ratio 1: it is |")
    lines = PAGE[start : PAGE.index("\n\n", start)].splitlines()[2:]
    table = {row: names.split(", ") for _, row, names, _ in (_cells(line) for line in lines)}
    wanted = {row: [] for row in ROWS.values()}
    for name in METHODS:
        said = {form.format(name): row for form, row in ROWS.items()}
        wanted[said[on_policy_objective(build(name))]].append(name)
    assert {k: sorted(v) for k, v in table.items()} == {k: sorted(v) for k, v in wanted.items()}


def test_the_finding_is_the_pages():
    shown = PAGE.partition("```text\n")[2].partition("\n```")[0]
    found = check("nemo_rl.yaml", ["policy.train_global_batch_size=512"], "main")
    assert shown in [f.message for f in found]


def _cells(line):
    return [cell.strip() for cell in line.split("|")]
