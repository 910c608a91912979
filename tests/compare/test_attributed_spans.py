"""Spans charged to causes: by kind, name, phase and rank."""

from __future__ import annotations

from builder import annotation, build, kernel, launch, op, step

from traceq.compare.attributed_spans import charges
from traceq.compare.result import Cause
from traceq.model import Trace

US = 1_000


def cause(kind: str, phase: str, name: str) -> Cause:
    return Cause(f"{kind}|{phase}|{name}", kind, phase, name, "", 0, 1, 0, 1, None)


def trace() -> Trace:
    """A gemm in either phase, each launched by another op."""
    return build(
        step(0, 100),
        annotation("forward", 0, 50),
        annotation("backward", 50, 50),
        op("aten::mm", 5, 5),
        launch(6, 3, 1),
        kernel("gemm", 20, 20, 1),
        op("aten::addmm", 55, 5),
        launch(56, 3, 2),
        kernel("gemm", 70, 20, 2),
    )


def parts(*causes: Cause) -> list[tuple[int, int, int]]:
    """(start, end, cause) in us from the start of the step."""
    result = charges(trace(), causes)
    start = int(trace().events.ts.min())
    return [
        ((begin - start) // US, (end - start) // US, number)
        for (begin, end), number in zip(result.parts.tolist(), result.cause.tolist(), strict=True)
    ]


def test_a_kernel_of_one_op_and_one_phase() -> None:
    assert parts(cause("kernel", "forward", "aten::mm > gemm")) == [(20, 40, 0)]
    assert parts(cause("kernel", "backward", "aten::mm > gemm")) == []


def test_a_kernel_whatever_launches_it_in_both_phases() -> None:
    assert parts(cause("kernel", "backward and forward", "gemm")) == [(20, 40, 0), (70, 90, 0)]


def test_a_cause_on_this_rank_and_one_on_another() -> None:
    assert parts(cause("kernel", "forward", "rank 3: aten::mm > gemm")) == []
    assert parts(cause("kernel", "forward", "ranks 0, 3: aten::mm > gemm")) == [(20, 40, 0)]


def test_what_names_no_change_has_no_spans() -> None:
    assert parts(*(cause(kind, "", "all") for kind in ("pace", "jitter", "residual"))) == []
