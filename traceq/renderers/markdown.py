"""Render a sheet as Markdown for an issue."""

from __future__ import annotations

from typing import TextIO

from traceq.display import RenderOptions
from traceq.escaping import visible
from traceq.renderers.text import MOST_FINDINGS, source_summary, unknown_line
from traceq.report import Sheet, Table
from traceq.units import Unit, format_value

__all__ = ["safe", "sheet_to_markdown", "table_to_markdown", "write_sheet"]


def write_sheet(sheet: Sheet, file: TextIO, options: RenderOptions) -> None:
    """Write the reports on a run as Markdown."""
    file.write(sheet_to_markdown(sheet))


def sheet_to_markdown(sheet: Sheet) -> str:
    """Return findings, tables and caveats as Markdown."""
    parts = [f"**{safe(source_summary(sheet.source))}**"]
    parts += ["\n".join(f"- {safe(finding.text)}" for finding in sheet.top_findings[:MOST_FINDINGS])]
    parts += [table_to_markdown(view.non_empty_columns) for report in sheet.reports for view in report.views]
    parts += ["\n".join(f"> {safe(caveat.text)}" for caveat in sheet.all_caveats)]
    parts += [safe(unknown_line(sheet))] if sheet.unknown else []
    return "\n\n".join(part for part in parts if part) + "\n"


def table_to_markdown(table: Table) -> str:
    """Return a heading, a table and its note as Markdown."""
    header = "| " + " | ".join(safe(column.heading) for column in table.columns) + " |"
    rule = "|" + "|".join("---" if column.unit is Unit.TEXT else "--:" for column in table.columns) + "|"
    lines = [
        "| " + " | ".join(safe(format_value(v, c.unit)) for v, c in zip(row, table.columns, strict=True)) + " |"
        for row in table.rows
    ]
    return "\n".join(
        [f"### {safe(table.title)}", "", header, rule, *lines, *(["", safe(table.note)] if table.note else [])]
    )


def safe(text: str) -> str:
    """Return the text escaped: it cannot end a table's cell, open a tag, or start a heading."""
    text = visible(" ".join(text.split()))
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "'").replace("#", "\\#")
