"""Files for the viewer: all ranks of a run on a common clock, or two traces one above the other.

Two traces are aligned at their first whole steps, with the causes of their difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from traceq.claims.claim import Claim
from traceq.compare.attributed_spans import Charges, charges
from traceq.compare.cause_names import sync_name
from traceq.compare.result import Cause, Diff
from traceq.facts.timeline.steps import steps
from traceq.model import Run, Trace
from traceq.renderers.limits import CAUSES_LINKED
from traceq.renderers.perfetto.clock import common_clock, not_before_zero
from traceq.renderers.perfetto.packets import Argument, Track, counter_packets, track_packets
from traceq.renderers.perfetto.process_tracks import DerivedTrack, TraceProcess, derived_tracks, process_packets
from traceq.renderers.perfetto.worst_place import WorstPlace
from traceq.units import Unit, format_value

_LINKS = 1 << 52
_DELTA = 1  # uuid and process id of tracks that belong to both sides


def write_pair(a: Run, b: Run, diff: Diff, file: BinaryIO) -> None:
    """Write A and B of a diff as one Perfetto trace, with B shifted to A's first whole step.

    Of several ranks the one that the diff explains. A counter above both has how far B is behind A, by step; a track on
    each side has the time charged to the largest causes, with arrows between the two sides of a cause. Raises
    UsageFault if the diff has no traced step.
    """
    ours, theirs = _traces(a, b, diff)
    causes = diff.causes[:CAUSES_LINKED]
    charged = charges(ours, causes), charges(theirs, causes)
    links = _links(ours, theirs, *charged)
    offsets = _offsets(ours, theirs)
    sides = zip((ours, theirs), (diff.a_name, diff.b_name), offsets, strict=True)
    file.write(_delta(ours, theirs, offsets[0]))
    for number, ((trace, name, offset_ns), side, flow) in enumerate(zip(sides, charged, links, strict=True), start=2):
        title = f"{'AB'[number - 2]} {name}"
        process = TraceProcess(trace, number, f"{title} · rank {trace.rank}", offset_ns, f" · {title}")
        differs = replace(_causes_track(side, causes), flow=flow)
        for chunk in process_packets(process, (differs, *derived_tracks(trace, (), np.full(len(trace.events), -1)))):
            file.write(chunk)


def pair_place(a: Run, b: Run, diff: Diff) -> WorstPlace:
    """Return the step of A that differs most from its counterpart."""
    ours, theirs = _traces(a, b, diff)
    lengths, others = _lengths(ours, theirs)
    step = int(np.argmax(np.abs(others - lengths)))
    start, end = steps(ours).window[steps(ours).counted][step].tolist()
    end = max(end, start + int(others[step]))
    offset_ns, _ = _offsets(ours, theirs)
    return WorstPlace(ours.rank, start + offset_ns, end + offset_ns, diff.answer.lead)


def _traces(a: Run, b: Run, diff: Diff) -> tuple[Trace, Trace]:
    """Return the traces that the diff explains."""
    rank = diff.traced.rank if diff.traced else -1
    ours, theirs = (next((trace for trace in run.traces if trace.rank == rank), run.traces[0]) for run in (a, b))
    return ours, theirs


def _offsets(ours: Trace, theirs: Trace) -> tuple[int, int]:
    """Return what is added to the times of A and B, ns: both first whole steps begin together."""
    shift = _first(ours) - _first(theirs)
    offset = not_before_zero((ours, theirs), ours.base_time_ns + np.array([0, shift], np.int64))
    return int(offset[0]), int(offset[1])


def _first(trace: Trace) -> int:
    return int(steps(trace).window[steps(trace).counted][0, 0])


def _lengths(ours: Trace, theirs: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return int64[K] ns for A and B: the durations of their whole steps, as many as both have."""
    windows = [steps(trace).window[steps(trace).counted] for trace in (ours, theirs)]
    num = min(map(len, windows))
    lengths, others = (window[:num, 1] - window[:num, 0] for window in windows)
    return lengths, others


def _delta(ours: Trace, theirs: Trace, offset_ns: int) -> bytes:
    """Return a counter of how far B is behind A at the end of each step of A."""
    lengths, others = _lengths(ours, theirs)
    ends = np.cumsum(lengths)
    time_ns = _first(ours) + offset_ns + np.r_[0, ends]
    behind = np.r_[0, np.cumsum(others) - ends]
    tracks = [
        Track(_DELTA, "B - A", _DELTA, pid=_DELTA),
        Track(_DELTA + 1, "B is behind A, ns", 1, _DELTA, is_counter=True),
    ]
    return track_packets(tracks) + b"".join(counter_packets(_DELTA + 1, time_ns, behind, sequence=_DELTA))


def _causes_track(side: Charges, causes: tuple[Cause, ...]) -> DerivedTrack:
    texts = [sync_name(cause) if cause.kind == "sync" else cause.name for cause in causes]
    names = [f"{format_value(cause.delta_ns, Unit.DELTA_NS)} {text}" for cause, text in zip(causes, texts, strict=True)]
    shift = np.array([cause.delta_ns for cause in causes], np.int64)
    lines = [cause.line for cause in causes]
    line_of = np.array([index if line else -1 for index, line in enumerate(lines)], np.int64)
    line = line_of[side.cause] if causes else np.empty(0, np.int64)
    arguments = (
        Argument("kind", side.cause, [cause.kind for cause in causes]),
        Argument("phase", side.cause, [cause.phase for cause in causes]),
        Argument("delta_a_step", side.cause, [format_value(ns, Unit.DELTA_NS) for ns in shift.tolist()]),
        Argument("line", line, lines),
    )
    return DerivedTrack("what differs", side.parts, side.cause, names, arguments)


def _links(ours: Trace, theirs: Trace, a: Charges, b: Charges) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return flow numbers that join, in each step, the longest span of a cause on one side to that on the other."""
    longest_a, longest_b = _longest(ours, a), _longest(theirs, b)
    flow_a, flow_b = np.zeros(len(a.cause), np.int64), np.zeros(len(b.cause), np.int64)
    for number, key in enumerate(sorted(longest_a.keys() & longest_b.keys())):
        flow_a[longest_a[key]] = flow_b[longest_b[key]] = _LINKS + number
    return flow_a, flow_b


def _longest(trace: Trace, side: Charges) -> dict[tuple[int, int], int]:
    """Return (step, cause) -> index of the longest span."""
    windows = steps(trace).window[steps(trace).counted]
    step = np.searchsorted(windows[:, 0], side.parts[:, 0], "right") - 1
    inside = np.flatnonzero((step >= 0) & (side.parts[:, 0] < windows[step, 1]))
    length = (side.parts[:, 1] - side.parts[:, 0])[inside]
    order = inside[np.argsort(length, kind="stable")]
    return dict(zip(zip(step[order].tolist(), side.cause[order].tolist(), strict=True), order.tolist(), strict=True))


def write_perfetto(run: Run, findings: Sequence[Claim], file: BinaryIO) -> None:
    """Write the run as a Perfetto trace: per rank a process with derived tracks, device streams and threads.

    Times are exact to the nanosecond; those of several ranks are absolute, with clocks corrected by collectives.
    """
    clock = common_clock(run)
    for index, trace in enumerate(run.traces):
        name = f"rank {trace.rank}"
        suffix = f" · {name}" if len(run.traces) > 1 else ""
        process = TraceProcess(trace, index + 1, name, int(clock.offset[index]), suffix)
        shown = [finding for finding in findings if index == 0 or finding.key]
        for chunk in process_packets(process, derived_tracks(trace, shown, clock.waiting[index])):
            file.write(chunk)
