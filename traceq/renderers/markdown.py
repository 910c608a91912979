"""Results as Markdown, to paste into an issue."""

from __future__ import annotations

from typing import TextIO

from traceq.claims.saying import text_of
from traceq.compare.result import Diff, Diffs
from traceq.compare.tables import (
    causes_table,
    exchanges_table,
    facts_table,
    inference_table,
    matrix,
    ranks_table,
    waterfall,
    work_table,
)
from traceq.display import RenderOptions
from traceq.escaping import visible
from traceq.renderers.limits import FINDINGS
from traceq.renderers.text import source_summary, unknown_line
from traceq.report import Sheet, Table
from traceq.units import Unit, format_value


def write_diffs(diffs: Diffs, file: TextIO, options: RenderOptions) -> None:
    """Write a comparison as Markdown."""
    file.write(diffs_to_markdown(diffs, full=options.full))


def diffs_to_markdown(diffs: Diffs, *, full: bool = False) -> str:
    """Return the matrix of the arms, then each answer with its tables; `full` also if they are no evidence."""
    parts = [table_to_markdown(matrix(diffs))] if len(diffs.diffs) > 1 else []
    parts += [table_to_markdown(exchanges_table(diffs))] if diffs.exchanges else []
    parts += [table_to_markdown(facts)] if (facts := facts_table(diffs)) is not None else []
    parts += [safe(str(interaction.statement)) for interaction in diffs.interactions]
    parts += [safe(line) for line in dict.fromkeys(str(diff.free) for diff in diffs.diffs if diff.free)]
    parts += [part for diff in diffs.diffs for part in _diff(diff, full=full)]
    return "\n\n".join(parts) + "\n"


def _diff(diff: Diff, *, full: bool) -> list[str]:
    parts = [f"## {safe(diff.b_name)} against {safe(diff.a_name)}"]
    parts += [f"**{safe(str(diff.answer))}**", *(safe(str(each)) for each in (*diff.basis, *diff.reasons))]
    if diff.traced is not None and (full or not diff.doubt):
        parts += map(table_to_markdown, traced_tables(diff))
    if diff.caveats:
        parts.append("\n".join(f"> {safe(caveat.text)}" for caveat in diff.caveats))
    return parts


def traced_tables(diff: Diff) -> list[Table]:
    """Return the tables of a traced delta that have rows."""
    tables = inference_table(diff), waterfall(diff), ranks_table(diff), causes_table(diff), work_table(diff)
    return [table for table in tables if table.rows]


def write_sheet(sheet: Sheet, file: TextIO, options: RenderOptions) -> None:
    """Write the reports on a run as Markdown."""
    file.write(sheet_to_markdown(sheet))


def sheet_to_markdown(sheet: Sheet) -> str:
    """Return findings, tables and caveats as Markdown."""
    parts = [f"**{safe(source_summary(sheet.source))}**"]
    parts += ["\n".join(f"- {safe(text_of(finding))}" for finding in sheet.top_findings[:FINDINGS])]
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
