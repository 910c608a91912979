"""What people see of tables: sums that add up, and no number or word that the trace does not prove."""

from __future__ import annotations

from builder import Event, annotation, build, comms, frame, kernel, launch, op, step, table

from traceq.analysis.registry import analyze
from traceq.model import Run, Trace


def view(trace: Trace, name: str) -> list[dict[str, object]]:
    """Rows of the first view of an analysis."""
    return list(analyze(Run("", (trace,)), name).views[0].to_dicts())


def idle_in_many_ops(num: int) -> Trace:
    """A step in which the device waits 10 us for each of `num` ops, and then runs one kernel for 100 us."""
    ops: list[Event] = [op(f"aten::op{number}", 10 * number, 10) for number in range(num)]
    return build(step(0, 10 * num + 110), *ops, launch(10 * num, 5, 1), kernel("gemm", 10 * num + 10, 100, 1))


def test_the_rows_of_idle_causes_add_up_to_the_idle_time() -> None:
    trace = idle_in_many_ops(12)
    rows = view(trace, "idle")
    assert (len(rows), rows[-1]["cause"], rows[-1]["num"]) == (6, "all else", None)
    assert sum(row["step_ns"] for row in rows) == sum(row["step_ns"] for row in table(trace, "idle"))
    assert "all else" not in {row["cause"] for row in view(idle_in_many_ops(3), "idle")}


def test_between_ops_it_is_python_only_where_a_line_shows_it() -> None:
    rows = [step(0, 100), annotation("dispatch(F)", 0, 50), launch(60, 5, 1), kernel("gemm", 70, 30, 1)]
    assert [row["cause"] for row in view(build(*rows), "idle")][:2] == ["host", "host"]
    with_lines = view(build(*rows, frame("train.py(9): main", 0, 100)), "idle")
    assert {"python"} == {row["cause"] for row in with_lines if row["line"]} - {"launch queue"}
    in_phase = [row for row in view(build(*rows), "critical") if row["phase"] == "dispatch(F)"]
    assert {row["kind"] for row in in_phase} == {"host"}


def test_kernels_whose_calls_are_not_recorded_are_not_of_0_calls() -> None:
    nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
    trace = build(step(0, 100), launch(5, 5, 1), kernel(nccl, 20, 10, 1))
    assert [(row["num"], row["num_kernels"]) for row in view(trace, "collectives")] == [(None, 1)]
    called = build(step(0, 100), comms("allreduce", 0, 15), launch(5, 5, 1), kernel(nccl, 20, 10, 1))
    assert [(row["num"], row["num_kernels"]) for row in view(called, "collectives")] == [(1, 1)]


def test_a_line_that_an_op_runs_has_no_number_of_ops_of_its_own() -> None:
    """The op begins at train.py:9 and is implemented at gemm.py:395, where it launches its kernel."""
    rows = [step(0, 100), frame("train.py(9): main", 0, 100), op("aiter::gemm", 10, 50)]
    rows += [frame("gemm.py(395): torch_gemm", 20, 30), launch(25, 5, 1), kernel("gemm", 40, 50, 1)]
    shown = {str(row["line"]): row["num_ops"] for row in view(build(*rows), "lines")}
    assert shown["gemm.py:395 torch_gemm"] is None
