"""Small inputs, trimmed from public recordings, of which the right answer is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builder import table
from paths import SHARED

from traceq.analysis.registry import analyze, sheet
from traceq.compare.diff import diff
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
    assert "HtoD pinned at 5.0 of 25.0 GB/s" in str(finding.measures["rates"])


def test_copies_that_came_in_another_order_cost_what_their_memory_makes_of_them() -> None:
    """Pageable copies one after the other become pinned ones at the same time: -16.8 and -1.7 ms, and 19 ms overlap."""
    a, b = path("copies-pageable-nonblocking"), path("copies-pinned-async")
    causes = {(cause.kind, cause.work): cause for cause in diff(str(a), str(b)).causes}
    to_host, to_device = (causes["memcpy", f"aten::copy_ > {name}"] for name in ("DtoH", "HtoD"))
    assert (to_host.memory, to_device.memory) == (
        "pageable -> pinned, 4.4 -> 8.7 GB/s",
        "pageable -> pinned, 4.8 -> 5.0 GB/s",
    )
    assert [each.delta_num for each in (to_host, to_device)] == [0, 0]
    assert [each.delta_bytes for each in (to_host, to_device)] == [0, 0]
    assert to_host.delta_ns == pytest.approx(-17.5e6, rel=0.02)
    assert -1.8e6 < to_device.delta_ns < 0
    syncs = [causes["sync", f"{kind} aten::copy_"] for kind in ("htod", "dtoh")]
    assert [each.delta_num for each in syncs] == [-1, -1]
    assert sum(each.delta_ns for each in syncs) == pytest.approx(-18.6e6, rel=0.05)


def test_a_recording_without_a_program_says_that_it_is_empty() -> None:
    every = sheet(read(path("empty-recording-3090")))
    (finding,) = every.findings
    assert finding.code == "empty_recording"
    assert finding.measures["call"] == "cudaDeviceSynchronize"
    assert finding.measures["call_ns"] == pytest.approx(185.1e6, rel=1e-3)
    assert finding.measures["whole_ns"] == pytest.approx(210.6e6, rel=1e-3)
    assert every.source.device == ""
    cells = table(read(path("empty-recording-3090")), "partition")
    assert {row["category"] for row in cells} == {"once", "unrecorded"}


def test_a_first_allocation_of_seconds_shows_a_device_whose_rows_are_missing() -> None:
    every = sheet(read(path("cold-start-no-device-rows-4060")))
    assert (every.source.device, every.source.lacks_device_rows) == ("", True)
    (partition,) = (view for report in every.reports for view in report.first if view.key == "partition")
    assert "in ops" in [column.heading for column in partition.columns]


@pytest.mark.parametrize(("window", "share_of"), [("window-first", "rest"), ("window-last", None)])
def test_casts_of_autocast_are_a_claim_with_a_cold_start_before_them_and_without(
    window: str, share_of: str | None
) -> None:
    """198 `aten::_to_copy`, 5.7 of 26.3 ms that the device computes; more than attention."""
    (claim,) = analyze(read(path(window)), "kernels").findings
    assert (claim.code, claim.measures["casts_mean"]) == ("casts", 198)
    assert claim.measures.get("share_of") == share_of
    assert claim.ns == pytest.approx(5.69e6, rel=2e-3)
    assert (claim.subject.op, claim.measures["cast"]) == ("aten::linear", "fp32 to fp16")


def test_checks_of_one_line_are_one_finding_though_ten_modules_run_it() -> None:
    findings = [each for each in sheet(read(path("moe-nan-checks-a100"))).findings if each.subject.kind == "dtoh"]
    (finding,) = findings
    assert (finding.code, finding.subject.line) == ("costly_sync", "model.py:143 forward")
    assert finding.measures["blocked_ns"] == pytest.approx(387e6, rel=1e-2)
    assert finding.ns == pytest.approx(10.7e6, rel=1e-2)
    (row,) = (row for row in rows_of_first_screen("moe-nan-checks-a100") if row["kind"] == "dtoh")
    assert (row["num"], row["step_blocked_ns"]) == ("20", finding.measures["blocked_ns"])


def rows_of_first_screen(name: str) -> list[dict[str, Any]]:
    (view,) = analyze(read(path(name)), "syncs").first
    return view.to_dicts()


def test_syncs_before_which_the_device_is_busy_anyway_save_next_to_nothing() -> None:
    """24 of them, four in each of a prefill and five iterations of a decoder, block the host for 442 ms."""
    every = sheet(read(path("sync-before-device-bound-a800")))
    (lead,), (free,) = every.leads, every.without_gain
    assert (lead.code, lead.measures["share_pct"]) == ("device_bound", pytest.approx(97.3, abs=0.1))
    assert (free.subject.kind, free.measures["blocked_ns"]) == ("dtoh", pytest.approx(442e6, rel=1e-2))
