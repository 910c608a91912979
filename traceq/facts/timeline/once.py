"""Host time that is once: starts, loading, captures, the profiler's own, first calls, compiling, a single pause.

Later steps do not have it. What recurs is not once, be it in every step or now and then, and neither is a first call if
a later one takes as long.
"""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.copies import TO_DEVICE
from traceq.facts.events.device_work import device_work
from traceq.facts.events.graph_replays import instantiations, single_capture_calls, single_capture_spans
from traceq.facts.events.kernel_loads import LONG_CALL_NS, kernel_loading_calls
from traceq.facts.events.kernels import innermost_ops
from traceq.facts.events.name_patterns import matching, rows_named
from traceq.facts.events.nesting import host_ops, tracks
from traceq.facts.events.self_time import ALLOCATES, calls_runtime
from traceq.facts.events.starting_calls import (
    first_device_use,
    library_loading_calls,
)
from traceq.facts.events.unrecorded_work import unrecorded_work
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.blocking_copies_and_syncs import DEVICE_SYNCHRONIZE, blocking_calls
from traceq.facts.timeline.compilations import compiling
from traceq.facts.timeline.data_loading import ends_of_workers, loader_iterations, loader_waits
from traceq.facts.timeline.steps import extent, on_main_thread, steps
from traceq.frozen import frozen
from traceq.grouping import Groups, Numbers, group
from traceq.intervals import (
    Spans,
    complement,
    earliest_owner,
    empty,
    intersect,
    measure,
    measure_within,
    sorted_unique,
    span_index,
    spans,
    subtract,
    union,
)
from traceq.model import Category, Trace


class OnceKind(IntEnum):
    """Why time is once; where several reasons hold, the first."""

    DEVICE_START = 0
    LIBRARY_START = 1
    KERNEL_LOADING = 2
    GRAPH_CAPTURE = 3
    PROFILER = 4
    FIRST_CALL = 5
    COMPILING = 6
    PAUSE = 7
    LOADER_START = 8


FILLED = 2
"""Launches by which torch prepares a capture: it fills the seed and the offset of its random numbers."""
_LOADS = re.compile(r"^(Lazy Function Loading|Runtime Triggered Module Loading)$")
_UNKNOWN = re.compile("^Unrecognized$")
"""Overhead of a kind that torch does not know: in a call it is of loading code, outside of calls the profiler's."""
NOT_IN_A_CALL = re.compile(r"^(Command Buffer Full|(Activity )?Buffer Flush)$")
"""Overhead in which no call is held up by the profiler: the queue is full, or a thread of the profiler's works."""
_OF_LIBRARY = re.compile(r"^(?!autograd::|torch::|c10d)\w+::")
"""Ops that run no code of the user's."""
_COPIES = re.compile(r"^aten::(to|_to_copy|_?pin_memory|item|_local_scalar_dense)$")
_COPIES_ON_HOST = re.compile(r"^aten::copy_$")
"""Ops that take as long as there is to copy; the second if they ask no device for it, whose copies are known."""
_COMPILED_AT_RUN_TIME = re.compile(r"^(cu|hipModule)Launch(Cooperative)?Kernel")
"""Launches by the driver: of kernels of Triton, NVRTC and other compilers."""

_ENDS_STEP = re.compile(r"torch/profiler/profiler\.py\(\d+\): step$")
_ASKS_KERNEL = re.compile(r"^(cuda|hip|cu)FuncGetAttributes?$")
_TIMES_KERNEL = re.compile(r"^(cuda|hip|cu)EventElapsedTime")
_MANY_KERNELS = 32
"""Kernels that a library compares in one op: a launch asks for those of one or two."""

_PAUSE_NS, _LONG_NS = 10_000_000, 100_000_000
"""From when on a pause is long where others tell how long it is; where none does, a call and a pause from the second,
and a call that loads kernels, or starts a library, from the first."""
_NEVER_NS = np.iinfo(np.int64).max
MULTIPLES = 10, 100, 100
"""How many times as long as later ones the first, the second and the third call is: TorchScript compiles in these."""
FEWEST = 4
"""Later calls that have a median; of fewer the longest counts."""


@frozen(eq=False)
class Once:
    """N disjoint times of the host, ascending.

    `parts` int64[N, 2] ns; `kind` int64[N] of OnceKind; `row` int64[N] into Events: the call or op that takes it, the
    one that follows a pause, -1 for a capture.
    """

    parts: Spans
    kind: NDArray[np.int64]
    row: NDArray[np.int64]


_Layer = tuple[OnceKind, NDArray[np.int64], Spans]
"""Kind, rows int64[N] into Events, and their times int64[N, 2] ns."""


@once_per_trace
def once(trace: Trace) -> Once:
    """Return the time that is once."""
    by_rows = _by_rows(trace)
    slow = [(OnceKind.DEVICE_START, _long_allocations(trace)), (OnceKind.FIRST_CALL, first_calls(trace))]
    layers = [*by_rows, *(_layer(trace, kind, rows) for kind, rows in slow)]
    return _by_priority([*layers, *_long_launchless_times(trace, _by_priority(layers).parts)])


@once_per_trace
def _by_rows(trace: Trace) -> list[_Layer]:
    """Return what calls and rows tell by themselves to be once."""
    events, overhead = trace.events, trace.events.rows(Category.OVERHEAD)
    captures = capture_times(trace)
    calls = events.by_start(events.rows(Category.RUNTIME))
    parts, owner = earliest_owner(events.ts[calls], events.end[calls])
    call = np.r_[calls[owner], -1][span_index(parts, events.ts[overhead])]
    is_load = matching(events, overhead, _LOADS) | (matching(events, overhead, _UNKNOWN) & (call >= 0))
    _, _, in_rows = _layer(trace, OnceKind.KERNEL_LOADING, overhead[is_load])
    _, loading, in_calls = _layer(trace, OnceKind.KERNEL_LOADING, kernel_loading_calls(trace))
    loads = np.r_[loading, np.where(call >= 0, call, overhead)[is_load]]
    held_up = overhead[~is_load & ~matching(events, overhead, NOT_IN_A_CALL)]
    workers = _starts_and_ends_of_workers(trace)
    return [
        (OnceKind.LOADER_START, np.full(len(workers), -1), workers),
        _layer(trace, OnceKind.DEVICE_START, first_device_use(trace)),
        _layer(trace, OnceKind.LIBRARY_START, library_loading_calls(trace)),
        (OnceKind.KERNEL_LOADING, loads, np.concatenate([in_calls, in_rows])),
        (OnceKind.GRAPH_CAPTURE, np.full(len(captures), -1), captures),
        _layer(trace, OnceKind.PROFILER, np.r_[held_up, _long_ends_of_steps(trace)]),
        _layer(trace, OnceKind.FIRST_CALL, _plan_searches(trace)),
    ]


@once_per_trace
def _starts_and_ends_of_workers(trace: Trace) -> Spans:
    """Return when a loader's workers first start, and when they end, unless others start again, as in each epoch."""
    loader = loader_iterations(trace)
    starts = loader.whole[loader.starts_workers & ~loader.is_again]
    return starts if (loader.starts_workers & loader.is_again).any() else union(starts, ends_of_workers(trace))


@once_per_trace
def recurring_loader_waits(trace: Trace) -> Spans:
    """Return the waits for the data loader that are not once."""
    return subtract(loader_waits(trace), _starts_and_ends_of_workers(trace))


@once_per_trace
def timing_ops(trace: Trace) -> NDArray[np.int64]:
    """Return the ops in which a library times kernels, to choose the fastest for the shapes at hand: int64[T]."""
    op = innermost_ops(trace, rows_named(trace.events, _TIMES_KERNEL, Category.RUNTIME))
    return sorted_unique(op[op >= 0])


@once_per_trace
def search_spans(trace: Trace) -> Spans:
    """Return when a library times kernels of which it keeps one, once: until it has read the last time."""
    events, ops = trace.events, np.intersect1d(timing_ops(trace), _plan_searches(trace))
    calls = rows_named(events, _TIMES_KERNEL, Category.RUNTIME)
    calls = calls[np.argsort(-events.end[calls], kind="stable")]
    op, last = np.unique(innermost_ops(trace, calls), return_index=True)
    chosen = np.isin(op, ops)
    return spans(events.ts[op[chosen]], events.end[calls[last[chosen]]])


def _long_ends_of_steps(trace: Trace) -> NDArray[np.int64]:
    """Return the frames of the main thread in which the profiler takes long to end a step, and begin one: int64[P]."""
    rows = on_main_thread(trace, rows_named(trace.events, _ENDS_STEP, Category.PYTHON))
    return np.asarray(rows[trace.events.dur[rows] >= LONG_CALL_NS])


def _plan_searches(trace: Trace) -> NDArray[np.int64]:
    """Return the ops in which a library compares many kernels, or times them, as cuDNN does once per shape: int64[P].

    None if each of several steps has such ops.
    """
    events, all_steps = trace.events, steps(trace)
    op = innermost_ops(trace, rows_named(events, _ASKS_KERNEL, Category.RUNTIME))
    ops, num_asked = np.unique(op[op >= 0], return_counts=True)
    searches = sorted_unique(ops[num_asked >= _MANY_KERNELS], timing_ops(trace))
    in_steps = sorted_unique(all_steps.issued(events.ts[searches]))
    return searches[:0] if len(all_steps) > 1 and len(in_steps[in_steps >= 0]) == len(all_steps) else searches


@once_per_trace
def _exposed(trace: Trace) -> Spans:
    """Return when nothing but the host can be at work: no device, loader or recorded compiler, and no call blocks."""
    work, calls = device_work(trace), blocking_calls(trace)
    of_device = union(spans(work.start, work.end), unrecorded_work(trace))
    return subtract(_of_host(trace), union(of_device, spans(calls.start, calls.end)))


@once_per_trace
def _unblocked(trace: Trace) -> Spans:
    """Return when the host is at work, hidden by the device or not: launches wait where their queue is full."""
    work, calls = device_work(trace), blocking_calls(trace)
    launches = sorted_unique(work.call[work.linked])
    launching = spans(trace.events.ts[launches], trace.events.end[launches])
    return subtract(_of_host(trace), union(launching, spans(calls.start, calls.end)))


def _of_host(trace: Trace) -> Spans:
    """Return the time without waits for a loader and recorded compilers."""
    return complement(union(loader_waits(trace), compiling(trace)), *extent(trace))


def _layer(trace: Trace, kind: OnceKind, rows: NDArray[np.int64]) -> _Layer:
    return kind, rows, np.column_stack([trace.events.ts[rows], trace.events.end[rows]])


def _by_priority(layers: list[_Layer]) -> Once:
    """Return the times of all layers, each without those of the layers before it."""
    covered, columns = empty(), [(empty(), *[np.empty(0, np.int64)] * 2)]
    for kind, rows, times in layers:
        order = np.argsort(times[:, 0], kind="stable")
        parts, owner = earliest_owner(times[order, 0], times[order, 1])
        uncovered = subtract(parts, covered)
        row = rows[order[owner]][span_index(parts, uncovered[:, 0])] if len(uncovered) else rows[:0]
        columns.append((uncovered, np.full(len(uncovered), int(kind)), row))
        covered = union(covered, uncovered)
    parts, kinds, all_rows = map(np.concatenate, zip(*columns, strict=True))
    order = np.argsort(parts[:, 0], kind="stable")
    return Once(parts[order], kinds[order], all_rows[order])


@once_per_trace
def capture_times(trace: Trace) -> Spans:
    """Return when the host captures CUDA graphs, prepares that and completes it: int64[N, 2] ns.

    Preparation and completion are the time in the outermost op around a capture from the last work launched before,
    other than what fills the state of random numbers, to the first launched after it. Outside of an op a capture is
    prepared from the synchronization on, behind which torch collects garbage and returns memory to the driver, and
    complete once the graph can be launched.
    """
    events, work, captures = trace.events, device_work(trace), single_capture_spans(trace)
    launches, begun = sorted_unique(work.call[work.linked]), single_capture_calls(trace)
    result = spans(*captures.T)
    for track in sorted_unique(tracks(trace)[begun]).tolist():
        ops = host_ops(trace).get(track)
        on_track = np.isin(captures[:, 0], events.ts[begun[tracks(trace)[begun] == track]])
        begin, end = captures[on_track].T
        result = union(result, _until_instantiated(trace, track, begin, end))
        calls = launches[tracks(trace)[launches] == track]
        calls = events.by_start(calls)
        launch_ns, returned_ns = events.ts[calls], np.r_[np.repeat(extent(trace)[0], FILLED + 1), events.end[calls]]
        returned_ns, top = returned_ns[np.searchsorted(launch_ns, begin)], np.full(len(begin), -1)
        if ops is not None:
            top = np.r_[ops.outermost(), -1][ops.innermost_at(begin)]
            since = np.maximum(returned_ns, ops.start[top])
            until = np.minimum(np.r_[launch_ns, ops.end.max()][np.searchsorted(launch_ns, end)], ops.end[top])
            result = union(result, spans(since[top >= 0], until[top >= 0]))
        synchronized_ns = _synchronized(trace, track, begin)
        prepares = (top < 0) & (synchronized_ns >= returned_ns)
        result = union(result, spans(synchronized_ns[prepares], begin[prepares]))
    return result


def _synchronized(trace: Trace, track: int, begin: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return when a thread last began to wait for its device before each of these moments, -1 if it never did."""
    calls = rows_named(trace.events, DEVICE_SYNCHRONIZE, Category.RUNTIME)
    start = np.sort(trace.events.ts[calls[tracks(trace)[calls] == track]])
    return np.asarray(np.r_[start, -1][np.searchsorted(start, begin) - 1])


def _until_instantiated(trace: Trace, track: int, begin: NDArray[np.int64], end: NDArray[np.int64]) -> Spans:
    """Return the time from the end of each capture of a thread to that of its graph's instantiation, if one follows."""
    events, calls = trace.events, instantiations(trace)
    calls = calls[tracks(trace)[calls] == track]
    following = np.searchsorted(events.ts[calls], end)
    is_own = np.r_[events.ts[calls], _NEVER_NS][following] < np.r_[begin[1:], _NEVER_NS][: len(begin)]
    return spans(end[is_own], events.end[calls[following[is_own]]])


@once_per_trace
def first_calls(trace: Trace) -> NDArray[np.int64]:
    """Return int64[F]: the rows of ops that take far longer than later calls of their kind, and do so once.

    They choose algorithms, compile, or fill caches. What the device's work hides, and what is known to be once, does
    not count. Without a device the time of an op depends on its size: then only calls of the same shapes are of its
    kind; if these are not recorded all calls of an op are, where the first takes far longer than the longest of many;
    of a size that is called once nothing is known.
    """
    events, rows = trace.events, trace.events.rows(Category.CPU_OP)
    is_long = np.zeros(len(events.strings) + 1, np.bool_)
    is_long[events.name[rows[events.dur[rows] >= LONG_CALL_NS]]] = True
    rows = rows[is_long[events.name[rows]]]
    rows = events.by_start(rows)
    calls_device = calls_runtime(trace, rows)
    is_sized = ~calls_device if len(device_work(trace)) else ~matching(events, rows, ALLOCATES)
    shapes = np.where(is_sized, events.shapes[rows], -1)
    copies = matching(events, rows, _COPIES) | (matching(events, rows, _COPIES_ON_HOST) & ~calls_device)
    has_size = calls_device | (shapes >= 0) | matching(events, rows, ALLOCATES)
    is_known = (has_size | _is_first_beyond_all(events.name[rows], events.dur[rows])) & ~copies
    rows, shapes = rows[is_known], shapes[is_known]
    kind = group([events.name[rows], shapes]).group_ids
    is_lone = is_sized[is_known] & (np.bincount(kind)[kind] == 1)
    by_rows = _by_priority(_by_rows(trace)).parts
    loads = measure_within(by_rows, events.ts[rows], events.end[rows]) >= LONG_CALL_NS
    lone_ns = np.where(loads, _PAUSE_NS, _LONG_NS)
    lone_ns[~matching(events, rows, _OF_LIBRARY) | is_lone] = _NEVER_NS
    ns, took_ns = (
        measure_within(subtract(times, by_rows), events.ts[rows], events.end[rows])
        for times in (_exposed(trace), _unblocked(trace))
    )
    return np.sort(rows[_is_slow_once(ns, kind, lone_ns, np.maximum(ns, took_ns)) & (ns >= _least_ns(trace))])


def _is_first_beyond_all(name: Numbers, ns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return bool[K]: calls, in order, of names whose first one takes ten times as long as the longest of many."""
    groups = group([name])
    later = np.ones(len(ns), np.bool_)
    later[groups.first] = False
    longest = np.zeros(len(groups.keys), np.int64)
    np.maximum.at(longest, groups.group_ids[later], ns[later])
    is_beyond = (ns[groups.first] >= MULTIPLES[0] * longest) & (np.asarray(groups.count()) > MULTIPLES[0])
    return np.asarray(is_beyond[groups.group_ids])


def _least_ns(trace: Trace) -> int:
    """Return from when on a call or pause is long: without a device threads lose their core for some milliseconds."""
    return LONG_CALL_NS if len(device_work(trace)) else _LONG_NS


def _long_allocations(trace: Trace) -> NDArray[np.int64]:
    """Return which first calls allocate for as long as only the start of a device takes: int64[0 or 1]."""
    rows = first_calls(trace)
    rows = rows[trace.events.dur[rows] >= _LONG_NS]
    return np.asarray(rows[matching(trace.events, rows, ALLOCATES)][:1])


def _is_slow_once(
    ns: NDArray[np.int64], kind: NDArray[np.int64], lone_ns: NDArray[np.int64], took_ns: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return bool[K]: which calls are early, slow, and followed by none that takes half as long, but for early ones.

    Of calls in their order that delay the device by `ns` int64[K], and are of a `kind` int64[K]. Later calls may be as
    slow while the device hides them: they take `took_ns` int64[K]. `lone_ns` int64[K]: from when a first one is slow
    that none follows; `_NEVER_NS` also where few follow. If later calls of any kinds take half as long now and then,
    early ones do so by chance.
    """
    in_order, by_length = np.argsort(kind, kind="stable"), np.lexsort([ns, kind])
    num = np.bincount(kind)
    end, slow = np.cumsum(num), np.zeros(len(ns), np.bool_)
    for nth in reversed(range(len(MULTIPLES))):
        long = np.flatnonzero(num > nth)
        long = long[ns[in_order[(end - num)[long] + nth]] >= LONG_CALL_NS]
        for first, last in zip(((end - num)[long] + nth).tolist(), end[long].tolist(), strict=True):
            call, later = in_order[first], in_order[first + 1 : last]
            usual_ns = np.sort(took_ns[later[~slow[later]]])
            if 2 * usual_ns.max(initial=0) > ns[call]:
                continue
            if len(usual_ns) >= FEWEST:
                slow[call] = ns[call] >= MULTIPLES[nth] * usual_ns[(len(usual_ns) - 1) // 2]
            elif lone_ns[call] < _NEVER_NS and nth == 0:
                slow[call] = ns[call] >= (MULTIPLES[nth] * usual_ns[-1] if len(usual_ns) else lone_ns[call])
    median_ns = ns[by_length[end - num + (num - 1) // 2]][kind] if len(ns) else ns
    is_late = np.ones(len(ns), np.bool_)
    is_late[in_order[(np.arange(len(ns)) - np.repeat(end - num, num)) < len(MULTIPLES)]] = False
    late_ns = np.sort(ns[is_late & (ns >= np.maximum(MULTIPLES[0] * median_ns, LONG_CALL_NS))])
    return slow & (ns >= (2 * late_ns[-2] if len(late_ns) > 1 else 0))


def _long_launchless_times(trace: Trace, apart: Spans) -> list[_Layer]:
    """Return the time before first launches of kernels, and the one pause, if there is.

    Between launches and waits for the device the host takes about as long in every step. What is `apart`, once for
    another reason, and what a device, a loader or a compiler takes, does not count.
    """
    exposed = subtract(_exposed(trace), apart)
    launched_by, kernels = _launchless_times(trace, by_waits=False)
    compiles = _compiled_first(trace, measure_within(exposed, *launched_by.T), kernels)
    compiled = launched_by[compiles]
    times, call = _launchless_times(trace)
    exposed = subtract(exposed, compiled)
    ns = measure_within(exposed, *times.T)
    launched = _launched(trace, call)
    ops = trace.events.rows(Category.CPU_OP)
    in_ops = intersect(exposed, spans(trace.events.ts[ops], trace.events.end[ops]))  # outside of ops it is the program
    prepares = _first_launches(trace, measure_within(in_ops, *times.T), call, launched)
    prepared = intersect(times[prepares], in_ops)
    op = innermost_ops(trace, call)
    first = np.where(op >= 0, op, call)[prepares]
    pause = _pause(trace, np.where(prepares, 0, ns), launched, bool(compiles.any()))
    piece, follows = _between_ops(trace, times[pause], call[pause])
    is_long = compiled[:, 1] - compiled[:, 0] >= _PAUSE_NS  # of less a compiled kernel is loaded, or found in a cache
    return [
        (OnceKind.COMPILING, kernels[compiles][is_long], compiled[is_long]),
        (OnceKind.FIRST_CALL, kernels[compiles][~is_long], compiled[~is_long]),
        (OnceKind.FIRST_CALL, first[span_index(times[prepares], prepared[:, 0])], prepared),
        (OnceKind.PAUSE, follows, piece),
    ]


def _compiled_first(trace: Trace, ns: NDArray[np.int64], call: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return before which calls a kernel is compiled at run time: bool[L], of times of `ns` int64[L] before a `call`.

    A compiler waits for the device now and then, which has nothing to do: these times are from launch to launch.
    """
    by_compiler = matching(trace.events, call, _COMPILED_AT_RUN_TIME)
    return by_compiler & _is_slow_first(ns, group([_launched(trace, call), trace.events.name[call]]))


def _first_launches(
    trace: Trace, ns: NDArray[np.int64], call: NDArray[np.int64], launched: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return before which calls the host prepares the first launch of a kernel that no compiler made: bool[L].

    Of times of `ns` int64[L], each before a `call` that launches `launched`. One that recurs in each step does so after
    the same kernel: where that is in no later step, nothing tells whether it is once. If later times take half as long
    now and then, first ones do so by chance.
    """
    events, all_steps = trace.events, steps(trace)
    after = np.r_[-1, launched[:-1]][: len(call)]
    peers = group([after, launched, events.name[call]])
    step = span_index(all_steps.host, events.ts[call]) if all_steps.marked else np.arange(len(call))
    last_step = np.full(len(peers.first), -1)
    np.maximum.at(last_step, peers.group_ids, step)
    recurs = (last_step[peers.group_ids] > step) & (after >= 0) & (launched >= 0)
    later_ns = np.sort(np.delete(ns, peers.first))
    by_chance_ns = 2 * int(later_ns[-2]) if len(later_ns) > 1 else 0
    is_compiled = matching(events, call, _COMPILED_AT_RUN_TIME)
    is_new = np.isin(call, _first_launches_of_kernels(trace))
    return np.asarray(_is_slow_first(ns, peers) & recurs & (ns >= by_chance_ns) & ~is_compiled & is_new)


def _first_launches_of_kernels(trace: Trace) -> NDArray[np.int64]:
    """Return the calls that launch a kernel, or make a copy of a kind, for the first time in the trace: int64[F]."""
    work, events = device_work(trace), trace.events
    linked = np.flatnonzero(work.linked)
    linked = linked[np.argsort(events.ts[work.call[linked]], kind="stable")]
    return np.asarray(work.call[linked[group([events.name[work.rows[linked]]]).first]])


def _is_slow_first(ns: NDArray[np.int64], peers: Groups) -> NDArray[np.bool_]:
    """Return which are the first of their group, and far slower than the others: bool[L]."""
    is_first = np.zeros(len(ns), np.bool_)
    is_first[peers.first] = True
    return is_first & _is_slow_once(ns, peers.group_ids, np.full(len(ns), _LONG_NS), ns)


def _launchless_times(trace: Trace, by_waits: bool = True) -> tuple[Spans, NDArray[np.int64]]:
    """Return (int64[L, 2] ns, int64[L]): times of the counted steps in which no thread launches or waits, by start.

    And the rows of the calls with which they end: launches, or waits for the device if that is asked for. Without a
    device the times are those in which the main thread is in no op.
    """
    events, all_steps, work, waits = trace.events, steps(trace), device_work(trace), blocking_calls(trace)
    launches = sorted_unique(work.call[work.linked])
    if not len(work):
        launches = on_main_thread(trace, events.rows(Category.CPU_OP))
    ends = np.flatnonzero(~waits.is_alloc & by_waits)
    rows = np.r_[launches, waits.rows[ends]]
    start, end = np.r_[events.ts[launches], waits.start[ends]], np.r_[events.end[launches], waits.end[ends]]
    order = np.argsort(start, kind="stable")
    rows, start, end = rows[order], start[order], end[order]
    host = spans(*all_steps.host[all_steps.counted].T)
    index = span_index(host, start)
    since = np.maximum(
        np.r_[np.iinfo(np.int64).min, np.maximum.accumulate(end)][: len(end)], np.r_[host[:, 0], 0][index]
    )
    chosen = (index >= 0) & (since < start)
    return np.column_stack([since, start])[chosen], rows[chosen]


def _launched(trace: Trace, call: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the name of the first kernel or copy that each call launches: int64[K] into strings, -1 for none."""
    work = device_work(trace)
    name = np.full(len(trace.events), -1)
    linked = np.flatnonzero(work.linked)[::-1]
    name[work.call[linked]] = trace.events.name[work.rows[linked]]
    return name[call]


def _pause(trace: Trace, ns: NDArray[np.int64], launched: NDArray[np.int64], compiles: bool) -> NDArray[np.int64]:
    """Return int64[0 or 1]: which time (`ns` int64[L], before a call that launches `launched`) is far the longest.

    In a single step that is marked it is not known what recurs. In a trace without steps, which may be one of them, the
    host may have prepared what it then copies to the device, unless it `compiles`, too.
    """
    if not len(ns):
        return np.empty(0, np.int64)
    longest = int(ns.argmax())
    least_ns = max(MULTIPLES[0] * int(np.delete(ns, longest).max(initial=0)), _PAUSE_NS, _least_ns(trace))
    if steps(trace).marked:
        may_be = int(steps(trace).counted.sum()) > 1
    else:
        least_ns = max(least_ns, _LONG_NS)
        name = int(launched[longest])
        may_be = name >= 0 and (compiles or not TO_DEVICE.search(trace.events.strings[name]))
    return np.flatnonzero([may_be and ns[longest] >= least_ns]) + longest


def _between_ops(trace: Trace, times: Spans, call: NDArray[np.int64]) -> tuple[Spans, NDArray[np.int64]]:
    """Return of one time or none the part outside of all ops, if nearly all is one, and the op that follows."""
    events, ops = trace.events, trace.events.rows(Category.CPU_OP)
    gaps = intersect(complement(spans(events.ts[ops], events.end[ops]), *extent(trace)), times)
    longest = gaps[np.argsort(gaps[:, 0] - gaps[:, 1])][:1]
    if 10 * measure(longest) < 9 * measure(times) or not len(times):
        return times, call
    follow = ops[(events.ts[ops] >= longest[0, 1]) & (events.ts[ops] <= events.ts[call])]
    return longest, np.r_[follow[np.lexsort([-events.dur[follow], events.ts[follow]])], call][:1]
