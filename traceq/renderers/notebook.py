"""Results in a notebook: fragments of HTML, every text escaped, without scripts or styles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape
from typing import TextIO

from traceq.display import RenderOptions
from traceq.model import Caveat
from traceq.renderers.text import MOST_FINDINGS, source_summary, unknown_line
from traceq.report import Finding, Report, Sheet, Table
from traceq.units import Unit, format_value

__all__ = ["caveats_list", "folded", "table_fragment", "write_report", "write_sheet", "write_table"]

_MOST_ROWS = 100


def write_sheet(sheet: Sheet, file: TextIO, options: RenderOptions) -> None:
    """Write the reports on a run: what was read, the findings, then each report folded up."""
    file.write(f"<p><b>{escape(source_summary(sheet.source))}</b></p>")
    file.write(_findings_list(sheet.top_findings[:MOST_FINDINGS]))
    for report in sheet.reports:
        if report.views:
            file.write(folded(report.name.replace("_", " "), map(table_fragment, report.views)))
    file.write(f"<p>{escape(unknown_line(sheet))}</p>" if sheet.unknown else "")
    file.write(caveats_list(sheet.all_caveats))


def write_report(report: Report, file: TextIO, options: RenderOptions) -> None:
    """Write one report: its findings, then its tables."""
    file.write(_findings_list(report.findings))
    file.writelines(map(table_fragment, report.views))
    file.write(caveats_list(report.caveats))


def write_table(table: Table, file: TextIO, options: RenderOptions) -> None:
    """Write one table."""
    columns = tuple(replace(column, title=column.title or column.key) for column in table.columns)
    file.write(table_fragment(replace(table, columns=columns)))


def table_fragment(table: Table) -> str:
    """Return a table as HTML: columns that are not empty, and of a long table the first rows."""
    shown = table.non_empty_columns
    head = "".join(f"<th>{escape(column.heading)}</th>" for column in shown.columns)
    rows = "".join(
        f"<tr>{''.join(map(_cell, row, (column.unit for column in shown.columns)))}</tr>"
        for row in shown.rows[:_MOST_ROWS]
    )
    more = len(shown.rows) - _MOST_ROWS
    notes = [shown.note, f"{more:,} more rows in the table." if more > 0 else ""]
    return (
        f"<table><caption>{escape(shown.title)}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        + "".join(f"<p><small>{escape(note)}</small></p>" for note in notes if note)
    )


def folded(title: str, parts: Iterable[str]) -> str:
    """Return HTML under a title that opens at a click."""
    return f"<details><summary>{escape(title)}</summary>{''.join(parts)}</details>"


def caveats_list(caveats: Sequence[Caveat]) -> str:
    """Return doubts as an HTML list, "" without any."""
    items = "".join(f"<li><i>{escape(caveat.text)}</i></li>" for caveat in caveats)
    return f"<ul>{items}</ul>" if items else ""


def _findings_list(findings: Sequence[Finding]) -> str:
    items = "".join(f"<li>{escape(finding.text)}</li>" for finding in findings)
    return f"<ul>{items}</ul>" if items else ""


def _cell(value: str | int | float | bool | None, unit: Unit) -> str:
    align = "left" if unit is Unit.TEXT else "right"
    return f'<td style="text-align: {align}">{escape(format_value(value, unit))}</td>'
