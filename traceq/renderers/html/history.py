"""Render a history as a page: what changed and why, then each measure over the runs, with intervals."""

from __future__ import annotations

from html import escape
from typing import TextIO

from traceq.display import RenderOptions
from traceq.history.events import Event, History, Series
from traceq.history.store import Row
from traceq.history.tables import event_lines, event_words, history_summary, measures_view, no_events
from traceq.renderers.html.markup import caveats_list, contents, element, folded, page, paragraphs, table, unbroken
from traceq.renderers.limits import CHART_ROOM, RUNS_DRAWN
from traceq.units import format_ends, format_value

_WIDTH, _HEIGHT, _MARGIN = 560, 132, 8
"""Of a chart, in units that the page scales."""


def write_history(history: History, file: TextIO, options: RenderOptions) -> None:
    """Write a history as a page that opens offline."""
    lead = event_words(history.events[-1]) if history.events else no_events(history)
    header = element("header", paragraphs([history_summary(history)], "source"), element("h1", escape(unbroken(lead))))
    charts = element("div", *(_chart(history, series) for series in history.series), of="multiples")
    events = "".join(_event(history, event) for event in reversed(history.events))
    num_left_out = len(history.runs) - RUNS_DRAWN
    charts += paragraphs([f"{num_left_out:,} earlier runs are in --json."] if num_left_out > 0 else [], "note")
    sections = [
        ("changes", "What changed, and why", events),
        ("measures", "Measures over the runs", charts),
        ("latest", "The latest run", table(measures_view(history).without("runs").non_empty_columns)),
    ]
    shown = [each for each in sections if each[2]]
    body = [
        header,
        caveats_list(history.caveats),
        *(element("section", element("h2", escape(title)), inside, id=name) for name, title, inside in shown),
    ]
    listed = contents((name, title) for name, title, _ in shown)
    file.write(page(f"traceq: history of {history.branch}", body, listed))


def _event(history: History, event: Event) -> str:
    """Return an event that opens by a click, also on its line in a chart: that leads to what is inside."""
    when = f"{event.after.row.time:%Y-%m-%d}, run {event.after.number} after run {event.before.number}"
    first, *more = event_lines(event)
    inside = element("p", escape(first), id=_anchor(history, event)), paragraphs([*more, when], "note")
    return folded(escape(unbroken(event_words(event))), *inside, is_open=True)


def _anchor(history: History, event: Event) -> str:
    return f"change-{history.events.index(event) + 1}"


def _chart(history: History, series: Series) -> str:
    """Return a figure: a point for each run with its interval, and a line where the measure changed; "" without one."""
    first = max(len(history.runs) - RUNS_DRAWN, 0)
    num = len(history.runs) - first
    shown = [(place, row) for place, row in zip(series.places, series.rows, strict=True) if place >= first]
    if not shown:
        return ""
    values = [each for _, row in shown for each in (row.low, row.high, row.value) if each is not None]
    least, most = min(values), max(values)
    middle, room = (least + most) / 2, max(most - least, CHART_ROOM * most)

    def x(place: int) -> str:
        return f"{_MARGIN + (_WIDTH - 2 * _MARGIN) * (place - first + 0.5) / num:.1f}"

    def y(value: float) -> str:
        return f"{_HEIGHT / 2 - (_HEIGHT - 2 * _MARGIN) * (value - middle) / room:.1f}"

    def point(place: int, row: Row) -> str:
        words, line = f"run {place + 1}, {history.runs[place].name}: {format_value(row.value, series.unit)}", ""
        if row.low is not None and row.high is not None:
            words += f" ({format_ends(row.low, row.high, series.unit)})"
            line = element("line", x1=x(place), x2=x(place), y1=y(row.low), y2=y(row.high), of="interval")
        dot = element("circle", cx=x(place), cy=y(row.value), r="3", of="estimate")
        return element("g", element("title", escape(words)), line, dot)

    key = series.arm, series.measure
    events = [event for event in history.events if any((each.arm, each.measure) == key for each in event.changes)]
    lines = (_change_line(history, each, x(each.after.number - 1)) for each in events if each.after.number > first)
    drawn = [*lines, *(point(place, row) for place, row in shown)]
    drawing = element("svg", *drawn, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=series.measure)
    caption = element("strong", escape(history.title(series))), escape(f" {format_ends(least, most, series.unit)}")
    return element("figure", element("figcaption", *caption), element("div", drawing, of="plot"))


def _change_line(history: History, event: Event, x: str) -> str:
    """Return a line that leads to what is told of the event."""
    title = element("title", escape(event_words(event)))
    line = element("line", x1=x, x2=x, y1="0", y2=str(_HEIGHT), of="change")
    return element("a", title, line, href=f"#{_anchor(history, event)}")
