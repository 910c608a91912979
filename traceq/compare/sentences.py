"""The answer in sentences: what it costs, whether that matters, and what it is."""

from __future__ import annotations

import re
from collections.abc import Sequence

from traceq.compare.attribution import line_function
from traceq.compare.result import Cause, Comparable, Diff, Traced
from traceq.stats import Comparison, Interaction
from traceq.units import Unit, format_value

__all__ = ["cause_words", "cpu_words", "joint_words", "sample_words", "short_name", "verdict_words"]

_NAMES = {
    "in_the_noise": "in the noise",
    "material": "material",
    "detectable": "detectable, not material",
    "inconclusive": "inconclusive",
}
_WORTH_A_NAME = 0.05
_MOST_LINES = 2
_MOST_OPS = 6
_MOST_CAUSES = 3
_LONGEST_NAME = 60
_ONE_OF_TWO = 45
_REPLACED = " replaced by "
_NAMESPACES = re.compile(r"\b(at::native::|autograd::engine::evaluate_function: )|\(anonymous namespace\)::")


def verdict_words(
    a_name: str,
    b_name: str,
    can: Comparable,
    found: Comparison | None,
    *,
    missing: str = "",
    control: str = "",
    per: str = "a step",
) -> tuple[str, ...]:
    """One or two lines: the cost of B against A with its interval, the verdict, and why; without a comparison what is
    missing for one. `control` is the arm that ran against itself, A unless named; `per` what the cost is of, unless it
    is that of a sample.
    """
    if not can.ok:
        reasons = "; ".join(can.reasons)
        return (f"Not comparable ({reasons}): what follows says where the time goes, not what a change costs.",)
    if found is None:
        return (f"Nothing to compare: {missing}.",)
    cost = _cost(found.each(found.delta_ns))
    percent = format_value(found.delta_pct, Unit.DELTA_PERCENT)
    interval = f", 95 % interval {_interval(found)}" if found.ci95_ns else ""
    verdict, threshold = found.verdict, format_value(found.verdict.threshold_pct, Unit.PERCENT)
    floor = found.noise_floor_ns
    noise = (
        f" {control or a_name} against itself shows up to {format_value(floor, Unit.NS)} here."
        if floor is not None
        else ""
    )
    of = _per(found, per)
    return (
        f"{b_name} {cost} {of} ({percent}{interval}): {_NAMES[verdict.name]} at the {threshold} threshold.",
        f"Why: {verdict.reason}.{noise}",
    )


def sample_words(found: Comparison | None, steps: Comparison | None) -> tuple[str, ...]:
    """Where a verdict is about samples: how many a step trains on, and how long it takes."""
    if found is None or steps is None or found.samples is None:
        return ()
    a_ns, b_ns = format_value(steps.a_ns, Unit.NS), format_value(steps.b_ns, Unit.NS)
    interval = f" (95 % interval {_interval(steps)})" if steps.ci95_ns else ""
    a_num, b_num = found.samples
    trains = f"A step trains on {b_num:,} samples instead of {a_num:,} and takes {b_ns} instead of {a_ns}"
    return (f"{trains}: {_delta(steps.delta_ns)}{interval}.",)


def joint_words(here: Diff, there: Diff, found: Interaction) -> str:
    """`on costs 394 us a step against off, on_alone costs 650 us a step against off_alone: +256 us there ...`."""
    costs = ", ".join(
        f"{one.b_name} {_cost(one.comparison.delta_ns)} a step against {one.a_name}"
        for one in (here, there)
        if one.comparison
    )
    interval = f" (95 % interval {' to '.join(map(_delta, found.ci95_ns))})" if found.ci95_ns else ""
    name = found.verdict.name
    meaning = ""
    if name == "in_the_noise":
        meaning = ": what stands around it does not matter to it"
    elif name != "inconclusive":
        does = "hides" if found.delta_ns > 0 else "adds"
        meaning = f": {there.a_name} lacks what {does} so much of it"
    return f"{costs}: {_delta(found.delta_ns)} there{interval}, {_NAMES[name]}{meaning}."


def cpu_words(found: Comparison | None) -> tuple[str, ...]:
    """The verdict on the main thread's CPU time alone: what the step does there, without what it waits for."""
    if found is None:
        return ()
    percent = format_value(found.delta_pct, Unit.DELTA_PERCENT)
    interval = f", 95 % interval {_interval(found)}" if found.ci95_ns else ""
    told = f"{_delta(found.each(found.delta_ns))} {_per(found)} ({percent}{interval}): {_NAMES[found.verdict.name]}"
    return (f"CPU time of the main thread, without waiting: {told}.",)


def cause_words(
    b_name: str, traced: Traced, causes: Sequence[Cause], *, believable: bool = True, alike: bool = True
) -> tuple[str, ...]:
    """A line each: what came or went by line of code, other syncs that did, and the largest causes left.

    Sides that are not `alike`, like two devices, differ in much that nobody wrote: only what is large is told. Where
    the traced delta is not `believable`, since the unprofiled steps say otherwise, the last are not told.
    """
    by_line = _changed_lines(causes, traced, alike=alike)
    told = {cause.key for _, members in by_line for cause in members}
    syncs = [
        c for c in causes if c.kind == "sync" and c.delta_num and c.key not in told and _is_worth_telling(c, traced)
    ]
    words = [*_line_words(b_name, traced, by_line), *_sync_words(b_name, traced, syncs)]
    if not believable:
        outside = f"The traced steps differ by {_delta(traced.delta_ns)}, outside that interval"
        return (*words, f"{outside}: believe them on what came and went, not on how long things took.")
    told |= {cause.key for cause in syncs}
    left = [cause for cause in causes if cause.key not in told and cause.delta_ns]
    worth = [cause for cause in left if _is_large(cause.delta_ns, traced)][:_MOST_CAUSES]
    if worth:
        label = "The rest" if words else f"Of the traced {_delta(traced.delta_ns)} {traced.per}"
        words.append(
            f"{label}: "
            + "; ".join(f"{_delta(cause.delta_ns)} {cause_text(cause, traced.per)}" for cause in worth)
            + "."
        )
    return tuple(words)


def cause_text(cause: Cause, per: str = "a step") -> str:
    """`dtoh aten::copy_ in forward (10 fewer a step)`."""
    where = f" at {cause.line}" if cause.line else ""
    more = []
    if cause.delta_num:
        word = "more" if cause.delta_num > 0 else "fewer"
        more.append(f"{format_value(abs(cause.delta_num), Unit.MEAN)} {word} {per}")
    if cause.delta_bytes:
        more.append(format_value(cause.delta_bytes, Unit.DELTA_BYTES))
    return f"{_told(cause.path)}{where} in {cause.phase}" + (f" ({', '.join(more)})" if more else "")


def _changed_lines(causes: Sequence[Cause], traced: Traced, *, alike: bool) -> list[tuple[str, list[Cause]]]:
    """(line, causes) of the functions whose ops changed in number, largest delta first: the first if the sides are
    `alike`, and others that have a sync or a large delta.
    """
    by_function: dict[str, list[Cause]] = {}
    for cause in causes:
        if cause.line and cause.delta_num and not cause.is_replacement:
            by_function.setdefault(line_function(cause.line), []).append(cause)
    groups = [sorted(members, key=lambda cause: cause.kind != "sync") for members in by_function.values()]
    groups.sort(key=lambda members: -abs(_sum(members)))
    told = [
        members
        for at, members in enumerate(groups)
        if (alike and at == 0) or members[0].kind == "sync" or _is_large(_sum(members), traced)
    ]
    return [(members[0].line, members) for members in told[:_MOST_LINES]]


def _line_words(b_name: str, traced: Traced, by_line: Sequence[tuple[str, Sequence[Cause]]]) -> list[str]:
    """`on adds at check.py:41 check in forward: 1 dtoh aten::item (sync): +2.00 ms a step, 40 % of the traced ...`."""
    words = []
    for line, members in by_line:
        gone, come = ([c for c in members if c.delta_num * sign > 0] for sign in (-1, 1))
        parts = [(verb, changed) for verb, changed in (("adds", come), ("removes", gone)) if changed]
        parts.sort(key=lambda part: -abs(sum(cause.delta_num for cause in part[1])))
        (verb, changed), *other = parts
        where = f"{line} in {' and '.join(dict.fromkeys(cause.phase for cause in members))}"
        what = f"{verb} at {where}: {_listed(changed)}"
        what += "".join(f"; {verb} {_listed(changed)}" for verb, changed in other)
        words.append(f"{b_name} {what}: {_amount(_sum(members), traced)}.")
    return words


def _listed(causes: Sequence[Cause]) -> str:
    """`10 dtoh aten::item (syncs), 1 aten::any and 3 more`."""
    each = [f"{_number(c)} {_told(c.name)}{_sync_mark(c)}" for c in causes[:_MOST_OPS]]
    rest = len(causes) - _MOST_OPS
    return ", ".join(each) + (f" and {rest} more" if rest > 0 else "")


def _sync_mark(cause: Cause) -> str:
    return "" if cause.kind != "sync" else " (sync)" if abs(cause.delta_num) == 1 else " (syncs)"


def _sync_words(b_name: str, traced: Traced, syncs: Sequence[Cause]) -> list[str]:
    """What became of the syncs of which no line is known."""
    gone, come = ([cause for cause in syncs if cause.delta_num * sign > 0] for sign in (-1, 1))
    told = [(verb, changed) for verb, changed in (("removes", gone), ("adds", come)) if changed]
    if len(told) == 2 and (_sum(gone) > 0 or _sum(come) < 0):  # fewer that cost more: only together they say something
        what = " and ".join(_counted(verb, changed, traced.per) for verb, changed in told)
        cost = _amount(_sum(syncs), traced, _chain(syncs, ", the idle time they cause included"))
        return [f"{b_name} {what}: {cost}."]
    words = []
    for verb, changed in told:
        idle = "the idle time it causes" if _total(changed) == "1" else "the idle time they cause"
        cost = _amount(_sum(changed), traced, _chain(changed, f", {idle} included"))
        words.append(f"{b_name} {_counted(verb, changed, traced.per)}: {cost}.")
    return words


def _chain(syncs: Sequence[Cause], otherwise: str) -> str:
    """` (copying +2.00 us, waiting +183 us, idle after it +5.00 us)`, as far as they differ."""
    chains = [cause.chain for cause in syncs if cause.chain]
    parts = (
        ("copying", sum(chain.copied_ns for chain in chains)),
        ("waiting", sum(chain.waited_ns for chain in chains)),
        ("idle after it", _sum(syncs) - sum(chain.copied_ns + chain.waited_ns for chain in chains)),
    )
    told = [f"{what} {_delta(ns)}" for what, ns in parts if ns]
    return f" ({', '.join(told)})" if chains and told else otherwise


def _counted(verb: str, changed: Sequence[Cause], per: str) -> str:
    """`removes 20 syncs a step (20 dtoh aten::item in forward)`."""
    each = ", ".join(f"{_number(c)} {c.name} in {c.phase}" for c in changed[:_MOST_OPS])
    rest = f" and {len(changed) - _MOST_OPS} more" if len(changed) > _MOST_OPS else ""
    number = _total(changed)
    return f"{verb} {number} {'sync' if number == '1' else 'syncs'} {per} ({each}{rest})"


def _total(changed: Sequence[Cause]) -> str:
    return format_value(abs(sum(cause.delta_num for cause in changed)), Unit.MEAN)


def _number(cause: Cause) -> str:
    return format_value(abs(cause.delta_num), Unit.MEAN)


def _is_large(delta_ns: int, traced: Traced) -> bool:
    return abs(delta_ns) >= _WORTH_A_NAME * abs(traced.delta_ns)


def _is_worth_telling(cause: Cause, traced: Traced) -> bool:
    """An allocation now and then is the allocator's affair; a sync that the program asks for is always told."""
    return not cause.name.startswith("alloc") or _is_large(cause.delta_ns, traced)


def _sum(causes: Sequence[Cause]) -> int:
    return sum(cause.delta_ns for cause in causes)


def _amount(delta_ns: int, traced: Traced, more: str = "") -> str:
    """`-2.24 ms a step, 45 % of the traced -5.02 ms`."""
    if delta_ns == 0:
        return f"no time {traced.per}"
    amount = f"{_delta(delta_ns)} {traced.per}{more}"
    if traced.delta_ns == 0:
        return amount
    percent = format_value(100 * delta_ns / traced.delta_ns, Unit.PERCENT)
    return f"{amount}, {percent} of the traced {_delta(traced.delta_ns)}"


def _told(name: str) -> str:
    short = short_name(name, _ONE_OF_TWO)
    return short if _REPLACED in short else _cut(short)


def short_name(name: str, longest: int) -> str:
    """A name without the namespaces that all names of its sort share; of two, one of which replaced the other, each is
    cut.
    """
    parts = _NAMESPACES.sub("", name).split(_REPLACED)
    return _REPLACED.join(_cut(part, longest) for part in parts) if len(parts) > 1 else parts[0]


def _cut(name: str, longest: int = _LONGEST_NAME) -> str:
    return name if len(name) <= longest else name[: longest - 1] + "…"


def _cost(delta_ns: float) -> str:
    amount = format_value(abs(delta_ns), Unit.NS)
    return f"costs {amount}" if delta_ns > 0 else f"saves {amount}" if delta_ns < 0 else "costs nothing"


def _delta(delta_ns: float) -> str:
    return format_value(delta_ns, Unit.DELTA_NS)


def _per(found: Comparison, per: str = "a step") -> str:
    return per if found.samples is None else "a sample"


def _interval(found: Comparison) -> str:
    return " to ".join(_delta(found.each(end)) for end in found.ci95_ns or ())
