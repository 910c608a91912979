"""The collectives of all ranks in one table, with what can be compared across ranks: by traces or flight recorders.

Times are absolute (`base_time_ns` + ts), by each rank's own clock. Point-to-point messages are left out: a send is
somebody else's recv.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.links.collectives import NAMES, Calls, collective_calls, collective_kernels, name_number
from traceq.links.launches import device_work
from traceq.links.memo import once_per_trace
from traceq.links.names import matching
from traceq.links.nesting import tracks
from traceq.links.phases import phases
from traceq.links.steps import steps
from traceq.model import Category, Flight, Trace

__all__ = ["Issued", "has_point_to_point", "issued_by_flights", "issued_by_traces"]

_POINT_TO_POINT = [NAMES.index(name) for name in ("send", "recv", "send_recv")]
_SAME_EVERYWHERE = [NAMES.index(n) for n in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")]
"""Collectives whose larger side is as large on all ranks; the parts of an all-to-all may differ."""

_DISPATCHED = re.compile(r"^c10d::(?!.*(wait|barrier|send|recv))")
_MOST_UNFINISHED = 8
_ALL_RANKS = re.compile(r"^\[\d+(, ?\d+)*\]$")
_NUMBERS = ("name", "elements", "size", "group_size", "sequence", "step", "at", "start", "end", "row")


@dataclass(frozen=True, slots=True, eq=False)
class Issued:
    """C calls of R ranks by (rank, time of issue), among G groups.

    int64[C]: `rank` into `ranks`; `group`, `dtype`, `phase` into the texts `groups`, `dtypes`, `phases`; `name` into
    NAMES; `elements` that must agree across ranks; `size` bytes; `group_size`; `sequence`; `step` of ProfilerStep#N;
    `at`, when the host issued it, `start` and `end`, when it ran, ns; `row` into the rank's Events. -1 = absent.
    `whole` int64[R, 2]: the steps [from, to) that each window holds entirely; `marked` bool[R]: has steps; `member`
    bool[G, R]: takes part in the group.
    """

    ranks: tuple[int, ...]
    groups: tuple[str, ...]
    dtypes: tuple[str, ...]
    phases: tuple[str, ...]
    rank: NDArray[np.int64]
    group: NDArray[np.int64]
    dtype: NDArray[np.int64]
    phase: NDArray[np.int64]
    name: NDArray[np.int64]
    elements: NDArray[np.int64]
    size: NDArray[np.int64]
    group_size: NDArray[np.int64]
    sequence: NDArray[np.int64]
    step: NDArray[np.int64]
    at: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    row: NDArray[np.int64]
    whole: NDArray[np.int64]
    marked: NDArray[np.bool_]
    member: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def active(self) -> NDArray[np.bool_]:
        """bool[G, R]: issued something in the group."""
        active = np.zeros_like(self.member)
        active[self.group, self.rank] = True
        return active


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """One trace's calls; `group`, `members`, `dtype` are string ids of the trace, `phase` its phase numbers, the rest
    as in Issued. `level` is the kind of row that calls are known by; `is_loose`: by gloo's own names, among which a
    reduce-scatter is an all_reduce."""

    level: str
    is_loose: bool
    group: NDArray[np.int64]
    members: NDArray[np.int64]
    dtype: NDArray[np.int64]
    phase: NDArray[np.int64]
    name: NDArray[np.int64]
    elements: NDArray[np.int64]
    size: NDArray[np.int64]
    group_size: NDArray[np.int64]
    sequence: NDArray[np.int64]
    step: NDArray[np.int64]
    at: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    row: NDArray[np.int64]


class _Texts(dict[str, int]):
    """Text -> its number in order of first sight."""

    def number(self, text: str) -> int:
        """Its number; -1 for no text."""
        return self.setdefault(text, len(self)) if text else -1


def has_point_to_point(traces: Sequence[Trace]) -> bool:
    """Some rank sends to another: then ranks need not issue the same collectives."""
    return any(bool(np.isin(collective_calls(trace).name, _POINT_TO_POINT).any()) for trace in traces)


def issued_by_traces(traces: Sequence[Trace]) -> Issued:
    """The calls of several ranks' traces. A rank whose calls are known by another kind of row is left out."""
    levels = Counter(_part(trace).level for trace in traces if _part(trace).level)
    level = max(sorted(levels), key=lambda name: levels[name], default="")
    traces = [trace for trace in traces if _part(trace).level in (level, "")]
    parts = [_part(trace) for trace in traces]
    columns = {name: _joined([getattr(part, name) for part in parts]) for name in _NUMBERS}
    if any(part.is_loose for part in parts):
        scattered = columns["name"] == NAMES.index("reduce_scatter")
        columns["name"] = np.where(scattered, NAMES.index("all_reduce"), columns["name"])
        columns["elements"] = np.full(len(scattered), -1)
    groups, dtypes, names = _Texts(), _Texts(), _Texts()
    rank = _joined([np.full(len(part.row), index) for index, part in enumerate(parts)])
    group = _joined([_groups(trace, part, groups) for trace, part in zip(traces, parts, strict=True)])
    strings = [(*trace.events.strings, "") for trace in traces]
    whole = [steps(trace).number[[0, -1]] if steps(trace).marked else np.array([1, 0]) for trace in traces]
    ranks = tuple(trace.rank for trace in traces)
    return Issued(
        ranks=ranks,
        groups=tuple(name or members for name, _, members in (text.partition("\t") for text in groups)),
        rank=rank,
        group=group,
        dtype=_joined([_numbers(dtypes, texts, p.dtype) for texts, p in zip(strings, parts, strict=True)]),
        phase=_joined([_numbers(names, phases(t).names, p.phase) for t, p in zip(traces, parts, strict=True)]),
        dtypes=tuple(dtypes),
        phases=tuple(names),
        whole=np.array(whole, np.int64).reshape(-1, 2),
        marked=np.array([steps(trace).marked for trace in traces], np.bool_),
        member=_members(groups, ranks, group, rank),
        **columns,
    )


def issued_by_flights(flights: Sequence[Flight]) -> Issued:
    """The collectives of several ranks' flight recorders, with their sequence numbers; without steps or durations."""
    groups, dtypes = _Texts(), _Texts()
    known = {name: name_number(name) for flight in flights for name in set(flight.name)}
    rank = _joined([np.full(len(flight.name), index) for index, flight in enumerate(flights)])
    group = _ints(groups.number(text + "\t") for flight in flights for text in flight.group)
    name = _ints(known[text] for flight in flights for text in flight.name)
    elements = _joined([flight.elements for flight in flights])
    absent = np.full(len(rank), -1)
    moves = (name >= 0) & ~np.isin(name, _POINT_TO_POINT)
    columns = {
        "rank": rank,
        "group": group,
        "dtype": _ints(dtypes.number(text) for flight in flights for text in flight.dtype),
        "name": name,
        "elements": np.where(np.isin(name, _SAME_EVERYWHERE), elements, -1),
        "sequence": _joined([flight.sequence for flight in flights]),
        "at": _joined([flight.created_ns for flight in flights]),
    }
    columns |= dict.fromkeys(("phase", "size", "group_size", "step", "start", "end", "row"), absent)
    ranks = tuple(flight.rank for flight in flights)
    return Issued(
        ranks=ranks,
        groups=tuple(text.rstrip("\t") for text in groups),
        dtypes=tuple(dtypes),
        phases=(),
        whole=np.tile(np.array([1, 0]), (len(flights), 1)),
        marked=np.zeros(len(flights), np.bool_),
        member=_members(groups, ranks, group, rank),
        **{name: column[moves] for name, column in columns.items()},
    )


@once_per_trace
def _part(trace: Trace) -> _Part:
    calls, events = collective_calls(trace), trace.events
    level = events.text(int(calls.rows[0])).partition(":")[0] if len(calls) else ""
    pairs = _gloo_pairs(trace, calls) if level == "gloo" and trace.backend == "gloo" else None
    columns = _by_ops(trace, calls, *pairs) if pairs is not None else _by_calls(trace, calls)
    columns["elements"] = np.where(np.isin(columns["name"], _SAME_EVERYWHERE), columns["elements"], -1)
    ts, start = events.ts[columns["row"]], columns["start"]
    columns["step"], columns["at"] = _steps(trace, ts), ts + trace.base_time_ns
    columns["end"] = np.where(start >= 0, columns["end"] + trace.base_time_ns, -1)
    columns["start"] = np.where(start >= 0, start + trace.base_time_ns, -1)
    moves = (columns["name"] >= 0) & ~np.isin(columns["name"], _POINT_TO_POINT)
    is_loose = level == "gloo" and pairs is None
    return _Part(level, is_loose, **{name: column[moves] for name, column in columns.items()})


def _by_calls(trace: Trace, calls: Calls) -> dict[str, NDArray[np.int64]]:
    """Columns of _Part by the calls' own rows."""
    told = _Told(trace, calls.message)
    start, end = _times(trace, calls)
    return {
        "group": told.column("group"),
        "members": told.column("ranks"),
        "dtype": told.column("dtype"),
        "phase": calls.phase,
        "name": calls.name,
        "elements": np.maximum(told.column("elements_in"), told.column("elements_out")),
        "size": calls.size,
        "group_size": told.column("group_size"),
        "sequence": told.column("sequence"),
        "start": start,
        "end": end,
        "row": calls.rows,
    }


def _by_ops(trace: Trace, calls: Calls, ops: NDArray[np.int64], ran: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Columns of _Part by the `c10d` ops, with the times of gloo's rows: `ran` int64[ops] into Calls, -1 without one.

    The row of an op may be that of its neighbour, so its dtype counts only where the elements are those of the op.
    """
    events, own = trace.events, _Told(trace, _messages(trace, ops))
    calls_told = _Told(trace, np.where(ran >= 0, calls.message[ran], -1))
    elements = own.column("elements_in")
    absent = np.full(len(ops), -1)
    return {
        "group": absent,
        "members": absent,
        "dtype": np.where(calls_told.column("elements_in") == elements, calls_told.column("dtype"), -1),
        "phase": phases(trace).on(tracks(trace)[ops], events.ts[ops]),
        "name": _names(trace, ops),
        "elements": elements,
        "size": np.where(ran >= 0, calls.size[ran], -1),
        "group_size": absent,
        "sequence": absent,
        "start": np.where(ran >= 0, events.ts[calls.rows[ran]], -1),
        "end": np.where(ran >= 0, events.end[calls.rows[ran]], -1),
        "row": ops,
    }


@dataclass(frozen=True, slots=True)
class _Told:
    """What the arguments of calls say."""

    trace: Trace
    message: NDArray[np.int64]

    def column(self, name: str) -> NDArray[np.int64]:
        """One column of Messages for each call; -1 where it is silent."""
        values = getattr(self.trace.events.messages, name)
        if len(values) == 0:
            return np.full(len(self.message), -1)
        return np.where(self.message >= 0, values[self.message].astype(np.int64), -1)


def _gloo_pairs(trace: Trace, calls: Calls) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """(`c10d` ops by time, the call of gloo that carried each out, -1 without one); None where they are no pairs.

    The ops are the truth: gloo's rows call a reduce-scatter all_reduce, and its threads begin what they took from one
    queue in an order that can differ by a hair from that of issue. A window that opens between an op and its row holds
    the row alone, one that closes there the op alone.
    """
    events = trace.events
    host = events.rows(Category.CPU_OP, Category.ANNOTATION)
    ops = host[matching(events, host, _DISPATCHED)]
    ops = ops[np.argsort(events.ts[ops], kind="stable")]
    if len(ops) == 0:
        return None
    began = events.ts[calls.rows]
    alone = int(np.searchsorted(began, events.ts[ops[0]], "left"))
    num = len(calls) - alone
    if not 0 <= len(ops) - num <= _MOST_UNFINISHED or (began[alone:] < events.ts[ops[:num]]).any():
        return None
    ran = np.full(len(ops), -1)
    ran[:num] = np.arange(alone, len(calls))
    return ops, ran


def _names(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Index into NAMES of each row."""
    distinct, inverse = np.unique(trace.events.name[rows], return_inverse=True)
    return _ints(name_number(trace.events.strings[text]) for text in distinct.tolist())[inverse]


def _messages(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Index into Messages of each row, -1 without one."""
    known = trace.events.messages.row
    if len(known) == 0:
        return np.full(len(rows), -1)
    at = np.minimum(np.searchsorted(known, rows), len(known) - 1)
    return np.where(known[at] == rows, at, -1)


def _times(trace: Trace, calls: Calls) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """When each call ran: its kernels, or without a device its own row; -1 for a call without a kernel."""
    work, kernels = device_work(trace), collective_kernels(trace)
    if len(work) == 0:
        return trace.events.ts[calls.rows], trace.events.end[calls.rows]
    linked = kernels.call >= 0
    never = np.iinfo(np.int64).max
    start, end = np.full(len(calls), never), np.full(len(calls), -1)
    np.minimum.at(start, kernels.call[linked], work.start[kernels.work[linked]])
    np.maximum.at(end, kernels.call[linked], work.end[kernels.work[linked]])
    return np.where(start < never, start, -1), end


def _steps(trace: Trace, ts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of the step in which each instant lies, or that comes next; 0 for all in a trace without steps."""
    found = steps(trace)
    if not found.marked:
        return np.zeros(len(ts), np.int64)
    number = np.r_[found.number, found.number[-1] + 1]
    after = number[np.searchsorted(found.host[:, 1], ts, "right")]
    return np.asarray(np.where(ts < found.host[0, 0], found.number[0] - 1, after))


def _groups(trace: Trace, part: _Part, groups: _Texts) -> NDArray[np.int64]:
    """Number of each call's group: ranks of one name but other members are another group."""
    strings = (*trace.events.strings, "")
    pairs, inverse = np.unique(np.column_stack([part.group, part.members]), axis=0, return_inverse=True)
    numbers = _ints(groups.number(f"{strings[name]}\t{strings[members]}") for name, members in pairs.tolist())
    return numbers[inverse.reshape(-1)] if len(numbers) else part.group


def _members(
    groups: _Texts, ranks: tuple[int, ...], group: NDArray[np.int64], rank: NDArray[np.int64]
) -> NDArray[np.bool_]:
    member = np.zeros((len(groups), len(ranks)), np.bool_)
    for text, number in groups.items():
        told = text.partition("\t")[2]
        if _ALL_RANKS.match(told):
            member[number] = np.isin(ranks, [int(one) for one in told[1:-1].split(",")])
    member[group, rank] = True
    return member


def _numbers(known: _Texts, strings: Sequence[str], ids: NDArray[np.int64]) -> NDArray[np.int64]:
    distinct, inverse = np.unique(ids, return_inverse=True)
    numbers = _ints(known.number(strings[text]) if text >= 0 else -1 for text in distinct.tolist())
    return numbers[inverse] if len(ids) else ids


def _ints(values: Iterable[int]) -> NDArray[np.int64]:
    return np.array(list(values), np.int64)


def _joined(columns: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(columns) if columns else np.empty(0, np.int64)
