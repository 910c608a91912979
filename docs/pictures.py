"""Draw the pictures of the README: a report, a timeline and a diff, as a browser shows them.

    python docs/pictures.py            into docs/pictures, from the run in fixtures/outlier_ab

Needs chromium, and `pip install playwright viztracer altair vl-convert-python`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
RUN = Path("fixtures") / "outlier_ab"  # seen from the root, so that no picture shows where that is
PICTURES = ROOT / "docs" / "pictures"
WIDTH, HEIGHT = 1280, 860


def main() -> None:
    """Draw all three."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright, TemporaryDirectory(prefix="traceq-") as folder:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        report(page, Path(folder) / "show.html", "show", str(RUN / "on"))
        report(page, Path(folder) / "diff.html", "diff", str(RUN))
        timeline(page)
        browser.close()


def report(page: Page, file: Path, *words: str) -> None:
    """A page of `show` or `diff`, its upper part."""
    subprocess.run(
        [sys.executable, "-m", "traceq", *words, "--html", str(file)], check=True, capture_output=True, cwd=ROOT
    )
    page.goto(file.as_uri())
    page.screenshot(path=PICTURES / f"{words[0]}.png")


def timeline(page: Page) -> None:
    """Both ranks in the Perfetto UI, the worst place in view."""
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
    main()
