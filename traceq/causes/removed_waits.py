"""How much shorter is a step without some of the host's waits?"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceq.causes.replay import replay_of
from traceq.causes.savings import Saving
from traceq.facts.events.copies import PAGEABLE_COPY
from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernel_loads import LONG_CALL_NS
from traceq.facts.events.kernels import innermost_ops
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import tracks
from traceq.facts.memo import once_per_trace
from traceq.facts.roofline.peaks import peaks_of
from traceq.facts.stalls.host_waits import host_waits
from traceq.facts.stalls.syncs import SYNC_KINDS, is_of_timing, syncs
from traceq.facts.timeline.blocking_copies_and_syncs import SyncKind, blocking_calls
from traceq.facts.timeline.modules import modules, modules_at
from traceq.facts.timeline.once import capture_times
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import extent
from traceq.facts.timeline.time_partition import unrecorded
from traceq.grouping import Groups, group
from traceq.intervals import contains, measure_within, sorted_unique
from traceq.model import Trace

LOADER, _MEASUREMENT, _UNRECORDED, _RESULT, _CAPTURE = -1, -2, -3, -4, -5
"""Kinds of waits that a step cannot do without: for the data loader, those of a measurement, for unrecorded work, for
a result with which the host goes on for long, and those of the capture of a CUDA graph, which no later step has.

What a host that does not wait for unrecorded work, or a result, would do meanwhile is not known.
"""
_COPIES = re.compile(r"^aten::copy_$")
"""Ops that copy whole tensors, while others read one value, such as a loss for a log."""


@once_per_trace
def kinds_of_waits(trace: Trace) -> NDArray[np.int64]:
    """Return int64[H]: index into SYNC_KINDS of each host wait that a job could do without; negative for others."""
    calls, waits = blocking_calls(trace), host_waits(trace)
    if not len(calls):
        return np.full(len(waits), LOADER)
    kind = np.where(is_of_measurement(trace)[alike_syncs(trace).group_ids], _MEASUREMENT, calls.kind)
    kind = np.where(contains(capture_times(trace), calls.start), _CAPTURE, kind)
    unrecorded_ns = measure_within(unrecorded(trace), waits.start, waits.end)
    kind_of_wait = np.where(2 * unrecorded_ns > waits.end - waits.start, _UNRECORDED, kind[waits.call])
    kind_of_wait = np.where(_is_for_result(trace), _RESULT, kind_of_wait)
    return np.where(waits.call >= 0, kind_of_wait, LOADER)


def _is_for_result(trace: Trace) -> NDArray[np.bool_]:
    """Return bool[H]: waits for a copied tensor after which no thread launches, or waits again, for long.

    The host computes with what it got, as detection and segmentation do last.
    """
    calls, waits, work = blocking_calls(trace), host_waits(trace), device_work(trace)
    copies = (calls.kind == SyncKind.DTOH) & matching(trace.events, innermost_ops(trace, calls.rows), _COPIES)
    follows = sorted_unique(trace.events.ts[work.call[work.linked]], waits.start)
    until = np.r_[follows, extent(trace)[1]][np.searchsorted(follows, waits.end)]
    return np.asarray((waits.call >= 0) & copies[waits.call] & (until - waits.end >= LONG_CALL_NS))


@once_per_trace
def is_of_measurement(trace: Trace) -> NDArray[np.bool_]:
    """Return bool[G]: rows of syncs that all time work; no step of a job has them."""
    groups = alike_syncs(trace)
    return np.equal(groups.sum(~is_of_timing(trace)), 0)


@once_per_trace
def copies_pageable_memory(trace: Trace) -> NDArray[np.bool_]:
    """Return bool[S]: blocking calls that copy from pageable memory to the device."""
    calls = blocking_calls(trace)
    is_pageable = matching(trace.events, device_work(trace).rows[calls.copy], PAGEABLE_COPY)
    return np.asarray(is_pageable & (calls.kind == SyncKind.HTOD) & (calls.copy >= 0))


@once_per_trace
def is_for_pageable_copy(trace: Trace) -> NDArray[np.bool_]:
    """Return bool[H]: host waits that a job could do without, for a copy from pageable memory to the device."""
    copies = np.r_[copies_pageable_memory(trace), False][host_waits(trace).call]
    return np.asarray(copies & (kinds_of_waits(trace) >= 0))


def saved_without_syncs(trace: Trace, *kinds: int) -> Saving:
    """Return by how much replay shortens the mean counted step without all syncs of some kinds; of any without `kinds`.

    It is the `saved_ns` of the row of the table `replay` that removes them.
    """
    of_wait = kinds_of_waits(trace)
    return _saved(trace, np.isin(of_wait, kinds) if kinds else of_wait >= 0)


@once_per_trace
def alike_syncs(trace: Trace) -> Groups:
    """Return the syncs by (kind, op, line, module, phase): a group for each row of the table `syncs`."""
    waits = syncs(trace)
    module = modules_at(trace, tracks(trace)[waits.rows], waits.start + waits.blocked // 2)
    return group([waits.kind, waits.origin.op, waits.origin.line, module, waits.phase])


@once_per_trace
def sync_keys(trace: Trace) -> tuple[str, ...]:
    """Return the key of each row of the table `syncs`, in the order of `alike_syncs`: kind, op, line, module, phase."""
    texts, paths, names = syncs(trace).origin.texts, modules(trace).paths, phases(trace).names
    return tuple(
        "|".join((SYNC_KINDS[kind], texts[op], texts[line], paths[path] if path >= 0 else "", names[phase]))
        for kind, op, line, path, phase in alike_syncs(trace).keys.tolist()
    )


@once_per_trace
def saved_without_alike(trace: Trace) -> list[Saving]:
    """Return by how much replay shortens the mean counted step without each group of syncs but with all others."""
    return replay_of(trace).saved_per_step(_waits_of(trace, alike_syncs(trace).group_ids))


@once_per_trace
def saved_without_place(trace: Trace) -> list[Saving]:
    """Return for each group of `alike_syncs` what a step saves without all syncs of its kind, place and phase."""
    groups, waits = alike_syncs(trace), syncs(trace)
    line, op = waits.origin.line, waits.origin.op
    has_line, has_op = (np.array([bool(text) for text in waits.origin.texts], np.bool_)[each] for each in (line, op))
    text = np.where(has_line, line, np.where(has_op, op, -1))
    call = np.where(text < 0, trace.events.name[waits.rows], -1)
    places = group([waits.kind, text, call, waits.phase])
    saved = replay_of(trace).saved_per_step(_waits_of(trace, places.group_ids))
    return [saved[place] for place in places.group_ids[groups.first].tolist()]


def _waits_of(trace: Trace, group_ids: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
    """Return bool[G, H]: the host waits that a job could do without of each group of its syncs."""
    call, blocks = host_waits(trace).call, np.flatnonzero(kinds_of_waits(trace) >= 0)
    waits = np.zeros((int(group_ids.max(initial=-1)) + 1, len(call)), np.bool_)
    waits[group_ids[call[blocks]], blocks] = True
    return waits


def saved_without_loader(trace: Trace) -> Saving:
    """Return by how much replay shortens the mean counted step without its waits for the data loader."""
    return _saved(trace, kinds_of_waits(trace) == LOADER)


def saved_without_host_time(trace: Trace) -> Saving:
    """Return by how much replay shortens the mean counted step if its host takes no time, its data loader included."""
    return replay_of(trace).without_host_time_and(kinds_of_waits(trace) == LOADER)


def saved_without_pageable_copies(trace: Trace) -> Saving:
    """Return by how much replay shortens the mean counted step if its copies to the device are of pinned memory.

    At least by what the host waits for them, at most if they also reach the bandwidth of the link, where that is known.
    """
    of_waits, peaks = _saved(trace, is_for_pageable_copy(trace)), peaks_of(trace.device)
    if peaks is None or not peaks.link:
        return of_waits
    work, copies = device_work(trace), blocking_calls(trace).copy[copies_pageable_memory(trace)]
    copies = copies[trace.events.bytes[work.rows[copies]] > 0]
    shorter_ns = work.end - work.start
    shorter_ns[copies] = trace.events.bytes[work.rows[copies]] * 1e9 / peaks.link
    of_both = replay_of(trace).with_shorter_awaited_work(is_for_pageable_copy(trace), shorter_ns)
    return replace(of_waits, most_ns=max(of_waits.most_ns, of_both.most_ns))


def _saved(trace: Trace, removed: NDArray[np.bool_]) -> Saving:
    return replay_of(trace).saved_per_step(removed[None])[0]
