"""Results in a notebook: the answer first, the tables of a comparison folded up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from html import escape
from typing import TextIO

from traceq.claims.claim import Claim
from traceq.claims.saying import text_of
from traceq.compare.result import Diff, Diffs
from traceq.compare.tables import exchanges_table, facts_table, matrix
from traceq.display import RenderOptions
from traceq.model import Caveat
from traceq.renderers.limits import FINDINGS, NOTEBOOK_ROWS
from traceq.renderers.markdown import traced_tables
from traceq.renderers.text import source_summary, unknown_line
from traceq.report import Report, Sheet, Table
from traceq.units import Unit, format_value


def write_diffs(diffs: Diffs, file: TextIO, options: RenderOptions) -> None:
    """Write a comparison: a table of the arms, then each answer and its explanation."""
    if len(diffs.diffs) > 1:
        file.write(table_fragment(matrix(diffs)))
    if diffs.exchanges:
        file.write(table_fragment(exchanges_table(diffs)))
    if (facts := facts_table(diffs)) is not None:
        file.write(table_fragment(facts))
    lines = (
        *(str(interaction.statement) for interaction in diffs.interactions),
        *dict.fromkeys(str(diff.free) for diff in diffs.diffs if diff.free),
    )
    file.writelines(f"<p>{escape(line)}</p>" for line in lines)
    for diff in diffs.diffs:
        file.writelines(_fragments(diff))


def _fragments(diff: Diff) -> Iterator[str]:
    yield f"<p><b>{escape(str(diff.answer))}</b></p>"
    yield from (f"<p>{escape(str(each))}</p>" for each in (*diff.basis, *diff.reasons))
    if diff.traced is not None:
        title = f"{diff.b_name} against {diff.a_name}, part by part"
        yield folded(title, map(table_fragment, traced_tables(diff)))
    yield caveats_list(diff.caveats)


def write_sheet(sheet: Sheet, file: TextIO, options: RenderOptions) -> None:
    """Write the reports on a run: what was read, the findings, then each report folded up."""
    file.write(f"<p><b>{escape(source_summary(sheet.source))}</b></p>")
    file.write(_findings_list(sheet.top_findings[:FINDINGS]))
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
        for row in shown.rows[:NOTEBOOK_ROWS]
    )
    more = len(shown.rows) - NOTEBOOK_ROWS
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


def _findings_list(findings: Sequence[Claim]) -> str:
    items = "".join(f"<li>{escape(text_of(finding))}</li>" for finding in findings)
    return f"<ul>{items}</ul>" if items else ""


def _cell(value: str | int | float | bool | None, unit: Unit) -> str:
    align = "left" if unit is Unit.TEXT else "right"
    return f'<td style="text-align: {align}">{escape(format_value(value, unit))}</td>'
