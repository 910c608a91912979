"""Quantities that several tools tell of a trace, as traceq counts them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernels import is_communication
from traceq.facts.events.name_patterns import matching
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.intervals import intersect, measure, spans
from traceq.model import Category, Trace
from traceq.units import Unit

_SYNCHRONIZE = re.compile(r"^(cuda|hip)\w*Synchronize$")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number that every tool counts for itself; times are in ns."""

    key: str
    title: str
    unit: Unit


QUANTITIES = (
    Quantity("kernels", "kernels", Unit.COUNT),
    Quantity("copies", "memory copies", Unit.COUNT),
    Quantity("memsets", "memsets", Unit.COUNT),
    Quantity("linked", "device work with its launch", Unit.COUNT),
    Quantity("span", "first to last device work", Unit.NS),
    Quantity("busy", "busy: any device work", Unit.NS),
    Quantity("idle", "idle: none", Unit.NS),
    Quantity("compute", "computes", Unit.NS),
    Quantity("hidden", "communication behind compute", Unit.PERCENT),
    Quantity("copying", "copies, summed", Unit.NS),
    Quantity("queue", "longest launch queue", Unit.COUNT),
    Quantity("synchronize", "calls to synchronize", Unit.COUNT),
)


@frozen(eq=False)
class Classes:
    """Class of every piece of device work: `computes`, `communicates` bool[D]; copies and memsets are neither."""

    computes: NDArray[np.bool_]
    communicates: NDArray[np.bool_]


def classes(trace: Trace) -> Classes:
    """Return the classes as traceq sees them."""
    work, communicates = device_work(trace), is_communication(trace)
    is_kernel = trace.events.category[work.rows] == Category.KERNEL
    return Classes(is_kernel & ~communicates, communicates)


def quantities(
    trace: Trace,
    has: NDArray[np.bool_] | None = None,
    of: Classes | None = None,
    queues: NDArray[np.bool_] | None = None,
) -> dict[str, float]:
    """Return each quantity by its key, as a tool counts it that does as traceq but for some rules.

    It `has` some rows of the trace, bool[N] of Events, puts device work into its own classes (`of`), and fills the
    launch queue by some calls, `queues` bool[N] of Events.
    """
    work, category = device_work(trace), trace.events.category
    of = of or classes(trace)
    has = np.ones(len(trace.events), np.bool_) if has is None else has
    chosen, linked = has[work.rows], has[work.rows] & work.linked & has[work.call]
    calls = trace.events.rows(Category.RUNTIME, Category.PROFILER)  # of the job, and those as the profiler stops

    def num(kind: Category) -> int:
        return int((chosen & (category[work.rows] == kind)).sum())

    def when(selected: NDArray[np.bool_]) -> NDArray[np.int64]:
        index = np.flatnonzero(chosen & selected)
        return spans(work.start[index], work.end[index])

    busy, compute, comm = when(chosen), when(of.computes), when(of.communicates)
    span = int(busy[-1, 1] - busy[0, 0]) if len(busy) else 0
    copies = np.flatnonzero(chosen & (category[work.rows] == Category.MEMCPY))
    return {
        "kernels": num(Category.KERNEL),
        "copies": num(Category.MEMCPY),
        "memsets": num(Category.MEMSET),
        "linked": int(linked.sum()),
        "span": span,
        "busy": measure(busy),
        "idle": span - measure(busy),
        "compute": measure(compute),
        "hidden": 100 * measure(intersect(compute, comm)) / measure(comm) if len(comm) else float("nan"),
        "copying": int((work.end - work.start)[copies].sum()),
        "queue": _longest_queue(trace, np.flatnonzero(linked if queues is None else linked & queues[work.call])),
        "synchronize": int(matching(trace.events, calls[has[calls]], _SYNCHRONIZE).sum()),
    }


def _longest_queue(trace: Trace, index: NDArray[np.int64]) -> int:
    """Return the most work of one stream that is launched and has not started."""
    work = device_work(trace)
    if len(index) == 0:
        return 0
    time = np.r_[trace.events.ts[work.call[index]], work.start[index]]
    change = np.repeat([1, -1], len(index))
    stream = np.tile(group([work.stream[index]]).group_ids, 2)
    order = np.lexsort((-change, time, stream))
    waiting = np.cumsum(change[order])  # every stream ends with none, so the next one begins with none
    return int(waiting.max())
