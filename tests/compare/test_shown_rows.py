"""What tables and sentences of a diff show and leave out: nothing large is hidden, and a title says what it holds."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from builder import Event, build, kernel, launch, op, step
from statements import only

from traceq.compare.cause_statements import cause_statements
from traceq.compare.diff import diff_runs
from traceq.compare.result import Cause, CellDelta, Diff, Traced
from traceq.compare.tables import causes_table, waterfall
from traceq.compare.where_statements import most_in_phase, waits_and_transfers
from traceq.compare.work_deltas import work_deltas
from traceq.model import Run, Trace
from traceq.renderers.text import open_console, print_table
from traceq.report import BECOMES, Column, Table
from traceq.units import Unit

US = 1_000
TRACED = Traced(0, 1000 * US, 1100 * US, 3, 3)


def cause(name: str, delta_us: float, kind: str = "host", phase: str = "fwd") -> Cause:
    return Cause(f"{kind}|{name}", kind, phase, name, "", 0, round(delta_us * US), 0, round(delta_us * US), None)


def diff_of(*causes: Cause, cells: tuple[CellDelta, ...] = ()) -> Diff:
    a, b = (Run(name, (build(step(0, 100), op("aten::mm", 10, 80)),)) for name in ("a", "b"))
    return replace(diff_runs(a, b), traced=TRACED, causes=causes, cells=cells)


def test_no_row_of_the_rest_is_larger_than_one_that_is_shown() -> None:
    causes = (
        cause("a", 30),
        cause("b", 20),
        cause("c", 10),
        cause("state", -90, "residual"),
        cause("jit", 70, "jitter"),
    )
    table = causes_table(diff_of(*causes), top=3)
    names = [dict(zip([column.key for column in table.columns], row, strict=True))["name"] for row in table.rows]
    assert names == ["a", "state", "jit"]
    assert table.note.startswith("2 more causes ")
    assert "net +30.0 us" in table.note


def test_what_is_no_change_is_named_where_it_is_larger_than_what_is_listed() -> None:
    causes = (cause("a", 130), cause("b", 60), cause("state at the start", -90, "residual", ""))
    *listed, rest = cause_statements(TRACED, causes)
    assert [each.measures["delta_ns"] for each in (*listed, rest)] == [130_000, 60_000, -90_000]
    assert (rest.code, rest.measures["parts"]) == ("all_else", "-90.0 us state at the start")


def test_next_to_a_large_one_small_causes_are_not_listed() -> None:
    stated = cause_statements(TRACED, (cause("a", 1130), cause("b", -14), cause("c", -1016, "residual", "")))
    assert only("cause", stated)["what"] == "a in fwd"


def test_cells_without_a_difference_are_among_the_rest() -> None:
    cells = (*(CellDelta("fwd", f"c{n}", 10, 10 + 10 * (n + 1)) for n in range(3)), CellDelta("fwd", "same", 4, 4))
    rows = waterfall(diff_of(cells=cells), top=2).rows
    assert [row[0] for row in rows] == ["fwd", "fwd", "2 more", "residual", "total"]
    assert rows[2][2:5] == (14, 24, 10)
    assert [row[0] for row in waterfall(diff_of(cells=cells), top=3).rows][3] == "1 unchanged"


@pytest.mark.parametrize(("others", "is_named"), [(0, False), (20, False), (200, True)])
def test_that_a_difference_is_in_the_only_phase_is_no_news(others: int, is_named: bool) -> None:
    cells = [CellDelta("fwd", "compute", 1000 * US, 1095 * US)]
    cells += [CellDelta("before_window", "compute", others * US, (others + 5) * US)] if others else []
    assert bool([*most_in_phase(TRACED, cells)]) == is_named


def test_waiting_and_transfer_are_told_apart_where_traces_of_all_ranks_do() -> None:
    cells = [CellDelta("fwd", "exposed_wait", 10 * US, 90 * US), CellDelta("fwd", "exposed_transfer", 30 * US, 20 * US)]
    exchanged = [cause("all_reduce", 70, "collective")]
    (parts,) = waits_and_transfers(TRACED, cells, exchanged)
    assert parts.measures == {"wait_delta_ns": 80_000, "transfer_delta_ns": -10_000}
    (of_rank,) = waits_and_transfers(replace(TRACED, rank=2), cells, exchanged, num_ranks=4)
    assert of_rank.measures == {"rank": 2, **parts.measures}
    assert not [*waits_and_transfers(TRACED, cells, [cause("aten::mm", 70)])]
    assert not [*waits_and_transfers(TRACED, [CellDelta("fwd", "exposed_comm", 0, 70 * US)], exchanged)]


def products(*ops: tuple[str, float]) -> Trace:
    rows: list[Event] = []
    for number, (name, dur) in enumerate(ops):
        dims = [[4], [8, 16], [16, 4]] if name == "aten::addmm" else [[2, 8, 16], [2, 16, 4]]
        dims = [[8, 16], [16, 4]] if name == "aten::mm" else dims
        rows.append(op(name, 1000 * number, 10, **{"Input Dims": dims, "Input type": ["float"] * len(dims)}))
        rows += [launch(1000 * number + 1, 1, number + 1), kernel("gemm", 1000 * number + 20, dur, number + 1)]
    return build(step(0, 1000 * len(ops)), *rows)


def test_a_row_of_products_names_the_ops_that_it_holds() -> None:
    a = products(("aten::addmm", 100), ("aten::bmm", 100))
    b = products(("aten::addmm", 150), ("aten::bmm", 110))
    assert {delta.role for delta in work_deltas(a, b)} == {"matrix products (addmm)", "batched products (bmm)"}
    other = products(("aten::mm", 150), ("aten::bmm", 110))
    assert {delta.role for delta in work_deltas(a, other)} == {"matrix products (addmm, mm)", "batched products (bmm)"}


def printed(table: Table, width: int) -> str:
    file = StringIO()
    print_table(table, open_console(file, width, is_terminal=False))
    return file.getvalue()


def test_a_cut_replacement_keeps_both_names_and_one_mark_each() -> None:
    names = BECOMES.join(("reduce_scatter for gradient red…", "all_gather for parameter gathe…"))
    columns = (Column("name", "cause"), Column("phase", "phase"), Column("delta_ns", "delta", Unit.DELTA_NS))
    text = printed(Table("t", "", columns, ((names, "optimizer and backward", 10),)), 60)
    assert "……" not in text
    assert "reduce_" in text
    assert "→ all_g" in text
    several = f"volta_sgemm_128x32_nt (and 15 more){BECOMES}cutlass::Kernel (and 3 more)"
    text = printed(Table("t", "", columns, ((several, "optimizer and backward", 10),)), 90)
    assert "(and 15 more) → " in text
    assert "(and 3 more)" in text


def test_a_column_that_alone_tells_two_rows_apart_is_not_hidden() -> None:
    columns = (
        Column("name", "collective"),
        Column("phase", "phase"),
        Column("dtype", "dtype"),
        *(Column(f"n{number}", f"number{number}", Unit.COUNT) for number in range(4)),
    )
    rows = tuple(("reduce_scatter", "optimizer_step", dtype, *[10**7] * 4) for dtype in ("bfloat16", "float32"))
    text = printed(Table("t", "", columns, rows), 60)
    assert "bfloat16" in text
    assert "float32" in text
    assert "Hidden at this width: phase" in text
