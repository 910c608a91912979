"""Traces of torch.autograd.profiler without Kineto: a list of ops that have a process, and no category."""

from __future__ import annotations

import json
from pathlib import Path

from builder import table

from traceq.facts.timeline.steps import extent
from traceq.kineto.read import read_trace
from traceq.model import Category, Trace


def trace_of(path: Path, *rows: dict[str, object]) -> Trace:
    path.write_text(json.dumps(rows), encoding="utf-8")
    return read_trace(path)


def row(name: str, ts: int, dur: int, process: str = "CPU functions") -> dict[str, object]:
    return {"name": name, "ph": "X", "ts": ts, "dur": dur, "tid": 1, "pid": process, "args": {}}


def test_its_ops_are_ops_and_its_times_on_a_device_are_left_out(tmp_path: Path) -> None:
    on_device = row("aten::addmm", 40, 30, "CUDA functions")
    trace = trace_of(tmp_path / "trace.json", row("aten::linear", 0, 50), row("aten::addmm", 10, 30), on_device)
    assert trace.events.category.tolist() == [Category.CPU_OP, Category.CPU_OP, Category.PROFILER]
    assert extent(trace) == (0, 50_000)
    (caveat,) = trace.caveats
    assert caveat.code == "autograd_profiler"
    assert "ops on a device are left" in caveat.text
    assert {line["name"]: line["self_ns"] for line in table(trace, "host")} == {
        "aten::addmm": 30_000,
        "aten::linear": 20_000,
    }


def test_a_trace_of_kineto_with_such_a_process_is_one_of_kineto(tmp_path: Path) -> None:
    trace = trace_of(tmp_path / "trace.json", row("aten::linear", 0, 50), row("gemm", 10, 30) | {"cat": "kernel"})
    assert trace.events.category.tolist() == [Category.OTHER, Category.KERNEL]
    assert not trace.caveats
