"""The causes of a delta in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traceq.compare.cause_names import (
    JITTER_ERRORS,
    MOST,
    cause_name,
    change_name,
    counted_syncs,
    is_within_jitter,
    joined,
    lines_text,
    number,
    numbered,
    phase_text,
    reads_on_cpu,
    steps_text,
    sync_line,
    unchanged_name,
)
from traceq.compare.labels import LOADER, QUEUE, THREAD
from traceq.compare.result import Cause, Traced
from traceq.facts.timeline.call_sites import line_function
from traceq.units import Unit, format_range, format_value

__all__ = ["alone_text", "cause_text", "cause_words", "is_jitter", "jitter_text"]

_LARGE_SHARE, _RANGE_SHARE, _MUCH = 0.05, 0.01, 0.1
_REST_SHARE = 0.1
"""Part of the delta from which what the largest causes leave over is named beside them."""
_ON_DEVICE = ("kernel", "memcpy")
"""Kinds of causes that are work of a device alone."""
_MOST_LINES = 2
_MOST_OPS = 6
_MOST_REPLACED = 3
"""Replacements that are named where their time is no cause; more are other code, not other work."""
_MOST_CAUSES = 3
_MAJORITY = 2
_MOST_OF_DELTA = 1.5
"""Multiple of a delta up to which time is most of it; beyond, other changes cancel that time."""
_SEVERAL = 1.5
"""Events from which an op is not there by chance."""


def cause_words(
    a_name: str,
    b_name: str,
    traced: Traced,
    causes: Sequence[Cause],
    *,
    doubt: str = "",
    same_work: bool = True,
    same_code: bool = False,
) -> tuple[str, ...]:
    """Return the largest causes, largest first: lines whose ops were added or removed, other such syncs, the rest.

    Sides without `same_work`, like two devices, differ in much that no one changed: only large causes are listed. Those
    with the `same_code`, as ranks of a job, have no op that was added, removed or replaced; nor is one that a single
    one of several steps has, as every tenth may have it. With a `doubt`, durations of traced steps are no evidence:
    what is left is which ops were added or removed, and the doubt. What names no change is never listed as a cause, but
    named where it is most of the delta.
    """
    causes = [
        replace(cause, delta_num=0.0, delta_bytes=0) if same_code or _is_single(cause, traced) else cause
        for cause in causes
    ]
    by_line = _changed_lines(causes, traced, same_work=same_work)
    listed = {cause.key for _, members in by_line for cause in members}
    changed = [cause for cause in causes if cause.kind == "sync" and cause.delta_num and cause.key not in listed]
    syncs = [cause for cause in changed if _is_notable(cause, traced)]
    if doubt:
        changes = [
            *_line_words(b_name, traced, by_line, timed=False),
            *_sync_words(a_name, b_name, traced, syncs, timed=False),
            *_other_work_words(b_name, traced, _other_work(causes, traced, same_work=same_work), timed=False),
        ]
        return (*changes, doubt)
    lines, of_syncs = _line_words(b_name, traced, by_line), _sync_words(a_name, b_name, traced, syncs)
    sized = list(zip((abs(_sum(members)) for _, members in by_line), lines, strict=True))
    replayed_ns = max((replay.syncs_ns for replay in traced.replays or ()), default=0)
    sized += [(max(abs(_sum(syncs)), replayed_ns), text) for text in of_syncs]
    listed |= {cause.key for cause in syncs}
    others = [cause for cause in causes if cause.key not in listed and cause.delta_ns and cause.names_a_change]
    paced_ns = _sum([cause for cause in causes if cause.kind == "pace"])
    sizes = [min(abs(traced.delta_ns), abs(traced.delta_ns - paced_ns))]  # of the delta what its pace leaves
    sizes += [_size(cause) for cause in causes if cause.kind != "pace"]
    large = sorted((cause for cause in others if _size(cause) >= _LARGE_SHARE * max(sizes)), key=_size)
    large = large[: -_MOST_CAUSES - 1 : -1]
    if large:
        size = abs(large[0].delta_ns)
        first, more = ("Differences in", "differences") if traced.says_where_only else ("Causes of", "causes")
        is_first = all(size > other for other, _ in sized)
        label = f"{first} the traced {_delta(traced.delta_ns)} {traced.per}" if is_first else f"Other {more}"
        of_host = _host_prefix(traced) if any(cause.kind in _ON_DEVICE for cause in causes) else ""
        texts = [
            f"{_delta(cause.delta_ns)} {of_host * _is_host_op(cause, traced)}{cause_text(cause, traced.per)}"
            for cause in large
        ]
        if is_first:
            texts += _rest_words(traced, large, causes)
        sized.append((size, f"{label}: {'; '.join(texts)}."))
    sized.sort(key=lambda each: -each[0])
    other_work = [] if same_code else _other_work(causes, traced, same_work=same_work)
    small = [cause for cause in other_work if cause not in large]
    sized += [(0, text) for text in _other_work_words(b_name, traced, small)]
    where_only = [*_host_words(a_name, b_name, traced), *_unmatched_words(traced)]
    of_changes = " ".join(text for _, text in sized)
    unnamed = [cause for cause in causes if cause.kind == "jitter" or cause.name not in of_changes]
    cancels = any(cause.names_a_change and _size(cause) > _MOST_OF_DELTA * abs(traced.delta_ns) for cause in causes)
    rest = [] if cancels else _no_change_words(traced, unnamed)
    return (*(text for _, text in sized), *where_only, *rest)


def _host_prefix(traced: Traced) -> str:
    """Return what time of the host in an op is: in accounts the device has nothing to do meanwhile."""
    return "idle device during " if traced.says_where_only else "host time of "


def _is_host_op(cause: Cause, traced: Traced) -> bool:
    """Return whether a cause is the host in an op, or in accounts in Python, which is not told from device time."""
    is_named = cause.name in (LOADER.name, QUEUE.name, THREAD.name)
    is_python = cause.name.startswith("Python") and not traced.says_where_only
    return cause.kind == "host" and not is_named and not is_python


def cause_text(cause: Cause, per: str = "per step") -> str:
    """Return `dtoh aten::copy_ in forward (10 fewer per step)`."""
    more = []
    if cause.delta_num:
        more.append(f"{number(cause)} {'more' if cause.delta_num > 0 else 'fewer'} {per}")
    if cause.delta_bytes:
        more.append(format_value(cause.delta_bytes, Unit.DELTA_BYTES))
    if cause.delta_ns and cause.kind == "collective":
        more.append("with waits for other ranks")
    where = " ".join(filter(None, (cause_name(cause), phase_text(cause))))
    return where + (f" ({', '.join(more)})" if more else "")


def alone_text(names: tuple[str, str], causes: Sequence[Cause], traced: Traced) -> str:
    """Return `+335 ms is work that b does, and a less often or never`, if that is most of a large delta; else ""."""
    sign = 1 if traced.delta_ns > 0 else -1
    alone = [cause for cause in causes if cause.names_a_change and sign * cause.delta_num > 0 and not cause.moved]
    alone_ns = _sum(alone)
    if 2 * sign * alone_ns < abs(traced.delta_ns) or abs(traced.delta_ns) < _MUCH * traced.a_ns:
        return ""
    return f"{_delta(alone_ns)} is work that {names[sign > 0]} does, and {names[sign < 0]} less often or never"


def jitter_text(cause: Cause) -> str:
    """Return `+163 us ± 80.0 us`: run-to-run jitter, and what it is within if that spans 0."""
    return f"{_delta(cause.delta_ns)} ± {format_value(JITTER_ERRORS * cause.sd_ns, Unit.NS)}"


def _rest_words(traced: Traced, large: Sequence[Cause], causes: Sequence[Cause]) -> list[str]:
    """Return `all else -1.01 ms (-683 us state at the start of the trace)`, if much is left, with most of it.

    And with what is no change, but larger than a cause that is listed.
    """
    rest_ns = traced.delta_ns - _sum(large)
    least_ns = min(min(map(_size, large)), abs(rest_ns) / _MAJORITY)
    unnamed = [cause for cause in causes if not cause.names_a_change and _size(cause) > least_ns]
    is_hidden = any(_size(cause) > min(map(_size, large)) for cause in unnamed)
    if abs(rest_ns) <= _REST_SHARE * abs(traced.delta_ns) and not is_hidden:
        return []
    is_all = [cause.delta_ns for cause in unnamed] == [rest_ns]
    names = [f"{unchanged_name(cause)}{f', most in {cause.phase}' * bool(cause.phase)}" for cause in unnamed]
    times = [_delta(cause.delta_ns) for cause in unnamed]
    parts = ", ".join(name if is_all else f"{ns} {name}" for ns, name in zip(times, names, strict=True))
    return [f"all else {_delta(rest_ns)}" + (f" ({parts})" if parts else "")]


def _unmatched_words(traced: Traced) -> list[str]:
    """Return, of sides with little in common, what the causes are then."""
    if traced.matched_pct is None or not traced.says_where_only:
        return []
    reason = traced.unclear or f"only {traced.matched_pct:.0f} % of the host's calls are on both sides"
    return [f"{reason[0].upper()}{reason[1:]}: the table shows where the time went, not why."]


def _no_change_words(traced: Traced, causes: Sequence[Cause]) -> list[str]:
    """Return that most of the delta is run-to-run jitter, or time whose cause is not recorded.

    Not where other changes cancel such time, which is more than the delta then.
    """
    delta, sign = f"{_delta(traced.delta_ns)} {traced.per}", 1 if traced.delta_ns > 0 else -1
    for cause in causes:
        if cause.names_a_change or _MAJORITY * sign * cause.delta_ns <= abs(traced.delta_ns):
            continue
        if sign * cause.delta_ns > _MOST_OF_DELTA * abs(traced.delta_ns) and not _is_within(traced, cause):
            continue
        if cause.kind == "residual":
            return [f"Most of the traced {delta} is no known change: {_delta(cause.delta_ns)} {cause.name}."]
        if cause.kind == "minor":
            return [f"Most of the traced {delta} is in {cause.name}: {_delta(cause.delta_ns)} in all."]
        if _is_within(traced, cause):
            return [f"The traced delta, {delta}, is within run-to-run jitter, which adds {jitter_text(cause)}."]
        if is_within_jitter(cause.delta_ns, cause.sd_ns):
            return [f"Most of the traced {delta} is run-to-run jitter: {jitter_text(cause)}."]
        if MOST in cause.name:  # one kind, which is named
            return []
        several = "many changes, each of which is within run-to-run jitter, but not all together"
        return [f"Most of the traced {delta} is in {several}: {jitter_text(cause)}."]
    return []


def is_jitter(traced: Traced, causes: Sequence[Cause]) -> bool:
    """Return whether no cause names a change, and a traced delta is within what two runs of one code differ by."""
    named = any(cause.names_a_change for cause in causes)
    return not named and any(_is_within(traced, cause) for cause in causes if cause.kind == "jitter")


def _is_within(traced: Traced, jitter: Cause) -> bool:
    return all(is_within_jitter(ns, jitter.sd_ns) for ns in (traced.delta_ns, jitter.delta_ns))


def _is_single(cause: Cause, traced: Traced) -> bool:
    """Return whether one event in one of several steps is all that one side has more."""
    num_steps = min(traced.num_a, traced.num_b)
    return num_steps > 1 and 0 < abs(cause.delta_num) * num_steps < _SEVERAL


def _changed_lines(causes: Sequence[Cause], traced: Traced, *, same_work: bool) -> list[tuple[str, list[Cause]]]:
    """Return (line or lines, causes) of the functions whose ops changed in number, largest delta first.

    The first if the sides do the `same_work`, and others that have a sync or a large delta.
    """
    by_function: dict[str, list[Cause]] = {}
    for cause in causes:
        if cause.line and cause.delta_num and not cause.is_replacement:
            by_function.setdefault(line_function(cause.line), []).append(cause)
    groups = [sorted(members, key=lambda cause: cause.kind != "sync") for members in by_function.values()]
    groups.sort(key=lambda members: -abs(_sum(members)))
    listed = [
        members
        for index, members in enumerate(groups)
        if (same_work and index == 0) or members[0].kind == "sync" or _is_large(_sum(members), traced)
    ]
    return [(lines_text(members), members) for members in listed[:_MOST_LINES]]


def _line_words(
    b_name: str, traced: Traced, by_line: Sequence[tuple[str, Sequence[Cause]]], *, timed: bool = True
) -> list[str]:
    """Return `on adds at check.py:41 check in forward: 1 dtoh aten::item (sync): +2.00 ms per step, 40 % of ...`."""
    words = []
    for line, members in by_line:
        removed, added = _by_sign(members)
        parts = [(verb, changed) for verb, changed in (("adds", added), ("removes", removed)) if changed]
        parts.sort(key=lambda part: -abs(sum(cause.delta_num for cause in part[1])))
        (verb, changed), *other = parts
        where = f"{line} in {' and '.join(dict.fromkeys(cause.phase for cause in members))}"
        names_lines = len({cause.line for cause in members}) > 1
        what = f"{verb} at {where}: {_listed(changed, names_lines=names_lines)}"
        what += "".join(f"; {verb} {_listed(changed, names_lines=names_lines)}" for verb, changed in other)
        words.append(f"{b_name} {what}: {_amount(_sum(members), traced)}." if timed else f"{b_name} {what}.")
    return words


def _other_work(causes: Sequence[Cause], traced: Traced, *, same_work: bool) -> list[Cause]:
    """Return the work that took the place of other work, or moved; of sides that differ in much that is most, so none.

    A collective that moved is told of any sides: both issue it as often.
    """
    tells_replaced = same_work and not traced.says_where_only
    return [cause for cause in causes if cause.moved or (tells_replaced and cause.is_replacement)]


def _other_work_words(b_name: str, traced: Traced, causes: Sequence[Cause], *, timed: bool = True) -> list[str]:
    """Return `b does other work: aten::mm replaced by aten::bmm in forward (no time difference per step).`.

    And `b issues elsewhere: all_reduce moved from optimizer to backward.`. Without a device a collective's time is
    that of the op that waits for it: none is said of its own 0.
    """
    words = []
    moved = [cause for cause in causes if cause.moved]
    for lead, members in (
        ("issues elsewhere", moved),
        ("does other work", [cause for cause in causes if not cause.moved]),
    ):
        each = []
        for cause in members:
            has_time = timed and (cause.delta_ns or cause.kind != "collective")
            amount = f" ({_amount(cause.delta_ns, traced)})" if has_time else ""
            each.append(f"{cause_name(cause)} {phase_text(cause)}{amount}")
        if 0 < len(members) <= _MOST_REPLACED:
            words.append(f"{b_name} {lead}: {'; '.join(each)}.")
    return words


def _by_sign(causes: Sequence[Cause]) -> tuple[list[Cause], list[Cause]]:
    """Return (causes that B has fewer of, causes that B has more of)."""
    return [cause for cause in causes if cause.delta_num < 0], [cause for cause in causes if cause.delta_num > 0]


def _listed(causes: Sequence[Cause], *, names_lines: bool) -> str:
    """Return `10 dtoh aten::item (syncs), 1 aten::any and 3 more`; what has the same name is one."""
    named: dict[str, Cause] = {}
    for cause in causes:
        named[cause.name] = joined(cause, named[cause.name]) if cause.name in named else cause
    shown = [*named.values()][:_MOST_OPS]
    each = [numbered(c, change_name(c)) + sync_line(c) * names_lines + steps_text(c) for c in shown]
    rest = len(named) - _MOST_OPS
    return ", ".join(each) + (f" and {rest} more" if rest > 0 else "")


def _sync_words(a_name: str, b_name: str, traced: Traced, syncs: Sequence[Cause], *, timed: bool = True) -> list[str]:
    """Return the changes of the syncs without a source line."""
    removed, added = _by_sign(syncs)
    changes = [(verb, changed) for verb, changed in (("removes", removed), ("adds", added)) if changed]
    if not timed:
        what = " and ".join(counted_syncs(verb, changed, traced.per) for verb, changed in changes)
        return [f"{b_name} {what}."] if changes else []
    if len(changes) == 2 and (_sum(removed) > 0 or _sum(added) < 0):  # fewer that cost more: only the sum says much
        what = " and ".join(counted_syncs(verb, changed, traced.per) for verb, changed in changes)
        return [f"{b_name} {what}: {_amount(_sum(syncs), traced, _chain(syncs))}."]
    words = []
    for verb, changed in changes:
        replayed = _replayed(a_name if verb == "removes" else b_name, verb, changed, traced)
        cost = replayed or _amount(_sum(changed), traced, _chain(changed))
        words.append(f"{b_name} {counted_syncs(verb, changed, traced.per)}: {cost}.")
    return words


def _replayed(name: str, verb: str, changed: Sequence[Cause], traced: Traced) -> str:
    """Return what syncs cost by replay of the side that has them, if no causes can be told; "" where it has others.

    `name`: that side.
    """
    side = 0 if verb == "removes" else 1
    replay = traced.replays[side] if traced.replays else None
    if replay is None or replay.num_syncs != abs(sum(cause.delta_num for cause in changed)):
        return ""
    together = f"all differences together make the traced {_delta(traced.delta_ns)}"
    if not replay.syncs_most_ns:
        return f"without them {name} would take as long by replay; {together}"
    saved = _saved(replay.syncs_ns, replay.syncs_most_ns, traced)
    return f"without them {name} would be {saved} faster {traced.of_sides[side]} by replay; {together}"


def _host_words(a_name: str, b_name: str, traced: Traced) -> list[str]:
    """Return how far B waits for its host, by replay, if no causes can be told."""
    if traced.replays is None or (traced.replays[1].host_ns or 0) < _LARGE_SHARE * traced.b_ns:
        return []
    a, b = (_saved(replay.host_ns or 0, replay.host_most_ns or 0, traced) for replay in traced.replays)
    of_a, of_b = traced.of_sides
    a += f" {of_a}" * (of_a != of_b)
    return [f"With a host that takes no time, {b_name} would be {b} faster {of_b} by replay, {a_name} {a}."]


def _saved(least_ns: int, most_ns: int, traced: Traced) -> str:
    return format_range(least_ns, most_ns, Unit.NS, grain=_RANGE_SHARE * traced.a_ns)


def _chain(syncs: Sequence[Cause]) -> str:
    """Return ` (copy +2.00 us, waits +183 us, rest +5.00 us)`, without parts that do not differ; else what counts."""
    if all(map(reads_on_cpu, syncs)):
        return ""
    is_one = sum(abs(cause.delta_num) for cause in syncs) == 1
    otherwise = f" including the idle time {'it causes' if is_one else 'they cause'}"
    chains = [cause.chain for cause in syncs if cause.chain]
    parts = (
        ("copy", sum(chain.copied_ns for chain in chains)),
        ("waits", sum(chain.waited_ns for chain in chains)),
        ("rest", _sum(syncs) - sum(chain.copied_ns + chain.waited_ns for chain in chains)),
    )
    texts = [f"{what} {_delta(ns)}" for what, ns in parts if ns]
    return f" ({', '.join(texts)})" if chains and texts else otherwise


def _size(cause: Cause) -> int:
    return abs(cause.delta_ns)


def _is_large(delta_ns: int, traced: Traced) -> bool:
    return abs(delta_ns) >= _LARGE_SHARE * abs(traced.delta_ns)


def _is_notable(cause: Cause, traced: Traced) -> bool:
    """Return whether a sync is listed: occasional allocations are noise, syncs that the program issues never are."""
    return not cause.work.startswith("alloc") or _is_large(cause.delta_ns, traced)


def _sum(causes: Sequence[Cause]) -> int:
    return sum(cause.delta_ns for cause in causes)


def _amount(delta_ns: int, traced: Traced, more: str = "") -> str:
    """Return `-2.24 ms per step, 45 % of the traced -5.02 ms`."""
    if delta_ns == 0:
        return f"no time difference {traced.per}"
    amount = f"{_delta(delta_ns)} {traced.per}{more}"
    if traced.delta_ns == 0:
        return amount
    percent = format_value(100 * delta_ns / traced.delta_ns, Unit.PERCENT)
    return f"{amount}, {percent} of the traced {_delta(traced.delta_ns)}"


def _delta(delta_ns: float) -> str:
    return format_value(delta_ns, Unit.DELTA_NS)
