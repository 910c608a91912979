"""The exact partition of a window, by walking its elementary intervals one after the other."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from .collectives import is_communication
from .loading import around_iterations
from .phases import BACKWARD_OP, Phases, spans
from .reader import Event, Trace, compiling, integer
from .spans import Span, clip, inside, subtract, union
from .syncs import Sync

Cells = dict[tuple[str, str], int]

HOST = ("once", "host_bound", "tail", "cpu_compute", "python")
"""Categories of time that is the host's, of which some may be once."""


@dataclass
class Piece:
    """An elementary interval, its cell, and the device op that fills it, None while the device idles."""

    start: int
    end: int
    phase: str
    category: str
    op: Event | None = None


def partition(trace: Trace, phases: Phases, syncs: list[Sync], gaps: list[Span], left: int, right: int) -> Cells:
    """(phase, category) -> ns over [left, right): the values add up to right - left."""
    cells: Counter[tuple[str, str]] = Counter()
    for piece in pieces(trace, phases, syncs, gaps, left, right):
        cells[piece.phase, piece.category] += piece.end - piece.start
    return dict(cells)


def pieces(trace: Trace, phases: Phases, syncs: list[Sync], gaps: list[Span], left: int, right: int) -> Iterator[Piece]:
    """The elementary intervals of [left, right), one after the other."""
    if not trace.device_ops:
        yield from pieces_of_cpu(trace, phases, left, right)
        return
    linked = sorted((op for op in trace.device_ops if op.row in trace.launches), key=lambda op: (op.start, op.row))
    walk = Walk(trace, phases, syncs, gaps, linked)
    for start, end in elementary(walk.edges(), left, right):
        walk.move_to(start)
        yield Piece(start, end, *walk.cell(start), walk.owner())


def elementary(edges: list[int], left: int, right: int) -> list[tuple[int, int]]:
    """The intervals between neighbouring edges inside the window."""
    cuts = sorted({left, right, *(edge for edge in edges if left < edge < right)})
    return list(pairwise(cuts))


class Walk:
    """What runs on the device and which calls block, as time moves on."""

    def __init__(self, trace: Trace, phases: Phases, syncs: list[Sync], gaps: list[Span], linked: list[Event]) -> None:
        self.trace, self.phases, self.syncs, self.gaps, self.linked = trace, phases, syncs, gaps, linked
        self.starts, self.compiling = [op.start for op in linked], compiling(trace)
        self.first_call = min((event.start for event in trace.events if event.cat == "runtime"), default=0)
        early = [op for op in trace.device_ops if phases.of_op[op.row] == "before_window"]
        self.opened = max((op.start for op in early if self.first_call < op.start < self.starts[0]), default=0)
        self.pending_ops = sorted(trace.device_ops, key=lambda op: (op.start, op.row), reverse=True)
        self.pending_syncs = sorted(syncs, key=lambda sync: sync.start, reverse=True)
        self.running: list[Event] = []
        self.blocking: list[Sync] = []

    def edges(self) -> list[int]:
        """Every instant at which the answer may change."""
        result = [edge for op in self.trace.device_ops for edge in (op.start, op.end)]
        result += [edge for sync in self.syncs for edge in (sync.start, sync.end)]
        result += [call.end for call in self.trace.launches.values()]
        result += [self.first_call] if self.opened else []
        result += [edge for gap in (*self.gaps, *self.compiling) for edge in gap]
        return result + self.phases.changes

    def move_to(self, instant: int) -> None:
        while self.pending_ops and self.pending_ops[-1].start <= instant:
            self.running.append(self.pending_ops.pop())
        while self.pending_syncs and self.pending_syncs[-1].start <= instant:
            self.blocking.append(self.pending_syncs.pop())
        self.running = [op for op in self.running if op.end > instant]
        self.blocking = [sync for sync in self.blocking if sync.end > instant]

    def owner(self) -> Event | None:
        """The op whose category counts: the first of the most important one that runs."""
        best = {device_category(op): op for op in reversed(self.running)}
        return next(
            (best[name] for name in ("compute", "exposed_comm", "exposed_memcpy", "spin_wait") if name in best), None
        )

    def cell(self, instant: int) -> tuple[str, str]:
        """(phase, category) of the elementary interval that begins at the instant."""
        best: dict[str, Event] = {}
        for op in self.running:  # in order of start, then row
            best.setdefault(device_category(op), op)
        for category in ("compute", "exposed_comm", "exposed_memcpy", "spin_wait"):
            if category in best:
                return self.phases.of_op[best[category].row], category
        if inside(self.gaps, instant):
            return "unattributed", "unrecorded"
        return self._idle(instant)

    def _idle(self, instant: int) -> tuple[str, str]:
        if self.first_call <= instant < self.opened:
            return "before_window", "launch_latency"
        index = bisect_left(self.starts, instant + 1)
        if index == len(self.linked):
            return self.phases.main_at(instant), "compiling" if inside(self.compiling, instant) else "tail"
        op = self.linked[index]
        call = self.trace.launches[op.row]
        for thread in (call.thread, self.trace.main):
            for sync in self.blocking:
                if sync.thread == thread and explains(sync, op, call):
                    category = "alloc_wait" if sync.kind == "alloc" else "sync_wait"
                    return self.phases.main_at(instant), category
        if instant < call.end:
            return self.phases.main_at(instant), "compiling" if inside(self.compiling, instant) else "host_bound"
        return self.phases.of_op[op.row], "launch_latency"


def device_category(op: Event) -> str:
    if op.cat != "kernel":
        return "exposed_memcpy"
    if is_communication(op):
        return "exposed_comm"
    last = op.name.replace("(anonymous namespace)", "").split("<")[0].split("(")[0].split("::")[-1]
    return "spin_wait" if last in ("spin_kernel", "busy_wait_for_flag_kernel") else "compute"


def explains(sync: Sync, op: Event, call: Event) -> bool:
    """Whether the blocking call is why `op` does not run yet: it could only be launched after it."""
    return sync.start < call.start and sync.end <= op.start


AUTOGRAD_NODE = re.compile(r"^autograd::engine::|^torch::autograd::AccumulateGrad$|Backward[0-9]*$")


def pieces_of_cpu(trace: Trace, phases: Phases, left: int, right: int) -> Iterator[Piece]:
    """The same for a trace without device work: the main thread's time."""
    main = [e for e in trace.events if e.thread == trace.main]
    comm = [event for event in trace.events if event.name.startswith("gloo:")]  # of nccl only the calls are there
    no_compute = re.compile(r"c10d::|record_param_comms|gloo:" if comm else r"$^")
    loading = [*spans(e for e in main if e.name.startswith("enumerate(DataLoader)#"))]
    loading += around_iterations(trace)
    calls = ("cpu_op", "runtime") if lacks_rows(trace) else ("cpu_op",)
    ops = [e for e in main if e.cat in calls and not no_compute.match(e.name)]
    waiting = [] if lacks_rows(trace) else waits_for_collectives([e for e in main if e.cat == "cpu_op"])
    layers = [
        ("compiling", subtract(compiling(trace), union([*spans(comm), *waiting]))),
        ("exposed_comm", waiting),
        ("cpu_compute", union(spans(e for e in ops if not AUTOGRAD_NODE.search(e.name)))),
        ("exposed_comm", union(spans(comm))),
        ("cpu_compute", union(spans(ops))),
        ("dataload_wait", union(loading)),
        ("unrecorded", backward_without_ops(trace, phases)),
    ]
    edges = [edge for _, layer in layers for span in clip(layer, left, right) for edge in span] + phases.changes
    for start, end in elementary(edges, left, right):
        category = next((name for name, layer in layers if inside(layer, start)), "python")
        yield Piece(start, end, phases.main_at(start), category)


def waits_for_collectives(ops: list[Event]) -> list[Span]:
    """The time of ops that wait for functional collectives, but for that of other ops inside."""
    waits = [op for op in ops if op.name == "_c10d_functional::wait_tensor"]
    others = [op for op in ops if op not in waits]
    return union(
        span
        for wait in waits
        for span in subtract(
            [(wait.start, wait.end)], union(spans(e for e in others if wait.start <= e.start and e.end <= wait.end))
        )
    )


def lacks_rows(trace: Trace) -> bool:
    """Whether a device was asked for work, of which there is no row."""
    on_device = re.compile(r"(nccl|hccl|xccl|cuda)\b")
    return not trace.device_ops and bool(
        on_device.match(str(trace.meta.get("distributedInfo", {}).get("backend")))
        or any(
            (event.cat == "runtime" and integer(event.args.get("correlation")) > 0)
            or (event.cat == "annotation" and on_device.match(event.name))
            for event in trace.events
        )
    )


def backward_without_ops(trace: Trace, phases: Phases) -> list[Span]:
    """The main thread's time in backward, if a job with a device shows no rows of it, no backward ops and no stacks."""
    shown = any(
        event.cat == "python_function"
        or (event.cat == "cpu_op" and (BACKWARD_OP.search(event.name) or integer(event.args.get("fwd thread id")) > 0))
        for event in trace.events
    )
    if shown or not lacks_rows(trace):
        return []
    names = enumerate(phases.values[:-1])
    return union([phases.piece(index) for index, name in names if "backward" in name and "forward" not in name])


def without_once(shown: Mapping[tuple[str, str], int], expected: Mapping[tuple[str, str], int]) -> tuple[Cells, Cells]:
    """Both, with the host's time as one category where some shown time is once: the oracle does not tell what is."""
    host = HOST if any(category == "once" for _, category in shown) else ()
    pair = []
    for cells in (shown, expected):
        sums = Counter[tuple[str, str]]()
        for (phase, category), ns in cells.items():
            sums[phase, "host" if category in host else category] += ns
        pair.append({cell: ns for cell, ns in sums.items() if ns})
    return pair[0], pair[1]
