"""A sheet as JSON, schema `traceq.show/1`: complete, times in integer ns, keys that stay the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from traceq.report import Cell, Sheet, Table

__all__ = ["SHOW_SCHEMA", "sheet_to_json", "sheet_to_json_pieces"]

SHOW_SCHEMA = "traceq.show/1"
_ROWS = 4096
"""Rows of a table that are text at the same time."""


def sheet_to_json(sheet: Sheet) -> str:
    """One JSON object: a list of rows for each table, findings and warnings."""
    return "".join(sheet_to_json_pieces(sheet))


def sheet_to_json_pieces(sheet: Sheet) -> Iterator[str]:
    """The same piece by piece: that of a thousand ranks need not be in memory at once."""
    source = sheet.source
    members: dict[str, object] = {
        "schema": SHOW_SCHEMA,
        "source": {
            "path": source.path,
            "num_events": source.num_events,
            "ranks": source.ranks,
            "world_size": source.world_size,
            "device": source.device or None,
            "torch": source.torch or None,
            **({"arm": source.arm} if source.arm else {}),
            **({"step": source.step} if source.step is not None else {}),
        },
        **{table.key: table for report in sheet.reports for table in report.tables},
        "findings": sheet.findings,
        "unknown": sheet.unknown,
        "warnings": sheet.all_caveats,
    }
    before = "{\n "
    for key, value in members.items():
        yield f'{before}"{key}": '
        if not isinstance(value, Table):
            yield _text(value)
        elif value.single:
            yield _text(_object(value))
        else:
            yield from _list(value)
        before = ",\n "
    yield "\n}"


def _text(value: object) -> str:
    """A member's value, one level in: line breaks within strings are escaped."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1).decode().replace("\n", "\n ")


def _list(table: Table) -> Iterator[str]:
    """All rows of a table; of the brackets around each batch those of the first and the last stay."""
    keys, rows = [column.key for column in table.columns], iter(table.rows)
    opening = "["
    while batch := list(islice(rows, _ROWS)):
        yield opening + _text([_row(keys, row) for row in batch])[1:-3]
        opening = ","
    yield "[]" if opening == "[" else "\n ]"


def _object(table: Table) -> object:
    """The row of a table that has but one, with its parts; null without one."""
    if not table.rows:
        return None
    parts = {part.key: {str(name): value for name, value in part.rows} for part in table.parts}
    return {**_row([column.key for column in table.columns], table.rows[0]), **parts}


def _row(keys: Sequence[str], row: tuple[Cell, ...]) -> dict[str, Cell]:
    return dict(zip(keys, row, strict=True))
