"""Render a sheet as a page: first what the first screen of a terminal has, then charts and tables by question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TextIO

from traceq.claims.claim import Claim
from traceq.claims.saying import evidence_of, lead_of, text_of
from traceq.display import RenderOptions
from traceq.model import Run
from traceq.renderers.html.flame import flame_figure
from traceq.renderers.html.markup import (
    caveats_list,
    contents,
    element,
    linked,
    numbers,
    page,
    paragraphs,
    table,
    unbroken,
)
from traceq.renderers.html.sections import drawn_section, drawn_sections, in_order, section_of
from traceq.renderers.html.show_charts import (
    lost_time_chart,
    partition_chart,
    rank_heatmap,
    ranking_chart,
    roofline_chart,
    step_numbers,
    steps_chart,
)
from traceq.renderers.html.timeline import Timeline, run_timeline, shown_ranks
from traceq.renderers.html.timeline_places import place_of_finding, place_of_sync
from traceq.renderers.limits import FINDINGS
from traceq.renderers.one_screen import FIRST_TABLES, gain_words, gainer_words
from traceq.renderers.text import source_summary, step_words, unknown_line
from traceq.report import MOST_LEADS, Report, Sheet, Table
from traceq.units import Unit, format_value

_DRAWN = ("bar", "curve")
"""Columns of small drawings for terminals, which the page has as charts."""


def write_sheet(sheet: Sheet, file: TextIO, options: RenderOptions) -> None:
    """Write the reports on a run as a page that opens offline."""
    run = options.traces(tuple(shown_ranks(sheet))) if options.traces else Run(sheet.source.path, ())
    file.write(sheet_to_html(sheet, run))


def sheet_to_html(sheet: Sheet, run: Run) -> str:
    """Return one HTML file that opens offline."""
    reports = in_order([report for report in sheet.reports if report.views])
    timeline = run_timeline(run, shown_ranks(sheet), _savings(sheet)) if run.traces else None
    sections = [
        *(
            drawn_sections(timeline.figure(), flame_figure(timeline.shown[0].trace, timeline.shown[0].title))
            if timeline
            else ()
        ),
        *((report.name, section_of(report), _parts(report, timeline)) for report in reports),
    ]
    body = [
        element("header", *_answer(sheet, timeline)),
        *(drawn_section(name, section, element("div", *parts, of="side-by-side")) for name, section, parts in sections),
    ]
    return page(f"traceq: {sheet.source.path}", body, contents((name, section.title) for name, section, _ in sections))


def _answer(sheet: Sheet, timeline: Timeline | None) -> Iterator[str]:
    """Yield what the first screen says: what was read, what to gain, where a step goes, its syncs and collectives."""
    yield paragraphs([source_summary(sheet.source), *filter(None, [step_words(sheet.source)])], "source")
    leads = sheet.leads[:MOST_LEADS]
    none = "No findings: the trace has no rows of its device" if sheet.source.lacks_device_rows else "No findings"
    place = _place(leads[0], timeline) if leads else ""
    yield element("h1", linked(unbroken(_capitalised(lead_of(leads[0]) if leads else none)), place))
    yield paragraphs([_capitalised(text)] if leads and (text := _basis(sheet, leads[0])) else [], "lede")
    yield numbers(step_numbers(sheet))
    yield _further_leads(sheet, leads[1:], timeline)
    views = {view.key: view for report in sheet.reports for view in report.first}
    for view in (views[key] for key in FIRST_TABLES if key in views):
        yield table(view.non_empty_columns) if view.rows else paragraphs([f"{view.title}."])
    yield _findings(sheet.top_findings, timeline)
    yield caveats_list(sheet.all_caveats)
    yield paragraphs([unknown_line(sheet)], "note") if sheet.unknown else ""


def _basis(sheet: Sheet, lead: Claim) -> str:
    """Return what a lead gains, and what that rests on."""
    gain = f"{gainer_words(sheet, [lead])} {', '.join(gain_words(sheet, lead))}" if lead.gain is not None else ""
    return "; ".join(filter(None, (gain, evidence_of(lead))))


def _further_leads(sheet: Sheet, leads: Sequence[Claim], timeline: Timeline | None) -> str:
    items = (
        element("li", linked(_capitalised(lead_of(lead)), _place(lead, timeline)), escape(f" ({_basis(sheet, lead)})"))
        for lead in leads
    )
    return element("ul", *items, of="leads") if leads else ""


def _findings(findings: Sequence[Claim], timeline: Timeline | None) -> str:
    """Return findings in full as a list, the time that each is about beside it."""
    shown = [
        element(
            "li",
            element("span", escape(finding.severity), of=f"severity {finding.severity}"),
            element("span", escape(format_value(finding.ns, Unit.NS) if finding.ns else ""), of="time"),
            element("span", linked(text_of(finding), _place(finding, timeline)), of="text"),
            data_key=finding.key,
        )
        for finding in findings[:FINDINGS]
    ]
    more = len(findings) - len(shown)
    return (element("ol", *shown, of="findings") if shown else "") + (
        paragraphs([f"{more} more in --json."], "note") if more else ""
    )


def _capitalised(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _place(finding: Claim, timeline: Timeline | None) -> str:
    """Return where a finding is on the timeline, as `data-goto`; "" where it is not."""
    place = place_of_finding(timeline.shown, finding) if timeline else None
    return place.attribute() if place else ""


def _savings(sheet: Sheet) -> dict[tuple[int, str], int]:
    """Return what a step without the syncs of each row saves, ns, by (rank, key of the row)."""
    tables = (table for report in sheet.reports for table in report.tables if table.key == "syncs")
    rows = (row for table in tables for row in table.to_dicts())
    return {(int(row["rank"] or 0), str(row["key"])): int(row["replay_ns"] or 0) for row in rows}


def _parts(report: Report, timeline: Timeline | None) -> list[str]:
    return [*filter(None, _charts(report)), *(_table(view, timeline) for view in report.views)]


def _table(view: Table, timeline: Timeline | None) -> str:
    places: list[str] = []
    if view.key == "syncs" and timeline:
        shown = (place_of_sync(timeline.shown, row) for row in view.to_dicts())
        places = [place.attribute() if place else "" for place in shown]
    return table(view.without(*_DRAWN).non_empty_columns, places)


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
