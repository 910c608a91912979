"""Charts of a diff: intervals against the threshold, the waterfall from A to B, and every pair of unprofiled steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traceq.compare.result import Diff, Diffs
from traceq.compare.tables import waterfall
from traceq.model import Pairs
from traceq.renderers.html.markup import Json, figure, time_axis
from traceq.stats import Comparison, slowest_rank_ns
from traceq.units import Unit, format_value

__all__ = ["direction", "intervals_chart", "pairs_charts", "waterfall_chart"]

_MOST_PAIRS = 2000


def direction(comparison: Comparison) -> str:
    """Return "costs" or "saves" where the verdict is that of a difference, else ""."""
    if not comparison.verdict.is_difference:
        return ""
    return "costs" if comparison.delta_ns > 0 else "saves"


def intervals_chart(diffs: Diffs) -> str:
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
    rows: list[Json] = [_interval(_arm(diff, diffs), comparison, ends) for diff, comparison, ends in estimates]
    axis = time_axis((end for *_, ends in estimates for end in ends), per)
    percent = format_value(estimates[0][1].verdict.threshold_pct, Unit.PERCENT)
    summary = f"Dot: estimate; line: 95 % CI; grey: differences below the threshold, {percent}, which do not matter."
    sides: dict[str, Json] = {"faster": "← faster", "slower": "slower →"}
    title = f"Cost {per} against {' and '.join(baselines)}, unprofiled, with 95 % CI."
    return figure("intervals", {**axis, **sides, "rows": rows}, title, summary)


def _arm(diff: Diff, diffs: Diffs) -> str:
    return diff.b_name if diff.a_name == diffs.baseline else f"{diff.b_name} against {diff.a_name}"


def _interval(name: str, comparison: Comparison, ends: tuple[int, int]) -> Json:
    delta, threshold_ns = _delta(comparison.delta_ns), comparison.a_ns * comparison.verdict.threshold_pct / 100
    verdict = comparison.verdict.text
    return {
        "name": name,
        "value": comparison.delta_ns,
        "low": ends[0],
        "high": ends[1],
        "threshold": round(threshold_ns),
        "colour": direction(comparison),
        "text": f"{delta}, {verdict}",
        "label": f"{name}: {delta}, {verdict}\n95 % CI {' to '.join(map(_delta, ends))}\n"
        f"threshold ±{format_value(threshold_ns, Unit.NS)}",
    }


def waterfall_chart(diff: Diff) -> str:
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


def pairs_charts(pairs: Sequence[Pairs]) -> Iterator[str]:
    """Yield a chart for each comparison of its unprofiled pairs, on the slowest rank, in their order, on one scale."""
    times = [[slowest_rank_ns(of_arms, of_b=of_b).tolist() for of_b in (False, True)] for of_arms in pairs]
    every_ns = [ns for sides in times for side in sides for ns in side]
    for of_arms, (a, b) in zip(pairs, times, strict=True):
        if not a:
            continue
        each = -(-len(a) // _MOST_PAIRS)
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
