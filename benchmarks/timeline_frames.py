"""How fast the timeline of a page pans: time to paint a frame, and frames a second, in headless Chromium.

    python benchmarks/timeline_frames.py page.html

`page.html` is what `traceq show TRACE --html page.html` wrote. The timeline is panned for 180 frames at three zooms.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console

PAN = """async (zoom) => {
  const canvas = document.querySelector(".timeline-canvas"), times = [], frames = [];
  const paint = TimelinePainter.prototype.paint;
  let spans = 0;
  TimelinePainter.prototype.paint = function (view) {
    const start = performance.now();
    paint.call(this, view);
    times.push(performance.now() - start);
    spans = view.data.lanes.reduce((sum, lane) => sum + lane.length, 0);
  };
  const press = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  const frame = () => new Promise(requestAnimationFrame);
  press("0");
  for (let count = 0; count < zoom; count += 1) press("w");
  await frame();
  times.length = 0;
  for (let count = 0; count < 180; count += 1) {
    const deltaX = count % 60 < 30 ? 24 : -24;
    canvas.dispatchEvent(new WheelEvent("wheel", { deltaX, bubbles: true, cancelable: true }));
    frames.push(await frame());
  }
  TimelinePainter.prototype.paint = paint;
  return { spans, times, frames };
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("page", type=Path)
    page_file = parser.parse_args().page.resolve()
    console = Console(highlight=False, soft_wrap=True)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.goto(page_file.as_uri())
        page.wait_for_selector("figure[data-chart=timeline][data-drawn]")
        for zoom in (1, 4, 10):
            result = page.evaluate(PAN, zoom)
            times, frames = sorted(result["times"]), result["frames"]
            rate = 1000 * (len(frames) - 1) / (frames[-1] - frames[0])
            median, late = times[len(times) // 2], times[int(len(times) * 0.95)]
            console.print(
                f"{result['spans']:,} spans, zoomed {1.5**zoom:.1f} times: "
                f"{median:.1f} ms to paint (95 %: {late:.1f} ms), {rate:.0f} frames/s"
            )
        browser.close()


if __name__ == "__main__":
    main()
