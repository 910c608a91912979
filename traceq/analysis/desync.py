"""Do all ranks of a group issue the same collectives, and if not, where do they first differ and how?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.analysis import sentences
from traceq.claims.claim import Claim, Subject, measured
from traceq.claims.limits import LOST
from traceq.facts.comm.rank_collectives import rank_calls
from traceq.facts.events.nesting import tracks
from traceq.facts.ranks.collective_matching import match_collectives
from traceq.facts.ranks.desync import Mismatch, RankIssue, first_mismatches
from traceq.facts.ranks.job import Job
from traceq.facts.ranks.job_collectives import issued_by_flights, issued_by_ranks
from traceq.facts.ranks.unrecorded_share import share_inside_steps
from traceq.facts.timeline.call_sites import origins
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import extent, main_track
from traceq.frozen import frozen
from traceq.intervals import sorted_unique
from traceq.model import Caveat, Trace
from traceq.report import Column, Report, Table, column
from traceq.units import Unit, format_ranks, name_ranks

_TRACE = "trace"

_LOSSES = ("truncated", "malformed_events", "dropped_events", "no_device_work")


@frozen
class DesyncRow:
    """Collective at the first mismatch of a group; None: unknown, or none."""

    key: str = column("key")
    source: str = column("seen in")
    """`trace` or `flight recorder`."""
    group: str = column("group")
    sequence: int | None = column("sequence", Unit.COUNT)
    step: int | None = column("step", Unit.COUNT)
    place: int | None = column("n-th in the step", Unit.COUNT)
    """The n-th in the step."""
    rank: int = column("rank", Unit.COUNT)
    how: str = column("how")
    """`missing`, `extra`, `swapped`, `different`, or ""."""
    name: str | None = column("collective")
    dtype: str | None = column("dtype")
    elements: int | None = column("elements", Unit.COUNT)
    """Of the larger side."""
    phase: str = column("phase")
    line: str = column("line")

    @property
    def collective(self) -> str:
        """`all_reduce float32 x 1,024 in forward at train.py:41 step`, or `nothing`."""
        size = f"x {self.elements:,}" if self.elements is not None else ""
        where = self.phase and f"in {self.phase}", self.line and f"at {self.line}"
        issued = (self.name, self.dtype, size) if self.name else ("nothing",)
        return " ".join(word for word in (*issued, *where) if word)


@frozen(eq=False)
class _Lines:
    """Python lines of one rank's own calls: `line` int64[C] into `texts`, "" where unknown.

    `unrecorded_share` is the part of its trace that waits for work that it does not show.
    """

    texts: tuple[str, ...]
    line: NDArray[np.int64]
    unrecorded_share: float

    def of(self, call: int) -> str:
        """Return the line of one call."""
        return self.texts[int(self.line[call])]


def summarize(trace: Trace) -> _Lines:
    """Return the line of each collective; of one that another thread issued, as backward does, the main thread's."""
    rows = rank_calls(trace).columns.row
    start, end = trace.events.ts[rows], trace.events.end[rows]
    issuing = origins(trace, tracks(trace)[rows], start, end)
    main = origins(trace, np.full(len(rows), main_track(trace)), start, start)
    line = np.where(issuing.line > 0, issuing.line, main.line + len(issuing.texts))
    texts, used = (*issuing.texts, *main.texts), sorted_unique(line)
    names = tuple(texts[text] for text in used.tolist())
    return _Lines(names, np.searchsorted(used, line), share_inside_steps(trace))


def merge(job: Job, parts: Sequence[_Lines]) -> Report:
    """Return the first mismatch of every group of ranks; nothing for a single rank, or for a window cut short."""
    rows: list[DesyncRow] = []
    caveats: tuple[Caveat, ...] = ()
    if not job.ranks:
        rows = _in_flights(job)
    elif len(job.ranks) > 1 and job.is_concurrent:
        is_lossy = [any(caveat.code in _LOSSES for caveat in rank.caveats) for rank in job.ranks]
        caveats = _not_compared([rank.rank for rank, is_bad in zip(job.ranks, is_lossy, strict=True) if is_bad])
        complete = [index for index, is_bad in enumerate(is_lossy) if not is_bad]
        rows = [*_in_traces(job, parts, complete), *_in_flights(job)]
    table = Table.of("desync", "Desync", DesyncRow, rows)
    return Report("desync", (table,), (_view(rows),) if rows else (), (_finding(rows, parts),) if rows else (), caveats)


def _not_compared(ranks: Sequence[int]) -> tuple[Caveat, ...]:
    if not ranks:
        return ()
    return (Caveat("not_compared", sentences.LOST_EVENTS.format(ranks=name_ranks(ranks))),)


def _in_traces(job: Job, parts: Sequence[_Lines], complete: Sequence[int]) -> list[DesyncRow]:
    """Return the mismatches in the traces of ranks that are `complete`, as indices.

    Groups without names cannot be compared where ranks also send to each other.
    """
    calls = [job.calls[index] for index in complete]
    is_all = len(complete) == len(job.ranks)
    issued = job.issued if is_all else issued_by_ranks([job.ranks[index] for index in complete], calls)
    has_names = issued.groups and all(issued.groups)
    if len(issued.ranks) < 2 or (not has_names and any(each.has_messages for each in calls)):
        return []
    lines = {job.ranks[index].rank: parts[index] for index in complete}
    nth = issued.nth
    rows = []
    for mismatch in first_mismatches(issued, job.instances if is_all else match_collectives(issued)):
        for issue in mismatch.rank_issues:
            is_issued = issue.call >= 0
            phase = issued.phases[int(issued.phase[issue.call])] if is_issued else ""
            line = lines[issue.rank].of(int(nth[issue.call])) if is_issued else ""
            rows.append(_row(_TRACE, mismatch, issue, phase, line))
    return rows


def _in_flights(job: Job) -> list[DesyncRow]:
    """Return the mismatches in dumps of flight recorders.

    The line is the recorder's where it has stacks, else that of the main thread at the moment.
    """
    issued = issued_by_flights(job.flights)
    mismatches = first_mismatches(issued, match_collectives(issued)) if len(job.flights) > 1 else ()
    issues = [(mismatch, issue) for mismatch in mismatches for issue in mismatch.rank_issues]
    flights, traced = {flight.rank: flight for flight in job.flights}, {rank.rank for rank in job.ranks}
    looked_up = [issue for _, issue in issues if issue.call >= 0 and issue.rank in traced]
    questions = [(issue.rank, int(issued.columns.issued_ns[issue.call])) for issue in looked_up]
    places = dict(zip(looked_up, job.query(_phase_and_line, questions), strict=True))
    rows = []
    for mismatch, issue in issues:
        phase, line = places.get(issue, ("", ""))
        if issue.call >= 0:
            line = flights[issue.rank].line[int(issued.columns.row[issue.call])] or line
        rows.append(_row("flight recorder", mismatch, issue, phase, line))
    return rows


def _phase_and_line(trace: Trace, absolute_ns: int) -> tuple[str, str]:
    """Return phase and line of the main thread at an absolute time; "" outside the trace."""
    (start, end), time_ns = extent(trace), absolute_ns - trace.base_time_ns
    if not start <= time_ns < end:
        return "", ""
    labels, times = phases(trace), np.array([time_ns])
    site = origins(trace, np.array([main_track(trace)]), times, times)
    return labels.names[int(labels.main_phase_at(times)[0])], site.texts[int(site.line[0])]


def _row(source: str, mismatch: Mismatch, issue: RankIssue, phase: str, line: str) -> DesyncRow:
    return DesyncRow(
        key=f"{source}|{mismatch.group}",
        source=source,
        group=mismatch.group,
        sequence=_or_none(mismatch.sequence),
        step=_or_none(mismatch.step),
        place=mismatch.place + 1 if mismatch.place >= 0 else None,
        rank=issue.rank,
        how=issue.how,
        name=issue.name or None,
        dtype=issue.dtype or None,
        elements=_or_none(issue.elements),
        phase=phase,
        line=line,
    )


def _or_none(value: int) -> int | None:
    return value if value >= 0 else None


def _by_issue(rows: Sequence[DesyncRow]) -> list[tuple[DesyncRow, list[int]]]:
    """Return (row, ranks) for ranks that issued the same at a mismatch, those that agree with most first."""
    groups: dict[DesyncRow, tuple[DesyncRow, list[int]]] = {}
    for row in rows:
        groups.setdefault(replace(row, rank=-1), (row, []))[1].append(row.rank)
    return sorted(groups.values(), key=lambda pair: bool(pair[0].how))


def _view(rows: Sequence[DesyncRow]) -> Table:
    """Return one row for all ranks that issued the same."""
    issues = _by_issue(rows)
    shown = [replace(row, name=row.name or "nothing") for row, _ in issues]
    table = Table.of("desync", "Desync", DesyncRow, shown, note=sentences.DESYNC)
    table = table.with_column(Column("ranks", "ranks"), [format_ranks(ranks) for _, ranks in issues])
    where = ("source", "group", "sequence", "step", "place", "ranks", "how")
    return table.select(*where, "name", "dtype", "elements", "phase", "line")


def _finding(rows: Sequence[DesyncRow], parts: Sequence[_Lines]) -> Claim:
    """Return the claim on the first mismatch of all; that of traces where they have it, as these know the phase."""
    first = rows[0]
    issues = _by_issue([row for row in rows if row.key == first.key])
    by_how: dict[str, list[int]] = {}
    for row, ranks in issues:
        by_how.setdefault(row.how, []).extend(ranks)
    names = {how: name_ranks(ranks) for how, ranks in by_how.items()}
    share = max((part.unrecorded_share for part in parts), default=0.0) if first.source == _TRACE else 0.0
    measures = measured(
        sequence=first.sequence if first.sequence is not None else first.place,
        step=first.step,
        group=first.group,
        issued="; ".join(f"{name_ranks(ranks)}: {row.collective}" for row, ranks in issues),
        lost_pct=100 * share if share >= LOST else None,
        missing_ranks=names.get("missing"),
        extra_ranks=names.get("extra"),
        swapped_ranks=names.get("swapped"),
        different_ranks=names.get("different"),
    )
    return Claim("desync", 0, Subject(key=first.key), measures)
