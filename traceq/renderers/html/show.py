"""Render a sheet as a page: findings first, then charts, then tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TextIO

from traceq.display import RenderOptions
from traceq.model import Run
from traceq.renderers.html import charts
from traceq.renderers.html.bar_ranking import findings_chart, ranking_chart
from traceq.renderers.html.charts import Mark, mark_label
from traceq.renderers.html.markup import element, picture, table
from traceq.renderers.html.page import page
from traceq.renderers.html.rank_heatmap import rank_heatmap
from traceq.renderers.html.roofline import roofline_chart
from traceq.renderers.html.step_timeline import step_timeline
from traceq.renderers.text import MOST_FINDINGS, source_summary
from traceq.report import Report, Sheet, Table
from traceq.units import Unit

__all__ = ["sheet_to_html", "write_sheet"]

_MS = 1e6
_COMPUTES = ("compute", "cpu_compute")


def write_sheet(sheet: Sheet, file: TextIO, options: RenderOptions) -> None:
    """Write the reports on a run as a page that opens offline. Raises UsageFault without altair or vl-convert."""
    run = options.first_rank() if options.first_rank else Run(sheet.source.path, ())
    file.write(sheet_to_html(sheet, run))


def sheet_to_html(sheet: Sheet, run: Run) -> str:
    """Return one HTML file that opens offline. Raises UsageFault without altair or vl-convert."""
    title = sheet.top_findings[0].text if sheet.top_findings else "No findings"
    reports = [report for report in sheet.reports if report.views]
    body = [
        element(
            "header",
            element("p", escape(source_summary(sheet.source)), of="source"),
            element("h1", escape(title)),
            _findings(sheet),
            *(element("p", escape(caveat.text), of="caveat") for caveat in sheet.all_caveats),
            element("nav", *(element("a", escape(report.name), href=f"#{report.name}") for report in reports)),
        ),
        *([picture(svg, "Time of each finding")] if (svg := findings_chart(sheet.top_findings)) else []),
        *_timeline(run),
        *(element("section", _heading(report), *_charts(report), *_tables(report)) for report in reports),
    ]
    return page(f"traceq: {sheet.source.path}", body)


def _findings(sheet: Sheet) -> str:
    lines = [
        element("li", escape(finding.text), of=finding.severity, data_key=finding.key)
        for finding in sheet.top_findings[1:MOST_FINDINGS]
    ]
    return element("ul", *lines, of="findings") if lines else ""


def _heading(report: Report) -> str:
    return element("h2", escape(report.name.replace("_", " ")), id=report.name)


def _tables(report: Report) -> Iterator[str]:
    return (table(view.non_empty_columns) for view in report.views)


def _charts(report: Report) -> Iterator[str]:
    """Yield the charts of an analysis: bars of times by two keys, heat maps of ranks, the durations of all steps."""
    for view in report.views:
        if view.key == "partition":
            by_rank = view.columns[0].key == "rank"
            yield picture(_heat(view) if by_rank else _bars(view), view.title)
        elif svg := ranking_chart(view):
            yield picture(svg, view.title)
    if report.name == "steps":
        tables = [table for table in report.tables if table.key == "steps" and len(table.rows) > 1]
        yield from (picture(_points(steps), "Durations of all steps") for steps in tables)
    if report.name == "efficiency":
        drawn = (roofline_chart(table) for table in report.tables if table.key == "efficiency_ops")
        yield from (picture(svg, "Roofline: ops with FLOPs, by time") for svg in drawn if svg)
    if report.name == "clusters":
        tables = [table for table in report.tables if table.key == "rank_phases" and table.rows]
        caption = "Time per step without exposed communication, over the median of each phase"
        yield from (picture(rank_heatmap(rank_phases), caption) for rank_phases in tables)


def _crossed(view: Table) -> tuple[list[str], list[str], list[Mark]]:
    """Return (rows, columns, a mark for each time) of a table of times by two keys, without totals."""
    columns = [
        (index, column) for index, column in enumerate(view.columns) if column.unit is Unit.NS and column.key != "total"
    ]
    marks: list[Mark] = []
    for row in view.rows:
        for order, (index, column) in enumerate(columns):
            value = row[index]
            if row[0] != "total" and isinstance(value, int | float) and value:
                label = mark_label(f"{row[0]} · {column.heading}", value)
                keys = {"row": str(row[0]), "category": column.key, "column": column.heading}
                marks.append({**keys, "order": order, "ms": value / _MS, "label": label})
    rows = [str(row[0]) for row in view.rows if row[0] != "total"]
    return rows, [column.key for _, column in columns], marks


def _bars(view: Table) -> str:
    rows, columns, marks = _crossed(view)
    return charts.bars(marks, rows, columns)


def _heat(view: Table) -> str:
    """Return the lost time of each rank, without compute, which would dominate the colour scale."""
    rows, columns, marks = _crossed(view)
    lost = [column.replace("_", " ") for column in columns if column not in _COMPUTES]
    return charts.heatmap([mark for mark in marks if mark["column"] in lost], rows, lost)


def _points(steps: Table) -> str:
    keys = [column.key for column in steps.columns]
    marks: list[Mark] = []
    for row in steps.rows:
        step = dict(zip(keys, row, strict=True))
        length, rank = step["dur_ns"], f"rank {step['rank']}"
        if isinstance(length, int):
            marks.append({"row": rank, "ms": length / _MS, "label": mark_label(f"{rank} · {step['name']}", length)})
    return charts.points(marks, list(dict.fromkeys(str(mark["row"]) for mark in marks)), "ms per step")


def _timeline(run: Run) -> Sequence[str]:
    """Return the timeline of one step of the first rank; nothing without a trace."""
    if not run.traces:
        return ()
    timeline = step_timeline(run.traces[0])
    marks: list[Mark] = [
        {
            "row": span.row,
            "category": span.name,
            "shade": span.shade,
            "named": span.named,
            "from_ms": span.start_ns / _MS,
            "to_ms": span.end_ns / _MS,
            "label": mark_label(span.name, span.end_ns - span.start_ns),
        }
        for span in timeline.spans
    ]
    rows = list(dict.fromkeys(span.row for span in timeline.spans))
    svg = charts.timeline(marks, rows, list(dict.fromkeys(span.name for span in timeline.spans)))
    return (picture(svg, f"Timeline of {timeline.step}, rank {run.traces[0].rank}"),)
