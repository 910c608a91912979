"""A diff as an HTML page: the answer, its interval and numbers, then the waterfall, the steps and the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TextIO

from traceq.compare.result import Diff, Diffs
from traceq.compare.tables import (
    causes_table,
    counts_table,
    exchanges_table,
    facts_table,
    inference_table,
    matrix,
    ranks_table,
    shown_causes,
    waterfall,
    work_table,
)
from traceq.display import RenderOptions
from traceq.model import Trace
from traceq.renderers.html.diff_charts import direction, intervals_chart, pairs_charts, waterfall_chart
from traceq.renderers.html.drawn_sections import drawn_sections
from traceq.renderers.html.flame import flame_pair_figure
from traceq.renderers.html.markup import element, folded, numbers, paragraphs, table, unbroken
from traceq.renderers.html.page import contents, page
from traceq.renderers.html.section_titles import Section
from traceq.renderers.html.timeline import Timeline, pair_timeline, place_of_cause
from traceq.renderers.html.verdict_summary import answer, compared, diff_numbers
from traceq.units import Unit, format_value

__all__ = ["diffs_to_html", "write_diffs"]

_ARMS = Section("Arm by arm", "What each arm changes, and where the time goes.")
_CAUSES = Section(
    "What makes the difference", "Red costs time, green saves it; each bar starts where the one above ends."
)
_STEPS = Section(
    "Every unprofiled step",
    "Both halves of a pair ran one after the other; the verdict is about the differences within pairs.",
)
_MOST_PAIRS = 4
"""Timelines of a page, one for each of the arms that differ most."""
_ALSO = Section("What else was measured", "One row per arm.")


@dataclass(frozen=True, slots=True)
class _Pair:
    """A diff whose two sides a timeline shows."""

    diff: Diff
    timeline: Timeline


Sections = Iterator[tuple[str, Section, str]]
"""(id, title, markup) of each section."""

Sides = Callable[[Diff], tuple[Trace, Trace]]
"""Returns the traces that a diff explains."""


def write_diffs(diffs: Diffs, file: TextIO, options: RenderOptions) -> None:
    """Write a comparison as a page that opens offline."""
    file.write(diffs_to_html(diffs, options.sides))


def diffs_to_html(diffs: Diffs, sides: Sides | None = None) -> str:
    """Return one page that opens offline; `sides` returns the traces that a diff explains, for the timeline."""
    sections = [each for each in _sections(diffs, sides) if each[2]]
    body = [
        element("header", *_answer(diffs)),
        *(
            element(
                "section",
                element("h2", escape(section.title)),
                paragraphs([section.reading], "reading"),
                inside,
                id=name,
            )
            for name, section, inside in sections
        ),
    ]
    title = f"traceq: {' and '.join(diff.b_name for diff in diffs.diffs)} against {diffs.baseline}"
    return page(title, body, contents((name, section.title) for name, section, _ in sections))


def _answer(diffs: Diffs) -> Iterator[str]:
    """Yield what the first screen says: what was compared, the verdict, the interval, the numbers, what they mean."""
    only = diffs.diffs[0] if len(diffs.diffs) == 1 else None
    yield paragraphs([compared(diffs)], "source")
    colour = direction(only.comparison) if only and only.comparison else ""
    name = only.verdict_name if only else ""
    yield element("h1", escape(unbroken(answer(diffs))), of=colour, data_key="verdict", data_verdict=name)
    yield numbers(diff_numbers(diffs))
    yield intervals_chart(diffs)
    yield "" if only else table(matrix(diffs))
    if only:
        yield from _only_answer(only)
    yield paragraphs(str(interaction.statement) for interaction in diffs.interactions)
    yield paragraphs(dict.fromkeys(str(diff.free) for diff in diffs.diffs if diff.free))


def _only_answer(diff: Diff) -> Iterator[str]:
    """Yield what the verdict rests on, what a step does differently, what makes the delta, and doubts."""
    yield paragraphs((*diff.answer.evidence, *map(str, diff.basis)))
    if diff.traced is not None:
        counts = counts_table(diff)
        yield table(counts) if counts.rows else paragraphs([f"{counts.title}."])
    yield paragraphs(map(str, diff.reasons))
    yield _caveats(diff)


def _shown_pairs(diffs: Diffs, sides: Sides | None) -> tuple[_Pair, ...]:
    """Return the pairs with a timeline, those that differ most first: the first is open, and has the flame view."""
    traced = [diff for diff in diffs.diffs if diff.traced is not None]
    if sides is None or not traced:
        return ()

    def differs(diff: Diff) -> tuple[bool, int]:
        return diff.verdict_name == "material", abs(diff.traced.delta_ns) if diff.traced else 0

    shown = sorted(traced, key=differs, reverse=True)[:_MOST_PAIRS]
    return tuple(
        _Pair(diff, pair_timeline(*sides(diff), (diff.a_name, diff.b_name), number=number, num_on_page=len(shown)))
        for number, diff in enumerate(shown)
    )


def _sections(diffs: Diffs, sides: Sides | None) -> Sections:
    pairs = _shown_pairs(diffs, sides)
    if len(diffs.diffs) == 1:
        yield "causes", _CAUSES, _traced(diffs.diffs[0], pairs)
    else:
        yield "arms", _ARMS, "".join(_arm(diff, pairs) for diff in diffs.diffs)
    if sides and pairs:
        first, *others = pairs
        flame = flame_pair_figure(*sides(first.diff), (first.diff.a_name, first.diff.b_name))
        timelines = first.timeline.figure() + "".join(map(_further_timeline, others))
        yield from (
            (name, section, "".join(parts))
            for name, section, parts in drawn_sections(timelines, flame, str(first.diff.doubt or ""))
        )
    charts = [*pairs_charts(diffs.pairs)]
    yield "steps", _STEPS, element("div", *charts, of="multiples") if charts else ""
    facts = facts_table(diffs)
    also = [exchanges_table(diffs) if diffs.exchanges else None, facts]
    yield "measured", _ALSO, "".join(table(each) for each in also if each is not None)


def _further_timeline(pair: _Pair) -> str:
    """Return the timeline of another arm, which opens by a click, also on one of its causes."""
    noted = [paragraphs([str(pair.diff.doubt)], "note")] if pair.diff.doubt else []
    title = element("h3", escape(f"{pair.diff.b_name} against {pair.diff.a_name}"))
    return folded(title, *noted, pair.timeline.figure(), of="arm")


def _places(diff: Diff, pairs: Sequence[_Pair]) -> list[str]:
    """Return where each cause that is shown is on its timeline, as `data-goto`; "" where it is not."""
    timeline = next((pair.timeline for pair in pairs if pair.diff is diff), None)
    if timeline is None:
        return []
    places = (place_of_cause(timeline.shown, cause) for cause in shown_causes(diff)[0])
    return [place.attribute(timeline.number) if place else "" for place in places]


def _grid(*parts: str) -> str:
    return element("div", *parts, of="side-by-side") if parts else ""


def _caveats(diff: Diff) -> str:
    return (
        element("ul", *(element("li", escape(caveat.text)) for caveat in diff.caveats), of="caveats")
        if diff.caveats
        else ""
    )


def _arm(diff: Diff, pairs: Sequence[_Pair]) -> str:
    """Return one arm of several: its verdict, and on a click, or where it differs, its explanation."""
    comparison = diff.comparison
    verdict = f"{format_value(comparison.delta_ns, Unit.DELTA_NS)}, {comparison.verdict.text}" if comparison else ""
    heading = element("h3", escape(f"{diff.b_name} against {diff.a_name}"))
    summary = f"{heading} {element('span', escape(verdict), of='verdict')}"
    first = element("p", escape(str(diff.answer)), data_key="verdict", data_verdict=diff.verdict_name)
    statements = paragraphs(map(str, (*diff.basis, *diff.reasons)))
    is_open = comparison is not None and comparison.verdict.is_difference
    return folded(
        summary,
        first,
        statements,
        _caveats(diff),
        _traced(diff, pairs),
        of="arm",
        is_open=is_open,
    )


def _traced(diff: Diff, pairs: Sequence[_Pair]) -> str:
    """Return the waterfall and the tables of the traced steps, folded where their durations are no evidence."""
    if diff.traced is None:
        return ""
    causes = causes_table(diff)
    tables = (waterfall(diff), ranks_table(diff), work_table(diff), inference_table(diff))
    drawn = _grid(
        waterfall_chart(diff),
        table(causes, _places(diff, pairs)) if causes.rows else "",
        *(table(rows) for rows in tables if rows.rows),
    )
    return (
        folded("Durations of the traced steps, which are no evidence here", drawn, of="doubt") if diff.doubt else drawn
    )
