"""docs/rehearse.md: its table of rehearsals, against what benchmarks/rehearsals.py runs."""

from pathlib import Path

import rehearsals
from rehearsals import name, result

from nemo_algos.preflight.rehearsal.verdict import Verdict

PAGE = Path(__file__).parents[2] / "docs" / "rehearse.md"
ENDS = ("passes", "refused: ", "not run")


def rows() -> list[list[str]]:
    """Of the table, by column."""
    part = PAGE.read_text().partition("<!-- rehearsals -->")[2].partition("<!-- end -->")[0]
    lines = [line for line in part.splitlines() if line.startswith("| `")]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]


def test_each_config_has_a_row_that_says_what_came_of_it():
    found = rows()
    assert [row[0] for row in found] == [name(words) for words in rehearsals.every()]
    assert all(row[2].startswith(ENDS) for row in found)
    assert all((row[3] == "") == (row[2] == "not run") for row in found)


def test_a_row_names_the_first_failure_or_what_is_open():
    seen = [Verdict("data", "unchecked", ""), Verdict("resume", "warning", "")]
    ended = {"status": 0}
    assert result(ended, seen) == "passes; warns: resume"
    assert result(ended, [*seen, Verdict("save", "unchecked", "")]).endswith("open: save")
    failed = [*seen, Verdict("step", "failed", "nan"), Verdict("resume", "failed", "lost")]
    assert result({"status": 1}, failed) == "step fails: nan"
    refused = Verdict("model", "failed", "no", details={"refused": "latent"})
    assert result({"status": 1}, [refused]) == "refused: latent"
    late = result({"status": None, "last": ""}, seen[:1])
    assert f"{rehearsals.LIMIT} minutes after data" in late
