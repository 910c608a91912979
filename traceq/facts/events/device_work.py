"""Launching call of each piece of device work, by correlation id."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.name_patterns import AUTOGRAD_NODE, matching, rows_named
from traceq.facts.events.nesting import tracks
from traceq.facts.memo import once_per_trace
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.intervals import Spans, contains, sorted_unique, spans
from traceq.model import Category, Trace

PROFILER_STEP = re.compile(r"^ProfilerStep#(\d{1,18})$")


@once_per_trace
def session_gaps(trace: Trace) -> Spans:
    """Return the time between the last step of a profiler session and the first of the next: int64[G, 2] ns.

    A recording of traceq joins several windows of an arm in one trace, and numbers their steps such that some are left
    out between two windows. In another trace, numbers that are missing are marks that were lost: no less a gap.
    """
    events = trace.events
    rows = rows_named(events, PROFILER_STEP, Category.ANNOTATION, Category.CPU_OP)
    rows = rows[np.lexsort((events.end[rows], events.ts[rows]))]
    number = np.array([int(events.text(row).partition("#")[2]) for row in rows.tolist()], np.int64)
    first = np.flatnonzero(np.diff(number) > 1) + 1
    return np.column_stack([np.maximum.accumulate(events.end[rows])[first - 1], events.ts[rows[first]]])


BACKEND_OF_DEVICES = re.compile(r"^([nhx]ccl|cuda)\b")
"""Backends, and their annotations, that move data of devices."""

_ASKS_FOR_WORK = re.compile(r"launch|memcpy|memset|enqueue|append|submit", re.IGNORECASE)
"""Runtime calls of CUDA, HIP, Level Zero, SYCL and MTIA that ask a device for work: others query, allocate or wait."""

_ONLY_ON_DEVICES = re.compile(
    r"^aten::(_?cudnn_(convolution|batch_norm|rnn|ctc)|miopen_(convolution|batch_norm|rnn)|_thnn_fused_|"
    r"_(flash|efficient)_attention_(for|back)ward)"
)
"""Ops that no CPU runs: where the profiler records the CPU alone, there are no calls either."""

_ALLOCATES = re.compile(r"^aten::empty(_strided)?$")
DEVICE_STARTS_NS = 100_000_000
"""An op that allocates and writes nothing takes so long only if it starts a device, as does its driver; a call that
returns memory or creates a stream does not either."""


def first_index(ids: NDArray[np.int64], wanted_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of the first occurrence of each wanted id in `ids`: int64[K].

    -1 if the id is absent, or not positive (Kineto writes 0 or -1 for "no id").
    """
    if len(ids) == 0:
        return np.full(len(wanted_ids), -1)
    order = np.argsort(ids, kind="stable")
    index = order[np.minimum(np.searchsorted(ids[order], wanted_ids), len(ids) - 1)]
    return np.where((wanted_ids > 0) & (ids[index] == wanted_ids), index, -1)


@frozen(eq=False)
class DeviceWork:
    """D kernels, copies and memsets, sorted by (start, row).

    `rows` int64[D] into Events; `start`, `end` int64[D] ns; `call` int64[D] the launching row of Events, -1 without
    one; `stream` int64[D] a number for each (device, stream); `before_window` bool[D]: launched before the trace began,
    or before the session of the profiler (`session_gaps`) in which it ran.
    """

    rows: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    call: NDArray[np.int64]
    stream: NDArray[np.int64]
    before_window: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def linked(self) -> NDArray[np.bool_]:
        """bool[D]: has a launching call."""
        return self.call >= 0


@once_per_trace
def device_work(trace: Trace) -> DeviceWork:
    """Return all device work of a trace with its launching calls.

    One call can launch many ops (a graph). If two calls share a correlation id, the earlier one is the launch.
    """
    events = trace.events
    rows = events.by_start(events.rows(Category.KERNEL, Category.MEMCPY, Category.MEMSET))
    call = _launching_calls(trace, events.correlation[rows])
    stream = stream_number(events.device[rows], events.stream[rows])
    start = events.ts[rows]
    return DeviceWork(
        rows=rows,
        start=start,
        end=start + events.dur[rows],
        call=call,
        stream=stream,
        before_window=(call < 0) & (start < _first_linked_start(trace, stream, start, call)),
    )


@once_per_trace
def lacks_device_rows(trace: Trace) -> bool:
    """Return whether work was asked of a device, by calls, collectives or ops, but the trace has none of it.

    Also where a recording timed its steps on a device: its profiler saw none, as while another one holds CUPTI. And
    where the device is one whose rows are not read.
    """
    if len(device_work(trace)):
        return False
    if trace.device != "cpu" or (trace.manifest is not None and trace.manifest.environment.get("device") == "cuda"):
        return True
    events, marks = trace.events, trace.events.rows(Category.ANNOTATION)
    calls = events.rows(Category.RUNTIME)
    calls = calls[events.correlation[calls] > 0]
    allocating = rows_named(events, _ALLOCATES, Category.CPU_OP)
    return (
        bool(matching(events, calls, _ASKS_FOR_WORK).any())
        or bool(matching(events, events.rows(Category.CPU_OP), _ONLY_ON_DEVICES).any())
        or bool((events.dur[allocating] >= DEVICE_STARTS_NS).any())
        or bool((events.allocations.device_type > 0).any())
        or bool(threads_of_autograd(trace))
        or bool(BACKEND_OF_DEVICES.search(trace.backend))
        or bool(matching(events, marks, BACKEND_OF_DEVICES).any())
    )


@once_per_trace
def threads_of_autograd(trace: Trace) -> list[int]:
    """Return the tracks of autograd's own threads, one for each device: a backward of a CPU runs on its caller's.

    https://pytorch.org/docs/stable/notes/autograd.html#multithreaded-autograd
    """
    events, rows = trace.events, trace.events.rows(Category.CPU_OP)
    is_node = matching(events, rows, AUTOGRAD_NODE)
    threads = []
    for track in sorted_unique(tracks(trace)[rows[is_node]]).tolist():
        on_track = tracks(trace)[rows] == track
        nodes, others = rows[on_track & is_node], rows[on_track & ~is_node]
        if contains(spans(events.ts[nodes], events.end[nodes]), events.ts[others]).all():
            threads.append(track)
    return threads


def lacks_host_ops(trace: Trace) -> bool:
    """Return whether the trace has no op, annotation or Python that tells what the host does."""
    return not len(trace.events.rows(Category.CPU_OP, Category.ANNOTATION, Category.PYTHON))


@once_per_trace
def launch_times(trace: Trace) -> NDArray[np.int64]:
    """Return int64[D] ns: when the host launched each operation, made ascending on each stream.

    Work without a call counts as launched with the work before it; before the trace: the least int64.
    """
    work = device_work(trace)
    if len(work) == 0:
        return work.start
    launched = np.where(work.linked, trace.events.ts[work.call], np.iinfo(np.int64).min)
    for number in sorted_unique(work.stream).tolist():
        on_stream = np.flatnonzero(work.stream == number)
        launched[on_stream] = np.maximum.accumulate(launched[on_stream])
    return launched


def stream_number(device: NDArray[np.integer], stream: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return one number for each (device, stream); an unknown device (-1) counts as device 0."""
    return np.asarray(np.maximum(device, 0).astype(np.int64) * 2**32 + stream)


def _launching_calls(trace: Trace, correlation: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the row of the earliest runtime call with each correlation id; -1 if there is none."""
    events = trace.events
    calls = events.by_start(events.rows(Category.RUNTIME))
    return np.asarray(np.r_[calls, -1][first_index(events.correlation[calls], correlation)])


def _first_linked_start(
    trace: Trace, stream: NDArray[np.int64], start: NDArray[np.int64], call: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the start of the first linked op of each op's stream and session; the least int64 where there is none.

    An op is of the session that launched it; one without a call, of the one that had begun when it started.
    """
    linked, gaps = call >= 0, session_gaps(trace)
    ended = np.searchsorted(gaps[:, 0], start, "right")
    session = np.where(linked, np.searchsorted(gaps[:, 1], trace.events.ts[call], "right"), ended)
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    groups = group([stream, session])
    first = np.full(len(groups.keys), most)
    np.minimum.at(first, groups.group_ids[linked], start[linked])
    return np.where(first == most, least, first)[groups.group_ids]
