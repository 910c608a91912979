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
from traceq.model import Pairs, Trace
from traceq.renderers.html.flame import flame_pair_figure
from traceq.renderers.html.markup import (
    Json,
    caveats_list,
    contents,
    element,
    figure,
    folded,
    numbers,
    page,
    paragraphs,
    table,
    time_axis,
    unbroken,
)
from traceq.renderers.html.sections import Section, drawn_section, drawn_sections
from traceq.renderers.html.timeline import Timeline, pair_timeline
from traceq.renderers.html.timeline_places import place_of_cause
from traceq.renderers.limits import ARM_POINTS, ARMS_NAMED, TIMELINES
from traceq.stats import Comparison, slowest_rank_ns
from traceq.units import Unit, format_value, name_ranks

_ARMS = Section("Arm by arm", "What each arm changes, and where the time goes.")
_CAUSES = Section(
    "What makes the difference", "Red costs time, green saves it; each bar starts where the one above ends."
)
_STEPS = Section(
    "Every unprofiled step",
    "Both halves of a pair ran one after the other; the verdict is about the differences within pairs.",
)
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
        *(drawn_section(name, section, inside) for name, section, inside in sections),
    ]
    title = f"traceq: {' and '.join(diff.b_name for diff in diffs.diffs)} against {diffs.baseline}"
    return page(title, body, contents((name, section.title) for name, section, _ in sections))


def _answer(diffs: Diffs) -> Iterator[str]:
    """Yield what the first screen says: what was compared, the verdict, the interval, the numbers, what they mean."""
    only = diffs.diffs[0] if len(diffs.diffs) == 1 else None
    yield paragraphs([compared(diffs)], "source")
    colour = _direction(only.comparison) if only and only.comparison else ""
    name = only.verdict_name if only else ""
    yield element("h1", escape(unbroken(_in_one_sentence(diffs))), of=colour, data_key="verdict", data_verdict=name)
    yield numbers(_diff_numbers(diffs))
    yield _intervals_chart(diffs)
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
    yield caveats_list(diff.caveats)


def _shown_pairs(diffs: Diffs, sides: Sides | None) -> tuple[_Pair, ...]:
    """Return the pairs with a timeline, those that differ most first: the first is open, and has the flame view."""
    traced = [diff for diff in diffs.diffs if diff.traced is not None]
    if sides is None or not traced:
        return ()

    def differs(diff: Diff) -> tuple[bool, int]:
        return diff.verdict_name == "material", abs(diff.traced.delta_ns) if diff.traced else 0

    shown = sorted(traced, key=differs, reverse=True)[:TIMELINES]
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
    charts = [*_pairs_charts(diffs.pairs)]
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
        caveats_list(diff.caveats),
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
        _waterfall_chart(diff),
        table(causes, _places(diff, pairs)) if causes.rows else "",
        *(table(rows) for rows in tables if rows.rows),
    )
    return (
        folded("Durations of the traced steps, which are no evidence here", drawn, of="doubt") if diff.doubt else drawn
    )


def _in_one_sentence(diffs: Diffs) -> str:
    """Return the verdict as one sentence: that of the only arm, or what differs, what does not, and what is open."""
    if len(diffs.diffs) == 1:
        return diffs.diffs[0].answer.lead
    timed = [(diff, diff.comparison) for diff in diffs.diffs if diff.comparison]
    parts = [
        f"{_arm_name(diff, diffs)} {_cost(comparison)}"
        + (", detectable" if comparison.verdict.name == "detectable" else "")
        for diff, comparison in timed
        if comparison.verdict.is_difference
    ]
    if len(parts) > ARMS_NAMED:
        parts = [*parts[:ARMS_NAMED], f"{len(parts) - ARMS_NAMED} more differ"]
    for name, words in (("in_the_noise", "in the noise"), ("inconclusive", "inconclusive")):
        arms = [_arm_name(diff, diffs) for diff in diffs.diffs if diff.verdict_name == name]
        if arms:
            parts.append(f"{_listed(arms)} {'is' if len(arms) == 1 else 'are'} {words}")
    return f"Against {diffs.baseline}: {'; '.join(parts)}."


def _arm_name(diff: Diff, diffs: Diffs) -> str:
    return diff.b_name if diff.a_name == diffs.baseline else f"{diff.b_name} against {diff.a_name}"


def _listed(names: Sequence[str]) -> str:
    if len(names) > ARMS_NAMED:
        return f"{', '.join(names[:ARMS_NAMED])} and {len(names) - ARMS_NAMED} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _cost(comparison: Comparison) -> str:
    delta_ns = comparison.each(comparison.delta_ns)
    per = "per step" if comparison.samples is None else "per sample"
    verb = "costs" if delta_ns > 0 else "saves"
    percent = format_value(abs(comparison.delta_pct), Unit.PERCENT)
    return f"{verb} {format_value(abs(delta_ns), Unit.NS)} {per} ({percent})"


def compared(diffs: Diffs) -> str:
    """Return what was compared on what, in one line: arms, ranks, machine, versions and steps."""
    first = diffs.diffs[0]
    source = first.a
    arms = f"{_listed([diff.b_name for diff in diffs.diffs])} against {first.a_name}"
    sides = list(dict.fromkeys(name_ranks(side.ranks) for side in (first.a, first.b) if side.ranks))
    ranks = " and ".join(sides) + (f" of {source.world_size}" if sides and source.world_size > 1 else "")
    traced = first.traced
    steps = traced.windows_text if traced and traced.marked else ""
    path = "" if source.path == first.a_name else source.path
    parts = (arms, ranks, source.device, f"torch {source.torch}" if source.torch else "", steps, path)
    return " · ".join(filter(None, parts))


def _diff_numbers(diffs: Diffs) -> Iterator[tuple[str, str, str, str]]:
    """Yield (what, number, its detail, "costs", "saves" or "") each: the change, the steps, and the evidence."""
    first = diffs.diffs[0]
    comparison = first.comparison
    if comparison is None:
        return
    if len(diffs.diffs) == 1:
        yield _change(first, comparison)
        steps = first.steps or comparison
        arms = f"{first.a_name} → {first.b_name}"
        yield (
            f"{_window(first).capitalize()}, {arms}",
            f"{_ns(steps.a_ns)} → {_ns(steps.b_ns)}",
            _clock(comparison),
            "",
        )
    else:
        yield f"Step of {diffs.baseline}", _ns((first.steps or comparison).a_ns), _clock(comparison), ""
        threshold_ns = comparison.a_ns * comparison.verdict.threshold_pct / 100
        percent = format_value(comparison.verdict.threshold_pct, Unit.PERCENT)
        yield "Matters from", f"±{_ns(threshold_ns)}", f"threshold, {percent} of a step", ""
    yield _evidence(first, comparison, of_one=len(diffs.diffs) == 1)


def _change(diff: Diff, comparison: Comparison) -> tuple[str, str, str, str]:
    delta_ns = comparison.each(comparison.delta_ns)
    sign = "▲ " if delta_ns > 0 else "▼ " if delta_ns < 0 else ""
    ends = map(_delta, map(comparison.each, comparison.ci95_ns)) if comparison.ci95_ns else ()
    percent = format_value(comparison.delta_pct, Unit.DELTA_PERCENT)
    detail = f"{percent}, 95 % CI {' to '.join(ends)}" if comparison.ci95_ns else f"{percent}, without an interval"
    per = "per sample" if comparison.samples else diff.traced.per if diff.traced else "per step"
    return f"Change {per}", f"{sign}{_delta(delta_ns)}", detail, _direction(comparison)


def _window(diff: Diff) -> str:
    """Return what times are of: `step`, `trace`, or either."""
    return diff.traced.window if diff.traced else "step"


def _clock(comparison: Comparison) -> str:
    return "unprofiled, on the slowest rank" if comparison.unprofiled else "medians of profiled steps"


def _evidence(diff: Diff, comparison: Comparison, *, of_one: bool) -> tuple[str, str, str, str]:
    """Return how much was measured, and what it can tell: the noise floor, or what would decide."""
    needed = comparison.verdict.pairs_needed
    parts = [
        f"about {needed:,} would decide" if needed and comparison.num_pairs and of_one else "",
        f"noise floor {_ns(comparison.noise_floor_ns)}" if comparison.noise_floor_ns else "",
    ]
    how = "interleaved" if comparison.num_pairs else "a run each" if comparison.unprofiled else "profiled, no verdict"
    detail = "; ".join(filter(None, parts)) or how
    if comparison.num_pairs:
        each = "" if of_one else " per arm"
        return "Evidence", f"{comparison.num_pairs:,} pairs{each}", detail, ""
    what = "processes" if comparison.unprofiled else " or ".join(f"{each}s" for each in _window(diff).split(" or "))
    return "Evidence", f"{comparison.num_a:,} and {comparison.num_b:,} {what}", detail, ""


def _ns(ns: float) -> str:
    return format_value(ns, Unit.NS)


def _direction(comparison: Comparison) -> str:
    """Return "costs" or "saves" where the verdict is that of a difference, else ""."""
    if not comparison.verdict.is_difference:
        return ""
    return "costs" if comparison.delta_ns > 0 else "saves"


def _intervals_chart(diffs: Diffs) -> str:
    """Return the chart of all estimates that have an interval, each beside its threshold; "" without any."""
    estimates = [
        (diff, diff.comparison, diff.comparison.ci95_ns)
        for diff in diffs.diffs
        if diff.comparison and diff.comparison.ci95_ns
    ]
    if not estimates:
        return ""
    baselines = list(dict.fromkeys(diff.a_name for diff, *_ in estimates))
    by_sample = any(comparison.samples for _, comparison, _ in estimates)
    per = f"for the samples of one step of {baselines[0]}" if by_sample else "per step"
    rows: list[Json] = [_interval(_arm_name(diff, diffs), comparison, ends) for diff, comparison, ends in estimates]
    axis = time_axis((end for *_, ends in estimates for end in ends), per)
    percent = format_value(estimates[0][1].verdict.threshold_pct, Unit.PERCENT)
    summary = f"Dot: estimate; line: 95 % CI; grey: differences below the threshold, {percent}, which do not matter."
    sides: dict[str, Json] = {"faster": "← faster", "slower": "slower →"}
    title = f"Cost {per} against {' and '.join(baselines)}, unprofiled, with 95 % CI."
    return figure("intervals", {**axis, **sides, "rows": rows}, title, summary)


def _interval(name: str, comparison: Comparison, ends: tuple[int, int]) -> Json:
    delta, threshold_ns = _delta(comparison.delta_ns), comparison.a_ns * comparison.verdict.threshold_pct / 100
    verdict = comparison.verdict.text
    return {
        "name": name,
        "value": comparison.delta_ns,
        "low": ends[0],
        "high": ends[1],
        "threshold": round(threshold_ns),
        "colour": _direction(comparison),
        "text": f"{delta}, {verdict}",
        "label": f"{name}: {delta}, {verdict}\n95 % CI {' to '.join(map(_delta, ends))}\n"
        f"threshold ±{format_value(threshold_ns, Unit.NS)}",
    }


def _waterfall_chart(diff: Diff) -> str:
    """Return the waterfall: each phase and category starts where the one above ends; the last bar is the total."""
    assert diff.traced is not None
    rows: list[Json] = []
    ends: list[int] = []
    cells = waterfall(diff)
    for cell in cells.to_dicts():
        name, delta = " · ".join(str(cell[key]) for key in ("phase", "category") if cell[key]), cell["delta_ns"]
        is_sum = name == "total"
        if not isinstance(delta, int) or not (delta or is_sum):
            continue
        start = ends[-1] if ends and not is_sum else 0
        ends.append(start + delta)
        sides = (f"{side}: {format_value(cell[key], Unit.NS)}" for side, key in _sides(diff) if cell[key] is not None)
        rows.append(
            {
                "title": "all together" if is_sum else name,
                "from": start,
                "to": start + delta,
                "delta": delta,
                "isSum": is_sum,
                "text": _delta(delta),
                "label": "\n".join((f"{name}: {_delta(delta)}", *sides)),
            }
        )
    traced = diff.traced
    steps = f"{format_value(traced.a_ns, Unit.NS)} to {format_value(traced.b_ns, Unit.NS)} {traced.per}"
    data: dict[str, Json] = {**time_axis(ends, traced.per), "rows": rows}
    return figure("waterfall", data, f"From {diff.a_name} to {diff.b_name}: {steps}.", f"{cells.title}.")


def _sides(diff: Diff) -> tuple[tuple[str, str], tuple[str, str]]:
    return (diff.a_name, "a_ns"), (diff.b_name, "b_ns")


def _pairs_charts(pairs: Sequence[Pairs]) -> Iterator[str]:
    """Yield a chart for each comparison of its unprofiled pairs, on the slowest rank, in their order, on one scale."""
    times = [[slowest_rank_ns(of_arms, of_b=of_b).tolist() for of_b in (False, True)] for of_arms in pairs]
    every_ns = [ns for sides in times for side in sides for ns in side]
    for of_arms, (a, b) in zip(pairs, times, strict=True):
        if not a:
            continue
        each = -(-len(a) // ARM_POINTS)
        shown: list[Json] = [
            [number + 1, a[number], b[number], int(of_arms.b_second[number])] for number in range(0, len(a), each)
        ]
        names = (of_arms.a, of_arms.b)
        title = f"{names[0]} and {names[1]}, {len(a)} pairs."
        if of_arms.is_control:
            names = (f"{of_arms.a}, one half", f"{of_arms.a}, the other")
            title = f"{of_arms.a} against itself, the control: {len(a)} pairs."
        data: dict[str, Json] = {
            **time_axis(every_ns, "per step"),
            "range": [min(every_ns), max(every_ns)],
            "a": names[0],
            "b": names[1],
            "across": "pair, in the order in which they ran",
            "pairs": shown,
        }
        yield figure("pairs", data, title, f"Every {each}th is drawn." if each > 1 else "")


def _delta(ns: float) -> str:
    return format_value(ns, Unit.DELTA_NS)
