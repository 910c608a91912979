"""The row that a sync belongs to: its kind, the op, line and module that it is called from, and its phase."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from .lines import forward_starts, open_frames, user_line
from .nested import nested
from .phases import Phases
from .reader import Event, Trace, integer
from .spans import Span, clip, measure, union
from .syncs import Sync

__all__ = ["SyncRows"]

ALLOCATES = "aten::empty"
COPIES = ("aten::copy_", "aten::_local_scalar_dense", "aten::nonzero")
SKEW_NS = 30_000
MODULE = "nn.Module: "


class SyncRows:
    """`keys` of syncs by the row of their call; `is_kept` tells which ones a step could do without."""

    def __init__(self, trace: Trace, phases: Phases, hidden: list[Span], opens: int | None) -> None:
        self.trace, self.phases, self.hidden = trace, phases, hidden
        if opens is not None:
            self.hidden = union([*hidden, (min(event.start for event in trace.events), opens)])
        self.busy = union([(op.start, op.end) for op in trace.device_ops])
        self.ops = nested(event for event in trace.events if event.cat == "cpu_op")
        self.frames = nested(e for e in trace.events if e.cat == "python_function" and user_line(e.name))
        self.modules = nested(e for e in trace.events if e.cat == "python_function" and e.name.startswith(MODULE))
        self.paths = self._module_paths()
        self.open = open_frames(trace)
        self.forward = forward_starts(trace)
        self.by_id: dict[int, Event] = {}
        for event in reversed(trace.events):
            if event.cat == "cpu_op":
                self.by_id[integer(event.args.get("external id"))] = event
        self.launches = [call.start for call in trace.launches.values()]

    def key(self, sync: Sync) -> str:
        """Like `dtoh|aten::copy_|train.py:9 step|Net_0|forward`; what the trace does not tell is empty."""
        assert sync.call is not None
        middle = sync.start + (sync.end - sync.start) // 2
        ops, phase = self.ops_of(sync), self.phases.of_call(sync.call)
        name = ops[0].name if ops else ""
        return "|".join((sync.kind, name, self.line(sync, middle, ops), self.module(sync, middle), phase))

    def ops_of(self, sync: Sync) -> list[Event]:
        """The ops around a call, innermost first, from the one on that makes it, or that copies."""
        assert sync.call is not None
        ops = self.ops.get(sync.thread)
        if ops is None:
            return []
        around = ops.around(sync.start + (sync.end - sync.start) // 2)
        external = integer(sync.call.args.get("external id"))
        same = self.by_id.get(external) if external > 0 else None
        if same and same.thread == sync.thread and same.start - SKEW_NS <= sync.start <= same.end + SKEW_NS:
            around = ops.around_row(same)
        copying = [position for position, op in enumerate(around) if op.name in COPIES]
        if copying:
            return around[copying[0] :]
        if not around and sync.copy is not None:
            for instant in (sync.start - SKEW_NS, sync.end + SKEW_NS):
                near = [op for op in ops.around(instant) if op.name in COPIES]
                if near:
                    return near
        if around and around[0].name.startswith(ALLOCATES) and sync.copy is not None:
            after = ops.around(sync.end + SKEW_NS)
            copying = [position for position, op in enumerate(after) if op.name in COPIES]
            return after[copying[0] :] if copying else around
        return around

    def line(self, sync: Sync, middle: int, ops: list[Event]) -> str:
        """That of the innermost user frame, else of the call stack of the op or the first around that has one."""
        frames = self.frames.get(sync.thread)
        frame = frames.innermost(middle) if frames else None
        if frame is not None:
            return text_of(frame.name, has_line=frame.row not in self.open)
        for op in ops:
            for name in str(op.args.get("call stack", "")).split(";"):
                if user_line(name):
                    return text_of(name)
        return ""

    def module(self, sync: Sync, middle: int) -> str:
        """The innermost that runs; in a backward op that of the op that it differentiates."""
        running = self.modules.get(sync.thread)
        frame = running.innermost(middle) if running else None
        if frame is None:
            ops = self.ops.get(sync.thread)
            backward = [op for op in (ops.around(middle) if ops else []) if op.row in self.forward]
            of_main = self.modules.get(self.trace.main)
            frame = of_main.innermost(self.forward[backward[0].row]) if backward and of_main else None
        return self.paths[frame.name] if frame else ""

    def _module_paths(self) -> dict[str, str]:
        """By name of a frame: the path of the module by its first call."""
        paths: dict[str, str] = {}
        for thread in sorted(self.modules, key=lambda thread: thread != self.trace.main):
            nest = self.modules[thread]
            for row in nest.rows:
                if row.name not in paths:
                    parent = nest.parent(row)
                    prefix = f"{paths[parent.name]}." if parent else ""
                    paths[row.name] = prefix + row.name.removeprefix(MODULE)
        return paths

    def kept(self, syncs: Iterable[Sync], waits: Sequence[int]) -> list[Sync]:
        """Those that a step could do without: not mostly for unrecorded work, nor of rows that frame a measurement.

        Nor for a result with which the host goes on for long; `waits` are starts of waits, also for the data loader.
        """
        rows: dict[str, list[Sync]] = defaultdict(list)
        for sync in syncs:
            rows[self.key(sync)].append(sync)
        kept = [sync for row in rows.values() if not all(map(self._is_outside, row)) for sync in row]
        kept = [sync for sync in kept if 2 * self._unrecorded_ns(sync) <= sync.end - sync.start]
        return [sync for sync in kept if not self._is_for_result(sync, waits)]

    def _is_for_result(self, sync: Sync, waits: Sequence[int]) -> bool:
        """Whether nothing is launched, and the host waits for nothing, for a millisecond behind a copy of a tensor."""
        around = self.ops.get(sync.thread)
        copying = around.around(sync.start)[:1] if around and sync.kind == "dtoh" else []
        following = [start for start in (*self.launches, *waits) if start >= sync.end]
        until = min(following, default=max(event.end for event in self.trace.events))
        return [op.name for op in copying] == ["aten::copy_"] and until - sync.end >= 1_000_000

    def _is_outside(self, sync: Sync) -> bool:
        """Whether it is a device synchronize before the first or after the last launch."""
        outside = not self.launches or sync.start < min(self.launches) or sync.start > max(self.launches)
        return sync.kind == "device" and outside

    def _unrecorded_ns(self, sync: Sync) -> int:
        hidden, busy = (clip(spans, sync.start, sync.end) for spans in (self.hidden, self.busy))
        return measure([*hidden, *busy]) - measure(busy)


def text_of(name: str, *, has_line: bool = True) -> str:
    line = user_line(name)
    number = f":{line[1]}" if line and has_line else ""
    return f"{line[0]}{number} {line[2]}".removesuffix(" <module>") if line else ""
