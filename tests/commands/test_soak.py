"""A process that shows input after input, as a notebook or an agent's server does, keeps nothing of it."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import pytest
from paths import FIXTURES
from terminal import traceq

SHOWN = ("example/job", "outlier_ab", "recompiles/lengths.json.gz", "kinds/merged.json", "kinds/snapshot.pickle")
NUM_SHOWN = 300
MOST_BLOCKS = 10
"""Blocks of Python's allocator that a command may leave, of the 320,000 in use; it leaves about two."""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no /proc")
def test_three_hundred_commands_in_one_process_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEQ_CACHE", "0")
    for path in SHOWN * 3:  # caches of patterns and of classes fill
        show(path)
    before = held()
    for turn in range(NUM_SHOWN):
        show(SHOWN[turn % len(SHOWN)])
    objects, blocks, files = (after - start for start, after in zip(before, held(), strict=True))
    assert files == 0
    assert objects < NUM_SHOWN
    assert blocks < MOST_BLOCKS * NUM_SHOWN


def show(path: str) -> None:
    assert traceq("show", FIXTURES / path).code == 0


def held() -> tuple[int, int, int]:
    """Return (objects that the collector knows, blocks of memory, open files)."""
    gc.collect()
    return len(gc.get_objects()), sys.getallocatedblocks(), len(os.listdir("/proc/self/fd"))
