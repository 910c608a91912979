"""What a sync costs where the trace does not tell it, or only a part of it."""

from __future__ import annotations

from builder import Event, build, call, frame, kernel, launch, memcpy, op, step, table

from traceq.analysis.registry import analyze
from traceq.model import Run, Trace
from traceq.report import Report

STEP, NUM = 50_000, 3


def steps_that_wait(hidden: int, recorded: int) -> Trace:
    """Steps of 50 ms whose host waits 10 us, `hidden` us for no recorded work and `recorded` us for a kernel."""
    rows: list[Event] = []
    for number in range(NUM):
        start, corr = number * STEP, 100 * number + 1
        rows.append(step(start, STEP, number))
        for each in range(20):  # these tell what a launch usually takes
            rows += [launch(start + 10 * each, 4, corr + each), kernel("gemm", start + 6 + 10 * each, 5, corr + each)]
        rows += [launch(start + 300, 4, corr + 20), op("aten::copy_", start + 304, hidden + recorded + 10)]
        rows += [call("cudaStreamSynchronize", start + 305, hidden + recorded + 5, corr + 21)]
        rows += [kernel("gemm", start + 308 + hidden, recorded, corr + 20)]
        rows += [launch(start + STEP - 20_000, 4, corr + 22), kernel("gemm", start + STEP - 19_994, 19_000, corr + 22)]
    return build(*rows)


def syncs_of(trace: Trace) -> Report:
    return analyze(Run("", (trace,)), "syncs")


def test_a_wait_for_unrecorded_work_is_part_of_the_time_for_which_a_sync_blocks() -> None:
    (row,) = table(steps_that_wait(5_000, 3_000), "syncs")
    assert row["step_blocked_ns"] == 8_005_000
    assert row["step_unrecorded_ns"] == 5_003_000  # until the kernel starts
    assert row["blocked_ns"] == NUM * row["step_blocked_ns"]


def test_what_is_not_known_is_no_saving_of_0() -> None:
    (row,) = table(steps_that_wait(5_000, 3_000), "syncs")
    assert (row["label"], row["replay_ns"], row["most_replay_ns"]) == ("unknown", None, None)
    (view,) = syncs_of(steps_that_wait(5_000, 3_000)).views
    headings = [column.heading for column in view.non_empty_columns.columns]
    assert headings[-3:] == ["blocked per step", "unrecorded per step", "effect"]


def test_a_sync_without_such_waits_has_no_column_for_them() -> None:
    (view,) = syncs_of(steps_that_wait(0, 3_000)).views
    assert "unrecorded per step" not in [column.heading for column in view.columns]


def test_a_costly_sync_tells_for_how_long_it_waits_for_unrecorded_work() -> None:
    trace = steps_that_wait(400, 20_000)
    (row,) = table(trace, "syncs")
    assert (row["label"], row["step_unrecorded_ns"]) == ("costly", 403_000)
    (claim,) = syncs_of(trace).findings
    assert (claim.measures["blocked_ns"], claim.measures["unrecorded_ns"]) == (20_405_000, 403_000)


def test_the_time_that_cannot_be_replayed_is_a_range_as_delays_and_unrecorded_work_overlap() -> None:
    """The first step begins after the first such wait; two of the three steps have one of 5 ms."""
    (caveat,) = analyze(Run("", (steps_that_wait(5_000, 3_000),)), "replay").caveats
    assert caveat.text.startswith("7.0 % to 13.9 % of the step cannot")


def test_a_line_with_two_rows_of_syncs_says_that_whatif_removes_both() -> None:
    """The host reads a result and then copies a batch at one line, and launches the next kernel after both."""
    rows = [step(0, 400), frame("train.py(9): read", 0, 210), launch(5, 5, 1), kernel("gemm", 12, 80, 1)]
    rows += [
        op("aten::item", 15, 90),
        call("cudaMemcpyAsync", 16, 84, 2),
        memcpy("DtoH (Device -> Pageable)", 93, 5, 2),
    ]
    rows += [
        op("aten::to", 110, 90),
        call("cudaMemcpyAsync", 111, 84, 3),
        memcpy("HtoD (Pageable -> Device)", 120, 74, 3),
    ]
    rows += [launch(220, 5, 4), kernel("gemm", 230, 170, 4)]
    trace = build(*rows)
    saved = [row["replay_ns"] for row in table(trace, "syncs") if row["line"] == "train.py:9 read"]
    views = {view.key: view for view in analyze(Run("", (trace,)), "replay").views}
    assert "(sync:train.py:9 is 2 rows" in views["whatif"].title
    (row,) = (row for row in views["whatif"].to_dicts() if row["option"] == "--without sync:train.py:9")
    assert all(row["saved_ns"] > ns > 0 for ns in saved)


def modules_that_read(*numbers: int) -> Trace:
    """A step in which blocks of these numbers read a scalar at one line of Python, for 200 us each."""
    rows: list[Event] = [step(0, 10_000)]
    for n, number in enumerate(numbers):
        start, corr = 1_000 * n, 10 * n + 1
        rows += [frame(f"nn.Module: Block_{number}", start, 900), frame("model.py(143): forward", start + 1, 890)]
        rows += [launch(start + 5, 4, corr), kernel("gemm", start + 10, 200, corr)]
        rows += [op("aten::_local_scalar_dense", start + 12, 230), call("cudaMemcpyAsync", start + 14, 4, corr + 1)]
        rows += [memcpy("DtoH (Device -> Pinned)", start + 212, 2, corr + 1)]
        rows += [call("cudaStreamSynchronize", start + 19, 205)]
        rows += [launch(start + 300, 4, corr + 2), kernel("gemm", start + 310, 500, corr + 2)]
    return build(*rows)


def test_syncs_of_one_line_are_one_finding_whichever_modules_run_it() -> None:
    """A reader changes the line; the table tells the modules apart."""
    several, one = (syncs_of(modules_that_read(*numbers)) for numbers in ((0, 1), (0, 0)))
    (finding,), (of_one,) = several.findings, one.findings
    assert (finding.subject.line, finding.subject.module) == ("model.py:143 forward", "")
    rows = table(modules_that_read(0, 1), "syncs")
    assert finding.measures["blocked_ns"] == sum(row["blocked_ns"] for row in rows)
    assert finding.gain == of_one.gain
    assert finding.ns > max(row["replay_ns"] for row in rows)
    assert ["module" in [column.key for column in report.views[0].columns] for report in (several, one)] == [
        True,
        False,
    ]


def test_what_a_line_saves_is_what_all_of_its_syncs_save_together() -> None:
    two, one = (syncs_of(modules_that_read(*numbers)).first[0].to_dicts() for numbers in ((0, 1), (0, 0)))
    assert [(row["line"], row["num"]) for row in two] == [("model.py:143 forward", "2")]
    assert two[0]["replay_ns"] == one[0]["replay_ns"] > 0
    rows = [row["replay_ns"] for row in table(modules_that_read(0, 1), "syncs")]
    assert len(rows) == 2
    assert two[0]["replay_ns"] > max(rows)


def test_allocations_are_counted_apart_and_named_by_all_of_their_calls() -> None:
    rows = [step(0, 10_000), launch(5, 5, 1), kernel("gemm", 12, 5_000, 1)]
    rows += [call(name, start, 300, start) for name, start in (("cudaFree", 100), ("cudaMalloc", 500))]
    rows += [call("cudaStreamSynchronize", 1_000, 4_100, 9), launch(5_200, 5, 2), kernel("gemm", 5_300, 50, 2)]
    report = syncs_of(build(*rows))
    assert ": 1, and 2 blocking" in report.first[0].title
    assert {row["call"] for row in table(build(*rows), "syncs")} == {"cudaFree, cudaMalloc", "cudaStreamSynchronize"}
