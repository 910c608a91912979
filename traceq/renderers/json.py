"""A sheet as JSON, schema `traceq.show/1`: complete, times in integer ns, keys that stay the same."""

from __future__ import annotations

import msgspec

from traceq.report import Sheet, Table

__all__ = ["SHOW_SCHEMA", "sheet_to_json"]

SHOW_SCHEMA = "traceq.show/1"


def sheet_to_json(sheet: Sheet) -> str:
    """One JSON object: a list of rows for each table, findings and warnings."""
    source = sheet.source
    document: dict[str, object] = {
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
    }
    for report in sheet.reports:
        document |= {table.key: _rows(table) for table in report.tables}
    document["findings"] = sheet.findings
    document["unknown"] = sheet.unknown
    document["warnings"] = sheet.all_caveats
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode()


def _rows(table: Table) -> object:
    keys = [column.key for column in table.columns]
    rows = [dict(zip(keys, row, strict=True)) for row in table.rows]
    if not table.single:
        return rows
    return (
        {**rows[0], **{part.key: {str(name): value for name, value in part.rows} for part in table.parts}}
        if rows
        else None
    )
