"""Do all ranks of a group issue the same collectives? Where they first do not, and who did what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.rank_collectives import own_calls
from traceq.facts.events.nesting import tracks
from traceq.facts.ranks.collective_matching import match
from traceq.facts.ranks.desync import Mismatch, RankIssue, first_mismatches
from traceq.facts.ranks.job import Job
from traceq.facts.ranks.job_collectives import issued_by_flights, issued_by_ranks
from traceq.facts.timeline.call_sites import origins
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import extent, main_track
from traceq.intervals import sorted_unique
from traceq.model import Caveat, Trace
from traceq.report import Cell, Column, Finding, Report, Table
from traceq.units import Unit, format_ranks

POSITION = 56

_COLUMNS = (
    Column("key", "key"),
    Column("source", "seen in"),
    Column("group", "group"),
    Column("sequence", "sequence", Unit.COUNT),
    Column("step", "step", Unit.COUNT),
    Column("place", "n-th in the step", Unit.COUNT),
    Column("rank", "rank", Unit.COUNT),
    Column("how", "how"),
    Column("name", "collective"),
    Column("dtype", "dtype"),
    Column("elements", "elements", Unit.COUNT),
    Column("phase", "phase"),
    Column("line", "line"),
)
_VIEW = ("source", "group", "sequence", "step", "place", "ranks", "how", "name", "dtype", "elements", "phase", "line")
_LOSSES = ("truncated", "malformed_events", "dropped_events", "no_device_work")
_WORDS = {
    "missing": "leave{s} it out and issue{s} {what}",
    "extra": "issue{s} {what} in between",
    "swapped": "issue{s} {what} first",
    "different": "issue{s} {what}",
    "": "issue{s} {what}",
}


@dataclass(frozen=True, slots=True)
class _Row:
    """What one rank did at the first mismatch of a group, as a trace or a flight recorder tells it."""

    source: str
    found: Mismatch
    did: RankIssue
    phase: str
    line: str

    @property
    def key(self) -> str:
        return f"{self.source}|{self.found.group}"

    @property
    def nth(self) -> int | None:
        """Place in the step, from 1."""
        return self.found.place + 1 if self.found.place >= 0 else None

    @property
    def what(self) -> str:
        """`all_reduce float32 x 1,024`, or nothing."""
        if not self.did.name:
            return "nothing"
        size = f"x {self.did.elements:,}" if self.did.elements >= 0 else ""
        return " ".join(word for word in (self.did.name, self.did.dtype, size) if word)

    @property
    def cells(self) -> tuple[Cell, ...]:
        found, did = self.found, self.did
        where = (_or_none(found.sequence), _or_none(found.step), self.nth)
        what = (did.name or None, did.dtype or None, _or_none(did.elements))
        return (self.key, self.source, found.group, *where, did.rank, did.how, *what, self.phase, self.line)


@dataclass(frozen=True, slots=True, eq=False)
class _Lines:
    """Python lines of one rank's own calls, int64[C] into `texts`."""

    texts: tuple[str, ...]
    line: NDArray[np.int64]

    def of(self, call: int) -> str:
        """That of one call; "" where the trace does not tell."""
        return self.texts[int(self.line[call])]


def summarize(trace: Trace) -> _Lines:
    """Where each collective was called; one that another thread issued, as backward does, where the main thread was."""
    rows = own_calls(trace).called.row
    start, end = trace.events.ts[rows], trace.events.end[rows]
    own = origins(trace, tracks(trace)[rows], start, end)
    main = origins(trace, np.full(len(rows), main_track(trace)), start, start)
    line = np.where(own.line > 0, own.line, main.line + len(own.texts))
    texts, told = (*own.texts, *main.texts), sorted_unique(line)
    return _Lines(tuple(texts[text] for text in told.tolist()), np.searchsorted(told, line))


def merge(job: Job, parts: Sequence[_Lines]) -> Report:
    """The first mismatch of every group of ranks; nothing for a single rank, and nothing for a window cut short."""
    rows: list[_Row] = []
    caveats: list[Caveat] = []
    if not job.ranks:
        rows = _in_flights(job)
    elif len(job.ranks) > 1 and job.is_one:
        lost = [any(caveat.code in _LOSSES for caveat in rank.caveats) for rank in job.ranks]
        if any(lost):
            numbers = ", ".join(str(rank.rank) for rank, is_lost in zip(job.ranks, lost, strict=True) if is_lost)
            text = f"ranks {numbers} lost events: their collectives are not compared with those of others"
            caveats.append(Caveat("not_compared", text))
        rows = [*_in_traces(job, parts, [at for at, is_lost in enumerate(lost) if not is_lost]), *_in_flights(job)]
    table = Table("desync", "Desync", _COLUMNS, tuple(row.cells for row in rows))
    finding = (_finding(rows),) if rows else ()
    return Report("desync", (table,), (_view(rows),) if rows else (), finding, tuple(caveats))


def _in_traces(job: Job, parts: Sequence[_Lines], sound: Sequence[int]) -> list[_Row]:
    """Groups that the traces do not tell apart cannot be compared where ranks also send to each other."""
    calls = [job.calls[at] for at in sound]
    is_all = len(sound) == len(job.ranks)
    issued = job.issued if is_all else issued_by_ranks([job.ranks[at] for at in sound], calls)
    named = issued.groups and all(issued.groups)
    if len(issued.ranks) < 2 or (not named and any(own.sends for own in calls)):
        return []
    lines = {job.ranks[at].rank: at for at in sound}
    nth = issued.nth
    rows = []
    for found in first_mismatches(issued, job.instances if is_all else match(issued)):
        for did in found.did:
            there = did.call >= 0
            phase = issued.phases[int(issued.phase[did.call])] if there else ""
            line = parts[lines[did.rank]].of(int(nth[did.call])) if there else ""
            rows.append(_Row("trace", found, did, phase, line))
    return rows


def _in_flights(job: Job) -> list[_Row]:
    """The line is the recorder's where it has stacks, else what the main thread was in at that moment."""
    issued = issued_by_flights(job.flights)
    of_flight, known = {flight.rank: flight for flight in job.flights}, {rank.rank for rank in job.ranks}
    both = [
        (found, did)
        for found in (first_mismatches(issued, match(issued)) if len(job.flights) > 1 else ())
        for did in found.did
    ]
    asked = [(did.rank, int(issued.called.at[did.call])) for _, did in both if did.call >= 0 and did.rank in known]
    told = iter(job.look(_phase_and_line, asked))
    rows = []
    for found, did in both:
        phase, line = next(told) if did.call >= 0 and did.rank in known else ("", "")
        if did.call >= 0:
            line = of_flight[did.rank].line[int(issued.called.row[did.call])] or line
        rows.append(_Row("flight recorder", found, did, phase, line))
    return rows


def _phase_and_line(trace: Trace, absolute: int) -> tuple[str, str]:
    """What the main thread was in, and where, at an absolute time; "" outside the trace."""
    (start, end), at = extent(trace), absolute - trace.base_time_ns
    if not start <= at < end:
        return "", ""
    found, now = phases(trace), np.array([at])
    where = origins(trace, np.array([main_track(trace)]), now, now)
    return found.names[int(found.at(now)[0])], where.texts[int(where.line[0])]


def _or_none(value: int) -> int | None:
    return value if value >= 0 else None


def _alike(rows: Sequence[_Row]) -> list[tuple[_Row, list[int]]]:
    """Rows of one mismatch that say the same of several ranks, those that do as most do first."""
    together: dict[tuple[Cell, ...], tuple[_Row, list[int]]] = {}
    for row in rows:
        key = (*row.cells[:6], *row.cells[7:])
        together.setdefault(key, (row, []))[1].append(row.did.rank)
    return sorted(together.values(), key=lambda found: bool(found[0].did.how))


def _view(rows: Sequence[_Row]) -> Table:
    """One line for all ranks that do the same."""
    keys = [column.key for column in _COLUMNS]
    shown = []
    for row, ranks in _alike(rows):
        cells = dict(zip(keys, row.cells, strict=True)) | {
            "ranks": format_ranks(ranks),
            "name": row.did.name or "nothing",
        }
        shown.append(tuple(cells[key] for key in _VIEW))
    titles = {column.key: column for column in _COLUMNS} | {"ranks": Column("ranks", "ranks")}
    note = "The first place in each group where its ranks differ; what follows can be a consequence."
    return Table("desync", "Desync", tuple(titles[key] for key in _VIEW), tuple(shown), note=note)


def _finding(rows: Sequence[_Row]) -> Finding:
    """The first mismatch of all, in words; by traces if they show it, as they know the phase."""
    first = [row for row in rows if row.found is rows[0].found]
    found = rows[0].found
    where = f"collective {found.sequence}" if found.sequence >= 0 else f"collective {rows[0].nth}"
    where += f" of step {found.step}" if found.step >= 0 else ""
    where += f" of group {found.group}" if found.group else ""
    told = [_words(row, ranks) for row, ranks in _alike(first)]
    return Finding("desync", "high", f"desync at {where}: {'; '.join(told)}", 0, rows[0].key)


def _words(row: _Row, ranks: Sequence[int]) -> str:
    what = " ".join(word for word in (row.what, row.phase and f"in {row.phase}", row.line and f"at {row.line}") if word)
    one = len(ranks) == 1
    return (
        f"rank{'' if one else 's'} {format_ranks(ranks)} {_WORDS[row.did.how].format(s='s' if one else '', what=what)}"
    )
