"""What a person sees of a rehearsal: lines, the sum, the page."""

from nemo_algos.preflight.rehearsal import page, report
from nemo_algos.preflight.rehearsal.verdict import Verdict

CHANGES = [
    {"path": "a.b", "value": 2, "kind": "folded", "reason": "few cores"},
    {"path": "c.d", "value": False, "kind": "given up", "reason": "<b>no GPU</b>"},
]
FOUND = [
    Verdict("judge", "passed", "fine"),
    Verdict("model", "passed", "small", details={"changes": CHANGES}),
    Verdict(
        "rollouts", "passed", "8", details={"samples": [{"content": [["a<b"]], "rewards": [1.0]}]}
    ),
    Verdict(
        "start", "failed", "ended", "policy.x", 61.4, {"lines": "\n".join(map(str, range(40)))}
    ),
]


def test_a_line_has_stage_mark_seconds_and_key():
    assert report.line(FOUND[0]).split() == ["judge", "ok", "fine"]
    first, *lines = report.line(FOUND[3]).splitlines()
    assert first.split() == ["start", "FAIL", "61", "s", "ended", "[policy.x]"]
    assert [one.split()[-1] for one in lines] == [str(n) for n in range(28, 40)]


def test_the_sum_counts_verdicts_and_names_what_is_given_up(tmp_path):
    said = report.summary(FOUND, tmp_path)
    assert "ok: 3" in said and "FAIL: 1" in said and str(tmp_path) in said
    assert "c.d" in said and "a.b" not in said and "1 folded" in said


def test_the_page_has_everything_and_runs_nothing_of_it(tmp_path):
    page.write(tmp_path / "page.html", "etr.yaml", FOUND, tmp_path)
    html = (tmp_path / "page.html").read_text()
    assert "a&lt;b" in html and "&lt;b&gt;no GPU&lt;/b&gt;" in html and "policy.x" in html
    assert "<script" not in html


def test_tokens_have_their_advantage_as_a_colour_and_a_frame_where_they_are_cut(tmp_path):
    row = {"reward": 1.0, "tokens": ["<b>", "\n"], "cut": [False, True], "ratio": [1.0, 1.5]}
    traces = [row | {"advantage": [2.0, -1.0]}]
    (shown,) = page.heat(traces)
    assert [(t["text"], t["color"], t["percent"]) for t in shown["tokens"]] == [
        ("<b>", "--high", 55),
        ("⏎", "--low", 28),
    ]
    found = [Verdict("advantages", "passed", "finite", details={"traces": traces})]
    page.write(tmp_path / "page.html", "etr.yaml", found, tmp_path)
    html = (tmp_path / "page.html").read_text()
    assert '<span class="token" title="advantage 2, ratio 1"' in html and "&lt;b&gt;</span>" in html
    assert '<span class="token cut" title="advantage -1, ratio 1.5"' in html


def test_lengths_are_bars():
    assert page.bars([["0-99", 5], ["50", 0], ["100-199", 10]]) == [
        ("0-99", 5, 50.0),
        ("100-199", 10, 100.0),
    ]
