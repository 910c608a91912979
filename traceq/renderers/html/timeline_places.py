"""Where a sync, a finding or a cause is on the shown step, so that a click leads there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.claims.claim import Claim
from traceq.compare.attributed_spans import charges
from traceq.compare.result import Cause
from traceq.facts.comm.collective_roles import ROLES
from traceq.facts.comm.parallelism import issued_calls
from traceq.facts.comm.predictions import UNEXPLAINED, checks
from traceq.facts.events.nesting import tracks
from traceq.facts.stalls.syncs import SYNC_KINDS, syncs
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.model import Category, Trace
from traceq.renderers.html.timeline import ShownTrace
from traceq.report import Cell

_CATEGORIES = {
    **{category.name.lower(): category for category in TimeCategory},
    "starved": TimeCategory.DATALOAD_WAIT,
    "exposed_wait": TimeCategory.EXPOSED_COMM,
    "exposed_transfer": TimeCategory.EXPOSED_COMM,
    "allocator_retries": TimeCategory.ALLOC_WAIT,
    "launch_bound": TimeCategory.HOST_BOUND,
    "host_round_trips": TimeCategory.HOST_BOUND,
    "recompiles": TimeCategory.COMPILING,
    "cold_start": TimeCategory.ONCE,
}
"""Category of time that a finding is about, by its code."""
_OF_A_RANK = ("straggler", "late_ranks")


@dataclass(frozen=True, slots=True)
class Place:
    """A span of one shown trace: `start_ns`, `end_ns` relative to the timeline's zero."""

    rank: int
    start_ns: int
    end_ns: int
    side: str = ""

    def attribute(self, number: int = 0) -> str:
        """Return the value of `data-goto` for the timeline of that number on its page."""
        side = {"side": self.side} if self.side else {}
        timeline = {"timeline": number} if number else {}
        return json.dumps({"rank": self.rank, "start": self.start_ns, "end": self.end_ns, **side, **timeline})


def place_of_sync(shown: Iterable[ShownTrace], row: Mapping[str, Cell]) -> Place | None:
    """Return the costliest of the syncs of a row of the table `syncs`; None where the shown steps have none of them.

    Of the row `kind`, `op` or `call`, `line` and, where given, `phase` and `rank` count.
    """

    def selected(trace: Trace) -> NDArray[np.bool_]:
        waits, strings = syncs(trace), trace.events.strings
        kind, phase = str(row.get("kind", "")), row.get("phase")
        if kind not in SYNC_KINDS:
            return np.zeros(len(waits), np.bool_)
        names = {str(row.get(key) or "") for key in ("op", "call")} - {""}
        has_op, has_line = (
            np.array([text in wanted for text in waits.origin.texts], np.bool_)
            for wanted in (names, {str(row.get("line") or "")})
        )
        has_name = np.array([text in names for text in strings], np.bool_)[trace.events.name[waits.rows]]
        of_op = has_op[waits.origin.op] | ((waits.origin.op == 0) & (has_name | (not names)))
        in_phase = np.array([not phase or name == phase for name in phases(trace).names], np.bool_)[waits.phase]
        is_kind = waits.kind == SYNC_KINDS.index(kind)
        return np.asarray(is_kind & has_line[waits.origin.line] & of_op & in_phase)

    rank = row.get("rank")
    return _largest(_syncs_at(each, selected(each.trace)) for each in shown if rank is None or each.trace.rank == rank)


def place_of_finding(shown: Iterable[ShownTrace], finding: Claim) -> Place | None:
    """Return where a finding shows on the shown steps; None where it does not, or is not about an instant.

    Its costliest sync, the step of a late rank, the first call of an op below its roof, the first collective that a
    strategy does not predict, the longest call of a cold start, or the longest span of the category of time that it is
    about.
    """
    shown = tuple(shown)
    if finding.code == "strategy":
        return _largest(_first_unexplained(each) for each in shown if f"rank {each.trace.rank}" == finding.key)
    if finding.code in _OF_A_RANK:
        return _step_of_rank(shown, finding.key)
    if finding.code == "below_roof":
        return _largest(_first_call(each, finding.key) for each in shown)
    if finding.subject.kind:
        site = {"kind": finding.subject.kind, "op": finding.subject.op, "line": finding.subject.line}
        return place_of_sync(shown, site)
    if finding.code == "joint_syncs":
        return _largest(_syncs_at(each, np.ones(len(syncs(each.trace)), np.bool_)) for each in shown)
    category = _CATEGORIES.get(finding.code)
    if category is None:
        return None
    return _largest(
        _spans_at(each, spans := activity(each.trace).when(category), spans[:, 1] - spans[:, 0]) for each in shown
    )


def _step_of_rank(shown: Iterable[ShownTrace], key: str) -> Place | None:
    """Return the shown step on the lane of the rank that a key `rank 3` names; None where that is not shown."""
    each = next((each for each in shown if f"rank {each.trace.rank}" == key), None)
    if each is None:
        return None
    start, end = (ns - each.zero_ns for ns in each.step_ns)
    return Place(each.trace.rank, start, end, each.side)


def _first_call(shown: ShownTrace, key: str) -> tuple[int, Place] | None:
    """Return the first call of the op in the phase that a key `forward|aten::mm|...` names, within the shown step."""
    in_phase, op = key.split("|")[:2]
    events, labels = shown.trace.events, phases(shown.trace)
    rows = events.rows(Category.CPU_OP)
    rows = rows[np.array([text == op for text in events.strings], np.bool_)[events.name[rows]]]
    is_phase = np.array([name == in_phase for name in labels.names], np.bool_)
    rows = rows[is_phase[labels.phase_at(tracks(shown.trace)[rows], events.ts[rows])]]
    return _spans_at(shown, np.column_stack([events.ts[rows], events.end[rows]]), -events.ts[rows])


def _first_unexplained(shown: ShownTrace) -> tuple[int, Place] | None:
    """Return the first collective, within the shown step, of a role that is not issued as its strategy predicts."""
    roles = {check.role for check in checks(shown.trace) if check.verdict == UNEXPLAINED} & {*ROLES}
    issued, events = issued_calls(shown.trace), shown.trace.events
    rows = issued.calls.issued[issued.of(*map(ROLES.index, roles))]
    return _spans_at(shown, np.column_stack([events.ts[rows], events.end[rows]]), -events.ts[rows])


def place_of_cause(shown: Iterable[ShownTrace], cause: Cause) -> Place | None:
    """Return the longest span charged to a cause of a diff; None where the shown steps have none.

    On the side that pays: B if the cause costs, A if it saves; on the other one where that side has no such span.
    """
    first = "B" if cause.delta_ns >= 0 else "A"
    for each in sorted(shown, key=lambda each: each.side != first):
        charged = charges(each.trace, (cause,))
        if place := _largest([_spans_at(each, charged.parts, charged.parts[:, 1] - charged.parts[:, 0])]):
            return place
    return None


def _syncs_at(shown: ShownTrace, selected: NDArray[np.bool_]) -> tuple[int, Place] | None:
    """Return (cost, place) of the costliest selected sync in the shown step, or of the one that blocks longest."""
    waits = syncs(shown.trace)
    spans = np.column_stack([waits.start, waits.start + waits.blocked])[selected]
    weight = waits.cost[selected] if (waits.cost[selected] > 0).any() else waits.blocked[selected]
    return _spans_at(shown, spans, weight)


def _spans_at(shown: ShownTrace, spans: NDArray[np.int64], weight: NDArray[np.int64]) -> tuple[int, Place] | None:
    """Return (weight, place) of the heaviest span that begins in the window; one of the shown step comes first."""
    inside = np.flatnonzero((spans[:, 0] >= shown.window[0]) & (spans[:, 0] < shown.window[1]))
    if len(inside) == 0:
        return None
    start, end = shown.step_ns
    in_step = inside[(spans[inside, 0] >= start) & (spans[inside, 0] < end)]
    candidates = in_step if len(in_step) else inside
    index = candidates[np.argmax(weight[candidates])]
    first, last = (spans[index] - shown.zero_ns).tolist()
    return int(weight[index]), Place(shown.trace.rank, first, last, shown.side)


def _largest(places: Iterable[tuple[int, Place] | None]) -> Place | None:
    candidates: Iterator[tuple[int, Place]] = (place for place in places if place is not None)
    return max(candidates, key=lambda place: place[0], default=(0, None))[1]
