"""Tables for people that close: the first rows, a note on the others, and the total."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traceq.report import Cell, Column, Table
from traceq.units import Unit, format_value

__all__ = ["closed", "with_total"]

_SUMMED = (Unit.COUNT, Unit.BYTES, Unit.DELTA_BYTES, Unit.PERCENT)


def with_total(table: Table) -> Table:
    """Return a table with the total of its rows, if they are several; columns of largest parts have none."""
    return replace(table, rows=(*table.rows, _total(table.rows, table.columns))) if len(table.rows) > 1 else table


def closed(table: Table, most: int, key: str) -> Table:
    """Return the first rows of a table and the total of all, with a note on the bytes of the others in a column."""
    index = [column.key for column in table.columns].index(key)
    rest = [int(row[index] or 0) for row in table.rows[most:]]
    if not rest:
        return with_total(table)
    others = f"{len(rest):,} more rows, in --json, have {format_value(sum(rest), table.columns[index].unit)}."
    rows = (*table.rows[:most], _total(table.rows, table.columns))
    return replace(table, rows=rows, note=f"{others} {table.note}".strip())


def _total(rows: Sequence[tuple[Cell, ...]], columns: Sequence[Column]) -> tuple[Cell, ...]:
    cells: list[Cell] = ["total"]
    for index, column in list(enumerate(columns))[1:]:
        values = [value for row in rows if isinstance(value := row[index], int | float)]
        cells.append(sum(values) if column.unit in _SUMMED and not column.key.startswith("largest") else "")
    return tuple(cells)
