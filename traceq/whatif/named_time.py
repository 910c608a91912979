"""Time that has a name: device work by its kernel or by the op that launched it, else the host's in ops and phases."""

from __future__ import annotations

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
from traceq.intervals import Spans, spans
from traceq.model import Category, Trace

__all__ = ["NamedTime", "by_chain", "named_time"]

Ints = NDArray[np.int64]

_MOST_NAMES = 5


@frozen(eq=False)
class NamedTime:
    """What has a name: `work` int64[X] into DeviceWork, or else `host`, when it is open on each chain of threads.

    `nearest`: names that are alike, of a name that nothing has.
    """

    work: Ints
    host: tuple[Spans, ...] = ()
    nearest: tuple[str, ...] = ()

    @property
    def is_any(self) -> bool:
        """Whether anything has the name."""
        return bool(len(self.work) or any(map(len, self.host)))


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
        return NamedTime(np.flatnonzero(chosen))
    on_host = NamedTime(np.empty(0, np.int64), by_chain(trace, rows))
    if on_host.is_any:
        return on_host
    names = list(dict.fromkeys([*map(short_kernel, kernels), *host.names]))
    return NamedTime(np.empty(0, np.int64), nearest=_nearest(pattern, names))


def _matches(name: str, pattern: str, short: str = "") -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(short, pattern)


def _nearest(pattern: str, names: list[str]) -> tuple[str, ...]:
    """Return the names that are most like a pattern: those that contain a part of it, then those spelt alike."""
    from difflib import get_close_matches  # for a name that is not there alone

    plain = pattern.replace("?", "*").replace("*", "").casefold()
    begin = {name: name.casefold()[: len(plain)] for name in names}
    containing = [name for name in names if plain and plain in name.casefold()]
    alike = get_close_matches(plain, sorted(set(begin.values())), _MOST_NAMES, cutoff=0.5)
    return tuple(dict.fromkeys([*containing, *(name for text in alike for name in names if begin[name] == text)]))[
        :_MOST_NAMES
    ]


def by_chain(trace: Trace, rows: Ints) -> tuple[Spans, ...]:
    """Return when some rows of Events are open on each chain of threads that launch."""
    track, start, end = tracks(trace)[rows], trace.events.ts[rows], trace.events.end[rows]
    of_chains = (np.isin(track, chain, kind="table") for chain in thread_chains(trace))
    return tuple(spans(start[of_chain], end[of_chain]) for of_chain in of_chains)
