"""What a snapshot says in sentences: who holds the peak, why memory ran out, and what the file does not hold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceq.model import Action, Caveat
from traceq.report import Finding, found
from traceq.snapshots.fragmentation import free_for
from traceq.snapshots.kinds import Kind
from traceq.snapshots.lifetimes import BEFORE
from traceq.snapshots.moments import DeviceMemory, Holding, Moment
from traceq.units import Unit, format_value

__all__ = ["caveats_of", "findings_of"]

_MOST_KINDS = 3
_LEAST_SHARE = 0.02
_MOVES = tuple(action for action in Action if action not in (Action.FREE_REQUESTED, Action.OOM, Action.OTHER))
_REMEDY = "call torch.cuda.memory._record_memory_history() first, and dump before it is switched off"


def findings_of(memory: DeviceMemory, on: str = "") -> Iterator[Finding]:
    """Yield who holds the peak, and why memory ran out; `on` names the device where there are several."""
    oom, peak = memory.moment("oom"), memory.moment("peak")
    if oom is not None:
        lead, holders = f"out of memory{on}: {_oom_words(oom)}", _held(oom, "; ")
        yield found("out_of_memory", "high", f"{lead}{holders}", lead=lead, evidence=holders.removeprefix("; "))
        yield from _fragmented(memory, oom, on)
    if peak is not None:
        reserved = f" of {_size(peak.reserved_bytes)} reserved" if peak.reserved_bytes is not None else ""
        lead, holders = f"peak{on}: {_size(peak.size_bytes)} allocated{reserved}", _held(peak)
        yield found("memory_peak", "medium", f"{lead}{holders}", lead=lead, evidence=holders.removeprefix(": "))


def caveats_of(memory: DeviceMemory) -> Iterator[Caveat]:
    """Yield what the file does not hold, in bytes."""
    snapshot, allocations, moment = memory.snapshot, memory.allocations, memory.largest
    if not memory.has_history:
        text = f"{snapshot.path}: the file holds no history of allocations, so only the end is known: {_REMEDY}"
        yield Caveat("no_history", text)
        return
    if unrecorded := moment.by_kind().get(Kind.UNRECORDED):
        num, size = unrecorded
        text = (
            f"{_size(size)} of the {_size(moment.size_bytes)} at the peak ({num:,} allocations) were allocated before "
            f"the first of the {allocations.num_actions:,} actions in the file, so their line and kind are unknown: "
            "record from the start of the job"
        )
        yield Caveat("unrecorded_allocations", text)
    if _is_cut(memory):
        text = f"{snapshot.path}: the history was cut (max_entries); what is shown is the peak of the rest"
        yield Caveat("history_cut", text)
    if allocations.num_contradictions:
        lost = f"; {_size(allocations.lost_bytes)} are in no block at the end" if allocations.lost_bytes else ""
        text = f"{snapshot.path}: {allocations.num_contradictions:,} actions contradict others or the blocks{lost}"
        yield Caveat("contradictions", text)


def _is_cut(memory: DeviceMemory) -> bool:
    """Return whether blocks have a stack of an allocation that the history lacks."""
    start, stack = (
        values[memory.allocations.at_end] for values in (memory.allocations.start, memory.allocations.stack)
    )
    return bool(((start == BEFORE) & (stack > 0)).any())


def _oom_words(oom: Moment) -> str:
    line = f" at {oom.place.line}" if oom.place is not None and oom.place.line[:1] != "(" else ""
    free = f", {_size(oom.device_free_bytes)} free on the device" if oom.device_free_bytes is not None else ""
    return f"{_size(oom.oom_bytes)} asked for{line}{free}"


def _held(moment: Moment, before: str = ": ") -> str:
    """Return `: activations 62 % (7.6 GiB, most at model.py:41 forward), ...` for the largest kinds."""
    total = moment.size_bytes or 1
    kinds = sorted(moment.by_kind().items(), key=lambda item: -item[1][1])
    words = []
    for kind, (_, size) in kinds[:_MOST_KINDS]:
        if size >= _LEAST_SHARE * total:
            largest = next(holding for holding in moment.holdings if holding.kind is kind)
            words.append(f"{kind} {format_value(100 * size / total, Unit.PERCENT)} ({_size(size)}{_most(largest)})")
    return before + ", ".join(words) if words else ""


def _most(largest: Holding) -> str:
    return f", most at {largest.place.line}" if largest.place.line[:1] != "(" else ""


def _fragmented(memory: DeviceMemory, oom: Moment, on: str) -> Iterator[Finding]:
    """Yield a finding if there was room for the request, but not in one piece, and blocks are still as they were."""
    history, request = memory.snapshot.history, oom.oom_bytes or 0
    free, largest = free_for(memory.snapshot, request)
    if np.isin(history.action[oom.action + 1 :], _MOVES).any() or not largest < request <= free:
        return
    is_expandable = memory.snapshot.segments.is_expandable.any()
    remedy = "" if is_expandable else ": try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    text = (
        f"fragmentation{on}: {_size(free)} of what is reserved are free, the largest piece for such a request has "
        f"{_size(largest)}, and {_size(request)} were asked for{remedy}"
    )
    lead = f"fragmentation{on}: {_size(free)} are free, but in no piece of {_size(request)}"
    yield found("fragmentation", "high", text, lead=lead, evidence=remedy.removeprefix(": "))


def _size(size_bytes: int | None) -> str:
    return format_value(size_bytes, Unit.BYTES)
