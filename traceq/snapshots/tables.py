"""Tables for people that close: the first rows, a note on the others, and the total."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traceq.report import Cell, Column, Table
from traceq.units import Unit, format_value

__all__ = ["closed"]

_SUMMED = (Unit.COUNT, Unit.BYTES, Unit.DELTA_BYTES, Unit.PERCENT)


def closed(table: Table, most: int, key: str) -> Table:
    """Return the first rows of a table and the total of all, with a note on what the others have of a column of bytes.

    Columns of largest parts have no total.
    """
    rows, columns = list(table.rows), table.columns
    if len(rows) < 2:
        return table
    index = [column.key for column in columns].index(key)
    rest = sum(int(row[index] or 0) for row in rows[most:])
    others = f"{len(rows) - most:,} more rows, in --json, have {format_value(rest, columns[index].unit)}."
    notes = [others] if len(rows) > most else []
    notes += [table.note] if table.note else []
    return replace(table, rows=(*rows[:most], _total(rows, columns)), note=" ".join(notes))


def _total(rows: Sequence[tuple[Cell, ...]], columns: Sequence[Column]) -> tuple[Cell, ...]:
    cells: list[Cell] = ["total"]
    for index, column in list(enumerate(columns))[1:]:
        values = [value for row in rows if isinstance(value := row[index], int | float)]
        cells.append(sum(values) if column.unit in _SUMMED and not column.key.startswith("largest") else "")
    return tuple(cells)
