"""The answer of a diff in one sentence, and the numbers that matter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traceq.compare.result import Diff, Diffs
from traceq.renderers.html.diff_charts import direction
from traceq.stats import Comparison
from traceq.units import Unit, format_value, name_ranks

__all__ = ["answer", "compared", "diff_numbers"]

_MOST_NAMED = 6


def answer(diffs: Diffs) -> str:
    """Return the verdict as one sentence: that of the only arm, or what differs, what does not, and what is open."""
    if len(diffs.diffs) == 1:
        return diffs.diffs[0].answer.lead
    timed = [(diff, diff.comparison) for diff in diffs.diffs if diff.comparison]
    parts = [
        f"{_arm(diff, diffs)} {_cost(comparison)}" + (", detectable" if comparison.verdict.name == "detectable" else "")
        for diff, comparison in timed
        if comparison.verdict.is_difference
    ]
    if len(parts) > _MOST_NAMED:
        parts = [*parts[:_MOST_NAMED], f"{len(parts) - _MOST_NAMED} more differ"]
    for name, words in (("in_the_noise", "in the noise"), ("inconclusive", "inconclusive")):
        arms = [_arm(diff, diffs) for diff in diffs.diffs if diff.verdict_name == name]
        if arms:
            parts.append(f"{_listed(arms)} {'is' if len(arms) == 1 else 'are'} {words}")
    return f"Against {diffs.baseline}: {'; '.join(parts)}."


def _arm(diff: Diff, diffs: Diffs) -> str:
    return diff.b_name if diff.a_name == diffs.baseline else f"{diff.b_name} against {diff.a_name}"


def _listed(names: Sequence[str]) -> str:
    if len(names) > _MOST_NAMED:
        return f"{', '.join(names[:_MOST_NAMED])} and {len(names) - _MOST_NAMED} more"
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


def diff_numbers(diffs: Diffs) -> Iterator[tuple[str, str, str, str]]:
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
    return f"Change {per}", f"{sign}{_delta(delta_ns)}", detail, direction(comparison)


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


def _delta(ns: float) -> str:
    return format_value(ns, Unit.DELTA_NS)
