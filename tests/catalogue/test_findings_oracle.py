"""The time of each finding is computed a second time, from the events alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from catalogue import FILES, sheet_of
from claims import FOUND_IN
from oracle.findings import finding_times
from paths import FIXTURES, TESTS

from traceq.report import Finding
from traceq.units import Unit, format_value

BY_EVENTS = {
    "host_bound", "exposed_comm", "exposed_memcpy", "sync_wait", "alloc_wait", "dataload_wait", "spin_wait",
    "starved", "launch_bound", "cold_start", "long_backward", "metric_gathers", "unfused_optimizer",
}  # fmt: skip
"""Codes whose time `oracle.findings` computes from one file."""

ELSEWHERE = {
    **dict.fromkeys(("costly_sync", "free_sync", "joint_syncs", "pageable_copies"), "simulated/test_replay.py"),
    "allocator_retries": "simulated/test_replay.py",
    **dict.fromkeys(("exposed_wait", "exposed_transfer", "straggler"), "simulated/test_ranks_properties.py"),
    "late_ranks": "engines/test_engines.py",
    **dict.fromkeys(("busy_machine", "contended_cores"), "analysis/test_core_use.py"),
    **dict.fromkeys(("outside_phases", "small_ops"), "analysis/test_lines.py"),
    "desync": "simulated/test_ranks_properties.py",
    "strategy": "recipes/test_recipes.py",
    "never_arrived": "runs/test_flight_recorder.py",
    "token_counts": "analysis/test_rows.py",
    "expert_imbalance": "analysis/test_experts.py",
    "pipeline_bubble": "analysis/test_pipeline_jobs.py",
    **dict.fromkeys(("below_roof", "unfused_attention"), "analysis/test_efficiency.py"),
}
"""Codes whose second way runs a program or a job again, or knows what it was told to do, and where."""

LONGEST = ("mtia/rank0", "resnet50-2021/bare-array")
"""Traces that the oracle reads for seconds; others have findings of the same codes."""

OURS = [*sorted(FIXTURES.glob("strategies/*.json.gz")), *sorted(FIXTURES.glob("outlier_ab/*/rank*.json.gz"))]


def expected_text(finding: Finding, times: dict[str, float]) -> float:
    """What the oracle says of a finding."""
    if finding.code == "unfused_optimizer":
        return next(ns for name, ns in times.items() if f": {name.rpartition(' ')[2]} takes" in finding.text)
    return times[finding.code]


@pytest.mark.parametrize(
    "path",
    [
        *(pytest.param(path, id=f"{path.parent.name}/{path.stem}") for path in OURS),
        *(file for file in FILES if file.id not in LONGEST),
        *(pytest.param(*file.values, id=file.id, marks=pytest.mark.slow) for file in FILES if file.id in LONGEST),
    ],
)
def test_the_time_of_a_finding_is_that_of_its_events(path: Path) -> None:
    findings = [finding for finding in sheet_of(path).findings if finding.code in BY_EVENTS]
    times = finding_times(path) if findings else {}
    for finding in findings:
        ns = expected_text(finding, times)
        if finding.code == "starved":  # its own time is what replay saves; its text begins with this one
            assert f"waits {format_value(ns, Unit.NS)} " in finding.text
        else:
            assert finding.ns == pytest.approx(ns, abs=1), finding.text


def test_every_finding_has_a_second_way() -> None:
    assert BY_EVENTS.isdisjoint(ELSEWHERE)
    assert BY_EVENTS | set(ELSEWHERE) == set(FOUND_IN)
    assert all((TESTS / name).exists() for name in ELSEWHERE.values())
