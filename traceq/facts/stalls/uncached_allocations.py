"""Does the driver allocate every tensor? Then no caching allocator is in use, and each free waits for the device."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import tracks
from traceq.facts.stalls.one_time_syncs import returns_memory
from traceq.facts.stalls.syncs import syncs
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.intervals import sorted_unique, span_index
from traceq.model import Category, Trace

__all__ = ["UncachedAllocations", "uncached_allocations"]

_ALLOCATES = re.compile(r"^(cuda|hip)(Malloc(Managed)?|ExtMallocWithFlags)$|^cuMemAlloc(Managed)?(_v2)?$")

_LEAST_CALLS = 50
"""Fewer allocations are those of a pool that grows."""
_LEAST_PER_LAUNCH, _LEAST_FREED, _LEAST_PLACES = 0.3, 0.5, 0.2
"""Allocations per launch of a kernel, frees per allocation, and frees that follow no other free per allocation.

Where tensors are freed one by one, these are 0.6, 0.9 and 0.4. An allocator that is short of memory frees all unused
blocks in a row, before the allocation that failed.
"""


@frozen
class UncachedAllocations:
    """How often the driver allocates and frees in the counted steps, and how often they launch kernels."""

    num_allocated: int
    num_freed: int
    num_launches: int


def uncached_allocations(trace: Trace) -> UncachedAllocations | None:
    """Return how often the driver allocates and frees, if it does so for every tensor; None where it does not."""
    events, waits, work = trace.events, syncs(trace), device_work(trace)
    host = steps(trace).host[steps(trace).counted]
    is_counted = span_index(host, waits.start) >= 0
    num_allocated = int((matching(events, waits.rows, _ALLOCATES) & is_counted).sum())
    frees = waits.rows[returns_memory(trace) & is_counted]
    kernels = work.call[work.linked & (events.category[work.rows] == Category.KERNEL)]
    launches = sorted_unique(kernels[span_index(host, events.ts[kernels]) >= 0])
    is_cached = (
        num_allocated < max(_LEAST_CALLS, _LEAST_PER_LAUNCH * len(launches))
        or len(frees) < _LEAST_FREED * num_allocated
        or _num_places(trace, frees) < _LEAST_PLACES * num_allocated
    )
    return None if is_cached else UncachedAllocations(num_allocated, len(frees), len(launches))


def _num_places(trace: Trace, frees: NDArray[np.int64]) -> int:
    """Return how many frees do not directly follow another one of their thread."""
    events, track = trace.events, tracks(trace)
    calls = events.rows(Category.RUNTIME)
    calls = calls[np.lexsort((events.ts[calls], track[calls]))]
    is_free = np.isin(calls, frees)
    follows = is_free[:-1] & (track[calls[1:]] == track[calls[:-1]])
    return int((is_free & ~np.r_[False, follows]).sum())
