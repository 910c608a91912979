"""Render a sheet as a page: findings and the numbers that matter first, then charts and tables by question."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import TextIO

from traceq.display import RenderOptions
from traceq.model import Run
from traceq.renderers.html.bar_ranking import partition_chart, ranking_chart
from traceq.renderers.html.markup import element, numbers, paragraphs, table
from traceq.renderers.html.page import contents, page
from traceq.renderers.html.rank_heatmap import lost_time_chart, rank_heatmap
from traceq.renderers.html.roofline import roofline_chart
from traceq.renderers.html.section_titles import Section, in_order, section_of
from traceq.renderers.html.step_numbers import step_numbers
from traceq.renderers.html.step_points import steps_chart
from traceq.renderers.text import MOST_FINDINGS, source_summary, unknown_line
from traceq.report import Finding, Report, Sheet, Table
from traceq.units import Unit, format_value

__all__ = ["sheet_to_html", "write_sheet"]

_DRAWN = ("bar", "curve")
"""Columns of small drawings for terminals, which the page has as charts."""

_CLAUSE = re.compile(r"; (?![^(]*\))")
"""Where a finding goes on with its remedy: a semicolon outside parentheses."""


def write_sheet(sheet: Sheet, file: TextIO, options: RenderOptions) -> None:
    """Write the reports on a run as a page that opens offline."""
    run = options.first_rank() if options.first_rank else Run(sheet.source.path, ())
    file.write(sheet_to_html(sheet, run))


def sheet_to_html(sheet: Sheet, run: Run) -> str:
    """Return one HTML file that opens offline."""
    reports = in_order([report for report in sheet.reports if report.views])
    sections = [(report.name, section_of(report), report) for report in reports]
    body = [
        element("header", *_answer(sheet)),
        *(_section(name, section, report) for name, section, report in sections),
    ]
    return page(f"traceq: {sheet.source.path}", body, contents((name, section.title) for name, section, _ in sections))


def _answer(sheet: Sheet) -> Iterator[str]:
    """Yield what the first screen says: what was read, the first finding, the numbers, the other findings, doubts."""
    yield paragraphs([source_summary(sheet.source)], "source")
    headline, *rest = _CLAUSE.split(sheet.top_findings[0].text if sheet.top_findings else "No findings", maxsplit=1)
    yield element("h1", escape(_capitalised(headline)))
    yield paragraphs(map(_capitalised, rest), "lede")
    yield numbers(step_numbers(sheet))
    yield _findings(sheet.top_findings[1:])
    caveats = [element("li", escape(caveat.text)) for caveat in sheet.all_caveats]
    yield element("ul", *caveats, of="caveats") if caveats else ""
    yield paragraphs([unknown_line(sheet)], "note") if sheet.unknown else ""


def _findings(findings: Sequence[Finding]) -> str:
    """Return findings as a list, the time that each is about beside it."""
    shown = [
        element(
            "li",
            element("span", escape(finding.severity), of=f"severity {finding.severity}"),
            element("span", escape(format_value(finding.ns, Unit.NS) if finding.ns else ""), of="time"),
            element("span", escape(finding.text), of="text"),
            data_key=finding.key,
        )
        for finding in findings[: MOST_FINDINGS - 1]
    ]
    more = len(findings) - len(shown)
    return (element("ol", *shown, of="findings") if shown else "") + (
        paragraphs([f"{more} more in --json."], "note") if more else ""
    )


def _capitalised(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _section(name: str, section: Section, report: Report) -> str:
    parts = [*filter(None, _charts(report)), *map(_table, report.views)]
    return element(
        "section",
        element("h2", escape(section.title)),
        paragraphs([section.reading] if section.reading else [], "reading"),
        element("div", *parts, of="side-by-side"),
        id=name,
    )


def _table(view: Table) -> str:
    return table(view.without(*_DRAWN).non_empty_columns)


def _charts(report: Report) -> Iterator[str]:
    """Yield the charts of an analysis: bars of times by two keys, heat maps of ranks, the durations of all steps."""
    for view in report.views:
        if view.key == "partition":
            by_rank = view.columns[0].key == "rank"
            yield lost_time_chart(view) if by_rank else partition_chart(view)
        else:
            yield ranking_chart(view)
    if report.name == "steps":
        yield from (steps_chart(table) for table in report.tables if table.key == "steps")
    if report.name == "efficiency":
        yield from (roofline_chart(table) for table in report.tables if table.key == "efficiency_ops")
    if report.name == "clusters":
        yield from (rank_heatmap(table) for table in report.tables if table.key == "rank_phases" and table.rows)
