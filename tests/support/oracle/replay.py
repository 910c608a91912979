"""Replay: how much shorter a step is without some waits, by a graph that is built and played event by event.

Of traces in which one thread launches at a time, in one session of the profiler.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from .holds import Hold, holds, loading_calls, queue_length
from .phases import Phases
from .reader import NOT_THE_PROGRAM, Trace, read
from .spans import Span, clip, inside, measure, union
from .steps import windows
from .streams import NEVER, Device, stream_waits
from .unrecorded import gaps, opening

__all__ = ["Replay"]

USUAL = {"stream": 1_500, "await": 3_000, "sync": 8_000}
MOST_NS, LAUNCH_NS = 20_000, 5_000
IN_VAIN_NS = 50_000
FAR = 10**30
ORDER = ("first", "hold end", "step end", "launch", "hold begin", "step begin", "last")
"""What comes first of what the host does at one time: waits end before work is launched, steps end before they begin.

This is a reading: the definitions leave it open.
"""


@dataclass(frozen=True)
class Point:
    """Instant of the host: of a call that launches (by row), of a hold or a step (by index)."""

    time: int
    kind: str
    of: int


@dataclass
class Edge:
    """From the node `source`; `took` ns as observed, `weight` ns in the replay."""

    source: int
    kind: str
    took: int
    weight: int = 0


class Replay:
    """The graph of a file: node 0, then the points of the host, each with the start and the end of what it launches.

    What the host does on the spans `once` takes no time in any saving; the oracle does not tell what they are.
    """

    def __init__(self, path: Path, once: Collection[Span] = ()) -> None:
        self.trace = trace = read(path)
        self.device = Device(trace)
        assert is_one_sequence(trace, self.device), "threads launch side by side, or sessions are joined"
        self.phases, hidden = Phases(trace), gaps(trace)
        self.hidden, self.opens = hidden, opening(trace, hidden)
        self.steps = windows(trace, self.phases, self.opens)
        self.is_marked = trace.host_steps[0][0] != "whole trace"
        self.queue = queue_length(self.device)
        self.holds = holds(trace, self.device, self.queue)
        self.points = find_points(self)
        self._number_nodes()
        self.into: list[list[Edge]] = [[] for _ in self.time]
        self._add_host_edges()
        self._add_work_edges()
        self._add_waits()
        self._weigh()
        self.ends_of_steps = self._ends_of_steps()
        self.observed = self.play({})
        self.without_once = self._without_once(list(once))
        self.recurring = self.play(self.without_once)

    def _number_nodes(self) -> None:
        """Nodes in an order in which every edge runs forwards, with their times since the first point."""
        point_of = {point.of: index for index, point in enumerate(self.points) if point.kind == "launch"}
        ops, self.place = self.device.ops, [-1] * len(self.device.ops)
        for indices in self.device.streams.values():
            place = -1
            for index in indices:
                call = self.device.calls[index]
                place = point_of[call.row] if call else place
                self.place[index] = place
        units: dict[int, list[int]] = defaultdict(list)
        for index, place in sorted(enumerate(self.place), key=lambda pair: (pair[1], pair[0])):
            units[max(place, 0)].append(index)
        first = self.points[0].time
        self.time, self.units = [0], list[int]()
        self.node_of_point, self.start_node = list[int](), [0] * len(ops)
        for number, point in enumerate(self.points):
            self.node_of_point.append(len(self.time))
            self.time.append(point.time - first)
            for index in units[number]:
                self.start_node[index] = len(self.time)
                self.time += [ops[index].start - first, ops[index].end - first]
                self.units.append(index)

    def _add(self, source: int, target: int, kind: str) -> None:
        assert source < target
        self.into[target].append(Edge(source, kind, self.time[target] - self.time[source]))

    def _add_host_edges(self) -> None:
        for number, node in enumerate(self.node_of_point):
            before = self.node_of_point[number - 1] if number else 0
            self._add(before, node, "hold" if self.points[number].kind == "hold end" else "host")

    def _add_work_edges(self) -> None:
        """Of launches, of the order on streams, and of durations; what nothing precedes begins as it did."""
        latest: dict[Any, int] = {}
        for index in self.units:
            op, start = self.device.ops[index], self.start_node[index]
            if self.device.calls[index] is not None:
                self._add(self.node_of_point[self.place[index]], start, "launch")
            if op.stream in latest:
                self._add(latest[op.stream], start, "stream")
            elif self.device.calls[index] is None:
                self._add(0, start, "origin")
            self._add(start, start + 1, "duration")
            latest[op.stream] = start + 1

    def _add_waits(self) -> None:
        """Between streams, of the host for work, and for places in the launch queue."""
        pairs = stream_waits(self.trace, self.device)
        nodes = [(self.start_node[on] + 1, self.start_node[waiting]) for waiting, on in pairs]
        for source, target in sorted(nodes):
            if source < target:
                self._add(source, target, "await")
        ends = {point.of: node for node, point in self._nodes_of("hold end")}
        for number, hold in enumerate(self.holds):
            sources = sorted(self.start_node[index] + 1 for index in set(hold.work))
            for source in sources:
                if source < ends[number]:
                    self._add(source, ends[number], "sync")
        early = [index for index in self.units if self.place[index] < 0]
        ordered = sorted(early, key=lambda index: self.device.ops[index].end)  # of equal ends in their order
        ordered += [index for index in self.units if self.place[index] >= 0]
        places = [self.place[index] for index in ordered]
        for number, point in enumerate(self.points):
            if point.kind == "hold end" and self.holds[point.of].queues:
                left = bisect_left(places, number) - self.queue - 2
                if left >= 0:
                    self._add(self.start_node[ordered[left]] + 1, self.node_of_point[number], "queue")

    def _nodes_of(self, kind: str) -> list[tuple[int, Point]]:
        pairs = zip(self.node_of_point, self.points, strict=True)
        return [(node, point) for node, point in pairs if point.kind == kind]

    def _weigh(self) -> None:
        """The edge into each node that took least longer than usual binds, as long as observed; others do as usual."""
        usual = self._usual()
        for edges in self.into:
            slacks = []
            for edge in edges:
                edge.weight = min(edge.took, usual.get(edge.kind, 0))
                slack = max(edge.took - usual.get(edge.kind, 0), 0)
                if edge.took < 0 and edge.kind in ("sync", "stream"):
                    slack = -edge.took
                if edge.took < -IN_VAIN_NS and edge.kind in ("sync", "queue"):
                    slack, edge.weight = FAR, edge.took
                slacks.append(slack)
            if edges:
                binding = edges[slacks.index(min(slacks))]
                binding.weight = binding.took

    def _usual(self) -> dict[str, int]:
        """Medians over what waited for nothing else by then, at most 20 us."""
        latency = self._idle_latency()
        usual, alone = {**USUAL, "launch": latency}, defaultdict[str, list[int]](list)
        for edges in self.into:
            begins = [self.time[edge.source] for edge in edges]
            for edge, begin in zip(edges, begins, strict=True):
                earlier = [other for other in begins if other != begin]
                is_latest = len(edges) > 1 and begin == max(begins)
                if is_latest and max(earlier, default=NEVER) <= begin - latency and edge.took >= 0:
                    alone[edge.kind].append(edge.took)
        for kind in ("stream", "await", "sync"):
            if alone[kind]:
                usual[kind] = min(int(median(alone[kind])), MOST_NS)
            elif kind == "await":
                usual[kind] = min(usual[kind], usual["stream"])
        return {**usual, "queue": usual["sync"], "hold": usual["sync"]}

    def _idle_latency(self) -> int:
        """Of launches that found the whole device idle."""
        reach, took = NEVER, []
        for op, call in zip(self.device.ops, self.device.calls, strict=True):
            if call is not None and reach <= call.start:
                took.append(op.start - call.start)
            reach = max(reach, op.end)
        return min(max(int(median(took)), 0), MOST_NS) if len(took) >= 5 else LAUNCH_NS

    def _ends_of_steps(self) -> list[tuple[list[int], list[int]]]:
        """(nodes of which the latest is a step's begin, its end)."""
        begins = dict(self._by_step("step begin")) if self.is_marked else {0: self.node_of_point[0]}
        ends = dict(self._by_step("step end")) if self.is_marked else {0: self.node_of_point[-1]}
        by_host = self.steps[0]["window"] == "host"
        result, before = [], list[int]()
        for number in range(len(self.steps)):
            place = bisect_left(self.node_of_point, ends[number])
            on_device = self._last_ends(place if self.is_marked else place + 1)
            begin = [*before, *([begins[number]] if by_host or number == 0 else [])]
            if number == 0 and self.opens is not None:
                starts = [op.start for op in self.device.ops]
                begin.append(self.start_node[bisect_left(starts, self.opens)])
            result.append((begin, [*on_device, *([ends[number]] if by_host else [])]))
            before = on_device
        return result

    def _by_step(self, kind: str) -> list[tuple[int, int]]:
        return [(point.of, node) for node, point in self._nodes_of(kind)]

    def _last_ends(self, place: int) -> list[int]:
        """The node of the latest end of each stream's work that is launched before a point."""
        latest: dict[Any, tuple[int, int]] = {}
        for index in self.units:
            if self.place[index] < place:
                op, node = self.device.ops[index], self.start_node[index] + 1
                latest[op.stream] = max(latest.get(op.stream, (NEVER, 0)), (op.end, node))
        return [node for _, node in latest.values()]

    def _without_once(self, once: list[Span]) -> dict[int, int]:
        """The host's edges that are once in part, with what of them is not."""
        first = self.points[0].time
        instead = {}
        for node in self.node_of_point if once else ():
            for edge in self.into[node]:
                ns = measure(clip(once, first + self.time[edge.source], first + self.time[node]))
                if edge.kind == "host" and ns:
                    instead[id(edge)] = edge.weight - ns
        return instead

    def play(self, instead: dict[int, int]) -> list[int]:
        """Ns of each step if some edges, by identity, take no longer than given."""
        times = self._times(instead)
        return [max(times[n] for n in ends) - max(times[n] for n in begins) for begins, ends in self.ends_of_steps]

    def _times(self, instead: dict[int, int]) -> list[int]:
        times = [0] * len(self.into)
        for node, edges in enumerate(self.into):
            arrivals = [times[edge.source] + min(edge.weight, instead.get(id(edge), FAR)) for edge in edges]
            times[node] = max(arrivals, default=0)
        return times

    def _host(self, instead: dict[int, int]) -> list[int]:
        """Ns of the host in each step, from the end of the one before."""
        times = self._times(instead)
        if not self.is_marked:
            begins, ends = [0], [self.node_of_point[-1]]
        else:
            begins, ends = ([node for _, node in sorted(self._by_step(f"step {side}"))] for side in ("begin", "end"))
            begins = [begins[0], *ends[:-1]]
        begun = [times[node] for node in begins]
        if self.opens is not None:
            starts = [op.start for op in self.device.ops]
            begun[0] = max(begun[0], times[self.start_node[bisect_left(starts, self.opens)]])
        return [times[end] - begin for begin, end in zip(begun, ends, strict=True)]

    @property
    def counted(self) -> list[int]:
        """Indices of the counted steps."""
        return [row["index"] for row in self.steps if not row["partial"]] or [row["index"] for row in self.steps]

    def saved_by_faster_work(self, ns_of: dict[int, int]) -> float:
        """By how much the mean counted step is shorter, for good, if some device work, by row, takes so many ns."""
        index = self.device.index
        instead = {
            id(edge): ns
            for row, ns in ns_of.items()
            for edge in self.into[self.start_node[index[row]] + 1]
            if edge.kind == "duration"
        }
        (lasts, then), (host, host_then) = (
            [sum(of[number] for number in self.counted) for of in sides]
            for sides in (
                (self.recurring, self.play(self.without_once | instead)),
                (self._host(self.without_once), self._host(self.without_once | instead)),
            )
        )
        return min(lasts - then, max(lasts, host) - max(then, host_then)) / len(self.counted)

    def saved_ns(self, is_removed: Callable[[Hold], bool]) -> float:
        """By how much the mean counted step is shorter without some holds that begin in counted steps."""
        host = [self.trace.host_steps[index][1:] for index in self.counted]
        removed = {
            number
            for number, hold in enumerate(self.holds)
            if hold.is_removable and is_removed(hold) and any(a <= hold.start < b for a, b in host)
        }
        played = self.play(self.without_once | self._without(removed))
        return sum(self.recurring[index] - played[index] for index in self.counted) / len(self.counted)

    def _without(self, removed: set[int]) -> dict[int, int]:
        """The edges of removed holds: nothing is waited for, and of the host's time a copy's call is left."""
        begins = {point.of: place for place, point in enumerate(self.points) if point.kind == "hold begin"}
        ends = {point.of: place for place, point in enumerate(self.points) if point.kind == "hold end"}
        hold_of: dict[int, int] = {}
        for is_loader in (True, False):  # a sync within a wait for the loader is its own
            for number, hold in enumerate(self.holds):
                if hold.is_loader == is_loader and hold.is_removable:
                    hold_of |= dict.fromkeys(range(begins[number] + 1, ends[number] + 1), number)
        instead = {}
        for place, number in hold_of.items():
            point = self.points[place]
            if number not in removed or (point.kind == "hold end" and point.of != number):
                continue
            for edge in self.into[self.node_of_point[place]]:
                stays = self.holds[number].costs if edge.kind == "hold" else 0
                instead[id(edge)] = NEVER if edge.kind in ("sync", "queue") else stays
        return instead


def is_one_sequence(trace: Trace, device: Device) -> bool:
    """Whether other threads hardly launch while the main one is in an op, and no step numbers are left out."""
    in_op = union([(e.start, e.end) for e in trace.events if e.cat == "cpu_op" and e.thread == trace.main])
    calls = {call.row: call for call in device.calls if call is not None}.values()
    beside = [call for call in calls if call.thread != trace.main and inside(in_op, call.start)]
    numbers = [int(name.partition("#")[2]) for name, _, _ in trace.host_steps if name.startswith("ProfilerStep#")]
    is_one_session = all(after - before <= 1 for before, after in pairwise(numbers))
    return is_one_session and 20 * len(beside) <= len(calls)


def find_points(replay: Replay) -> list[Point]:
    """All points in order, none before the first activity of the trace."""
    trace, loading = replay.trace, loading_calls(replay.device)
    active = [event for event in trace.events if event.cat not in NOT_THE_PROGRAM]
    first, last = min(event.start for event in active), max(event.end for event in active)
    host = [e.end for e in active if e.cat in ("cpu_op", "annotation", "runtime", "python_function")]
    points = [Point(first, "first", 0), Point(max(first, min(max(host), last)), "last", 0)]
    for call in {call.row: call for call in replay.device.calls if call is not None}.values():
        points.append(Point(call.end if call.row in loading else call.start, "launch", call.row))
    for number, hold in enumerate(replay.holds):
        points += [Point(hold.start, "hold begin", number), Point(hold.end, "hold end", number)]
    for number, (_, start, end) in enumerate(trace.host_steps if replay.is_marked else ()):
        points += [Point(start, "step begin", number), Point(end, "step end", number)]
    points = [replace(point, time=max(point.time, first)) for point in points]
    return sorted(points, key=lambda point: (point.time, ORDER.index(point.kind), point.of))
