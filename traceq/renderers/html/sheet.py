"""What `show` found, as a page: findings first, then pictures, then tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from traceq.model import Run
from traceq.renderers.html import charts
from traceq.renderers.html.bar_ranking import about, ranking
from traceq.renderers.html.charts import Mark, said
from traceq.renderers.html.markup import element, figure, page, table
from traceq.renderers.html.rank_heatmap import rank_map
from traceq.renderers.html.step_timeline import moments
from traceq.renderers.text import MOST_FINDINGS, source_summary
from traceq.report import Report, Sheet, Table
from traceq.units import Unit

__all__ = ["sheet_to_html"]

_MS = 1e6
_COMPUTES = ("compute", "cpu_compute")


def sheet_to_html(sheet: Sheet, run: Run) -> str:
    """One file that opens offline. Raises UsageFault where altair or vl-convert is missing."""
    title = sheet.top_findings[0].text if sheet.top_findings else "Nothing stands out"
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
        *([figure(svg, "The time that each finding is about")] if (svg := about(sheet.top_findings)) else []),
        *_moments(run),
        *(element("section", _heading(report), *_drawn(report), *_tables(report)) for report in reports),
    ]
    return page(f"traceq: {sheet.source.path}", body)


def _findings(sheet: Sheet) -> str:
    lines = [
        element("li", escape(found.text), of=found.severity, data_key=found.key)
        for found in sheet.top_findings[1:MOST_FINDINGS]
    ]
    return element("ul", *lines, of="findings") if lines else ""


def _heading(report: Report) -> str:
    return element("h2", escape(report.name.replace("_", " ")), id=report.name)


def _tables(report: Report) -> Iterator[str]:
    return (table(view.non_empty_columns) for view in report.views)


def _drawn(report: Report) -> Iterator[str]:
    """The pictures of an analysis: of times by two keys, bars; of ranks, heat maps; of steps, every step."""
    for view in report.views:
        if view.key == "partition":
            by_rank = view.columns[0].key == "rank"
            yield figure(_heat(view) if by_rank else _bars(view), view.title)
        elif svg := ranking(view):
            yield figure(svg, view.title)
    if report.name == "steps":
        steps = [found for found in report.tables if found.key == "steps" and len(found.rows) > 1]
        yield from (figure(_points(found), "Every step") for found in steps)
    if report.name == "clusters":
        times = [found for found in report.tables if found.key == "rank_phases" and found.rows]
        yield from (figure(rank_map(found), "Own time of a step over the median of each phase") for found in times)


def _crossed(view: Table) -> tuple[list[str], list[str], list[Mark]]:
    """(rows, columns, a mark for each time) of a table that crosses two keys; totals are left out."""
    columns = [
        (at, column) for at, column in enumerate(view.columns) if column.unit is Unit.NS and column.key != "total"
    ]
    marks: list[Mark] = []
    for row in view.rows:
        for place, (at, column) in enumerate(columns):
            value = row[at]
            if row[0] != "total" and isinstance(value, int | float) and value:
                words = said(f"{row[0]} · {column.title}", value)
                where = {"row": str(row[0]), "category": column.key, "column": column.title}
                marks.append({**where, "place": place, "ms": value / _MS, "said": words})
    rows = [str(row[0]) for row in view.rows if row[0] != "total"]
    return rows, [column.key for _, column in columns], marks


def _bars(view: Table) -> str:
    rows, columns, marks = _crossed(view)
    return charts.bars(marks, rows, columns)


def _heat(view: Table) -> str:
    """What is lost on each rank; computing would outshine it."""
    rows, columns, marks = _crossed(view)
    lost = [column.replace("_", " ") for column in columns if column not in _COMPUTES]
    return charts.heat([mark for mark in marks if mark["column"] in lost], rows, lost)


def _points(steps: Table) -> str:
    keys = [column.key for column in steps.columns]
    marks: list[Mark] = []
    for row in steps.rows:
        told = dict(zip(keys, row, strict=True))
        length, rank = told["dur_ns"], f"rank {told['rank']}"
        if isinstance(length, int):
            marks.append({"row": rank, "ms": length / _MS, "said": said(f"{rank} · {told['name']}", length)})
    return charts.points(marks, list(dict.fromkeys(str(mark["row"]) for mark in marks)), "ms a step")


def _moments(run: Run) -> Sequence[str]:
    """One step as it went, of the first rank."""
    if not run.traces:
        return ()
    found = moments(run.traces[0])
    marks: list[Mark] = [
        {
            "row": one.row,
            "category": one.name,
            "shade": one.shade,
            "named": one.named,
            "from_ms": one.start_ns / _MS,
            "to_ms": one.end_ns / _MS,
            "said": said(one.name, one.end_ns - one.start_ns),
        }
        for one in found.moments
    ]
    rows = list(dict.fromkeys(one.row for one in found.moments))
    svg = charts.strip(marks, rows, list(dict.fromkeys(one.name for one in found.moments)))
    return (figure(svg, f"{found.step} of rank {run.traces[0].rank}, as it went"),)
