"""What a faster device saves at most, where a trace does not show what the device does. Times in us."""

from __future__ import annotations

from pathlib import Path

import pytest
from builder import Event, build, call, kernel, op, step, write
from oracle.findings import finding_times

from traceq.analysis.registry import analyze
from traceq.model import Run
from traceq.report import Finding


def launches(num: int = 12, us: float = 5) -> list[Event]:
    return [
        event
        for number in range(num)
        for event in (
            op("aten::mm", 50 * number, 20),
            call("cudaLaunchKernel", 50 * number + 2, us, number + 1),
            call("cudaStreamIsCapturing", 50 * number + 1, 1),
        )
    ]


WAITS = [call("cudaMemcpyAsync", 620, 10, 70), call("cudaDeviceSynchronize", 900, 40)]


def finding_of(*events: Event) -> Finding | None:
    findings = analyze(Run("trace", (build(step(0, 1000), *events),)), "host").findings
    return next((finding for finding in findings if finding.code == "host_alone"), None)


def test_calls_that_may_wait_bound_what_a_faster_device_saves() -> None:
    finding = finding_of(*launches(), *WAITS)
    assert finding is not None
    assert finding.ns == 950_000
    assert finding.text == (
        "the host limits this trace, whose device is not recorded: calls that may wait for it take 50.0 us per step "
        "(5.0 %), the last of them after the last launch; a faster device saves no more than that (in this one traced "
        "step)"
    )


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([*launches(), call("cudaDeviceSynchronize", 640, 200)], id="it waits"),
        pytest.param([*launches(), call("cudaFree", 640, 200), *WAITS], id="it may wait"),
        pytest.param([*launches(us=100), *WAITS], id="the queue may be full"),
        pytest.param(launches(), id="nothing waits at the end"),
        pytest.param([*launches(), call("cudaDeviceSynchronize", 300, 5)], id="launches follow"),
        pytest.param([*launches(num=9), *WAITS], id="few launches"),
        pytest.param([*launches(), *WAITS, kernel("gemm", 10, 20, 1)], id="its rows are there"),
        pytest.param([op("aten::mm", 0, 900)], id="no device"),
    ],
)
def test_it_is_not_known_of_others(events: list[Event]) -> None:
    assert finding_of(*events) is None


def test_the_time_is_that_of_a_second_implementation(tmp_path: Path) -> None:
    rows = [step(0, 1000), *launches(), *WAITS]
    finding = finding_of(*rows[1:])
    assert finding is not None
    assert finding.ns == pytest.approx(finding_times(write(tmp_path / "trace.json", *rows))["host_alone"], abs=1)
