"""Time that has a name: device work by its kernel or by the op that launched it, else the host's in ops and phases."""

from __future__ import annotations

from difflib import get_close_matches
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.enclosing_rows import surroundings
from traceq.facts.events.kernel_names import short_kernel
from traceq.facts.events.name_patterns import unique_names
from traceq.facts.events.nesting import tracks
from traceq.facts.timeline.launch_threads import thread_chains
from traceq.frozen import frozen
from traceq.intervals import Spans, empty, spans, subtract
from traceq.model import Category, Trace
from traceq.whatif.rank_part import RankPart

__all__ = ["NamedTime", "host_change", "named_time"]

Ints = NDArray[np.int64]

_MOST_NAMES = 5


@frozen(eq=False)
class NamedTime:
    """What has a name: `work` int64[X] into DeviceWork, or else `host`, when it is open on the host.

    `nearest`: names that are alike, of a name that nothing has.
    """

    work: Ints
    host: Spans
    nearest: tuple[str, ...] = ()

    @property
    def is_any(self) -> bool:
        """Whether anything has the name."""
        return bool(len(self.work) or len(self.host))


def named_time(trace: Trace, pattern: str) -> NamedTime:
    """Return what has a name by a pattern, like nvjet_* or aten::mm."""
    events, work = trace.events, device_work(trace)
    ids, number = unique_names(events, work.rows)
    kernels = [events.strings[name] for name in ids.tolist()]
    is_named = np.array([_matches(name, pattern, short_kernel(name).strip()) for name in kernels], np.bool_)
    chosen = is_named[number] if len(work) else np.zeros(0, np.bool_)
    host = surroundings(trace, work.call[work.linked])
    rows = host.rows[np.isin(host.name_index, [i for i, name in enumerate(host.names) if _matches(name, pattern)])]
    in_op = rows[events.category[rows] == Category.CPU_OP]
    if len(work) and len(in_op):
        chosen[np.flatnonzero(work.linked)[host.within_rows(in_op)]] = True
    if chosen.any():
        return NamedTime(np.flatnonzero(chosen), empty())
    threads = [track for chain in thread_chains(trace) for track in chain]
    rows = rows[np.isin(tracks(trace)[rows], threads)]
    if len(rows):
        return NamedTime(np.empty(0, np.int64), spans(events.ts[rows], events.end[rows]))
    names = list(dict.fromkeys([*map(short_kernel, kernels), *host.names]))
    return NamedTime(np.empty(0, np.int64), empty(), _nearest(pattern, names))


def _matches(name: str, pattern: str, short: str = "") -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(short, pattern)


def _nearest(pattern: str, names: list[str]) -> tuple[str, ...]:
    """Return the names that are most like a pattern: those that contain a part of it, then those spelt alike."""
    plain = pattern.replace("?", "*").replace("*", "").casefold()
    begin = {name: name.casefold()[: len(plain)] for name in names}
    containing = [name for name in names if plain and plain in name.casefold()]
    alike = get_close_matches(plain, sorted(set(begin.values())), _MOST_NAMES, cutoff=0.5)
    return tuple(dict.fromkeys([*containing, *(name for text in alike for name in names if begin[name] == text)]))[
        :_MOST_NAMES
    ]


def host_change(part: RankPart, parts: Spans, factors: NDArray[np.float64]) -> Ints:
    """Return int64[X] ns by which the host's edges change if its time in `parts` does by `factors` of it.

    Time in which it waits for others is none of its own.
    """
    if not len(parts):
        return np.zeros(len(part.host), np.int64)
    if len(part.waits):
        whole = subtract(parts, part.waits)
        factors = factors[np.searchsorted(parts[:, 0], whole[:, 0], "right") - 1]
        parts = whole
    origin = int(part.time[0])
    change = np.concatenate([[0.0], np.cumsum(factors * (parts[:, 1] - parts[:, 0]))])
    moments = (parts - origin).ravel().astype(np.float64)
    values = np.column_stack([change[:-1], change[1:]]).ravel()
    start, end = part.host_spans()
    changed = np.interp(end - origin, moments, values) - np.interp(start - origin, moments, values)
    rounded: Ints = np.rint(changed).astype(np.int64)
    return rounded
