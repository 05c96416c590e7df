"""The report's pictures in docs/images, of a report as docs/evaluation.md makes it.

uv run --with playwright scripts/screenshots.py runs/report/index.html
"""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SHOTS = {  # (first, last) element of the page: the picture reaches from one to the other
    "summary": ("#summary h2", "#summary table >> nth=-1"),
    "training": ("#training h2", "#training figure >> nth=-1"),
    "pass_at_k": ("#eval-1 h2", "#eval-1 figure >> nth=5"),
    "cases": ("#cases h2", "#case .response >> nth=1"),
}
TOKENS = ("#tokens h2", "#heat .traced >> nth=-1")
ROOM = 10  # pixels around


def shoot(page: Page, name: str, places: tuple[str, str]) -> None:
    """docs/images/report_NAME.png, of 256 colours."""
    page.evaluate("scrollTo(0, 0)")
    first, last = (page.locator(place).first.bounding_box() for place in places)
    assert first and last
    width = page.evaluate("document.documentElement.clientWidth")
    top, bottom = first["y"], last["y"] + last["height"] + ROOM
    clip = {"x": 0, "y": top, "width": width, "height": bottom - top}
    shot = Image.open(io.BytesIO(page.screenshot(full_page=True, clip=clip)))
    shot.convert("RGB").quantize(256, kmeans=1).save(IMAGES / f"report_{name}.png", optimize=True)


def main(report: Path) -> None:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        sizes = {"width": 1280, "height": 800}
        for scheme, tail in (("light", ""), ("dark", "_dark")):
            page = chromium.new_page(viewport={"width": 800, "height": 800}, device_scale_factor=2)
            page.emulate_media(color_scheme=scheme)
            page.goto(report.resolve().as_uri())
            page.click("[data-by=ratio]")
            shoot(page, f"tokens{tail}", TOKENS)
        page = chromium.new_page(viewport=sizes)
        page.goto(report.resolve().as_uri())
        page.add_style_tag(content="header { position: static !important; }")
        for name, places in SHOTS.items():
            shoot(page, name, places)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
