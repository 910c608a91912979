"""The phase of every device op, and of the main thread at every instant."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from .loading import around_iterations
from .reader import ENGINE, Event, Trace, compiling, integer
from .spans import Span, clip, inside, measure, union

NO_PHASE = re.compile(
    r"nccl:|gloo:|hccl:|Optimizer\.|enumerate\(DataLoader\)|ProfilerStep|DistributedDataParallel\."
    r"|FullyShardedDataParallel\.|FSDP::|## Call CompiledFxGraph"
)
STRUCTURE = (
    ("optimizer", "Optimizer.step#"),
    ("zero_grad", "Optimizer.zero_grad#"),
    ("dataload", "enumerate(DataLoader)#"),
)
COMMUNICATION = re.compile(r"(nccl|gloo|hccl|xccl):")
REDUCED = re.compile(r"torch\.distributed\.ddp\.reducer::copy_bucket_to_grad$|FSDP::root_post_backward_callback$")
BACKWARD_OP = re.compile(r"Backward[0-9]*$")
Thread = tuple[str, str]


class Phases:
    """`rule`, `of_op` (row of a device op -> phase) and `main_at(instant)`."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.steps = union([(start, end) for _, start, end in trace.host_steps])
        annotations, self.names, is_most = by_thread(trace.events, "annotation"), {""}, True
        while len(self.names) == 1 and is_most:  # one name around nearly everything says no more than the step
            annotations = {
                thread: [e for e in rows if e.name not in self.names] for thread, rows in annotations.items()
            }
            self.outermost = {thread: outermost(rows) for thread, rows in annotations.items()}
            main = self.outermost.get(trace.main, [])
            self.names = {event.name for event in main}
            is_most = self._are_most(main)
        has_phases = len(self.names) >= 2 and is_most
        self.rule = "annotations" if has_phases else "structure"
        if any(ENGINE.match(name) for name, _, _ in trace.host_steps):
            self.rule = "inference"
        self._read_structure()
        self.compiling = compiling(trace)
        by_compiling = by_thread(trace.events, "compiling").items()
        self.compiling_threads = {thread: union(spans(rows)) for thread, rows in by_compiling}
        self.changes, self.values = self._main_pieces()
        self.of_op = self._phases_of_ops()

    def _are_most(self, marks: list[Event]) -> bool:
        """Whether annotations take four fifths of the steps, or as much of the work is launched meanwhile."""
        marked = union(spans(marks))
        covered = measure([piece for step in self.steps for piece in clip(marked, *step)])
        launched = [call.start for call in self.trace.launches.values() if inside(self.steps, call.start)]
        within = sum(inside(marked, start) for start in launched)
        return covered * 100 >= 80 * measure(self.steps) or (len(launched) > 0 and within * 100 >= 80 * len(launched))

    def main_at(self, instant: int) -> str:
        """The phase the main thread is in."""
        index = bisect_right(self.changes, instant) - 1
        return self.values[index] if index >= 0 else "other"

    def rows(self) -> dict[str, dict[str, int]]:
        """Per phase: device ops of the whole trace, and the main thread's time inside the host steps."""
        cpu: dict[str, int] = {}
        for index, phase in enumerate(self.values[:-1]):
            within = sum(b - a for step in self.steps for a, b in clip([self.piece(index)], *step))
            cpu[phase] = cpu.get(phase, 0) + within
        in_pieces = sum(cpu.values())
        cpu["other"] = cpu.get("other", 0) + measure(self.steps) - in_pieces
        table = {}
        for name in {*cpu, *self.of_op.values(), "before_window", "unattributed"}:
            ops = [op for op in self.trace.device_ops if self.of_op[op.row] == name]
            table[name] = {
                "cpu_ns": cpu.get(name, 0),
                "gpu_busy_ns": measure(spans(ops)),
                "gpu_sum_ns": sum(op.end - op.start for op in ops),
                "num_kernels": sum(op.cat == "kernel" for op in ops),
                "num_gpu_ops": len(ops),
            }
        return table

    def piece(self, position: int) -> Span:
        return self.changes[position], self.changes[position + 1]

    def _read_structure(self) -> None:
        """Spans of optimizer, zero_grad and dataload per thread, the engine's on the main thread, backward threads."""
        self.in_phase: dict[str, dict[Thread, list[Span]]] = {}
        for phase, prefix in STRUCTURE:
            rows = [e for e in self.trace.events if e.cat == "annotation" and e.name.startswith(prefix)]
            self.in_phase[phase] = {thread: union(spans(result)) for thread, result in group(rows).items()}
        loading = self.in_phase["dataload"]
        loading[self.trace.main] = union([*loading.get(self.trace.main, []), *around_iterations(self.trace)])
        ops = by_thread(self.trace.events, "cpu_op")
        main = ops.pop(self.trace.main, [])
        self.engine = union(spans([op for op in main if op.name.startswith("autograd::engine::")]))
        self.backward_threads = {thread for thread, rows in ops.items() if any(map(is_backward, rows))}
        self.backward = union([span for thread in self.backward_threads for span in spans(ops[thread])])
        others = [*main, *by_thread(self.trace.events, "annotation").get(self.trace.main, [])]
        begun = sorted(e.start for e in others if not e.name.startswith("autograd::engine::"))
        frames = by_thread(self.trace.events, "python_function").get(self.trace.main, [])
        runs = [frame for frame in frames if frame.name.startswith("<built-in method run_backward of ")]
        passes = union([*self.engine, *self.backward, *spans(runs)])
        passes = union([*passes, *begins_with_gradients(passes, main, begun)])
        idle = [(a, b) for (_, a), (b, _) in pairwise(passes) if bisect_left(begun, a) == bisect_left(begun, b)]
        passes = union([*passes, *idle])
        passes = union([*passes, *self._ends_with_collectives(passes, begun)])
        self.passes = union([*passes, *self._ends_with_copies(passes, main)])
        updates = self.in_phase["optimizer"].get(self.trace.main, [])
        last = max((start for start, _ in [*self.passes, *updates]), default=-(1 << 62))
        layers = [phase.get(self.trace.main, []) for phase in self.in_phase.values()]
        marked = union([*self.passes, *(span for layer in layers for span in layer)])
        until = max((op.end for op in main if op.start >= last and not inside(marked, op.start)), default=None)
        self.next_marks = sorted(
            [(start, "pass") for start, _ in self.passes]
            + [(start, "update") for start, _ in updates]
            + [(end, "end") for _, _, end in self.trace.host_steps]
            + [(until, "pass") for name, *_ in self.trace.host_steps if name == "whole trace" and until is not None]
        )
        self.steps_without_passes = [
            (start, end)
            for _, start, end in self.trace.host_steps
            if not any(start <= begin < end for begin, _ in self.passes)
        ]
        calls = union(spans([frame for frame in frames if frame.name.startswith("nn.Module: ")]))
        self.forwards_alone = [span for step in self.steps_without_passes for span in clip(calls, *step) or [step]]

    def _ends_with_collectives(self, passes: list[Span], begun: list[int]) -> list[Span]:
        """From the end of each pass until the collectives that began in it end, or the main thread begins something."""
        marks = [e for e in self.trace.events if e.cat in ("annotation", "cpu_op") and COMMUNICATION.match(e.name)]
        ends = []
        for begin, end in passes:
            next_begun = min((start for start in begun if start >= end), default=1 << 62)
            following = min((start for start, _ in passes if start > begin), default=1 << 62)
            until = min(next_begun, following)
            of_pass = [e.end for e in marks if e.thread != self.trace.main and begin <= e.start < until]
            ends += [(end, min(max(of_pass), next_begun))] if of_pass and max(of_pass) > end else []
        return ends

    def _ends_with_copies(self, passes: list[Span], main: list[Event]) -> list[Span]:
        """From the end of a pass to that with which DDP or FSDP end it, if nothing is annotated before that."""
        annotations = by_thread(self.trace.events, "annotation").get(self.trace.main, [])
        annotated = [e.start for e in annotations]
        ends = []
        for copied in (e for e in [*main, *annotations] if REDUCED.match(e.name)):
            before = [end for _, end in passes if end <= copied.start]
            if before and not any(max(before) <= start < copied.start for start in annotated):
                ends.append((max(before), copied.end))
        return ends

    def _main_pieces(self) -> tuple[list[int], list[str]]:
        """Instants where the main thread's phase may change, and the phase from each on; the last is `other`."""
        main = self.trace.main
        if self.rule == "annotations":
            relevant = spans(self.outermost[main])
        elif self.rule == "inference":
            relevant = [(start, end) for _, start, end in self.trace.host_steps]
        else:
            relevant = [span for phase in self.in_phase.values() for span in phase.get(main, [])]
            relevant += self.passes + self.steps + self.steps_without_passes + self.forwards_alone
        changes = sorted({edge for span in (*relevant, *self.compiling) for edge in span})
        return changes, [self._decide_main(instant) for instant in changes]

    def _decide_main(self, instant: int) -> str:
        if inside(self.compiling, instant):
            return "compiling"
        if self.rule == "annotations":
            return annotation_at(self.outermost[self.trace.main], instant) or "other"
        if self.rule == "inference":
            names = [name for name, start, end in self.trace.host_steps if start <= instant < end]
            return engine_phase(names[0]) if names else "other"
        local = self._own_structure(self.trace.main, instant)
        if local:
            return local
        if inside(self.passes, instant):
            return "backward"
        if inside(self.forwards_alone, instant):
            return "forward"
        if inside(self.steps_without_passes, instant):
            return "other"
        follows = bisect_right(self.next_marks, (instant, "~"))
        precedes_a_pass = follows < len(self.next_marks) and self.next_marks[follows][1] == "pass"
        return "forward" if inside(self.steps, instant) and precedes_a_pass else "other"

    def _own_structure(self, thread: Thread, instant: int) -> str:
        for phase, _ in STRUCTURE:
            if inside(self.in_phase[phase].get(thread, []), instant):
                return phase
        return ""

    def _phases_of_ops(self) -> dict[int, str]:
        first_linked: dict[tuple[str, str], int] = {}
        for op in self.trace.device_ops:
            if op.row in self.trace.launches:
                first_linked[op.stream] = min(op.start, first_linked.get(op.stream, op.start))
        phases = {}
        for op in self.trace.device_ops:
            call = self.trace.launches.get(op.row)
            if call is not None:
                phases[op.row] = self.of_call(call)
            elif op.stream in first_linked and op.start < first_linked[op.stream]:
                phases[op.row] = "before_window"
            else:
                phases[op.row] = "unattributed"
        return phases

    def of_call(self, call: Event) -> str:
        """The phase of the work a call launches: its own thread's word first, then the main thread's."""
        local = ""
        if inside(self.compiling_threads.get(call.thread, []), call.start):
            return "compiling"
        if self.rule == "annotations":
            name = annotation_at(self.outermost.get(call.thread, []), call.start)
            local = name if name in self.names else ""
        elif self.rule == "inference":
            local = ""
        else:
            local = self._own_structure(call.thread, call.start)
            if not local and call.thread in self.backward_threads:
                local = "backward"
        return local or self.main_at(call.start)


def begins_with_gradients(passes: list[Span], main: list[Event], begun: list[int]) -> list[Span]:
    """From the gradient of a loss until the pass that follows it, if the main thread begins nothing in between."""
    begins = []
    for op in main:
        starts = [start for start, _ in passes if start >= op.end]
        if op.name == "aten::ones_like" and starts and not any(op.end <= start < min(starts) for start in begun):
            begins.append((op.start, min(starts)))
    return begins


def engine_phase(name: str) -> str:
    """What a step of an engine computes, by the numbers of prompts and of other requests, or by its mode."""
    if name.startswith("step["):
        return "prefill" if name.startswith("step[EXTEND") else "decode"
    prompts, requests = (int(re.search(rf"{word}_(\d+)", name)[1]) for word in ("context", "generation"))  # type: ignore[index]
    return "mixed" if prompts and requests else "prefill" if prompts else "decode"


def outermost(rows: list[Event]) -> list[Event]:
    """The annotations that may name a phase and lie in no other such annotation of their thread."""
    kept: list[Event] = []
    for event in sorted(rows, key=lambda e: (e.start, -e.end, e.row)):
        if NO_PHASE.match(event.name):
            continue
        if not kept or event.end > kept[-1].end:  # earlier starts come first, so the last kept ends last
            kept.append(event)
    return kept


def annotation_at(rows: list[Event], instant: int) -> str:
    """The name open at the instant; where two overlap in part, the one that opened first."""
    index = bisect_right(rows, instant, key=lambda e: e.start) - 1
    name = ""
    while index >= 0 and instant < rows[index].end:  # outermost rows end in the order in which they start
        name = rows[index].name
        index -= 1
    return name


def is_backward(op: Event) -> bool:
    if op.name.startswith("autograd::engine") or BACKWARD_OP.search(op.name):
        return True
    return integer(op.args.get("fwd thread id"), absent=0) != 0


def spans(events: Iterable[Event]) -> list[Span]:
    return [(event.start, event.end) for event in events]


def group(events: Iterable[Event]) -> dict[Thread, list[Event]]:
    threads: dict[Thread, list[Event]] = {}
    for event in events:
        threads.setdefault(event.thread, []).append(event)
    return threads


def by_thread(events: Iterable[Event], cat: str) -> dict[Thread, list[Any]]:
    return group(event for event in events if event.cat == cat)
