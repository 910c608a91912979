"""The time of each finding is computed a second time, from the events alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from catalogue import FILES, JOBS, sheet_of
from claims import FOUND_IN
from oracle.efficiency import attention_ns, gain_ns
from oracle.exposed_waits import job_finding_times
from oracle.findings import finding_times
from paths import FIXTURES, ROOT, TESTS

from traceq.report import Finding
from traceq.units import Unit, format_value

BY_EVENTS = {
    "host_bound", "exposed_comm", "exposed_memcpy", "sync_wait", "alloc_wait", "dataload_wait", "spin_wait",
    "starved", "launch_bound", "cold_start", "long_backward", "metric_gathers", "unfused_optimizer",
}  # fmt: skip
"""Codes whose time `oracle.findings` computes from one file."""

BY_RANKS = {"exposed_wait", "exposed_transfer", "straggler"}
"""Codes whose time `oracle.exposed_waits` computes from the files of a job."""

BY_OPS = {"below_roof", "unfused_attention"}
"""Codes whose time `oracle.efficiency` computes from one file."""

ELSEWHERE = {
    **dict.fromkeys(("costly_sync", "free_sync", "joint_syncs", "pageable_copies"), "simulated/test_replay.py"),
    "allocator_retries": "simulated/test_replay.py",
    "late_ranks": "analysis/test_clusters.py",
    **dict.fromkeys(("busy_machine", "contended_cores"), "analysis/test_core_use.py"),
    **dict.fromkeys(("outside_phases", "small_ops"), "analysis/test_lines.py"),
    "desync": "simulated/test_ranks_properties.py",
    "strategy": "recipes/test_recipes.py",
    "never_arrived": "runs/test_flight_recorder.py",
    "token_counts": "analysis/test_trainers.py",
    "expert_imbalance": "analysis/test_experts.py",
    "pipeline_bubble": "analysis/test_pipeline.py",
    **dict.fromkeys(("memory_peak", "out_of_memory", "memory_delta", "fragmentation"), "snapshots/test_show.py"),
}
"""Codes whose second way runs a program or a job again, or knows what it was told to do, and where."""

LONGEST = ("mtia/rank0", "resnet50-2021/bare-array")
"""Traces that the oracle reads for seconds; others have findings of the same codes."""

EXAMPLES = ("example/job", "example/uneven")
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


@pytest.mark.parametrize("path", [*(pytest.param(FIXTURES / name, id=name) for name in EXAMPLES), *JOBS])
def test_the_time_of_a_finding_on_several_ranks_is_that_of_their_events(path: Path) -> None:
    """Real clocks are known to some us; those of the examples are exact."""
    findings = [finding for finding in sheet_of(path).findings if finding.code in BY_RANKS]
    times = job_finding_times(sorted(path.glob("rank*.json*"))) if findings else {}
    for finding in findings:
        key = f"straggler {finding.key.removeprefix('rank ')}" if finding.code == "straggler" else finding.code
        assert finding.ns == pytest.approx(times[key], abs=1 if path.parent.parent == FIXTURES else 5_000), finding.text


OPS = ("ep-moe-b200-ab/ref", "owlv2/h100", "owlv2/mi300", "sam-a100-ab/compile_false", "qwen-h100/qwen1.5-0.5b")
"""Traces that have a finding on an op's roof or on attention, and one that has none."""


@pytest.mark.parametrize("path", [file for file in FILES if file.id in OPS])
def test_the_time_of_a_finding_on_ops_is_that_of_their_kernels(path: Path) -> None:
    findings = [finding for finding in sheet_of(path).findings if finding.code in BY_OPS]
    assert bool(findings) == ("qwen" not in path.as_posix())
    for finding in findings:
        if finding.code == "below_roof":
            op, phase = re.findall(r"^(\S+) in (.*?) reaches ", finding.text)[0]
            ns = gain_ns(path, op, phase)
        else:
            phase, *scores = re.findall(r"kernel in (.*?): .* of ([\d,]+) x ([\d,]+) x ([\d,]+) scores", finding.text)[
                0
            ]
            batch, rows, columns = (int(number.replace(",", "")) for number in scores)
            ns = attention_ns(path, phase, (batch, rows, columns))
        assert finding.ns == pytest.approx(ns, abs=100), finding.text  # bytes and FLOPs of a step are rounded


def test_every_finding_has_a_second_way() -> None:
    ways = [BY_EVENTS, BY_RANKS, BY_OPS, set(ELSEWHERE)]
    assert sum(map(len, ways)) == len(set.union(*ways))
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \| ", (ROOT / "docs" / "method.md").read_text(), re.MULTILINE)
    assert set.union(*ways) >= set(FOUND_IN)
    assert set.union(*ways) <= {code for row in rows for code in re.findall("[a-z_]+", row)}
    assert all((TESTS / name).exists() for name in ELSEWHERE.values())
