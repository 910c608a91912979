"""A real browser opens what `traceq open --offline` serves: Perfetto's own UI shows our tracks and sums our numbers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builder import annotation, call, kernel, launch, memcpy, op, step, write

import traceq
from traceq.facts.timeline.time_partition import TimeCategory, activity

pytest.importorskip("viztracer", reason="viztracer is not installed")

LOADED_MS = 60_000
TRACE = (
    *(step(0, 100, 1), annotation("forward", 0, 60), annotation("backward", 60, 40)),
    *(op("aten::mm", 1, 6), launch(2, 3, corr=1), kernel("gemm", 10, 30, corr=1)),
    *(op("aten::item", 45, 15), call("cudaMemcpyAsync", 46, 2, corr=2), call("cudaStreamSynchronize", 49, 10, corr=3)),
    *(memcpy("DtoH (Device -> Pinned)", 50, 2, corr=2, size=4), launch(70, 3, corr=4), kernel("w", 80, 20, corr=4)),
)


@pytest.fixture
def link(tmp_path: Path) -> Iterator[str]:
    path = write(tmp_path / "trace.json", *TRACE)
    command = [sys.executable, "-m", "traceq", "open", "--offline", "--no-browser", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.terminate()


def test_the_perfetto_ui_pins_our_tracks_and_sums_our_partition(browser: Any, link: str, tmp_path: Path) -> None:
    context = browser.new_context(viewport={"width": 1400, "height": 1200})
    page = context.new_page()
    failures: dict[str, str] = {}
    page.on("requestfailed", lambda request: failures.update({request.url: request.failure}))
    page.goto(link)
    page.get_by_text("Query result").first.wait_for(timeout=LOADED_MS)
    pinned = page.locator("[class*=pinned-track-tree]").inner_text().split("\n")
    assert {"steps", "phases", "findings", "where the time goes", "syncs", "queue depth"} <= set(pinned)
    below = page.locator("body").inner_text().rpartition("Query result")[2].split()
    context.close()
    elsewhere = {why for url, why in failures.items() if not url.startswith(link.partition("/#")[0])}
    assert elsewhere <= {"csp"}, "what is not of this server is not even looked up"
    done = activity(traceq.read(tmp_path / "trace.json").traces[0])
    for category in set(done.category.tolist()):
        ms = int(done.ns[done.category == category].sum()) / 1e6
        index = below.index(TimeCategory(category).name.lower())
        assert float(below[index + 2]) == ms
