"""A diff as a page: the answer, its interval, the waterfall, and the tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from traceq.compare.result import Diff, Diffs
from traceq.compare.tables import causes_table, exchanges_table, matrix, ranks_table, waterfall
from traceq.model import Pairs
from traceq.renderers.html import charts
from traceq.renderers.html.charts import Mark, said
from traceq.renderers.html.markup import element, figure, page, table
from traceq.renderers.text import source_summary
from traceq.report import Table
from traceq.stats import Comparison, slowest_rank_ns
from traceq.units import Unit, format_value

__all__ = ["diffs_to_html"]

_MS = 1e6


def diffs_to_html(diffs: Diffs) -> str:
    """One file that opens offline. Raises UsageFault where altair or vl-convert is missing."""
    several = len(diffs.diffs) > 1
    body = [
        element(
            "header",
            *(element("p", escape(line), of="source") for line in _sources(diffs)),
            *map(_verdict, diffs.diffs),
            *(element("p", escape(one.words)) for one in diffs.joint),
            *(element("p", escape(line)) for line in dict.fromkeys(one.free for one in diffs.diffs if one.free)),
        ),
        *_intervals(diffs),
        *_samples(diffs.pairs),
        *([table(matrix(diffs))] if several else []),
        *([table(exchanges_table(diffs))] if diffs.exchanges else []),
        *(element("section", *_section(found, several=several)) for found in diffs.diffs),
    ]
    return page(f"traceq: {' and '.join(one.b_name for one in diffs.diffs)} against {diffs.baseline}", body)


def _verdict(diff: Diff) -> str:
    name = diff.comparison.verdict.name if diff.comparison else "inconclusive"
    return element("h1", escape(diff.words[0]), of=name, data_key="verdict", data_verdict=name)


def _sources(diffs: Diffs) -> list[str]:
    first = diffs.diffs[0]
    return [source_summary(source) for source in (first.a, *(one.b for one in diffs.diffs))]


def _section(diff: Diff, *, several: bool) -> Iterator[str]:
    if several:
        yield element("h2", escape(f"{diff.b_name} against {diff.a_name}"))
    yield from (element("p", escape(line)) for line in diff.words[1:])
    yield from (element("p", escape(caveat.text), of="caveat") for caveat in diff.caveats)
    if diff.traced is not None:
        found = waterfall(diff)
        yield figure(_waterfall(found), found.title)
        yield from (table(one) for one in (found, ranks_table(diff), causes_table(diff)) if one.rows)


def _waterfall(found: Table) -> str:
    """Each phase and category from where the one above ended, down to the whole delta."""
    keys = [column.key for column in found.columns]
    marks: list[Mark] = []
    ends = 0.0
    for row in found.rows:
        told = dict(zip(keys, row, strict=True))
        name, delta = " · ".join(str(told[key]) for key in ("phase", "category") if told[key]), told["delta_ns"]
        if not isinstance(delta, int | float) or (not delta and name != "total"):
            continue
        is_sum = name == "total"
        begins = 0.0 if is_sum else ends
        ends = begins + delta / _MS
        kind = "sum" if is_sum else "more" if delta > 0 else "less"
        words = said(name, delta, Unit.DELTA_NS)
        marks.append({"row": name, "from_ms": begins, "to_ms": ends, "kind": kind, "said": words})
    return charts.steps_down(marks, [str(mark["row"]) for mark in marks])


def _intervals(diffs: Diffs) -> Iterator[str]:
    """Every estimate with its interval; nothing where there is none."""
    known = [(one.b_name, one.comparison) for one in diffs.diffs if one.comparison and one.comparison.ci95_ns]
    if known:
        marks = [_interval(name, comparison) for name, comparison in known]
        first = known[0][1]
        theta_ms = first.a_ns * first.verdict.threshold_pct / 100 / _MS
        by_sample = any(comparison.samples for _, comparison in known)
        what = f"as many samples as a step of {diffs.baseline} has" if by_sample else "a step"
        caption = f"Cost of {what} against {diffs.baseline}, unprofiled, with its 95 % interval"
        yield figure(charts.intervals(marks, [name for name, _ in known], theta_ms), caption)


def _interval(name: str, found: Comparison) -> Mark:
    assert found.ci95_ns
    low, high = found.ci95_ns
    span = " to ".join(format_value(end, Unit.DELTA_NS) for end in (low, high))
    words = f"{said(name, found.delta_ns, Unit.DELTA_NS)}, {span}"
    return {"row": name, "ms": found.delta_ns / _MS, "low_ms": low / _MS, "high_ms": high / _MS, "said": words}


def _samples(pairs: Sequence[Pairs]) -> Iterator[str]:
    """Every unprofiled half, by arm; the control's are the baseline's own."""
    marks: list[Mark] = []
    for found in pairs:
        for arm, of_b in ((found.a, False), (found.b, True)):
            name = f"{arm} (control)" if found.is_control else f"{arm} ({found.a} against {found.b})"
            marks += [
                {"row": name, "ms": ns / _MS, "said": said(name, ns)}
                for ns in slowest_rank_ns(found, of_b=of_b).tolist()
            ]
    if marks:
        rows = list(dict.fromkeys(str(mark["row"]) for mark in marks))
        yield figure(charts.points(marks, rows, "ms a step"), "Every unprofiled step, on the slowest rank")
