"""Steps of the main thread and their time windows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import PROFILER_STEP, device_work
from traceq.facts.events.name_patterns import AUTOGRAD_NODE, BACKWARD, matching, rows_named
from traceq.facts.events.nesting import host_ops, tracks
from traceq.facts.events.starting_calls import first_device_use
from traceq.facts.events.unrecorded_work import unrecorded_work
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.inference_marks import inference_marks
from traceq.frozen import frozen
from traceq.intervals import measure, span_index, spans
from traceq.model import Category, OneStep, Trace

WHOLE_TRACE = "whole trace"


_MAX_LAG_PARTS = 1000
"""A device lags if it ends later than the host by more than 1/1000 of the window."""

_STUB_PARTS = 10
"""A window shorter than the median by this factor is no step."""

_UNRECORDED_PART = 0.9
"""Part of the time up to a gap from which on all of it belongs to unrecorded work."""


@frozen(eq=False)
class Steps:
    """K steps of a trace.

    `number` int64[K] of ProfilerStep#N, else in order; `host` int64[K, 2] ns as the main thread ran them, of an
    inference engine from one end to the next; `window` int64[K, 2] ns, which telescope within a session of the
    profiler; `partial` bool[K]: not a whole step. `by_device`: the windows follow the device; `marked`: the trace has
    step marks; `is_cut`: the trace was cut to this step. `opens_ns`: end of the unrecorded work with which the trace
    opens, before which no window begins; None without.
    `labels`: names of steps that ProfilerStep does not mark.
    """

    number: NDArray[np.int64]
    host: NDArray[np.int64]
    window: NDArray[np.int64]
    partial: NDArray[np.bool_]
    by_device: bool
    marked: bool
    is_cut: bool = False
    opens_ns: int | None = None
    labels: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.number)

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each step."""
        if self.labels:
            return self.labels
        return tuple(f"ProfilerStep#{n}" for n in self.number.tolist()) if self.marked else (WHOLE_TRACE,)

    @property
    def begins_session(self) -> NDArray[np.bool_]:
        """bool[K]: the first step of each profiler session, before which numbers are left out."""
        begins: NDArray[np.bool_] = np.r_[True, np.diff(self.number) > 1]
        return begins

    @property
    def is_only(self) -> bool:
        """Whether the trace has a single step, which ends with its host or with its device work, whichever is later.

        A step of an inference engine ends with its device work.
        """
        return len(self) == 1 and not self.is_cut and not self.labels

    def issued(self, time_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the step in which the host was at each time: int64[N] into the steps, -1 before, between and after.

        It is the step of what the host issued then: a call, a sync, a collective, and the device work that they launch,
        whenever the device runs it. A trace without marks is one step.
        """
        return span_index(self.host, time_ns) if self.marked else np.zeros(len(time_ns), np.int64)

    def numbers(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the trace's own numbers of steps by index: int64[N], -1 for -1."""
        return np.where(index >= 0, self.number[index], -1)

    @property
    def counted(self) -> NDArray[np.bool_]:
        """bool[K]: steps that means are taken over: the whole ones, or all if none is whole."""
        return ~self.partial if not self.partial.all() else np.ones(len(self), np.bool_)


@once_per_trace
def extent(trace: Trace) -> tuple[int, int]:
    """Return (start, end) ns of all activity of host and device; rows that the profiler adds do not count.

    Frames of Python are open until the profiler has stopped; the program ends where that begins. It begins with the
    first row of its host, if that launches work: what a device runs before is of what came before the recording.
    """
    events = trace.events
    counts = np.ones(len(events), np.bool_)
    for category in (Category.PROFILER, Category.OVERHEAD, Category.DEVICE_ANNOTATION, Category.SYNC):
        counts &= events.category != int(category)
    counts |= not counts.any()
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    start, end = int(events.ts.min(where=counts, initial=most)), int(events.end.max(where=counts, initial=least))
    worked = int(events.end.max(where=counts & (events.category != int(Category.PYTHON)), initial=least))
    host = events.rows(Category.CPU_OP, Category.ANNOTATION, Category.PYTHON, Category.RUNTIME)
    if device_work(trace).linked.any():
        start = int(events.ts[host].min(initial=most))
    stops = (events.category == int(Category.PROFILER)) & (events.ts >= worked) & (worked > least)
    end = min(end, int(events.ts.min(where=stops, initial=most)))
    if trace.only is not None:
        start, end = min(start, trace.only.window_ns[0]), max(end, trace.only.window_ns[1])
    return start, end


@once_per_trace
def main_track(trace: Trace) -> int:
    """Return the track of the thread that runs the steps.

    Without steps it is the host thread that is busiest outside of the autograd engine, which has a thread of its own.
    """
    events, row_track = trace.events, tracks(trace)
    marks = _step_rows(trace)
    if len(marks):
        return _most_frequent(row_track[marks])
    rows = events.rows(Category.CPU_OP, Category.ANNOTATION, Category.RUNTIME, Category.COMPILING)
    engine = rows[matching(events, rows, AUTOGRAD_NODE)]
    candidates = _by_first_occurrence(row_track[rows])
    busy_ns = []
    for track in candidates:
        all_ns, engine_ns = (
            measure(spans(events.ts[index], events.end[index]))
            for index in (rows[row_track[rows] == track], engine[row_track[engine] == track])
        )
        busy_ns.append((all_ns - engine_ns, all_ns))
    return max(zip(busy_ns, candidates, strict=True), key=lambda each: each[0])[1] if candidates else -1


def on_main_thread(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return those of some rows that are the main thread's."""
    return np.asarray(rows[tracks(trace)[rows] == main_track(trace)])


@once_per_trace
def steps(trace: Trace) -> Steps:
    """Return the steps and their windows: those of ProfilerStep, else of an inference engine, else one of all."""
    if trace.only is not None:
        return _single_step(trace.only)
    events = trace.events
    rows = _main_thread_marks(trace)
    if len(rows) == 0:
        whole = np.array([extent(trace)], np.int64)
        opens_ns = _opens(trace, int(whole[0, 0]))
        window = whole if opens_ns is None else np.array([[opens_ns, whole[0, 1]]], np.int64)
        none = np.zeros(1, np.bool_)
        return Steps(np.zeros(1, np.int64), whole, window, none, by_device=False, marked=False, opens_ns=opens_ns)
    labels = _labels(trace, rows)
    number = np.array([int(events.text(row).partition("#")[2]) for row in rows.tolist() if not labels], np.int64)
    number = np.arange(len(rows)) if labels else number
    start = events.ts[rows]
    host = np.column_stack([start, np.minimum(events.end[rows], np.r_[start[1:], np.iinfo(np.int64).max])])
    opens_ns = _opens(trace, int(host[0, 0]))
    of_device = _device_windows(trace, host, number, opens_ns, with_host=len(rows) == 1 and not labels)
    if of_device is not None and opens_ns is None and not labels and np.array_equal(of_device, host):
        of_device = None  # the only step outlives its device work
    by_device = of_device is not None
    window, opens_ns = (host, None) if of_device is None else (of_device, opens_ns)
    if labels and by_device:  # what an engine does between two marks is of the window, and step, that ends next
        host[1:, 0] = host[:-1, 1]
    result = Steps(
        number=number,
        host=host,
        window=window,
        partial=np.zeros(len(rows), np.bool_),
        by_device=by_device,
        marked=True,
        opens_ns=opens_ns,
        labels=labels,
    )
    return replace(result, partial=_is_partial(trace, result) | np.isin(result.names, list(trace.left_out)))


@once_per_trace
def step_of_work(trace: Trace) -> NDArray[np.int64]:
    """Return the step that issued each piece of device work: int64[D] into the steps, -1 for none.

    That in which the host launched it; of work whose launch is not recorded that in whose window it starts. Work that
    was launched before the trace is of none, whichever step it runs in, unless no step is marked.
    """
    all_steps, work = steps(trace), device_work(trace)
    launched = all_steps.issued(trace.events.ts[work.call])
    started = np.where(work.before_window & all_steps.marked, -1, span_index(all_steps.window, work.start))
    return np.where(work.linked, launched, started)


def _labels(trace: Trace, rows: NDArray[np.int64]) -> tuple[str, ...]:
    """Return the names of marks that are not ProfilerStep's; () for those."""
    names = tuple(trace.events.text(row) for row in rows.tolist())
    return () if all(map(PROFILER_STEP.match, names)) else names


def _opens(trace: Trace, start: int) -> int | None:
    """Return when the first work begins after the unrecorded work with which the time from `start` on begins.

    None if it does not. Such work was launched before the trace, so the device was busy from the start, up to the last
    gap before which it does next to nothing else. A process that begins to use the device in the trace has launched
    none, and a host that works for a while before its first kernel waits for none.
    """
    if len(first_device_use(trace)):
        return None
    gaps = unrecorded_work(trace)
    gaps = gaps[gaps[:, 1] > start]
    if len(gaps) == 0:
        return None
    gap_start, end = np.maximum(gaps[:, 0], start), gaps[:, 1]
    unrecorded = np.cumsum(end - gap_start) >= _UNRECORDED_PART * (end - start)
    if not unrecorded.any():
        return None
    work = device_work(trace)
    return int(work.start[np.searchsorted(work.start, end[np.flatnonzero(unrecorded)[-1]])])


def _single_step(step: OneStep) -> Steps:
    """Return the step that a trace was cut to, as it was in the whole trace."""
    return Steps(
        number=np.array([step.number], np.int64),
        host=np.array([step.host_ns], np.int64),
        window=np.array([step.window_ns], np.int64),
        partial=np.array([step.is_partial], np.bool_),
        by_device=step.by_device,
        marked=True,
        is_cut=True,
        opens_ns=step.opens_ns,
        labels=(step.label,) if step.label else (),
    )


def _main_thread_marks(trace: Trace) -> NDArray[np.int64]:
    """Return the step marks of the main thread by start: empty ones left out, of equal starts only the last.

    None if the only one is what a profiler leaves that stops: nothing is asked for in it, and it is less than half of
    the trace. The mark of the step before began with the profiler, and is not recorded.
    """
    events = trace.events
    rows = _step_rows(trace)
    rows = rows[(tracks(trace)[rows] == main_track(trace)) & (events.dur[rows] > 0)]
    rows = events.by_start(rows)
    is_last_of_start = np.r_[np.diff(events.ts[rows]) > 0, np.ones(min(len(rows), 1), np.bool_)]
    rows = rows[is_last_of_start]
    if len(rows) == 1:
        called_ns = events.ts[events.rows(Category.CPU_OP, Category.RUNTIME)]
        start, end = extent(trace)
        is_asked = ((events.ts[rows] <= called_ns) & (called_ns < events.end[rows])).any()
        rows = rows[:0] if not is_asked and 2 * int(events.dur[rows[0]]) < end - start else rows
    return np.asarray(rows)


def _step_rows(trace: Trace) -> NDArray[np.int64]:
    rows = rows_named(trace.events, PROFILER_STEP, Category.ANNOTATION, Category.CPU_OP)
    return rows if len(rows) else inference_marks(trace).rows


def _device_windows(
    trace: Trace, host: NDArray[np.int64], number: NDArray[np.int64], opens_ns: int | None, *, with_host: bool
) -> NDArray[np.int64] | None:
    """Return the windows [E_k-1, E_k), with E_k the latest end of work launched up to the end of step k.

    The first of a session begins with the host; that of the trace where unrecorded work ends, if it opens with such
    work. `with_host`: the only step lasts until the host's end, too, as no other has the rest of it. None if a step
    gets no time.
    """
    work = device_work(trace)
    launched = trace.events.ts[work.call[work.linked]]
    if len(launched) == 0:
        return None
    order = np.argsort(launched, kind="stable")
    latest_end = np.maximum.accumulate(work.end[work.linked][order])
    num_launched = np.searchsorted(launched[order], host[:, 1], "left")
    ends = np.where(num_launched > 0, latest_end[num_launched - 1], host[0, 0])
    ends = np.maximum(ends, host[:, 1]) if with_host else ends
    begins = np.r_[host[0, 0] if opens_ns is None else opens_ns, ends[:-1]]
    first = np.flatnonzero(np.diff(number) > 1) + 1
    begins[first] = np.maximum(begins[first], host[first, 0])
    return np.column_stack([begins, ends]) if (begins < ends).all() else None


def _is_partial(trace: Trace, of_trace: Steps) -> NDArray[np.bool_]:
    """Return which windows are not a whole step: bool[K].

    The first of a session is partial if it contains work launched before, or begins with the host and ends with a
    device that lags, which makes it longer than a step. Any is that is shorter than a tenth of the median, unless its
    kind may be short (a decode is shorter than a prefill): a profiler that stops within a step leaves a stub. The last
    is if its calls of the device's runtime were lost.
    """
    work, host, window = device_work(trace), of_trace.host, of_trace.window
    durations = window[:, 1] - window[:, 0]
    partial: NDArray[np.bool_] = (durations * _STUB_PARTS < np.median(durations)) & (not of_trace.labels)
    begun = np.searchsorted(np.sort(work.start[work.before_window]), window[:, 1], "left")
    has_early = begun > np.searchsorted(np.sort(work.end[work.before_window]), window[:, 0], "right")
    lag = window[:, 1] - host[:, 1]
    lags = (window[:, 0] == host[:, 0]) & (lag * _MAX_LAG_PARTS > durations)
    partial |= of_trace.begins_session & (has_early | lags)
    partial[-1] |= _lacks_last_calls(trace, host)
    return partial


def _lacks_last_calls(trace: Trace, host: NDArray[np.int64]) -> bool:
    """Return whether a tenth of the ops of the last step, and of no other, follow its last call of the runtime.

    `host` int64[K, 2] ns. Buffers of calls and of device work may be lost where those of ops are not.
    """
    events = trace.events
    ops = np.sort(events.ts[events.rows(Category.CPU_OP)])
    calls = np.r_[np.iinfo(np.int64).min, np.sort(events.ts[events.rows(Category.RUNTIME)])]
    last_call = calls[np.searchsorted(calls, host[:, 1]) - 1]
    begin, follow, end = np.searchsorted(
        ops, np.column_stack([host[:, 0], np.maximum(last_call, host[:, 0]), host[:, 1]]).T
    )
    lacks = (end - follow) * _STUB_PARTS > end - begin
    return len(host) > 1 and bool(lacks[-1]) and not lacks[:-1].any()


def _by_first_occurrence(values: NDArray[np.int64]) -> list[int]:
    """Return the distinct values in order of their first occurrence."""
    distinct, first = np.unique(values, return_index=True)
    ordered: list[int] = distinct[np.argsort(first)].tolist()
    return ordered


def _most_frequent(values: NDArray[np.int64]) -> int:
    """Return the most frequent value; of equally frequent ones the first."""
    return max(_by_first_occurrence(values), key=lambda value: int((values == value).sum()))


@once_per_trace
def op_calls_per_step(trace: Trace) -> Mapping[str, float]:
    """Return the calls of each op in a mean counted step, by name; those that begin in it, on any thread."""
    return _calls_per_step(trace, trace.events.rows(Category.CPU_OP))


@once_per_trace
def forward_calls_per_step(trace: Trace) -> Mapping[str, float]:
    """Return the calls of each op that no node of autograd encloses, likewise.

    Second derivatives, and what checkpoints recompute, run ops of a forward pass in such nodes.
    """
    outside = [
        ops.rows[ops.first_enclosing(np.arange(len(ops.rows)), matching(trace.events, ops.rows, BACKWARD)) < 0]
        for ops in host_ops(trace).values()
    ]
    return _calls_per_step(trace, np.concatenate(outside) if outside else np.empty(0, np.int64))


def _calls_per_step(trace: Trace, rows: NDArray[np.int64]) -> Mapping[str, float]:
    events, counted = trace.events, steps(trace).host[steps(trace).counted]
    num = np.bincount(events.name[rows[span_index(counted, events.ts[rows]) >= 0]])
    return {events.strings[name]: int(num[name]) / len(counted) for name in np.flatnonzero(num).tolist()}
