"""The size of a trace is forecast from the events of the step with stacks before it."""

from __future__ import annotations

import gzip
import re

import pytest

pytest.importorskip("torch", reason="the recorder needs torch")

from paths import FIXTURES

from traceq.recorder.tracing.line_marks import PREFIX, TraceRow, read_rows
from traceq.recorder.tracing.traced_steps import COMPRESSION, EVENT_BYTES, forecast_bytes, forecast_text

pytestmark = pytest.mark.torch
RUN = FIXTURES / "outlier_ab" / "on"


def test_python_functions_marks_and_arrows_are_not_in_the_window() -> None:
    rows = [
        TraceRow("aten::mm", "cpu_op", ph="X"),
        TraceRow("gemm", "kernel", ph="X"),
        TraceRow("forward", "user_annotation", ph="X"),
        TraceRow("model.py(3): forward", "python_function", ph="X"),
        TraceRow(f"{PREFIX}model.py:3 forward", "cpu_op", ph="X"),
        TraceRow("fwdbwd", "fwdbwd", ph="s"),
        TraceRow("process_name", ph="M"),
    ]
    assert forecast_bytes(rows, 4) == 3 * 4 * EVENT_BYTES


def test_a_recorded_window_is_as_large_as_its_stacks_foretell() -> None:
    stacks, trace = RUN / "rank0.stacks.json.gz", RUN / "rank0.json.gz"
    plain = len(gzip.decompress(trace.read_bytes()))
    assert forecast_bytes(read_rows(stacks), 2) == pytest.approx(plain, rel=0.3)
    assert plain / COMPRESSION == pytest.approx(trace.stat().st_size, rel=0.3)


def test_a_large_window_is_warned_of() -> None:
    small, large = forecast_text(16 * 2**20, 1), forecast_text(2_000_000_000, 50)
    assert re.findall(r"\d[\d.]* \w+", small) == ["1 step", "16.0 MiB", "1.00 MiB"]
    assert re.findall(r"\d[\d.]* \w+", large)[:3] == ["50 steps", "1.86 GiB", "119 MiB"]
    assert "--trace-steps" not in forecast_text(500_000_000, 50)
    assert "--trace-steps 12 " in large
    assert "much memory" not in small
    assert forecast_text(900_000_000, 1).endswith("takes minutes and much memory")
