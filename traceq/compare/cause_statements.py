"""What makes a delta, largest first: changes of lines and syncs, other causes, and what is no change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from traceq.causes.host_line import ONCE
from traceq.claims.claim import Measure
from traceq.claims.limits import MOST
from traceq.compare.cause_names import (
    JITTER_ERRORS,
    MOST_OF_IT,
    cause_name,
    change_name,
    is_backward_node,
    is_within_jitter,
    joined,
    lines_text,
    listed_syncs,
    named_python_ns,
    numbered,
    phase_text,
    reads_on_cpu,
    steps_text,
    sync_line,
    unchanged_name,
)
from traceq.compare.labels import LOADER, QUEUE, THREAD
from traceq.compare.limits import CANCELLED, CHANCE, NAMED, REST
from traceq.compare.result import Cause, Traced
from traceq.compare.statement import Statement, state
from traceq.facts.timeline.call_sites import line_function
from traceq.units import Unit, format_value

_ON_DEVICE = ("kernel", "memcpy")
"""Kinds of causes that are work of a device alone."""
_MOST_LINES = 3
_MOST_OPS = 6
_MOST_REPLACED = 3
"""Replacements that are named where their time is no cause; more are other code, not other work."""
_MOST_CAUSES = 3

_Sized = tuple[int, Statement]
"""A statement and the time that it is about, ns."""


def cause_statements(
    traced: Traced,
    causes: Sequence[Cause],
    *,
    doubt: Statement | None = None,
    same_work: bool = True,
    same_code: bool = False,
) -> tuple[Statement, ...]:
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
    by_line = _changed_lines(causes, traced, same_work=same_work, timed=not doubt)
    listed = {cause.key for members in by_line for cause in members}
    changed = [cause for cause in causes if cause.kind == "sync" and cause.delta_num and cause.key not in listed]
    syncs = [cause for cause in changed if _is_notable(cause, traced)]
    other_work = [] if same_code and not doubt else _other_work(causes, traced, same_work=same_work)
    of_device = any(cause.kind in _ON_DEVICE for cause in causes)
    if doubt:
        return (
            *(_line_changes(traced, members, timed=False) for members in by_line),
            *(each for _, each in _sync_changes(traced, syncs, timed=False)),
            *_other_work_of(traced, other_work, of_device=of_device, timed=False),
            doubt,
        )
    sized = [(abs(_sum(members)), _line_changes(traced, members)) for members in by_line]
    sized += _sync_changes(traced, syncs)
    listed |= {cause.key for cause in syncs}
    large = _large([cause for cause in causes if cause.key not in listed], causes, traced)
    left_over = None
    if large:
        size = _size(large[0])
        is_first = all(size > other for other, _ in sized)
        sized += [(size, _cause(cause, traced, of_device=of_device)) for cause in large]
        left_over = _left_over(traced, large, causes) if is_first else None
        if left_over is not None:
            sized.append((size, _all_else(traced, large, left_over)))
    sized.sort(key=lambda each: -each[0])
    cancels = any(cause.names_a_change and _size(cause) > CANCELLED * abs(traced.delta_ns) for cause in causes)
    return (
        *(each for _, each in sized),
        *(() if cancels else _no_change(traced, causes, left_over or ())),
        *_other_work_of(traced, [cause for cause in other_work if cause not in large], of_device=of_device),
    )


def work_alone(causes: Sequence[Cause], traced: Traced) -> dict[str, Measure]:
    """Return the work that one side does, and the other less often or never, if that is most of a large delta.

    What is in one of several steps may be in a step of the other side that does not count.
    """
    sign = 1 if traced.delta_ns > 0 else -1
    alone = [cause for cause in causes if cause.names_a_change and sign * cause.delta_num > 0]
    alone = [cause for cause in alone if not (cause.moved or cause.in_steps.startswith("1 of "))]
    alone_ns = _sum(alone)
    if sign * alone_ns < MOST * abs(traced.delta_ns) or abs(traced.delta_ns) < REST * traced.a_ns:
        return {}
    return {"alone_delta_ns": alone_ns, "doing_side": "ab"[sign > 0], "lacking_side": "ab"[sign < 0]}


def what_of(cause: Cause) -> str:
    """Return `dtoh aten::copy_ at train.py:7 step in forward`."""
    return " ".join(filter(None, (cause_name(cause), phase_text(cause))))


def jitter_text(cause: Cause) -> str:
    """Return `+163 us ± 80.0 us`: run-to-run jitter, and what it is within if that spans 0."""
    delta = format_value(cause.delta_ns, Unit.DELTA_NS)
    return f"{delta} ± {format_value(JITTER_ERRORS * cause.sd_ns, Unit.NS)}"


def _large(causes: Sequence[Cause], all_causes: Sequence[Cause], traced: Traced) -> list[Cause]:
    """Return the largest of the causes that name a change, largest first."""
    others = [cause for cause in causes if cause.delta_ns and cause.names_a_change]
    paced_ns = _sum([cause for cause in all_causes if cause.kind == "pace"])
    sizes = [min(abs(traced.delta_ns), abs(traced.delta_ns - paced_ns))]  # of the delta what its pace leaves
    sizes += [_size(cause) for cause in all_causes if cause.kind != "pace"]
    large = sorted((cause for cause in others if _size(cause) >= NAMED * max(sizes)), key=_size)
    return large[: -_MOST_CAUSES - 1 : -1]


def _cause(cause: Cause, traced: Traced, *, of_device: bool) -> Statement:
    """Return a cause by its kind; time of the host in an op is told from work of a device, where that is a cause.

    In accounts that is time in which the device has nothing to do, also of Python, which is not told from device time.
    How many more there are is not told of a replacement: others of its kernels may be rows of their own.
    """
    is_named = cause.name in (LOADER.name, QUEUE.name, THREAD.name, ONCE)
    is_python = cause.name.startswith("Python")
    code = "cause_of_collective" if cause.kind == "collective" else "cause"
    if of_device and cause.kind == "host" and not is_named and not is_python:
        code = "cause_of_host"
    num = 0.0 if cause.is_replacement else cause.delta_num
    calls = "calls_" if cause.self_op else ""  # what is counted is the op around it
    is_part = cause.delta_ns * traced.delta_ns > 0 and abs(cause.delta_ns) <= abs(traced.delta_ns)
    return state(
        code,
        kind=cause.kind,
        cause=cause.key,
        what=what_of(cause),
        delta_ns=cause.delta_ns,
        of_delta_ns=traced.delta_ns if is_part else None,
        calls=cause.work if cause.self_op else None,
        **{f"{'more' if num > 0 else 'fewer'}_{calls}mean": abs(num) or None},
        moved_delta_bytes=cause.delta_bytes or None,
        python_delta_ns=named_python_ns(cause) or None,
    )


def _left_over(traced: Traced, large: Sequence[Cause], causes: Sequence[Cause]) -> list[Cause] | None:
    """Return what of the rest names no change, if much is left, or what is no change but larger than a listed cause."""
    rest_ns = traced.delta_ns - _sum(large)
    least_ns = min(min(map(_size, large)), MOST * abs(rest_ns))
    unnamed = [cause for cause in causes if not cause.names_a_change and _size(cause) > least_ns]
    is_hidden = any(_size(cause) > min(map(_size, large)) for cause in unnamed)
    is_little = abs(rest_ns) <= REST * abs(traced.delta_ns) and not is_hidden
    return None if is_little else unnamed


def _all_else(traced: Traced, large: Sequence[Cause], left_over: Sequence[Cause]) -> Statement:
    parts = [f"{format_value(each.delta_ns, Unit.DELTA_NS)} {unchanged_name(each)}" for each in left_over]
    return state("all_else", delta_ns=traced.delta_ns - _sum(large), parts=", ".join(parts))


def _no_change(traced: Traced, causes: Sequence[Cause], named: Sequence[Cause]) -> Iterator[Statement]:
    """Yield that most of the delta is run-to-run jitter, or time whose cause is not recorded.

    Not where other changes cancel such time, which is more than the delta then; nor what is `named` already.
    """
    sign = 1 if traced.delta_ns > 0 else -1
    for cause in causes:
        is_one_kind = MOST_OF_IT in cause.name and not _is_within(traced, cause)
        if cause in named and (cause.kind != "jitter" or is_one_kind):
            continue
        if cause.names_a_change or sign * cause.delta_ns <= MOST * abs(traced.delta_ns):
            continue
        if sign * cause.delta_ns > CANCELLED * abs(traced.delta_ns) and not _is_within(traced, cause):
            continue
        if cause.kind == "residual":
            code = "no_known_change"
        elif cause.kind == "minor" or is_one_kind:
            code = "minor_changes"
        elif _is_within(traced, cause):
            code = "delta_within_jitter"
        elif is_within_jitter(cause.delta_ns, cause.sd_ns):
            code = "mostly_jitter"
        else:
            code = "many_small_changes"
        yield state(
            code,
            what=cause.name,
            delta_ns=cause.delta_ns,
            error_ns=JITTER_ERRORS * cause.sd_ns,
        )
        return


def is_jitter(traced: Traced, causes: Sequence[Cause]) -> bool:
    """Return whether no cause names a change, and a traced delta is within what two runs of one code differ by."""
    named = any(cause.names_a_change for cause in causes)
    return not named and any(_is_within(traced, cause) for cause in causes if cause.kind == "jitter")


def _is_within(traced: Traced, jitter: Cause) -> bool:
    return all(is_within_jitter(ns, jitter.sd_ns) for ns in (traced.delta_ns, jitter.delta_ns))


def _is_single(cause: Cause, traced: Traced) -> bool:
    """Return whether one event in one of several steps is all that one side has more."""
    num_steps = min(traced.num_a, traced.num_b)
    return num_steps > 1 and 0 < abs(cause.delta_num) * num_steps < CHANCE


def _changed_lines(causes: Sequence[Cause], traced: Traced, *, same_work: bool, timed: bool) -> list[list[Cause]]:
    """Return the causes of the functions whose ops changed in number, largest delta first.

    The first if the sides do the `same_work`, and others that have a sync or a large delta, or any if not `timed`.
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
        if (same_work and index == 0) or members[0].kind == "sync" or not timed or _is_large(_sum(members), traced)
    ]
    return listed[:_MOST_LINES]


def _line_changes(traced: Traced, members: Sequence[Cause], *, timed: bool = True) -> Statement:
    """Return what B adds and removes at the lines of a function; the backward of what it calls follows from that."""
    called = [cause for cause in members if not is_backward_node(cause)] or members
    removed, added = _by_sign(called)
    names_lines = len({cause.line for cause in called}) > 1
    return state(
        "line_changes",
        line=lines_text(called),
        phases=" and ".join(dict.fromkeys(cause.phase for cause in [*called, *members])),
        added=_listed(added, names_lines=names_lines),
        removed=_listed(removed, names_lines=names_lines),
        **_number_of("", added, removed),
        **(_amount(_sum(members), traced) if timed else {}),
    )


def _other_work(causes: Sequence[Cause], traced: Traced, *, same_work: bool) -> list[Cause]:
    """Return the work that took the place of other work, or moved; of sides that differ in much that is most, so none.

    A collective that moved is told of any sides: both issue it as often.
    """
    return [cause for cause in causes if cause.moved or (same_work and _is_other_work(cause, traced))]


def _is_other_work(cause: Cause, traced: Traced) -> bool:
    """Return whether a replacement is told: what the host does else only if it costs, as beside other kernels it is."""
    return cause.is_replacement and (cause.kind != "host" or _is_large(cause.delta_ns, traced))


def _other_work_of(
    traced: Traced, causes: Sequence[Cause], *, of_device: bool, timed: bool = True
) -> Iterator[Statement]:
    """Yield what B issues elsewhere, and what it does instead of other work, where that is little.

    Without a device a collective's time is that of the op that waits for it: none is said of its own 0.
    """
    moved = [cause for cause in causes if cause.moved]
    replaced = [cause for cause in causes if not cause.moved]
    for code, members in (("moved", moved), ("replaced", replaced)):
        for cause in members if len(members) <= _MOST_REPLACED else ():
            has_time = timed and (cause.delta_ns or cause.kind != "collective")
            amount = _amount(cause.delta_ns, traced) if has_time else {}
            on_host = " on the host" if cause.kind == "host" and of_device else ""
            yield state(code, kind=cause.kind, cause=cause.key, what=what_of(cause) + on_host, **amount)


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


def _sync_changes(traced: Traced, syncs: Sequence[Cause], *, timed: bool = True) -> list[_Sized]:
    """Return the changes of the syncs without a source line; in one where fewer cost more: the sum tells."""
    removed, added = _by_sign(syncs)
    is_one = bool(removed and added) and (not timed or _sum(removed) > 0 or _sum(added) < 0)
    changes = []
    for fewer, more in [(removed, added)] if is_one else [(removed, []), ([], added)]:
        if changed := [*fewer, *more]:
            measures: dict[str, Measure | None] = {}
            if timed:
                measures = {**_amount(_sum(changed), traced), **_chain(changed)}
            statement = state(
                "value_reads" if all(map(reads_on_cpu, changed)) else "syncs",
                removed=listed_syncs(fewer),
                added=listed_syncs(more),
                **_number_of("syncs", more, fewer),
                **measures,
            )
            changes.append((abs(_sum(syncs)), statement))
    return changes


def _number_of(noun: str, added: Sequence[Cause], removed: Sequence[Cause]) -> dict[str, Measure | None]:
    """Return how many more and how many fewer there are per step."""
    nums = (sum(abs(cause.delta_num) for cause in causes) or None for causes in (added, removed))
    names = ("_".join(filter(None, (verb, noun, "mean"))) for verb in ("added", "removed"))
    return dict(zip(names, nums, strict=True))


def _chain(syncs: Sequence[Cause]) -> dict[str, Measure | None]:
    """Return the parts of the delta of syncs on a device: copies, waits for them, the rest."""
    chains = [cause.chain for cause in syncs if cause.chain]
    if not chains or all(map(reads_on_cpu, syncs)):
        return {}
    copied_ns, waited_ns = (sum(chain.copied_ns for chain in chains), sum(chain.waited_ns for chain in chains))
    rest_ns = _sum(syncs) - copied_ns - waited_ns
    return {"copied_delta_ns": copied_ns, "waited_delta_ns": waited_ns, "rest_delta_ns": rest_ns}


def _size(cause: Cause) -> int:
    return abs(cause.delta_ns)


def _is_large(delta_ns: int, traced: Traced) -> bool:
    return abs(delta_ns) >= NAMED * abs(traced.delta_ns)


def _is_notable(cause: Cause, traced: Traced) -> bool:
    """Return whether a sync is listed: occasional allocations are noise, syncs that the program issues never are."""
    return not cause.work.startswith("alloc") or _is_large(cause.delta_ns, traced)


def _sum(causes: Sequence[Cause]) -> int:
    return sum(cause.delta_ns for cause in causes)


def _amount(delta_ns: int, traced: Traced) -> dict[str, Measure | None]:
    """Return a part of the traced delta, and which part it is."""
    share_pct = 100 * delta_ns / traced.delta_ns if traced.delta_ns else None
    return {"delta_ns": delta_ns, "share_pct": share_pct}
