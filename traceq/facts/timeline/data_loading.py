"""Time in which the main thread fetches the next batch from the data loader, or starts the loader's workers."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.claims.limits import MODERATE
from traceq.facts.events.name_patterns import READS_VALUE, matching
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.steps import on_main_thread
from traceq.frozen import frozen
from traceq.intervals import Spans, contains, measure, measure_within, span_index, spans, union
from traceq.model import Category, Trace

DATALOAD_WAIT = "dataload_wait"
"""Phase in which a recorded loop fetches its next batch."""

LOADING = ("dataload", DATALOAD_WAIT)
"""Phases in which the next batch is fetched: of torch's ranges around that, and of a recorded loop."""

LOADER = r"enumerate\(DataLoader\)"
"""Start of torch's name for the ranges in which a loop fetches its next batch; the iterator's class follows."""

LOADER_RANGE = re.compile(f"^{LOADER}")
_WITHOUT_WORKERS = re.compile(rf"^{LOADER}#_SingleProcess")
_WITH_WORKERS = re.compile(rf"^{LOADER}#_MultiProcess")

_CREATION = re.compile(r"(^|/)torch/utils/data/dataloader\.py\(\d+\): _get_iterator$")
"""Frame of Python in which a loop creates the iterator of its loader, which starts the workers."""
_END = re.compile(r"(^|/)torch/utils/data/dataloader\.py\(\d+\): _shutdown_workers$")
"""Frame in which it waits for their end, also where another iterator takes its place."""
_SEED = re.compile(r"^aten::random_$")
"""The draw of a seed of the workers, with which every iterator begins."""
_USES_SEED = re.compile(r"^aten::is_floating_point$")
_DRAWS = re.compile(
    r"^aten::(empty|random_|randperm|scalar_tensor|resize_|resolve_conj|resolve_neg|is_floating_point|zeros|zero_)$"
)
"""Other ops while an iterator is made: most samplers draw an order."""
_REBUILDS = re.compile(r"^aten::set_$")
"""The last op by which a tensor is made of a worker's shared memory."""
_SOONEST_NS = 1_000_000
"""No process starts in less."""
_NEVER = np.iinfo(np.int64).min


@frozen(eq=False)
class Iterations:
    """K begins of an iteration of a data loader, as at the begin of each epoch, on the main thread in order.

    `made` int64[K, 2] ns: the iterator is made, or begins anew. `whole` int64[K, 2] ns: until the end of its first
    batch, and from the end of the iteration before where nothing comes between. `is_again` bool[K]: not the first batch
    of the trace. `starts_workers` bool[K]: new processes are started, as without persistent_workers=True.
    """

    made: Spans
    whole: NDArray[np.int64]
    is_again: NDArray[np.bool_]
    starts_workers: NDArray[np.bool_]

    @property
    def with_new_workers(self) -> NDArray[np.int64]:
        """int64[W, 2] ns: `whole` of those that start workers."""
        return self.whole[self.starts_workers]


@once_per_trace
def loader_waits(trace: Trace) -> Spans:
    """Return the time in which the main thread waits for the data loader, starts it, or makes the batches itself."""
    waits = _rows(trace, LOADER_RANGE)
    return union(spans(trace.events.ts[waits], trace.events.end[waits]), around_iterations(trace))


@once_per_trace
def around_iterations(trace: Trace) -> Spans:
    """Return the time in which the main thread begins to iterate a loader, or waits for the end of its workers."""
    return union(loader_iterations(trace).made, ends_of_workers(trace))


@once_per_trace
def ends_of_workers(trace: Trace) -> Spans:
    """Return the time in which the main thread waits for the end of a loader's workers.

    Without frames of Python it is that in which it asks for a last batch, and takes none from a worker as before.
    """
    events, ends = trace.events, trace.events.rows(Category.PYTHON)
    if len(ends):
        ends = _of_main(trace, ends, _END)
    else:
        asks = _rows(trace, _WITH_WORKERS)
        ops = np.sort(events.ts[on_main_thread(trace, events.rows(Category.CPU_OP))])
        takes = np.searchsorted(ops, events.end[asks]) > np.searchsorted(ops, events.ts[asks], "right")
        ends = asks[-1:][~takes[-1:] & takes.any() & (events.dur[asks[-1:]] >= _SOONEST_NS)]
    return spans(events.ts[ends], events.end[ends])


@once_per_trace
def late_batches(trace: Trace) -> Spans:
    """Return the waits of the main thread for a batch that no worker had made yet, but for the first of an iteration.

    They take more than 5 % of the time since the batch before, without its hand-over.
    """
    asks, iterations = _rows(trace, _WITH_WORKERS), loader_iterations(trace).whole
    start, end = trace.events.ts[asks], trace.events.end[asks]
    until = end - measure_within(hand_overs(trace), start, end)
    is_late = np.r_[False, until[1:] - start[1:] > MODERATE * np.diff(end)][: len(asks)]
    is_late &= ~contains(spans(*iterations.T), start)
    return spans(start[is_late], end[is_late])


@once_per_trace
def hand_overs(trace: Trace) -> Spans:
    """Return the time in which the main thread makes a worker's batch its own, which is there by then.

    It asks the worker for the memory of one tensor after the other, and the first one takes as long as those that
    follow, in the median. Of a batch of one tensor that is not known: its hand-over begins with its last op.
    """
    asks = _rows(trace, _WITH_WORKERS)
    start, end = trace.events.ts[asks], trace.events.end[asks]
    rebuilds = _of_main(trace, trace.events.rows(Category.CPU_OP), _REBUILDS)
    index = span_index(spans(start, end), trace.events.ts[rebuilds])
    rebuilds, index = rebuilds[index >= 0], index[index >= 0]
    unpacking, first = np.unique(index, return_index=True)
    rebuilt_ns, is_next = trace.events.end[rebuilds], np.diff(index) == 0
    one_ns = int(np.median(np.diff(rebuilt_ns)[is_next])) if is_next.any() else 0
    return spans(np.maximum(rebuilt_ns[first] - one_ns, start[unpacking]), end[unpacking])


@once_per_trace
def own_batches(trace: Trace) -> Spans:
    """Return the part of `loader_waits` in which the main thread makes the batches itself, without workers."""
    rows = _rows(trace, _WITHOUT_WORKERS)
    return spans(trace.events.ts[rows], trace.events.end[rows])


def makes_own_batches(trace: Trace) -> bool:
    """Return whether most of `loader_waits` is such a part: with `num_workers=0` there is nobody to wait for."""
    return 2 * measure(own_batches(trace)) > measure(loader_waits(trace))


def have_unlike_loaders(a: Trace, b: Trace) -> bool:
    """Return whether the main thread makes the batches of one of two recordings, and receives those of the other."""
    both_wait = len(loader_waits(a)) > 0 and len(loader_waits(b)) > 0
    return both_wait and makes_own_batches(a) != makes_own_batches(b)


@once_per_trace
def loader_iterations(trace: Trace) -> Iterations:
    """Return when the main thread begins to iterate a data loader.

    Before a first batch it does nothing but draw a seed and, mostly, an order. Workers are started in a frame of Python
    or, where none are recorded, if it is silent after the seed for as long as a process takes to start.
    """
    events = trace.events
    asks = _rows(trace, LOADER_RANGE)
    start, end = events.ts[asks], events.end[asks]
    before = np.r_[_NEVER, end][: len(asks)]
    draws, others = _draws_and_others(trace, spans(start, end)) if len(asks) else (asks, start)
    since = np.maximum(before, np.r_[others, _NEVER][np.searchsorted(others, start) - 1])
    begin, is_silent = _since_seed(trace, draws, since, start)
    until = start.copy()
    if len(frames := events.rows(Category.PYTHON)):
        frames = _of_main(trace, frames, _CREATION)
        created = _first_between(events.ts[frames], before, start)
        is_silent = created < start
        begin[is_silent] = created[is_silent]
        until[is_silent] = events.end[frames][np.searchsorted(events.ts[frames], created[is_silent])]
    chosen = np.flatnonzero(begin < start)
    begin, is_again = begin[chosen], chosen > 0
    follows = is_again & (_first_between(others, before[chosen], begin) == begin)
    since = np.where(follows, start[chosen - 1], begin)
    return Iterations(
        made=np.column_stack([begin, until[chosen]]),
        whole=np.column_stack([since, end[chosen]]),
        is_again=is_again,
        starts_workers=(is_silent & matching(events, asks, _WITH_WORKERS))[chosen],
    )


def _draws_and_others(trace: Trace, fetching: Spans) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (ops of the main thread as while an iterator is made, when its others begin), without those `fetching`."""
    events = trace.events
    ops = on_main_thread(trace, events.rows(Category.CPU_OP))
    ops = ops[~contains(fetching, events.ts[ops]) & ~matching(events, ops, READS_VALUE)]
    is_draw = matching(events, ops, _DRAWS)
    return ops[is_draw], np.sort(events.ts[ops[~is_draw]])


def _since_seed(
    trace: Trace, draws: NDArray[np.int64], since: NDArray[np.int64], start: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return (when the first draw since then is, if one is of a seed, else `start`; whether silence follows that)."""
    events = trace.events
    seeds = draws[matching(events, draws, _SEED)]
    is_of_seed = contains(spans(events.ts[seeds] + 1, events.end[seeds]), events.ts[draws])  # old ones are two, nested
    later = draws[~is_of_seed & ~matching(events, draws, _USES_SEED)]
    seed = _first_between(np.sort(events.ts[seeds]), since, start)
    is_silent = _first_between(np.sort(events.ts[later]), seed + 1, start) - seed >= _SOONEST_NS
    return np.where(seed < start, _first_between(np.sort(events.ts[draws]), since, start), start), is_silent


def _first_between(times: NDArray[np.int64], since: NDArray[np.int64], until: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first of some ascending times from each `since` on, but no later than `until`."""
    first = np.r_[times, np.iinfo(np.int64).max][np.searchsorted(times, since, "left")]
    return np.asarray(np.minimum(first, until))


def _rows(trace: Trace, name: re.Pattern[str]) -> NDArray[np.int64]:
    """Return the ranges of the main thread with such a name."""
    return _of_main(trace, trace.events.rows(Category.ANNOTATION, Category.CPU_OP), name)


def _of_main(trace: Trace, rows: NDArray[np.int64], name: re.Pattern[str]) -> NDArray[np.int64]:
    """Return the rows of the main thread with such a name, by start."""
    return trace.events.by_start(on_main_thread(trace, rows[matching(trace.events, rows, name)]))
