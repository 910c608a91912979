"""Rows with names: the fields of a dataclass are the columns of its table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from traceq.analysis._rank_rows import largest_sums
from traceq.claims.claim import Claim, Subject
from traceq.claims.rules import supersedes
from traceq.report import Column, Table, column, columns_of
from traceq.units import Unit


@dataclass(frozen=True, slots=True)
class Row:
    """A row with a field that is no column, one under another key, and one that people do not see."""

    name: str = column("kernel")
    size_bytes: int | None = column("bytes", Unit.BYTES, key="bytes")
    step_ns: int = column("GPU busy", Unit.NS, is_per_step=True)
    key: str = column("key", is_hidden=True)
    note: str = ""


ROWS = [Row("gemm", 8, 20, "a", "not shown"), Row("relu", None, 30, "b")]


def test_the_fields_of_a_row_are_the_columns_of_its_table() -> None:
    table = Table.of("kernels", "Kernels", Row, ROWS, note="two")
    assert columns_of(Row) == dict(zip(("name", "size_bytes", "step_ns", "key"), table.columns, strict=True))
    assert table.row_type is Row
    assert [(column.key, column.heading, column.unit) for column in table.columns] == [
        ("name", "kernel", Unit.TEXT),
        ("bytes", "bytes", Unit.BYTES),
        ("step_ns", "GPU busy per step", Unit.NS),
        ("key", "key", Unit.TEXT),
    ]
    assert table.to_dicts()[1] == {"name": "relu", "bytes": None, "step_ns": 30, "key": "b"}
    assert (table.key, table.title, table.note) == ("kernels", "Kernels", "two")


def test_views_choose_columns_by_key() -> None:
    table = Table.of("kernels", "Kernels", Row, ROWS)
    assert [column.key for column in table.visible.columns] == ["name", "bytes", "step_ns"]
    assert table.select("step_ns", "name").rows == ((20, "gemm"), (30, "relu"))
    assert table.without("bytes", "key").rows == (("gemm", 20), ("relu", 30))
    assert table.largest_first("bytes").select("name").rows == (("gemm",), ("relu",))
    assert table.largest_first("step_ns").select("name").rows == (("relu",), ("gemm",))
    shares = table.select("name").with_column(Column("share", "share", Unit.PERCENT), [40.0, 60.0])
    assert shares.to_dicts() == [{"name": "gemm", "share": 40.0}, {"name": "relu", "share": 60.0}]
    with pytest.raises(KeyError):
        table.select("absent")


class Counted(Sequence[Row]):
    """Rows that count how often they are gone through."""

    def __init__(self) -> None:
        self.num_iterations = 0

    def __iter__(self) -> Iterator[Row]:
        self.num_iterations += 1
        return iter(ROWS)

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, index: Any) -> Any:
        return ROWS[index]


def test_rows_that_need_not_be_in_memory_are_read_on_each_iteration() -> None:
    rows = Counted()
    table = Table.of("kernels", "Kernels", Row, rows)
    assert (rows.num_iterations, len(table.rows)) == (0, 2)
    for _ in range(2):
        assert list(table.rows) == list(Table.of("kernels", "Kernels", Row, ROWS).rows)
    assert rows.num_iterations == 2


def test_sums_are_by_identity_the_largest_first() -> None:
    rows = [("a", 1, 5), ("b", 1, 30), ("a", 2, 7), ("c", 4, 12)]
    assert largest_sums(rows, lambda row: row[0], lambda row: row[1:]) == [
        ("b", (1, 30)),
        ("a", (3, 12)),
        ("c", (4, 12)),
    ]


def test_a_claim_explains_others_by_code_and_by_kind_of_sync_and_only_its_own_row() -> None:
    copies, launches = Claim("pageable_copies"), Claim("launch_bound")
    assert supersedes(copies, Claim("costly_sync", subject=Subject(kind="htod")))
    assert not supersedes(copies, Claim("costly_sync", subject=Subject(kind="dtoh")))
    assert supersedes(launches, Claim("host_bound"))
    assert not supersedes(launches, Claim("sync_wait"))
    attention = Claim("unfused_attention", subject=Subject(key="forward|aten::bmm"))
    assert supersedes(attention, Claim("below_roof", subject=Subject(key="forward|aten::bmm")))
    assert not supersedes(attention, Claim("below_roof", subject=Subject(key="forward|aten::mm")))
