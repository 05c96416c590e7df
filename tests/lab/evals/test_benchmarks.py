"""Rows of the benchmarks whose answer stands in a box; files, the hub and puzzles by name."""

import base64
import json
import sys
from types import ModuleType

import pytest
from PIL import Image
from says import Says

from nemo_algos.engines.data import countdown, puzzles
from nemo_algos.engines.data.rows import Row
from nemo_algos.lab.evals.benchmarks import load
from nemo_algos.lab.evals.benchmarks.boxed import geometry3k, order
from nemo_algos.lab.evals.problem import Options

ASK = "\nPlease reason step by step, and put your final answer within \\boxed{}."


def golds(loaded):
    return [problem.answer for problem in loaded.problems]


def test_math500(read):
    row = {
        "problem": "Add $1$ and $1$, as {2}.",
        "solution": "It is $\\boxed{3}$.",
        "answer": "\\frac{4}{2}",
        "subject": "Algebra",
        "level": 1,
        "unique_id": "test/algebra/1.json",
    }
    loaded = read("math500", [row])
    (problem,) = loaded.problems
    assert problem.id == "test/algebra/1.json"
    assert problem.prompt == "Add $1$ and $1$, as {2}." + ASK
    assert problem.answer == "\\frac{4}{2}"  # the key, not the solution's box
    assert problem.info == {"level": "1", "subject": "Algebra"}
    assert loaded.counts == {}


def numbered(*answers):
    return [{"id": i, "problem": f"{i}", "answer": answer} for i, answer in enumerate(answers)]


UNITS = ["90^\\circ", "15\\mbox{ cm}^2", "\\text{even}", "50\\%", "3"]
IN_CSV = {"id": 3, "question": "3", "answer": "36.0"}  # a float as text


@pytest.mark.parametrize(
    ("name", "rows", "answers", "counts"),
    [
        ("math500", numbered(*UNITS), UNITS, {"golds with a unit": 2, "percent golds": 1}),
        ("math500", numbered("[1, 2]", "[a, b)"), ["[1, 2]", "[a, b)"], {}),  # no lists
        (
            "amc23",
            [*numbered(27.0, -3.0, 1.5), IN_CSV],
            ["27", "-3", "1.5", "36"],
            {"float golds": 4},
        ),
        (
            "aime24",
            numbered("033", 70, "0"),
            ["33", "70", "0"],
            {"golds with leading zeros": 1},
        ),
        ("aime25", numbered("0.5"), ["0.5"], {}),
    ],
)
def test_what_a_gold_is_taken_for_is_counted(read, name, rows, answers, counts):
    loaded = read(name, rows)
    assert (golds(loaded), loaded.counts) == (answers, counts)
    assert [problem.id for problem in loaded.problems] == [str(i) for i in range(len(rows))]


def test_minerva_has_the_gold_in_the_last_box_of_its_solution_or_as_answer(read):
    solution = "First \\boxed{1}, then $\\boxed{\\frac{a}{b^{2}}}$ and \\boxed{unclosed"
    rows = [
        {"problem": "p", "solution": solution, "type": "Physics", "idx": 4},
        {"question": "q", "answer": "4.5e33"},  # the hub's
    ]
    loaded = read("minerva_math", rows)
    assert golds(loaded) == ["\\frac{a}{b^{2}}", "4.5e33"]
    assert [p.id for p in loaded.problems] == ["4", "1"]
    assert loaded.counts == {"golds from the solution's last box": 1, "ids from the row number": 1}


def test_olympiadbench_lists_units_several_answers_and_a_tolerance(read):
    def row(number, final, **more):
        plain = {"is_multiple_answer": "False", "unit": None, "error": None, "context": None}
        return {"id": number, "question": f"q{number}", "final_answer": final} | plain | more

    loaded = read(
        "olympiadbench",
        [
            row(1, ["$\\frac{1}{2}$"]),
            row(2, "['$69$,$84$']", is_multiple_answer=True),
            row(3, ["$1$", "$-2$"], is_multiple_answer=True, context="Given: x."),
            row(4, ["166"], unit="$cm^2$"),
            row(5, ["4.2"], unit="%", error="1e-1"),
        ],
    )
    assert golds(loaded) == ["\\frac{1}{2}", "69,84", "1, -2", "166", "4.2\\%"]
    assert loaded.counts == {
        "list golds": 5,
        "several answers": 2,
        "units outside the gold": 2,
        "percent golds": 1,
        "error tolerances not used": 1,
    }
    several = " If there are several answers, put all of them in one box, separated by commas."
    prompts = [problem.prompt for problem in loaded.problems]
    assert prompts[0] == "q1" + ASK
    assert prompts[2] == "Given: x.\nq3" + ASK + several
    assert prompts[3] == "q4" + ASK + " Give the answer in $cm^2$, without the unit."
    assert loaded.problems[4].info == {"unit": "%", "error": "1e-1"}


def test_gsm8k_after_the_hashes_without_commas(read):
    rows = [
        {"question": "a", "answer": "1 + 1 = <<1+1=2>>2\n#### 2"},
        {"question": "b", "answer": "#### 9\n#### -1,450,000"},
        {"question": "c", "answer": "#### 1,2"},
    ]
    loaded = read("gsm8k", rows)
    assert golds(loaded) == ["2", "-1450000", "1,2"]
    assert loaded.counts == {
        "golds after ####": 3,
        "golds with thousands commas": 1,
        "ids from the row number": 3,
    }


def test_a_file_of_ones_own(read):
    rows = [
        {"problem": "a", "answer": " $x^2$ "},
        {"question": "b", "answer": 3, "id": "mine"},
        {"problem": "c", "solution": "so \\boxed{1,2}"},
        {"problem": "b", "answer": "4"},
    ]
    loaded = read("math", rows)
    assert golds(loaded) == ["x^2", "3", "1,2", "4"]
    assert [p.id for p in loaded.problems] == ["0", "mine", "2", "3"]
    assert loaded.counts == {
        "golds in dollar signs": 1,
        "golds from the solution's last box": 1,
        "ids from the row number": 3,
        "problems with the prompt of another": 1,
    }


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"problem": "p", "solution": "no box"}, "2 answer solution"),
        ({"problem": "p", "answer": "", "level": 1}, "2 'solution'"),
        ({"problm": "p", "answer": "1"}, "'Question' problm answer"),
        ({"problem": "p", "answer": "#### "}, "2 empty"),
        ({"problem": "p", "answer": "1", "id": "0"}, "1 '0'"),
        ({"problem": "p", "answer": float("nan")}, "2 nan"),
        ({"problem": "p", "answer": float("-inf")}, "2 -inf"),  # as JSON reads -1e400
        ({"problem": "p", "answer": ["1", float("inf")]}, "2 inf"),
        ({"problem": "p", "answer": "NaN"}, "2 NaN"),
    ],
)
def test_rows_that_are_refused(read, row, message):
    with pytest.raises(ValueError) as raised:
        read("math", [{"problem": "first", "answer": "1"}, row])
    assert str(raised.value) == Says(message)


def test_a_limit_takes_the_first_and_counts_all(read):
    rows = [{"problem": f"{i}", "answer": float(i), "id": i} for i in range(5)]
    loaded = read("amc23", rows, limit=2)
    assert golds(loaded) == ["0", "1"] and loaded.counts == {"float golds": 5}
    whole = read("amc23", rows)
    assert loaded.source == whole.source
    with pytest.raises(ValueError, match=r"limit .*1.* 0"):
        read("amc23", rows, limit=0)


def gpqa(name, options="right w1 w2 w3"):
    keys = ["Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"]
    given = dict(zip(keys, options.split(), strict=True))
    return {"Record ID": name, "Question": f"Which, {name}?\n", "Subdomain": "Optics"} | given


def test_gpqa_options_in_the_order_of_their_hashes(read):
    # printf 0/recA/2 | sha256sum and so on: 2b4a, 733e, 6929, e13b; of recB f69d, 7afc, 4475, ac05
    assert order(0, "recA") == [0, 2, 1, 3]
    assert order(0, "recB") == [2, 1, 3, 0]
    assert order(1, "recA") == [2, 3, 1, 0]
    loaded = read("gpqa_diamond", [gpqa("recA"), gpqa("recB", "right w w w3")])
    first, second = loaded.problems
    assert first.prompt == (
        "Which, recA?\n\nA. right\nB. w2\nC. w1\nD. w3\n\n"
        "Please reason step by step, and put the letter of the right option within \\boxed{}, "
        "as in \\boxed{A}."
    )
    assert (first.id, first.answer, second.answer) == ("recA", "A", "D")
    assert first.info == {"Subdomain": "Optics"}
    assert loaded.counts == {"problems with equal options": 1}
    assert read("gpqa_main", [gpqa("recA")], seed=1).problems[0].answer == "D"


def acp(number, group, **more):
    return {"id": number, "group": group, "context": "Ferry.", "question": "So?"} | more


def test_acpbench_from_a_folder(tmp_path):
    (tmp_path / "app").mkdir()
    bools = {
        "app.test.bool.json": [acp(7, "app", answer="yes")],
        "app/test.bool.json": [acp(7, "val", answer="no", question="No?")],
        "app.dev.bool.json": [acp(8, "app", answer="maybe")],
    }
    for name, rows in bools.items():
        (tmp_path / name).write_text(json.dumps(rows))
    choices = {"text": ["x", "y"], "label": ["A", "B"]}
    row = acp(-1, "mc", answer="B", choices=choices, question="Which? A. x. B. y.")
    (tmp_path / "app.test.mcq.json").write_text(json.dumps([row]))
    problems = load("acpbench_bool", str(tmp_path)).problems
    assert {(p.id, p.answer) for p in problems} == {("app/7", "yes"), ("val/7", "no")}
    assert (
        "Ferry.\n\nSo?\n\nPlease reason step by step, and put your final answer, yes or no, "
        in [p.prompt.partition("within")[0] for p in problems]
    )
    (mcq,) = load("acpbench_mcq", str(tmp_path)).problems
    assert (mcq.id, mcq.answer) == ("mc/-1", "B")
    assert mcq.prompt.startswith("Ferry.\n\nWhich? A. x. B. y.\n\nPlease reason")


def test_acpbench_answers_that_are_none(read):
    with pytest.raises(ValueError, match=r"row 1: .*yes, no.*'maybe'"):
        read("acpbench_bool", [acp(1, "g", answer="maybe")])
    row = acp(1, "g", answer="C", choices={"text": ["x", "y"], "label": ["A", "B"]})
    with pytest.raises(ValueError, match="A, B, got 'C'"):
        read("acpbench_mcq", [row])


def test_geometry3k_images_as_paths_and_urls(read, tmp_path):
    Image.new("RGB", (2, 1), "red").save(tmp_path / "a.png")
    url = "https://example.org/b.png"
    row = {"images": ["a.png", url], "problem": "<image>Find x in <image>.", "answer": "2.0"}
    loaded = read("geometry3k", [row, row | {"images": [url], "problem": "Find y."}])
    first, second = loaded.problems
    assert first.images == (str((tmp_path / "a.png").resolve()), url)
    assert first.prompt.startswith("Find x in .\nPlease reason step by step")
    assert (first.answer, second.images) == ("2", (url,))
    assert loaded.counts == {
        "float golds": 2,
        "other number of <image> marks than images": 1,
        "ids from the row number": 2,
    }
    with pytest.raises(ValueError, match=r"row 1: image .*none\.png"):
        read("geometry3k", [row | {"images": ["none.png"]}])
    with pytest.raises(ValueError, match=r"row 1 .*'images'"):
        read("geometry3k", [row | {"images": []}])


@pytest.mark.parametrize(
    ("image", "named"),
    [
        ("/etc/passwd", "outside"),
        ("../secret.png", "outside"),
        ("sub/../../secret.png", "outside"),
        ("link.png", "outside"),
        ("linked/secret.png", "outside"),
        ("text.png", "picture"),
        ("empty.png", "picture"),
        ("a" * 5000, "image"),
        ("sub", "not found"),
        ("a\0b", "image"),
    ],
)
def test_geometry3k_sends_no_file_but_pictures_beside_the_rows(tmp_path, image, named):
    Image.new("RGB", (2, 1), "red").save(tmp_path / "secret.png")
    rows = tmp_path / "rows"
    (rows / "sub").mkdir(parents=True)
    Image.new("RGB", (2, 1), "red").save(rows / "sub" / "a.png")
    (rows / "text.png").write_text("root:x:0:0")
    (rows / "empty.png").touch()
    (rows / "link.png").symlink_to(tmp_path / "secret.png")
    (rows / "linked").symlink_to(tmp_path)

    def images(*names):
        row = Row({"images": [*names], "problem": "x", "answer": "1"}, "row 1")
        (problem,) = geometry3k([row], Options(folder=rows))
        return problem.images

    assert images("sub/a.png") == (str((rows / "sub" / "a.png").resolve()),)
    with pytest.raises(ValueError, match=rf"row 1.*{named}") as refused:
        images("sub/a.png", image)
    assert len(str(refused.value)) < 400


def test_geometry3k_pictures_of_the_hub_become_data_urls(tmp_path):
    picture = Image.new("RGB", (2, 1), "red")
    picture.save(tmp_path / "a.jpg")
    jpeg = (tmp_path / "a.jpg").read_bytes()
    images = [picture, {"bytes": jpeg, "path": None}]
    row = Row({"images": images, "problem": "<image><image>x", "answer": "1", "id": "g"}, "hub")
    (problem,) = geometry3k([row], Options())
    png, jpg = problem.images
    head, _, content = png.partition(",")
    (tmp_path / "b.png").write_bytes(base64.b64decode(content))
    with Image.open(tmp_path / "b.png") as again:
        assert head == "data:image/png;base64" and again.format == "PNG"
        assert again.size == (2, 1) and again.getpixel((0, 0)) == (255, 0, 0)
    assert jpg == "data:image/jpeg;base64," + base64.b64encode(jpeg).decode()
    row = Row({"images": [{"bytes": b"root:x:0:0"}], "problem": "x", "answer": "1"}, "row 1")
    with pytest.raises(ValueError, match=r"row 1.*picture"):
        list(geometry3k([row], Options()))


def test_a_folder_holds_a_data_set_or_files_of_a_pattern(tmp_path):
    with pytest.raises(ValueError, match=rf"^cannot load {tmp_path}: "):
        load("aime25", str(tmp_path))
    with pytest.raises(ValueError, match=r"\*test\.bool\.json\*"):
        load("acpbench_bool", str(tmp_path))


def test_a_name_must_be_right():
    with pytest.raises(ValueError, match=r"'aime2' .*aime2[45]"):
        load("aime2", "x.jsonl")
    with pytest.raises(ValueError, match=r"'MATH500'"):
        load("MATH500", "x.jsonl")


def test_the_hub_is_refused_without_datasets(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # as where it is not installed
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    for data in ("hub", str(tmp_path), str(tmp_path / "a.parquet"), "some/name"):
        with pytest.raises(ValueError, match=r"datasets .*\.jsonl"):
            load("aime25", data)
    with pytest.raises(ValueError, match=r"^math .*data"):
        load("math")


class Table(list):
    _fingerprint = "f00d"


@pytest.fixture
def hub(monkeypatch):
    """hub(function) stands in for datasets.load_dataset."""

    def hub(load_dataset):
        module = ModuleType("datasets")
        module.load_dataset = load_dataset
        module.disable_progress_bars = lambda: None
        monkeypatch.setitem(sys.modules, "datasets", module)

    return hub


def test_what_the_hub_is_asked_for(hub):
    asked = []

    def load_dataset(path, config, split):
        asked.append((path, config, split))
        number = len(asked)
        row = {"id": number, "group": "g", "context": "c", "question": f"q{number}"}
        return Table([row | {"answer": "yes"}])

    hub(load_dataset)
    loaded = load("acpbench_bool")
    tasks = ["app", "areach", "just", "land", "prog", "reach", "val"]
    assert asked == [("ibm-research/acp_bench", f"acp_{task}_bool", "test") for task in tasks]
    assert [p.id for p in loaded.problems] == [f"g/{i}" for i in range(1, 8)]
    assert loaded.source.endswith("fingerprint:" + "+".join(["f00d"] * 7))


def test_an_error_of_the_hub_is_one_of_ours(hub):
    def load_dataset(path, config, split):
        raise ConnectionError("no route")

    hub(load_dataset)
    with pytest.raises(ValueError, match=r"math-ai/aime25 test.* no route"):
        load("aime25")


@pytest.mark.parametrize(("name", "numbers"), [("countdown", 3), ("countdown_4", 4)])
def test_puzzles_are_those_held_out_of_training(name, numbers):
    problems = load(name, limit=50).problems
    held_out = puzzles.held_out(50, countdown.Rules(numbers))
    assert [p.id for p in problems] == [p.answer for p in problems]
    for problem, puzzle in zip(problems, held_out, strict=True):
        assert (problem.prompt, puzzles.is_held_out(puzzle)) == (f"{puzzle} :", True)
    assert load(name).problems[:50] == problems
