"""Carries programs out: hosts run ahead, streams run in order, collectives meet. Everything by the true clock, ns."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from itertools import count

from . import program as do
from .program import AUTOGRAD, MAIN, RUNLOOP, US, Instruction, Job, Steps
from .timeline import Block, Call, Issue, Meeting, Row, Timeline, Work

COPYING = ("aten::copy_", "aten::_local_scalar_dense", "aten::nonzero")


def simulate(job: Job) -> list[Timeline]:
    """The timelines of all ranks."""
    meetings: dict[tuple[str, int, int], Meeting] = {}
    for key, expected in Counter(key for steps in job.steps for key in _meetings(steps)).items():
        meetings[key] = Meeting(expected)
    hosts = [_Host(rank, job, meetings) for rank in range(job.num_ranks)]
    running = {host: host.run() for host in hosts}
    waiting: dict[_Host, tuple[Work, ...]] = dict.fromkeys(hosts, ())
    while running:
        ready = [host for host in running if all(work.end >= 0 for work in waiting[host])]
        assert ready, "the ranks wait for each other"
        for host in ready:
            try:
                waiting[host] = next(running[host])
            except StopIteration:
                del running[host]
        while any(host.settle() for host in hosts):
            pass
    return [host.seen for host in hosts]


def _meetings(steps: Steps) -> Iterator[tuple[str, int, int]]:
    for number, body in enumerate(steps):
        places: Counter[str] = Counter()
        for group in _groups(body):
            yield group, number, places[group]
            places[group] += 1


def _groups(body: tuple[Instruction, ...]) -> Iterator[str]:
    for one in body:
        if isinstance(one, do.Scope | do.Backward):
            yield from _groups(one.body)
        elif isinstance(one, do.Collective):
            yield one.group


class _Host:
    """One rank: a cursor that moves through the program. `yield` hands out the works it must wait for."""

    def __init__(self, rank: int, job: Job, meetings: dict[tuple[str, int, int], Meeting]) -> None:
        self.job, self.meetings, self.seen = job, meetings, Timeline(rank)
        self.now = job.starts[rank] if job.starts else 0
        self.thread, self.step, self.phase = MAIN, 0, "other"
        self.scopes: list[tuple[str, str, int]] = []
        self.ids, self.sequence = count(1), Counter[str]()
        self.streams: dict[int, Work] = {}
        self.events: dict[int, tuple[Call, int, Work | None]] = {}
        self.awaited: defaultdict[int, list[Work]] = defaultdict(list)
        self.pending: list[Work] = []
        self.allocated = 0

    def run(self) -> Iterator[tuple[Work, ...]]:
        for number, body in enumerate(self.job.steps[self.seen.rank]):
            self.step = number
            start, self.places, self.phase = self.now, Counter[str](), "other" if self.job.annotated else "forward"
            yield from self.carry_out(body)
            self.seen.steps.append((start, self.now))
            if not self.job.annotated:
                passes = [layer[2] for layer in self.seen.layers if layer[1] == "backward" and layer[2] >= start]
                self.seen.layers.append((4, "forward", start, max(passes, default=self.now)))
        if self.job.backend != "gloo":  # the profiler's own
            yield from self.block(
                "device", "cudaDeviceSynchronize", tuple(self.streams.values()), US, US, is_profilers=True
            )

    def settle(self) -> bool:
        """Start and end what can be known by now; True if anything was."""
        before = len(self.pending)
        for work in self.pending:
            if work.start < 0 and all(other.end >= 0 for other in work.behind):
                work.start = max([work.ready, *(other.end for other in work.behind)])
                if work.meeting is None:
                    work.end = work.start + work.ns
            if work.start >= 0 and work.end < 0 and (meeting := work.meeting):
                came = [other.start for other in meeting.works.values()]
                if len(came) == meeting.expected and min(came) >= 0:
                    work.end = max(came) + meeting.transfer + meeting.late[self.seen.rank]
        self.pending = [work for work in self.pending if work.end < 0]
        return len(self.pending) < before

    def carry_out(self, body: tuple[Instruction, ...]) -> Iterator[tuple[Work, ...]]:
        for one in body:
            match one:
                case do.Python(ns):
                    self.now += ns
                case do.Scope():
                    yield from self.scope(one)
                case do.Backward(inner):
                    yield from self.backward(inner)
                case do.Launch(name, ns, stream, call, delay):
                    start = yield from self.place_in_queue()
                    self.launch("kernel", name, ns, stream, call, delay, start=start)
                case do.Copy():
                    yield from self.copy(one)
                case do.Synchronize():
                    yield from self.synchronize(one)
                case do.Allocate(ns, name):
                    yield from self.block("alloc", name, (), ns, 0)
                case do.Record(event, stream, ns):
                    self.events[event] = (self.call("cudaEventRecord", ns), stream, self.streams.get(stream))
                case do.Await(event, stream, ns):
                    self.call("cudaStreamWaitEvent", ns)
                    if work := self.events[event][2]:
                        self.awaited[stream].append(work)
                case do.Collective():
                    yield from self.collective(one)
                case do.Memory(size):
                    self.allocated += size
                    self.seen.memory.append((self.now, size, self.allocated))

    def scope(self, one: do.Scope) -> Iterator[tuple[Work, ...]]:
        start, outer, seen = self.now, self.phase, self.seen
        external_id = next(self.ids) if one.kind == "op" else 0
        structure = {"load": (2, "dataload"), "optimizer": (0, "optimizer")}.get(one.kind)
        is_phase = one.kind == "phase" and self.job.annotated and outer == "other"
        engine = self.thread == AUTOGRAD and not any(kind in ("op", "compile") for kind, _, _ in self.scopes)
        if not self.job.annotated and engine and one.kind == "op":
            structure = (3, "backward")
        if is_phase:
            self.phase = one.name
        elif one.kind == "compile":
            self.phase = "compiling"
        elif structure and not self.job.annotated:
            self.phase = structure[1]
        self.scopes.append((one.kind, one.name, external_id))
        self.now += one.before
        yield from self.carry_out(one.body)
        self.now += one.after
        self.scopes.pop()
        if one.kind != "phase" or self.job.annotated:
            seen.rows.append(Row(one.kind, one.name, start, self.now, self.thread, external_id))
        if is_phase:
            seen.layers.append((0, one.name, start, self.now))
        elif one.kind == "compile":
            seen.layers.append((-1, "compiling", start, self.now))
        elif structure and not self.job.annotated:
            seen.layers.append((*structure, start, self.now))
        self.phase = outer

    def backward(self, body: tuple[Instruction, ...]) -> Iterator[tuple[Work, ...]]:
        kept = self.scopes, self.phase
        self.scopes = []
        self.thread = AUTOGRAD if self.job.backend != "gloo" else MAIN  # without a device the caller runs the engine
        self.phase, before = self.phase if self.job.annotated else "backward", len(self.seen.layers)
        yield from self.carry_out(body)
        (self.scopes, self.phase), self.thread = kept, MAIN
        ops = [layer for layer in self.seen.layers[before:] if layer[1] == "backward"]
        if ops:  # the main thread waits meanwhile, and no other pass follows in the step
            self.seen.layers.append((3, "backward", min(op[2] for op in ops), max(op[3] for op in ops)))
            self.phase = "other"

    def innermost(self, kind: str) -> str:
        return next((name for one, name, _ in reversed(self.scopes) if one == kind), "")

    def external_id(self) -> int:
        return next((number for _, _, number in reversed(self.scopes) if number), 0)

    def call(self, name: str, ns: int) -> Call:
        call = Call(name, self.now, self.now + ns, self.thread, next(self.ids), self.external_id(), self.phase)
        self.seen.calls.append(call)
        self.now += ns
        return call

    def place_in_queue(self) -> Generator[tuple[Work, ...], None, int]:
        """Wait until fewer launches are outstanding than the queue holds; returns when the waiting began."""
        began, works = self.now, self.seen.works
        if self.job.queue and len(works) >= self.job.queue:
            oldest = works[-self.job.queue]
            yield (oldest,)
            self.now = max(self.now, oldest.end)
        return began

    def launch(
        self,
        category: str,
        name: str,
        ns: int,
        stream: int,
        call_ns: int,
        delay: int,
        *,
        start: int | None = None,
        size: int = 0,
    ) -> Work:
        """The call, since `start` if it had to wait, and the work behind all that its stream must do first."""
        if self.job.backend == "gloo" and category != "comm":
            self.now += ns
            return Work(category, name, stream, Call(name, 0, 0, 0, 0, 0, ""), 0, 0, (), self.step, end=self.now)
        ready = self.now + delay
        api = "cudaMemcpyAsync" if category == "memcpy" else "cudaLaunchKernel"
        call = self.call(api, call_ns)
        behind = [self.streams[stream]] if stream in self.streams else []
        call.start = call.start if start is None else start
        work = Work(category, name, stream, call, ready, ns, (*behind, *self.awaited.pop(stream, ())), self.step, size)
        self.streams[stream] = work
        self.seen.works.append(work)
        self.pending.append(work)
        return work

    def copy(self, one: do.Copy) -> Iterator[tuple[Work, ...]]:
        is_sync = one.waits != "none" and self.job.backend != "gloo"
        start = self.now
        skipped = is_sync and (self.seen.rank, len(self.seen.blocks)) in self.job.at_once
        delay = max(one.delay, one.call + 100) if one.waits == "none" else one.delay  # staged
        name = f"Memcpy {one.kind} ({one.memory})"
        work = self.launch("memcpy", name, one.ns, one.stream, 0 if skipped else one.call, delay, size=one.size)
        if not is_sync:
            return
        if skipped:
            self.blocked(one.kind.lower(), work.call, start, -1, one.size)
            return
        if one.waits in ("inside", "both"):
            yield (work,)
            self.now = work.call.end = max(self.now, work.end + one.returns)
        if one.waits in ("after", "both"):
            self.now += 300
            sync = self.call("cudaStreamSynchronize", 0)
            sync.waits_on = ("Stream Sync", one.stream, 0)
            yield (work,)
            self.now = sync.end = max(self.now + US, work.end + one.returns)
        self.blocked(one.kind.lower(), work.call, start, work.end, one.size)

    def synchronize(self, one: do.Synchronize) -> Iterator[tuple[Work, ...]]:
        works, on = tuple(self.streams.values()), ("Context Sync", -1, 0)
        if one.what == "stream":
            works = (self.streams[one.number],) if one.number in self.streams else ()
            on = ("Stream Sync", one.number, 0)
        elif one.what == "event":
            record, stream, work = self.events[one.number]
            works, on = (work,) if work else (), ("Event Sync", stream, record.correlation)
        name = f"cuda{one.what.capitalize()}Synchronize"
        yield from self.block(one.what, name, works, one.call, one.returns, on=on)

    def block(
        self,
        kind: str,
        name: str,
        works: tuple[Work, ...],
        least: int,
        returns: int,
        *,
        on: tuple[str, int, int] | None = None,
        is_profilers: bool = False,
    ) -> Iterator[tuple[Work, ...]]:
        if self.job.backend == "gloo":
            return
        start, call = self.now, self.call(name, 0)
        call.waits_on = on
        if (self.seen.rank, len(self.seen.blocks)) in self.job.at_once:
            self.blocked(kind, call, start, -1)
            return
        yield works
        awaited = max((work.end for work in works), default=-1)
        self.now = call.end = max(start + least, awaited + returns)
        if not is_profilers:
            self.blocked(kind, call, start, awaited)

    def blocked(self, kind: str, call: Call, start: int, awaited: int, size: int = 0) -> None:
        ops = [name for one, name, _ in reversed(self.scopes) if one == "op"]
        op = next((name for name in ops if name in COPYING), ops[0] if ops else "")
        words = (op, self.innermost("line"), self.innermost("module"), self.phase)
        self.seen.blocks.append(Block(kind, call, start, self.now, self.thread, awaited, *words, size))

    def collective(self, one: do.Collective) -> Iterator[tuple[Work, ...]]:
        place, start, external_id = self.places[one.group], self.now, next(self.ids)
        self.places[one.group] += 1
        self.sequence[one.group] += 1
        meeting = self.meetings[one.group, self.step, place]
        self.now += 500
        self.scopes.append(("op", "record_param_comms", external_id))
        on_host = self.job.backend == "gloo"
        name = f"gloo:{one.name}" if on_host else f"ncclDevKernel_{one.name}_Sum_f32_RING_LL(x)"
        if on_host:
            work = Work("comm", name, RUNLOOP, Call("", 0, 0, 0, 0, 0, ""), self.now + 2 * US, 0, (), self.step)
            self.seen.works.append(work)
            self.pending.append(work)
        else:
            work = self.launch("comm", name, 0, one.stream, one.call, one.delay)
        work.meeting, meeting.works[self.seen.rank] = meeting, work
        meeting.transfer, meeting.late[self.seen.rank] = max(meeting.transfer, one.transfer), one.late
        self.now += 500
        self.scopes.pop()
        words = (self.step, place, self.sequence[one.group], self.phase, work)
        if self.thread == AUTOGRAD and not self.job.annotated and self.innermost("op") == "":
            self.seen.layers.append((3, "backward", start, self.now))
        self.seen.issues.append(Issue(one, start, self.now, self.thread, external_id, *words))
        if on_host:
            yield (work,)
            self.now = max(self.now, work.end + US)
