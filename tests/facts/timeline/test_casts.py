"""Time of kernels that only copy elements to another type."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from builder import Event, build, frame, kernel, launch, op, step
from oracle.casts import casts as casts_by_brute_force
from paths import SHARED

from traceq.analysis.kernels import Cast, casts
from traceq.kineto.read import read_trace
from traceq.model import Trace

RECORDED = (
    "reports/traces/window-last.json.gz",
    "reports/traces/moe-nan-checks-a100.json.gz",
    "traces/ep-moe-b200-ab/ref.json.gz",
    "traces/dlrm-v100-8r/rank0.json.gz",
    "traces/hta-diff/test-v100-rank1.json.gz",
)
"""Traces that record the types of inputs."""
SHORT = {"float": "fp32", "double": "fp64", "c10::Half": "fp16", "c10::BFloat16": "bf16", "bool": "bool"}
SHORT |= {"int": "int32", "long": "int64", "long int": "int64", "unsigned char": "uint8", "signed char": "int8"}
COPY = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::Ten"


def copied(start: int, corr: int, target: str, source: str, dur: int) -> tuple[Event, ...]:
    """A linear at a line that casts its input, and the kernel of that."""
    types = {"Input type": [target, source, "Scalar"], "Input Dims": [[8], [8], []]}
    return (
        op("aten::linear", start, 10),
        op("aten::copy_", start + 1, 5, **types),
        launch(start + 2, 2, corr),
        kernel(COPY, start + 5, dur, corr),
    )


def places(trace: Trace) -> list[tuple[str, str, str, str, tuple[int, ...], tuple[int, ...]]]:
    def place(row: Cast) -> tuple[str, str, str, str, tuple[int, ...], tuple[int, ...]]:
        return row.source, row.target, row.op, row.module, row.steps_num, row.steps_ns

    return [place(row) for row in casts(trace)]


def test_what_casts_cost_is_told_by_step_and_module() -> None:
    trace = build(
        step(0, 100),
        frame("nn.Module: Linear_0", 0, 40),
        *copied(5, 1, "c10::Half", "float", 20),
        *copied(25, 2, "c10::Half", "c10::Half", 2),
        step(100, 100, 1),
        frame("nn.Module: Linear_0", 100, 60),
        *copied(105, 3, "c10::Half", "float", 30),
        *copied(145, 4, "c10::Half", "float", 2),
        *copied(180, 5, "float", "c10::Half", 7),
    )
    assert places(trace) == [
        ("fp32", "fp16", "aten::linear", "Linear_0", (1, 2), (20_000, 32_000)),
        ("fp16", "fp32", "aten::linear", "", (0, 1), (0, 7_000)),
    ]


def test_the_line_of_a_cast_is_that_of_its_caller() -> None:
    trace = build(step(0, 100), frame("model.py(7): forward", 0, 60), *copied(5, 1, "c10::BFloat16", "float", 20))
    assert [row.line for row in casts(trace)] == ["model.py:7 forward"]


@pytest.mark.parametrize("name", RECORDED)
def test_casts_of_a_real_trace_are_those_of_brute_force(name: str) -> None:
    path: Path = SHARED / name
    if not path.exists():
        pytest.skip(f"no {path}")
    expected, counted = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for (source, target, around), (num, ns) in casts_by_brute_force(path).items():
        place = SHORT[source], SHORT[target], around
        expected.update({(*place, "num"): num, place: ns})
    for row in casts(read_trace(path)):
        if row.source:  # else the trace records no types, and the kernel's name tells
            place = row.source, row.target, row.op
            counted.update({(*place, "num"): sum(row.steps_num), place: sum(row.steps_ns)})
    assert counted == expected


def test_autocast_takes_a_fifth_of_a_real_window() -> None:
    path: Path = SHARED / RECORDED[0]
    if not path.exists():
        pytest.skip(f"no {path}")
    rows = casts(read_trace(path))
    assert sum(sum(row.steps_num) for row in rows) == 198
    assert sum(sum(row.steps_ns) for row in rows) == 5_689_826
