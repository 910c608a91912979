"""Small inputs, trimmed from public recordings, of which the right answer is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builder import table
from paths import SHARED

from traceq.analysis.registry import analyze
from traceq.runs.read import read

REPORTS = SHARED / "reports" / "traces"
pytestmark = pytest.mark.skipif(not REPORTS.exists(), reason="../shared/reports is absent")


def path(name: str) -> Path:
    return REPORTS / f"{name}.json.gz"


def rows(name: str, analysis: str, *keys: str) -> dict[Any, dict[str, Any]]:
    """Rows of an analysis by the values of some columns."""
    every = table(read(path(name)), analysis)
    return {tuple(row[key] for key in keys) if len(keys) > 1 else row[keys[0]]: row for row in every}


def test_pageable_copies_hold_the_host_though_they_end_0_1_ms_after_their_calls() -> None:
    of_kind = rows("copies-pageable-nonblocking", "syncs", "kind")
    assert (of_kind["htod"]["num"], of_kind["dtoh"]["num"]) == (10, 10)
    assert of_kind["htod"]["blocked_ns"] / 10 == pytest.approx(32.46e6, rel=1e-3)


def test_copies_belong_to_the_annotations_that_launch_them_though_the_loop_waits_outside() -> None:
    of_phase = rows("copies-pinned-async", "phases", "name")
    assert {name: row["num_gpu_ops"] for name, row in of_phase.items() if row["num_gpu_ops"]} == {
        "GPU->CPU": 10,
        "CPU->GPU": 10,
    }
    (sync,) = table(read(path("copies-pinned-async")), "syncs")
    assert (sync["kind"], sync["phase"], sync["num"]) == ("device", "other", 10)


def test_the_bandwidth_of_each_kind_of_copies_is_known() -> None:
    of = {
        (row["kind"], row["memory"]): round(row["bytes"] / row["gpu_ns"], 1)
        for name in ("copies-pageable-nonblocking", "copies-pinned-async")
        for row in table(read(path(name)), "memcpy")
    }
    assert of == {
        ("DtoH", "pageable"): 4.4, ("HtoD", "pageable"): 4.8, ("DtoH", "pinned"): 8.7, ("HtoD", "pinned"): 5.0
    }  # fmt: skip
    (finding,) = (each for each in analyze(read(path("copies-pinned-async")), "partition").findings)
    assert "HtoD pinned at 5.0 GB/s" in finding.evidence
