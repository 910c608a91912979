"""Ops are given the Python line that was marked last, phase by phase, in order."""

from __future__ import annotations

import pytest

from traceq.model import SourceLines
from traceq.recorder.tracing.line_table import TraceRow, lines_of

MAIN = 7
STEP = TraceRow("ProfilerStep#2", "user_annotation", MAIN, 0, 100)


def mark(text: str, ts: float) -> TraceRow:
    return TraceRow(f"line:{text}", "cpu_op", MAIN, ts, 0.1)


def op(name: str, ts: float, dur: float, tid: int = MAIN) -> TraceRow:
    return TraceRow(name, "cpu_op", tid, ts, dur)


def phase(name: str, ts: float, dur: float) -> TraceRow:
    return TraceRow(name, "user_annotation", MAIN, ts, dur)


def resolved(table: SourceLines) -> dict[str, list[str]]:
    return {key: [table.lines[index] for index in found] for key, found in table.table.items()}


def test_the_nth_op_of_a_name_in_a_phase_has_the_nth_line() -> None:
    rows = [
        STEP,
        phase("forward", 10, 50),
        mark("a.py:1 f", 11),
        op("aten::cat", 12, 3),
        mark("a.py:2 f", 16),
        op("aten::cat", 17, 3),
        op("aten::max", 21, 3),
        phase("bwd", 61, 30),
        op("aten::cat", 62, 1),
    ]
    assert resolved(lines_of(rows, ["forward", "bwd"])) == {
        "forward|aten::cat": ["a.py:1 f", "a.py:2 f"],
        "forward|aten::max": ["a.py:2 f"],
        "bwd|aten::cat": ["a.py:2 f"],
    }


def test_only_outermost_ops_of_the_main_thread_count() -> None:
    rows = [
        STEP,
        mark("a.py:1 f", 1),
        op("aten::linear", 2, 10),
        op("aten::addmm", 3, 5),
        op("aten::linear", 4, 5, tid=8),
    ]
    assert resolved(lines_of(rows, [])) == {"|aten::linear": ["a.py:1 f"]}


def test_the_order_of_rows_in_the_file_is_irrelevant() -> None:
    rows = [
        STEP,
        phase("p", 1, 50),
        mark("a.py:1 f", 2),
        op("x", 3, 9),
        op("y", 4, 1),
        mark("b.py:2 g", 20),
        op("x", 21, 1),
    ]
    assert lines_of(rows[::-1], ["p"]) == lines_of(rows, ["p"])


def test_annotations_that_are_no_phases_do_not_hide_ops() -> None:
    rows = [STEP, phase("Optimizer.step#AdamW.step", 1, 50), mark("a.py:9 f", 2), op("aten::lerp_", 3, 1)]
    assert resolved(lines_of(rows, ["forward"])) == {"|aten::lerp_": ["a.py:9 f"]}


def test_a_trace_without_steps_has_no_lines() -> None:
    assert lines_of([op("x", 1, 1)], []) == SourceLines((), {})


def test_the_line_of_a_loops_body_is_marked_while_it_runs() -> None:
    pytest.importorskip("torch", reason="marks are ranges of torch's profiler")
    from traceq.recorder.tracing import line_marks

    found: list[str] = []
    original = line_marks._mark
    line_marks._mark = lambda code, line: found.append(f"{code.co_name}+{line - code.co_firstlineno}")
    try:
        with line_marks.marked_lines():
            sorted([2, 1])
            _called()
            sorted([3])
    finally:
        line_marks._mark = original
    inner = [text for text in found if text.startswith("_called")]
    assert inner == ["_called+1", "_called+2"]
    after = found[found.index("_called+2") + 1 :]
    assert len(after) >= 2  # the caller's line again, then its next one
    assert after[0] != after[1]


def _called() -> list[int]:
    numbers = [3, 1]
    return sorted(numbers)
