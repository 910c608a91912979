"""Where the host is, while the device waits for it or without a device: causes, ops, Python lines and modules."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._wording import in_phase, plain_phase, python_place
from traceq.claims.claim import Measure, Subject, measured
from traceq.claims.limits import MOST
from traceq.facts.events.device_work import device_work
from traceq.facts.events.nesting import tracks
from traceq.facts.events.self_time import SelfTimes, self_times
from traceq.facts.stalls.idle_time import IdleCause, idleness
from traceq.facts.timeline.host_pauses import host_pauses
from traceq.facts.timeline.main_lines import differentiated_lines, main_lines
from traceq.facts.timeline.modules import modules, modules_at
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import main_track, steps
from traceq.facts.timeline.time_partition import TimeCategory
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.intervals import contains, measure_within, sorted_unique, span_index, spans
from traceq.model import Category, Trace
from traceq.units import Unit, format_value

PlaceKind = Literal["op", "line", "module"]

_LEAST = 0.2
"""Part of the step of a rank from which a place is kept: what has half of the mean step has that on some rank."""
_NUMBER = re.compile(r"_\d+(?=\.|$)")
HostCauses = Mapping[tuple[IdleCause, str, str, str], float]
"""(cause, op, line, phase) -> ns of a mean counted step, as the rows of `idle` have it but for the host's pauses."""

_MOST_NAMED, _LEAST_NAMED = 2, 0.1
"""Causes that are named at most, and the part of the host-bound time from which one is."""


@frozen(eq=False)
class HostPlace:
    """An op, a line or a module, with the self time of its ops: `ns` float64[K] of each counted step.

    `asks_device`: these are, or may make, calls of a device's runtime.
    """

    kind: PlaceKind
    name: str
    ns: NDArray[np.float64]
    asks_device: bool

    @property
    def mean_ns(self) -> float:
        """Of a counted step."""
        return float(self.ns.mean()) if len(self.ns) else 0.0


@frozen(eq=False)
class _Ops:
    """The O ops and runtime calls that begin in counted steps.

    int64[O]: `row` of Events, `track`, self time `ns`, `step` number among the `num_steps`.
    """

    row: NDArray[np.int64]
    track: NDArray[np.int64]
    ns: NDArray[np.int64]
    step: NDArray[np.int64]
    num_steps: int


def host_places(trace: Trace) -> tuple[HostPlace, ...]:
    """Return the places with a fifth of the counted steps; none where the trace has work of a device.

    A line and a module have the ops of the main thread, a backward op those of its forward op; a module also the ops of
    the modules inside it.
    """
    if len(device_work(trace)):
        return ()
    all_steps = steps(trace)
    counted = all_steps.host[all_steps.counted]
    ops = _ops(self_times(trace), trace, counted)
    least_ns = _LEAST * int(np.diff(counted).sum())
    if not least_ns or not len(ops.row):
        return ()
    of_main = ops.track == main_track(trace)
    on_main = _Ops(ops.row[of_main], ops.track[of_main], ops.ns[of_main], ops.step[of_main], ops.num_steps)
    return (
        *_places(trace, "op", trace.events.strings, trace.events.name[ops.row].astype(np.int64), ops, least_ns),
        *_lines(trace, on_main, least_ns),
        *_modules(trace, on_main, least_ns),
    )


def _ops(times: SelfTimes, trace: Trace, counted: NDArray[np.int64]) -> _Ops:
    step = span_index(counted, trace.events.ts[times.rows])
    inside = step >= 0
    return _Ops(times.rows[inside], times.track[inside], times.ns[inside], step[inside], len(counted))


def _lines(trace: Trace, ops: _Ops, least_ns: float) -> Iterator[HostPlace]:
    lines, start = main_lines(trace), trace.events.ts[ops.row]
    if len(lines.texts) == 1:
        return
    differentiated = differentiated_lines(trace, ops.track, start)
    line = np.where(differentiated > 0, differentiated, lines.line_at(start))
    yield from (place for place in _places(trace, "line", lines.texts, line, ops, least_ns) if place.name)


def _modules(trace: Trace, ops: _Ops, least_ns: float) -> Iterator[HostPlace]:
    """Yield modules that are one of several inside another one, and so are not all of a model.

    Modules of one class at one place of the model count together, as layers.
    """
    tree = modules(trace)
    module = modules_at(trace, ops.track, trace.events.ts[ops.row])
    if not len(tree) or not (module >= 0).any():
        return
    total = tree.with_inner(np.bincount(module[module >= 0], ops.ns[module >= 0], len(tree)))
    kinds = [_NUMBER.sub("", path) for path in tree.paths]
    sums, num_inner = defaultdict[str, float](float), np.bincount(tree.parent[tree.parent >= 0], minlength=len(tree))
    is_part = np.zeros(len(tree), np.bool_)
    for index, parent in enumerate(tree.parent.tolist()):
        is_part[index] = parent >= 0 and (num_inner[parent] > 1 or is_part[parent])
        sums[kinds[index]] += float(total[index]) if is_part[index] else 0.0
    for kind in (kind for kind, ns in sums.items() if ns >= least_ns):
        inside = np.array([each == kind or each.startswith(f"{kind}.") for each in kinds] + [False])[module]
        yield from _places(trace, "module", (kind,), np.where(inside, 0, -1), ops, least_ns)


def _places(
    trace: Trace, kind: PlaceKind, names: Sequence[str], place: NDArray[np.int64], ops: _Ops, least_ns: float
) -> Iterator[HostPlace]:
    """Yield the places (int64[O] into `names`, -1 for none) with that much self time in all counted steps."""
    selected = place >= 0
    sums = np.bincount(place[selected], ops.ns[selected], len(names))
    for number in np.flatnonzero(sums >= least_ns).tolist():
        of_place = np.flatnonzero(place == number)
        ns = np.bincount(ops.step[of_place], ops.ns[of_place], ops.num_steps).astype(np.float64)
        yield HostPlace(kind, names[number], ns, _ask_device(trace, ops.row[of_place]))


def _ask_device(trace: Trace, rows: NDArray[np.int64]) -> bool:
    """Return whether some ops are, or make, calls of a device's runtime; they may where none is recorded."""
    events, row_track = trace.events, tracks(trace)
    calls = events.rows(Category.RUNTIME)
    if not len(calls) or np.isin(rows, calls).any():
        return True
    by_track = {number: rows[row_track[rows] == number] for number in sorted_unique(row_track[rows]).tolist()}
    return any(
        contains(spans(events.ts[ops], events.end[ops]), events.ts[calls[row_track[calls] == number]]).any()
        for number, ops in by_track.items()
    )


def merged_places(ranks: Sequence[Sequence[HostPlace]], num_steps: int) -> tuple[HostPlace, ...]:
    """Return the places of all ranks, mean of ranks in each of the steps, the longest first."""
    by_name: defaultdict[tuple[PlaceKind, str], list[HostPlace]] = defaultdict(list)
    for place in (place for rank in ranks for place in rank):
        by_name[place.kind, place.name].append(place)
    merged = [_merged(places, len(ranks), num_steps) for places in by_name.values()]
    return tuple(sorted(merged, key=lambda place: (-place.mean_ns, place.kind, place.name)))


def _merged(places: Sequence[HostPlace], num_ranks: int, num_steps: int) -> HostPlace:
    ns = np.zeros(num_steps)
    for place in places:
        ns[: len(place.ns)] += place.ns / num_ranks
    return HostPlace(places[0].kind, places[0].name, ns, any(place.asks_device for place in places))


def host_causes(trace: Trace) -> HostCauses:
    """Return what the host does in the counted steps while the device waits for the next launch.

    Where it pauses it does nothing: the op in which a thread happens to be is not what takes the time. Without a
    device: where the main thread is in Python between ops; nothing if no op is recorded, as then it is not known what
    is Python.
    """
    if not len(device_work(trace)) and not len(trace.events.rows(Category.CPU_OP)):
        return {}
    idle, names = idleness(trace), phases(trace).names
    category = TimeCategory.HOST_BOUND if len(device_work(trace)) else TimeCategory.PYTHON
    pieces = np.flatnonzero(idle.category == category)
    groups = group([each[pieces] for each in (idle.cause, idle.name, idle.line, idle.phase)])
    num_steps = int(steps(trace).counted.sum())
    times = idle.parts[pieces]
    sums = groups.sum(times[:, 1] - times[:, 0] - measure_within(host_pauses(trace), *times.T))
    return {
        (IdleCause(cause), idle.texts[op], idle.texts[line], names[phase]): ns / num_steps
        for (cause, op, line, phase), ns in zip(groups.keys.tolist(), sums, strict=True)
    }


def most_of_host(ranks: Sequence[HostCauses], host_ns: float) -> tuple[Subject, dict[str, Measure]]:
    """Return the place with most of `host_ns`, and in words that and the largest ones, mean of ranks.

    Nothing where no place has much of it, or where it is known only that the host is not in a call.
    """
    sums, subjects = defaultdict[str, float](float), dict[str, Subject]()
    for rank in ranks:
        for (cause, op, line, phase), ns in rank.items():
            place = _place_words(cause, op, line, phase)
            sums[place] += ns / len(ranks)
            is_op = cause == IdleCause.HOST_OP
            subjects[place] = Subject(phase="" if line else phase, line=line, op=op if is_op else "")
    largest = sorted((-ns, place) for place, ns in sums.items() if place and ns >= _LEAST_NAMED * host_ns)[:_MOST_NAMED]
    places = ", ".join(f"{format_value(-ns, Unit.NS)} {place}" for ns, place in largest)
    most = next((place for ns, place in largest if -ns >= MOST * host_ns), "")
    return subjects.get(most, Subject()), measured(place=most, places=places)


def _place_words(cause: IdleCause, op: str, line: str, phase: str) -> str:
    """Return where the host is, with the phase of what has no line; "" without host ops, which alone could tell."""
    place = _place(cause, op, line)
    return place if line or not place else f"{place} {in_phase(plain_phase(phase))}"


def _place(cause: IdleCause, op: str, line: str) -> str:
    if cause == IdleCause.HOST:
        return ""
    at_line = f"at {line}" if line else ""
    if cause == IdleCause.DATA_LOADER:
        return f"in the data loader {at_line}".strip()
    if cause == IdleCause.PYTHON:
        return at_line or python_place(op)
    return f"in {op} {at_line}".strip()
