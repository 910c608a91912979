"""A sheet as Markdown, to paste into an issue."""

from __future__ import annotations

from traceq.renderers.text import MOST_FINDINGS, source_summary, unknown_line
from traceq.report import Sheet, Table
from traceq.units import Unit, format_value

__all__ = ["safe", "sheet_to_markdown", "table_to_markdown"]


def sheet_to_markdown(sheet: Sheet) -> str:
    """Findings, tables and doubts."""
    parts = [f"**{safe(source_summary(sheet.source))}**"]
    parts += ["\n".join(f"- {safe(finding.text)}" for finding in sheet.top_findings[:MOST_FINDINGS])]
    parts += [table_to_markdown(view.non_empty_columns) for report in sheet.reports for view in report.views]
    parts += ["\n".join(f"> {safe(caveat.text)}" for caveat in sheet.all_caveats)]
    parts += [safe(unknown_line(sheet))] if sheet.unknown else []
    return "\n\n".join(part for part in parts if part) + "\n"


def table_to_markdown(table: Table) -> str:
    """A heading, a table, a note."""
    header = "| " + " | ".join(safe(column.title) for column in table.columns) + " |"
    rule = "|" + "|".join("---" if column.unit is Unit.TEXT else "--:" for column in table.columns) + "|"
    lines = [
        "| " + " | ".join(safe(format_value(v, c.unit)) for v, c in zip(row, table.columns, strict=True)) + " |"
        for row in table.rows
    ]
    return "\n".join(
        [f"### {safe(table.title)}", "", header, rule, *lines, *(["", safe(table.note)] if table.note else [])]
    )


def safe(text: str) -> str:
    """No cell of a table can end it, open a tag, or start a heading."""
    text = " ".join(text.split())
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "'").replace("#", "\\#")
