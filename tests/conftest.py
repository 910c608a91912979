"""What all tests share: settings, a browser, and a disk that is soon full."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("sample", deadline=None, max_examples=20)  # a machine under load is no failure
settings.register_profile("all", deadline=None, max_examples=100)  # `make slow`
settings.load_profile("sample")

os.environ["XDG_CACHE_HOME"] = mkdtemp(prefix="traceq-cache-")  # not the user's own
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
os.environ.pop("COLUMNS", None)  # pytest-xdist says how wide its terminal is; texts compared here are a pipe's

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a script's `make test &`, whose children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let a recording that other tests held up, on the cores that they share, be made again, twice at most.

    Such tests are reported as `R`; all others fail at once.
    """
    for item in items:
        if item.get_closest_marker("torch"):
            item.add_marker(pytest.mark.flaky(reruns=2))


@pytest.fixture(scope="module", autouse=True)
def collections_pass_over_what_other_modules_hold() -> Iterator[None]:
    """Keep what is in memory, such as traces of other tests, from the collector, which runs in timed steps."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless chromium, as the machine has it: playwright's own are downloads."""
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium on this machine")
    with sync.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield running
        running.close()


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 48 KB under `tmp_path`/run, on which no recording of some length fits."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        (tmp_path / "run").symlink_to(disk)
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)
