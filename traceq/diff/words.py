"""The answer in sentences: what it costs, whether that matters, and what it is."""

from __future__ import annotations

from collections.abc import Sequence

from traceq.diff.ledger import line_function
from traceq.diff.result import Cause, Comparable, Traced
from traceq.stats import Comparison
from traceq.units import Unit, format_value

__all__ = ["cause_words", "verdict_words"]

_NAMES = {
    "in_the_noise": "in the noise",
    "material": "material",
    "detectable": "detectable, not material",
    "inconclusive": "inconclusive",
}
_WORTH_A_NAME = 0.05
_MOST_LINES = 2
_MOST_OPS = 6
_LONGEST_NAME = 60


def verdict_words(b_name: str, can: Comparable, found: Comparison | None) -> tuple[str, ...]:
    """One or two lines: the cost of B against A with its interval, the verdict, and why."""
    if not can.ok:
        reasons = "; ".join(can.reasons)
        return (f"Not comparable ({reasons}): what follows says where the time goes, not what a change costs.",)
    if found is None:
        return ("Nothing to compare: neither side has unprofiled samples or a trace.",)
    cost = _cost(found.delta_ns)
    percent = format_value(found.delta_pct, Unit.DELTA_PERCENT)
    interval = f", 95 % interval {_interval(found.ci95_ns)}" if found.ci95_ns else ""
    verdict, threshold = found.verdict, format_value(found.verdict.threshold_pct, Unit.PERCENT)
    return (
        f"{b_name} {cost} a step ({percent}{interval}): {_NAMES[verdict.name]} at the {threshold} threshold.",
        f"Why: {verdict.reason}.",
    )


def cause_words(traced: Traced, causes: Sequence[Cause]) -> tuple[str, ...]:
    """A line each: what came or went by line of code, other syncs that did, and the largest causes left."""
    if traced.delta_ns == 0 or not causes:
        return ()
    by_line = _changed_lines(causes)
    told = {cause.key for _, members in by_line for cause in members}
    syncs = [
        c for c in causes if c.kind == "sync" and c.delta_num and c.key not in told and _is_worth_telling(c, traced)
    ]
    words = [*_line_words(traced, by_line), *_sync_words(traced, syncs)]
    told |= {cause.key for cause in syncs}
    left = [cause for cause in causes if cause.key not in told]
    worth = [cause for cause in left if abs(cause.delta_ns) >= _WORTH_A_NAME * abs(traced.delta_ns)][:3]
    if worth:
        label = "The rest" if words else f"Of the traced {_delta(traced.delta_ns)} a step"
        words.append(f"{label}: " + "; ".join(f"{_delta(cause.delta_ns)} {describe(cause)}" for cause in worth) + ".")
    return tuple(words)


def describe(cause: Cause) -> str:
    """`dtoh aten::copy_ in forward (10 fewer a step)`."""
    where = f" at {cause.line}" if cause.line else ""
    number = ""
    if cause.delta_num:
        word = "more" if cause.delta_num > 0 else "fewer"
        number = f" ({format_value(abs(cause.delta_num), Unit.MEAN)} {word} a step)"
    return f"{_cut(cause.name)}{where} in {cause.phase}{number}"


def _changed_lines(causes: Sequence[Cause]) -> list[tuple[str, list[Cause]]]:
    """(line, causes) of the functions whose ops changed in number, largest delta first."""
    by_function: dict[str, list[Cause]] = {}
    for cause in causes:
        if cause.line and cause.delta_num:
            by_function.setdefault(line_function(cause.line), []).append(cause)
    groups = [(members[0].line, members) for members in by_function.values()]
    return sorted(groups, key=lambda group: -abs(_sum(group[1])))[:_MOST_LINES]


def _line_words(traced: Traced, by_line: Sequence[tuple[str, Sequence[Cause]]]) -> list[str]:
    words = []
    for line, members in by_line:
        verb = "adds" if sum(cause.delta_num for cause in members) > 0 else "removes"
        each = ", ".join(
            f"{format_value(abs(cause.delta_num), Unit.MEAN)} {_cut(cause.name)}{' (a sync)' if cause.kind == 'sync' else ''}"
            for cause in sorted(members, key=lambda cause: cause.kind == "sync")[:_MOST_OPS]
        )
        more = f" and {len(members) - _MOST_OPS} more" if len(members) > _MOST_OPS else ""
        cost = f"{_delta(_sum(members))} a step{_share(_sum(members), traced)}"
        words.append(f"It {verb} at {line} in {members[0].phase}: {each}{more}: {cost}.")
    return words


def _sync_words(traced: Traced, syncs: Sequence[Cause]) -> list[str]:
    """What became of the syncs of which no line is known."""
    words = []
    for verb, sign in (("removes", -1), ("adds", 1)):
        changed = [cause for cause in syncs if cause.delta_num * sign > 0]
        if changed:
            each = ", ".join(
                f"{format_value(abs(c.delta_num), Unit.MEAN)} {c.name} in {c.phase}" for c in changed[:_MOST_OPS]
            )
            number = format_value(abs(sum(cause.delta_num for cause in changed)), Unit.MEAN)
            cost = f"{_delta(_sum(changed))} a step, the idle time they cause included{_share(_sum(changed), traced)}"
            words.append(f"It {verb} {number} sync{'s' if number != '1' else ''} a step ({each}): {cost}.")
    return words


def _is_worth_telling(cause: Cause, traced: Traced) -> bool:
    """An allocation now and then is the allocator's affair; a sync that the program asks for is always told."""
    return not cause.name.startswith("alloc") or abs(cause.delta_ns) >= _WORTH_A_NAME * abs(traced.delta_ns)


def _sum(causes: Sequence[Cause]) -> int:
    return sum(cause.delta_ns for cause in causes)


def _share(delta_ns: int, traced: Traced) -> str:
    """`, 45 % of the traced -5.02 ms`."""
    percent = 100 * delta_ns / traced.delta_ns
    return f", {format_value(percent, Unit.PERCENT)} of the traced {_delta(traced.delta_ns)}"


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _cost(delta_ns: int) -> str:
    amount = format_value(abs(delta_ns), Unit.NS)
    return f"costs {amount}" if delta_ns > 0 else f"saves {amount}" if delta_ns < 0 else "costs nothing"


def _delta(delta_ns: int) -> str:
    return format_value(delta_ns, Unit.DELTA_NS)


def _interval(interval: tuple[int, int]) -> str:
    return f"{_delta(interval[0])} to {_delta(interval[1])}"
