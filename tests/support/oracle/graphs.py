"""Device work that replays of CUDA graphs launched, and the part of it whose capture the trace does not show."""

from __future__ import annotations

import re
from itertools import pairwise

from .reader import Event, Trace

CALLS = re.compile(r"Launch(Cooperative)?Kernel|Mem(cpy|set).*Async")


def replayed_ns(trace: Trace) -> tuple[int, int]:
    """(summed ns of replays, ns of those that cannot be given to a capture)."""
    nodes: dict[int, list[Event]] = {}
    calls: dict[int, Event] = {}
    for event in sorted(trace.device_ops, key=lambda event: (event.start, event.row)):
        call = trace.launches.get(event.row)
        if call is not None and "GraphLaunch" in call.name:
            nodes.setdefault(call.row, []).append(event)
            calls[call.row] = call
    replays = sorted(nodes, key=lambda row: (calls[row].start, row))
    single = [row for row in replays if len({event.stream for event in nodes[row]}) == 1]
    linked = captured_replays(trace, [(calls[row].start, [node.name for node in nodes[row]]) for row in single])
    ns = {row: sum(event.end - event.start for event in nodes[row]) for row in replays}
    shown = sum(ns[row] for row, is_linked in zip(single, linked, strict=True) if is_linked)
    return sum(ns.values()), sum(ns.values()) - shown


def captured_replays(trace: Trace, replays: list[tuple[int, list[str]]]) -> list[bool]:
    """Whether it is certain which capture each replay, of (launch, names), runs."""
    captures = find_captures(trace)
    sizes = [size for _, size in captures]
    if not captures:
        return [False] * len(replays)
    turns = [captures[index % len(captures)] for index in range(len(replays))]
    in_turn = all(
        size == len(names) and end <= start for (end, size), (start, names) in zip(turns, replays, strict=True)
    )
    first: dict[int, list[str]] = {}
    same = all(first.setdefault(index % len(captures), names) == names for index, (_, names) in enumerate(replays))
    repeats = any(sizes == sizes[:part] * (len(sizes) // part) for part in range(1, len(sizes)))
    if in_turn and same and not repeats and len(replays) >= len(captures):
        return [True] * len(replays)
    result = []
    for _, names in replays:
        alike = [(start, other) for start, other in replays if len(other) == len(names)]
        only = [end for end, size in captures if size == len(names)]
        result.append(len(only) == 1 and all(start >= only[0] and other == names for start, other in alike))
    return result


def find_captures(trace: Trace) -> list[tuple[int, int]]:
    """(end, captured calls) of each capture that has some, in order; none where captures overlap."""
    with_work = {call.row for call in trace.launches.values()}
    runtime = sorted((event for event in trace.events if event.cat == "runtime"), key=lambda event: event.start)
    spans = []
    for begin in (event for event in runtime if "StreamBeginCapture" in event.name):
        ends = [
            event.start
            for event in runtime
            if "StreamEndCapture" in event.name and event.thread == begin.thread and event.start >= begin.start
        ]
        if ends:
            spans.append((begin.start, min(ends)))
    if any(later < end for (_, end), (later, _) in pairwise(spans)):
        return []
    calls = [event for event in runtime if event.row not in with_work and CALLS.search(event.name)]
    sizes = [(end, sum(begin <= event.start < end for event in calls)) for begin, end in spans]
    return [(end, size) for end, size in sizes if size]
