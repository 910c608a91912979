"""A diff as an HTML page: the answer, its interval, the waterfall, and the tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TextIO

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
from traceq.model import Pairs
from traceq.renderers.html import charts
from traceq.renderers.html.charts import Mark, mark_label
from traceq.renderers.html.markup import element, figure, picture, table
from traceq.renderers.html.page import page
from traceq.renderers.text import source_summary
from traceq.report import Table
from traceq.stats import Comparison, slowest_rank_ns
from traceq.units import Unit, format_value

__all__ = ["diffs_to_html", "write_diffs"]

_MS = 1e6


def write_diffs(diffs: Diffs, file: TextIO, options: RenderOptions) -> None:
    """Write a comparison as a page that opens offline. Raises UsageFault where altair or vl-convert is missing."""
    file.write(diffs_to_html(diffs))


def diffs_to_html(diffs: Diffs) -> str:
    """Return one page that opens offline. Raises UsageFault where altair or vl-convert is missing."""
    several = len(diffs.diffs) > 1
    body = [
        element(
            "header",
            *(element("p", escape(line), of="source") for line in _sources(diffs)),
            *map(_verdict, diffs.diffs),
            *(element("p", escape(interaction.words)) for interaction in diffs.interactions),
            *(element("p", escape(line)) for line in dict.fromkeys(diff.free for diff in diffs.diffs if diff.free)),
        ),
        *_intervals(diffs),
        *_samples(diffs.pairs),
        *([table(matrix(diffs))] if several else []),
        *([table(exchanges_table(diffs))] if diffs.exchanges else []),
        *([table(facts)] if (facts := facts_table(diffs)) is not None else []),
        *(element("section", *_section(diff, several=several)) for diff in diffs.diffs),
    ]
    return page(f"traceq: {' and '.join(diff.b_name for diff in diffs.diffs)} against {diffs.baseline}", body)


def _verdict(diff: Diff) -> str:
    name = diff.verdict_name
    return element("h1", escape(diff.words[0]), of=name, data_key="verdict", data_verdict=name)


def _sources(diffs: Diffs) -> list[str]:
    first = diffs.diffs[0]
    return [source_summary(source) for source in (first.a, *(diff.b for diff in diffs.diffs))]


def _section(diff: Diff, *, several: bool) -> Iterator[str]:
    if several:
        yield element("h2", escape(f"{diff.b_name} against {diff.a_name}"))
    yield from (element("p", escape(line)) for line in diff.words[1:])
    yield from (element("p", escape(caveat.text), of="caveat") for caveat in diff.caveats)
    if diff.traced is not None:
        durations = "".join(_durations(diff))
        summary = element("summary", "Durations of the traced steps, which are no evidence here")
        yield element("details", summary, durations, of="doubt") if diff.doubt else durations


def _durations(diff: Diff) -> Iterator[str]:
    cells = waterfall(diff)
    yield picture(_waterfall(cells), cells.title)
    yield from (
        table(rows)
        for rows in (inference_table(diff), cells, ranks_table(diff), causes_table(diff), work_table(diff))
        if rows.rows
    )


def _waterfall(cells: Table) -> str:
    """Return the waterfall: each phase and category starts where the one above ends; the last bar is the total."""
    keys = [column.key for column in cells.columns]
    marks: list[Mark] = []
    end = 0.0
    for row in cells.rows:
        cell = dict(zip(keys, row, strict=True))
        name, delta = " · ".join(str(cell[key]) for key in ("phase", "category") if cell[key]), cell["delta_ns"]
        if not isinstance(delta, int | float) or (not delta and name != "total"):
            continue
        is_sum = name == "total"
        start = 0.0 if is_sum else end
        end = start + delta / _MS
        kind = "sum" if is_sum else "more" if delta > 0 else "less"
        words = mark_label(name, delta, Unit.DELTA_NS)
        marks.append({"row": name, "from_ms": start, "to_ms": end, "kind": kind, "label": words})
    return charts.waterfall(marks, [str(mark["row"]) for mark in marks])


def _intervals(diffs: Diffs) -> Iterator[str]:
    """Yield a chart of all estimates that have an interval; nothing without any."""
    estimates = [(diff.b_name, diff.comparison) for diff in diffs.diffs if diff.comparison and diff.comparison.ci95_ns]
    if estimates:
        marks = [_interval(name, comparison) for name, comparison in estimates]
        by_sample = any(comparison.samples for _, comparison in estimates)
        per = f"for the samples of one step of {diffs.baseline}" if by_sample else "per step"
        caption = f"Cost {per} against {diffs.baseline}, unprofiled, with 95 % CI"
        rows = [_interval(name, comparison) for name, comparison in estimates]
        yield figure("intervals", {"rows": rows}, caption)


def _interval(name: str, comparison: Comparison) -> dict[str, str | float]:
    assert comparison.ci95_ns
    low, high = comparison.ci95_ns
    delta_ns = comparison.delta_ns
    span = " to ".join(format_value(end, Unit.DELTA_NS) for end in (low, high))
    words = f"{mark_label(name, delta_ns, Unit.DELTA_NS)}, {span}"
    ends = {"value": delta_ns / _MS, "low": low / _MS, "high": high / _MS}
    return {
        "name": name,
        "label": words,
        "threshold": comparison.a_ns * comparison.verdict.threshold_pct / 100 / _MS,
        **ends,
    }


def _samples(pairs: Sequence[Pairs]) -> Iterator[str]:
    """Yield a chart of every unprofiled half, by arm; those of the control are the baseline's."""
    marks: list[Mark] = []
    for of_arms in pairs:
        for arm, of_b in ((of_arms.a, False), (of_arms.b, True)):
            name = f"{arm} (control)" if of_arms.is_control else f"{arm} ({of_arms.a} against {of_arms.b})"
            marks += [
                {"row": name, "ms": ns / _MS, "label": mark_label(name, ns)}
                for ns in slowest_rank_ns(of_arms, of_b=of_b).tolist()
            ]
    if marks:
        rows = list(dict.fromkeys(str(mark["row"]) for mark in marks))
        yield picture(charts.points(marks, rows, "ms per step"), "Every unprofiled step, on the slowest rank")
