"""The report in headless Chromium: `make test-report`.

From a file, without a network, at a laptop's size.
"""

import re
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[2] / "lab" / "evals"))
import folders

from nemo_algos.lab.report import training
from nemo_algos.lab.report.figure import running_mean
from nemo_algos.lab.report.page import write
from nemo_algos.lab.report.runs import read_run

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
LAPTOP = {"width": 1366, "height": 768}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    runs = []
    for name, method, seed in (("a", "grpo", 1), ("b", "grpo", 2), ("c", "etr", 1)):
        run = folders.training(root / name, method=method, seed=seed)
        folders.evaluation(run / "eval" / "math500", skill=0.4 + 0.1 * len(runs), seed=seed)
        runs.append(run)
    only_training = folders.training(root / "d", method="quatro", seed=1)
    return write([*runs, only_training], root / "out")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    path = shutil.which("chromium")
    assert path, "chromium is not installed: `make test-report` says how"
    folder = tmp_path_factory.mktemp("profile")
    with sync_playwright() as playwright:
        chromium = playwright.chromium
        context = chromium.launch_persistent_context(
            str(folder), executable_path=path, args=FLAGS, viewport=LAPTOP
        )
        context.set_default_timeout(300_000)
        yield context
        context.close()


@pytest.fixture
def page(browser, report):
    """A fresh page; afterwards nothing may have gone wrong in it."""
    page, problems, requests = browser.new_page(), [], []
    page.on("console", lambda message: problems.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: problems.append(f"dialog {dialog.message}"))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(f"file://{report}")
    yield page
    assert problems == []
    assert requests == [f"file://{report}"]
    assert page.evaluate("window.stolen") is None
    page.close()


def place(page):
    return page.text_content("#case-place")


def wide(page):
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")


@pytest.mark.parametrize("width", [1366, 800, 360])
def test_nothing_is_wider_than_the_page(page, width):
    page.set_viewport_size({"width": width, "height": 768})
    assert wide(page) == 0
    for _ in range(6):  # through the hostile responses
        page.keyboard.press("ArrowRight")
        assert wide(page) == 0
        texts = page.locator("#case .text").all()
        assert all(text.evaluate("e => e.scrollWidth <= e.clientWidth") for text in texts)


def hover(page, x):
    """The rows of the tip where the pointer is at this share of the figure's width."""
    page.evaluate(
        """x => { const svg = document.querySelector("#training_reward svg");
        const { left, top, width } = svg.getBoundingClientRect(), to = left + x * width;
        svg.dispatchEvent(new PointerEvent("pointermove", { clientX: to, clientY: top + 9 })); }""",
        x,
    )
    return page.locator("#tip :is(caption, tr)").all_text_contents()


def rewards(report, name):
    return read_run(report.parents[1] / name).metrics["reward/mean"]


def smooth(page, share):
    """Move the slider to this share of the steps."""
    page.locator("#smoothing").fill(str(share))
    assert page.text_content("#smoothing-share") == f"{share} % of the steps"


@pytest.mark.parametrize(("share", "width"), [(4, 2), (0, 0), (20, 12)])  # of 60 steps
def test_hover_shows_the_smoothed_values_and_those_behind(page, report, share, width):
    smooth(page, share)
    steps, both = training.together([rewards(report, "a"), rewards(report, "b")])
    mean = both.mean(0)
    step = int(hover(page, 0.6)[0])
    i = steps.index(step)
    assert 20 < step < 50
    rows = {row[0]: row[1:] for row in (cells(tr) for tr in page.locator("#tip tr").all())}
    assert list(rows) == ["grpo (2 seeds)", "c", "d"]
    (value, about) = rows["grpo (2 seeds)"]
    assert float(value) == pytest.approx(running_mean(mean, width)[i], rel=2e-4)
    behind = [float(x) for x in about.replace("here ", "").replace(" to", ",").split(", ")]
    half = 12.706204736 * abs(both[0, i] - both[1, i]) / 2  # Student's, of two seeds
    expected = [*([mean[i]] if width > 1 else []), mean[i] - half, mean[i] + half]
    assert behind == pytest.approx(expected, rel=2e-4)


def cells(row):
    return row.locator("th, td").all_text_contents()


def points(page, part):
    """The corners of a line of the figure of the reward, [x, y] in the SVG."""
    path = page.get_attribute(f'[id="training_reward.{part}"] path', "d")
    return [[float(x) for x in pair.split()[:2]] for pair in re.split("[ML]", path)[1:]]


def test_smoothing_moves_the_line_and_none_leaves_the_values(page):
    smooth(page, 0)
    values = points(page, "0.mean")
    assert len(values) == 60
    for corner in points(page, "0.0"):  # matplotlib's, without the corners that nobody would see
        assert min(abs(x - corner[0]) + abs(y - corner[1]) for x, y in values) < 0.02
    smooth(page, 20)
    moved = points(page, "0.mean")
    assert [x for x, _ in moved] == [x for x, _ in values]
    rough, even = (sum(abs(a[1] - b[1]) for a, b in pairwise(p)) for p in (values, moved))
    assert even < 0.7 * rough


def visible(page, line):
    parts = page.locator(f'[id^="training_reward.{line}."]')
    return [part.evaluate("e => getComputedStyle(e).display != 'none'") for part in parts.all()]


def test_a_run_is_switched_off_and_on_in_every_figure(page):
    assert visible(page, 1) == [True] * 3  # its values, their mean, marks
    page.click(".legend button >> text=c")
    assert visible(page, 1) == [False] * 3 and visible(page, 0) == [True] * 4  # with a band
    assert page.locator('#training [id*=".1.mean"]:visible').count() == 0
    assert page.get_attribute(".legend li:nth-child(2) button", "aria-pressed") == "false"
    assert [row.split("0.")[0] for row in hover(page, 0.6)[1:]] == ["grpo (2 seeds)", "d"]
    page.click(".legend button >> text=c")
    assert visible(page, 1) == [True] * 3 and len(hover(page, 0.6)) == 4


def test_rows_sort_by_a_click_and_a_run_leaves_the_tables_too(page):
    page.click("#summary details summary")
    rows = page.locator("#summary details tbody tr:visible th")
    assert rows.all_text_contents()[:4] == ["a", "b", "c", "d"]
    heading = page.locator("#summary details thead th", has_text="Reward").first
    shown = "#summary details table:first-of-type tbody tr td:nth-child(5)"
    written = page.locator(shown).all_text_contents()
    for order in (sorted(written, reverse=True), sorted(written)):
        heading.click()
        assert page.locator(shown).all_text_contents() == order
    page.click(".legend button >> text=c")
    assert "c" not in rows.all_text_contents()
    hover(page, 0.6)
    assert page.locator("#training .hair:not([d=''])").count() > 3


def test_arrows_go_through_the_cases(page):
    assert place(page) == "1 of 24" and page.is_disabled("#case-previous")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert place(page) == "3 of 24" and page.inner_text("#case h3") == "p/2"
    page.keyboard.press("ArrowLeft")
    assert place(page) == "2 of 24"
    page.click("#case-next")
    assert place(page) == "3 of 24"
    page.focus("#case-search")
    page.keyboard.press("ArrowRight")  # moves the cursor in the field
    assert place(page) == "3 of 24"


def test_hostile_responses_are_text(page):
    page.fill("#case-search", "window.stolen = 1")
    assert place(page) == "1 of 1"
    said = page.locator("#case .response .text").first.text_content()
    assert said == folders.HOSTILE[0]
    page.fill("#case-search", "onerror")
    assert page.locator("#case img").count() == 0
    assert page.locator("#case .response .text").first.text_content() == folders.HOSTILE[1]
    page.fill("#case-search", "characters left out")
    assert "94000 characters left out" in page.text_content("#case .response .text")


@pytest.mark.parametrize(
    ("kind", "verdict"), [("right", "✓ right"), ("wrong", "✗ wrong"), ("unjudged", "? timeout")]
)
def test_filters_show_one_kind(page, kind, verdict):
    page.select_option("#case-filter", kind)
    seen = set()
    for _ in range(int(place(page).split()[-1])):
        seen |= set(page.locator("#case .verdict").all_text_contents())
        page.keyboard.press("ArrowRight")
    assert seen == {verdict}
    if kind == "unjudged":
        assert place(page) == "1 of 1" and page.inner_text("#case h3") == "p/3"


def test_cut_responses_and_problems_that_differ(page):
    page.select_option("#case-filter", "cut")
    assert place(page) == "1 of 1" and "cut" in page.inner_text("#case .response p >> nth=0")
    page.select_option("#case-filter", "differ")
    titles = page.locator("#case h4").all_text_contents()
    assert len({title.split(": ")[1] for title in titles}) > 1
    page.fill("#case-search", "nowhere to be found")
    assert place(page) == "none" and page.inner_text("#case") == ""


def test_the_search_is_marked(page):
    page.fill("#case-search", "DOUBLING")
    marks = page.locator("#case mark").all_text_contents()
    assert marks and set(marks) == {"Doubling"}


def background(page, i=0):
    return page.locator("#heat .token").nth(i).evaluate("e => getComputedStyle(e).background")


def test_the_heat_map_switches_run_step_prompt_and_response(page):
    options = "#heat-{} option"
    assert page.locator(options.format("run")).all_text_contents() == ["a", "b", "c", "d"]
    page.select_option("#heat-run", label="c")
    page.select_option("#heat-step", index=0)
    page.select_option("#heat-prompt", index=1)
    assert page.inner_text("#heat .prompt") == "<b>prompt 1</b> of step 1"
    assert page.locator("#heat .traced").count() == 2
    page.select_option("#heat-response", label="2 (reward 0)")
    assert page.locator("#heat .traced").count() == 1
    assert page.locator("#heat .token").count() == 5
    page.select_option("#heat-run", label="d")  # the step stays
    assert page.inner_text("#heat .prompt") == "<b>prompt 1</b> of step 1"


def test_cut_tokens_are_marked_and_hover_shows_numbers(page):
    page.select_option("#heat-run", label="a")
    page.select_option("#heat-step", index=0)
    page.select_option("#heat-prompt", index=0)
    first = page.locator("#heat .token").first
    assert first.text_content() == "</script>▲" and "cut" in first.get_attribute("class")
    assert first.evaluate("e => getComputedStyle(e).borderTopWidth") == "2px"
    first.hover()
    tip = page.locator("#tip tr").all_text_contents()
    assert tip[:2] == ['token"</script>"', "position1 of 7"]
    assert tip[3:] == ["ratio1.500", "bounds0.800 to 1.200", "advantage1", "gradient cutyes, above"]
    page.mouse.move(5, 400)
    assert page.is_hidden("#tip")
