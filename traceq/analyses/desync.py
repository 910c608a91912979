"""Do all ranks of a group issue the same collectives? Where they first do not, and who did what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceq.links.instances import match
from traceq.links.issued import are_of_one_job, has_point_to_point, issued_by_flights, issued_by_traces
from traceq.links.mismatch import Did, Mismatch, first_mismatches
from traceq.links.nesting import tracks
from traceq.links.origins import origins
from traceq.links.phases import phases
from traceq.links.steps import extent, main_track
from traceq.model import Caveat, Flight, Run, Trace
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
    did: Did
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


def analyze(run: Run) -> Report:
    """The first mismatch of every group of ranks; nothing for a single rank, and nothing for a window cut short."""
    rows: list[_Row] = []
    caveats: list[Caveat] = []
    if not run.traces:
        rows = _in_flights(run.flights, {})
    elif len(run.traces) > 1 and are_of_one_job(run.traces):
        sound = [trace for trace in run.traces if not any(caveat.code in _LOSSES for caveat in trace.caveats)]
        if len(sound) < len(run.traces):
            lost = [str(trace.rank) for trace in run.traces if trace not in sound]
            text = f"ranks {', '.join(lost)} lost events: their collectives are not compared with those of others"
            caveats.append(Caveat("not_compared", text))
        rows = [*_in_traces(sound), *_in_flights(run.flights, {trace.rank: trace for trace in run.traces})]
    table = Table("desync", "Desync", _COLUMNS, tuple(row.cells for row in rows))
    finding = (_finding(rows),) if rows else ()
    return Report("desync", (table,), (_view(rows),) if rows else (), finding, tuple(caveats))


def _in_traces(traces: Sequence[Trace]) -> list[_Row]:
    """Groups that the traces do not tell apart cannot be compared where ranks also send to each other."""
    issued = issued_by_traces(traces)
    named = issued.groups and all(issued.groups)
    if len(issued.ranks) < 2 or (not named and has_point_to_point(traces)):
        return []
    of_rank = {trace.rank: trace for trace in traces}
    rows = []
    for found in first_mismatches(issued, match(issued)):
        for did in found.did:
            row = int(issued.called.row[did.call]) if did.call >= 0 else -1
            phase = issued.phases[int(issued.phase[did.call])] if did.call >= 0 else ""
            rows.append(_Row("trace", found, did, phase, _line_of_row(of_rank[did.rank], row)))
    return rows


def _in_flights(flights: Sequence[Flight], of_rank: dict[int, Trace]) -> list[_Row]:
    """The line is the recorder's where it has stacks, else what the main thread was in at that moment."""
    issued = issued_by_flights(flights)
    of_flight = {flight.rank: flight for flight in flights}
    rows = []
    for found in first_mismatches(issued, match(issued)) if len(flights) > 1 else ():
        for did in found.did:
            phase, line = "", ""
            if did.call >= 0:
                phase, line = _phase_and_line(of_rank.get(did.rank), int(issued.called.at[did.call]))
                line = of_flight[did.rank].line[int(issued.called.row[did.call])] or line
            rows.append(_Row("flight recorder", found, did, phase, line))
    return rows


def _line_of_row(trace: Trace, row: int) -> str:
    """Python line of a call; of one that another thread issued, as backward does, that of the main thread then; ""
    where the trace does not tell."""
    if row < 0:
        return ""
    start, end = int(trace.events.ts[row]), int(trace.events.end[row])
    own = _line(trace, int(tracks(trace)[row]), start, end)
    return own or _line(trace, main_track(trace), start, start)


def _phase_and_line(trace: Trace | None, absolute: int) -> tuple[str, str]:
    """What the main thread was in, and where, at an absolute time; "" without a trace, and outside it."""
    if trace is None:
        return "", ""
    (start, end), at = extent(trace), absolute - trace.base_time_ns
    if not start <= at < end:
        return "", ""
    found = phases(trace)
    return found.names[int(found.at(np.array([at]))[0])], _line(trace, main_track(trace), at, at)


def _line(trace: Trace, track: int, start: int, end: int) -> str:
    found = origins(trace, *(np.array([value]) for value in (track, start, end)))
    return found.texts[int(found.line[0])]


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
