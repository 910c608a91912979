"""Names of ops and kernels that two recordings do not share, matched by how they are used.

Code that was renamed, fused into a layer or moved to another version does the same under other names. Names are few,
events are many: a name is known by where it is called (parent, siblings, depth, thread), how often, with which shapes
or grid, what it launches, and when in the step. What is matched in one round is a known neighbour in the next one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.collective_roles import collective_roles
from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernels import is_communication
from traceq.facts.events.nesting import ThreadNests, host_boundaries, host_ops, python_frames, thread_nests, tracks
from traceq.facts.memo import keep, once_per_trace
from traceq.facts.timeline.call_sites import line_function, origins
from traceq.facts.timeline.data_loading import LOADER, LOADING
from traceq.facts.timeline.host_pauses import host_pauses
from traceq.facts.timeline.once import once
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.grouping import equal_pairs, group
from traceq.intervals import sorted_unique, span_index
from traceq.model import Category, Trace

Name = tuple[int, str]
"""(NameKind, text)."""

_LOADER = re.compile(LOADER)
_COMPILED_REGION = re.compile(r"(?<=^Torch-Compiled Region: )\d+/\d+$")
_ROUNDS = 5
_ALIKE, _SURELY_ALIKE = 0.35, 0.5
"""Likeness from which names are matched in a round, and in the last one: of the uses of both, the part that agrees."""
_PLACES, _FEW_THREADS, _DEEPEST = 20, 2, 12
"""Parts of a step in which a use can be; threads, by their number of uses, and levels that are told apart."""
_NO_USE, _UNMATCHED = -2, -1
"""Numbers of no neighbour, and of one whose name the other side does not have."""
_WEIGHTS = np.array([4, 2, 1, 1, 2, 1, 1, 1, 1])
"""Of what is compared of a use: that there is one, what is around it, before it and after it, and the `traits`."""
_SHAPES, _FUNCTION, _MAY_LACK = 4, 8, (1, 2, 3, 4)
_MOST_PAIRS = 10_000_000
"""Pairs of names that are compared; real recordings have some thousand names each, of which few differ."""


class NameKind(IntEnum):
    """Kind of what has a name: one never has the name of another."""

    OP, ANNOTATION, KERNEL, COMMUNICATION = range(4)


_ON_HOST = (NameKind.OP, NameKind.ANNOTATION)


@frozen(eq=False)
class Renaming:
    """A trace with the names of another one for ops and annotations that it calls differently.

    `others`: what it calls them, by the names of the other one. `kernels`: those of the other one for its own kernels,
    which keep their names, as a kernel of another name is other code.
    """

    trace: Trace
    others: Mapping[str, str]
    kernels: Mapping[str, str]


@frozen(eq=False)
class _Uses:
    """N uses of names that the other side lacks: `name` int64[N] into `lacked`.

    `beside` int64[N, 3] into `names`: what is around each use, of a kernel the op that launches it, before it, and
    after it, of a kernel on its stream; -1 for none. `traits` int64[N, 5], numbers that both sides share: shapes or
    grid, calls that it makes or, of a kernel, how long it runs, depth and thread, place in the step, and function of
    the job, 0 where it is not known.
    """

    names: list[Name]
    lacked: list[Name]
    name: NDArray[np.int64]
    beside: NDArray[np.int64]
    traits: NDArray[np.int64]
    num_steps: int


def in_names_of(a: Trace, b: Trace) -> Renaming:
    """Return B with A's names for what it calls differently."""
    names = matched_names(a, b)
    of_host = {of_b: of_a for of_b, of_a in names.items() if of_b[0] in _ON_HOST}
    kernels = {of_b: of_a for (kind, of_b), (_, of_a) in names.items() if kind not in _ON_HOST}
    others = {of_a: of_b for (_, of_b), (_, of_a) in of_host.items() if plain_name(of_a) != plain_name(of_b)}
    return Renaming(_renamed(b, of_host) if of_host else b, others, kernels)


def plain_name(name: str) -> str:
    """Return a name without the number of a compiled region, which in another recording is another one."""
    return _COMPILED_REGION.sub("", name)


def _renamed(trace: Trace, names: Mapping[Name, Name]) -> Trace:
    events, strings = trace.events, [*trace.events.strings]
    column, rows = events.name.copy(), _rows(trace)
    for kind in _ON_HOST:
        number = np.arange(len(events.strings))
        for text in events.names_among(rows[kind]).tolist():
            if (new := names.get((kind, events.strings[text]))) is not None:
                number[text] = len(strings)
                strings.append(new[1])
        column[rows[kind]] = number[column[rows[kind]]]
    renamed = replace(trace, events=replace(events, strings=tuple(strings), name=column))
    for told_by_own_names in (collective_roles, once, host_pauses):
        keep(told_by_own_names, renamed, told_by_own_names(trace))
    for without_names in (tracks, device_work, host_ops, python_frames, host_boundaries):
        keep(without_names, renamed, without_names(trace))
    return renamed


def matched_names(a: Trace, b: Trace) -> dict[Name, Name]:
    """Return the name of A for each name that only B has and that is used as one that only A has."""
    of_a, of_b = _names(a), _names(b)
    pairs: dict[Name, Name] = {}
    if not 0 < len(of_a - of_b) * len(of_b - of_a) <= _MOST_PAIRS:
        return pairs
    texts: dict[str, int] = {}
    uses = _uses(a, of_b, texts), _uses(b, of_a, texts)
    for least in (*[_ALIKE] * (_ROUNDS - 1), _SURELY_ALIKE):
        pairs = _matched(*uses, of_a & of_b, pairs, least)
    return pairs


@once_per_trace
def _names(trace: Trace) -> frozenset[Name]:
    events = trace.events
    return frozenset(
        (kind, events.strings[name])
        for kind, rows in _rows(trace).items()
        for name in events.names_among(rows).tolist()
    )


@once_per_trace
def _rows(trace: Trace) -> dict[int, NDArray[np.int64]]:
    """Return the rows of Events whose names may be others, by kind."""
    events, work = trace.events, device_work(trace)
    is_kernel, is_comm = _is_kernel(trace), is_communication(trace)
    return {
        NameKind.OP: _without_marks(trace, events.rows(Category.CPU_OP)),
        NameKind.ANNOTATION: _without_marks(trace, events.rows(Category.ANNOTATION)),
        NameKind.KERNEL: work.rows[is_kernel & ~is_comm],
        NameKind.COMMUNICATION: work.rows[is_kernel & is_comm],
    }


def _without_marks(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows that mark no step: marks have numbers, which another window of the same process goes on with."""
    events, marks = trace.events, set(steps(trace).names)
    names = [name for name in events.names_among(rows).tolist() if events.strings[name] in marks]
    return rows[~np.isin(events.name[rows], names)] if names else rows


def _uses(trace: Trace, others: Collection[Name], texts: dict[str, int]) -> _Uses:
    """Return the uses of names that are not among `others`; `texts` numbers the shapes, grids and lines of both sides.

    Those in a data loader of another kind are left out: what workers took over is not replaced by how the process
    receives it.
    """
    events, work, rows = trace.events, device_work(trace), _rows(trace)
    host, device = np.sort(np.r_[rows[NameKind.OP], rows[NameKind.ANNOTATION]]), np.flatnonzero(_is_kernel(trace))
    all_rows, kind = np.r_[host, work.rows[device]], np.full(len(events), -1)
    for name_kind, of_kind in rows.items():
        kind[of_kind] = name_kind
    groups = group([kind[all_rows], events.name[all_rows]])
    names = [(number, events.strings[text]) for number, text in groups.keys.tolist()]
    lacked = [name for name in names if name not in others]
    number_of = {name: number for number, name in enumerate(lacked)}
    number = np.array([number_of.get(name, -1) for name in names], np.int64)[groups.group_ids]
    around, before, after, depth, thread = np.full((5, len(all_rows)), -1)
    nests = thread_nests(trace, host)
    for nth, nest in enumerate(sorted(nests.values(), key=lambda nest: -len(nest.rows))):
        use = np.searchsorted(host, nest.rows)
        around[use] = np.r_[use, -1][nest.parent]
        before[use], after[use] = _neighbours(use, nest.parent)
        depth[use], thread[use] = nest.depth(_DEEPEST), min(nth, _FEW_THREADS)
    kernel = len(host) + np.arange(len(device))
    caller, num_calls = _callers(trace, nests, host)
    around[kernel] = np.append(caller, -1)[work.call[device]]
    before[kernel], after[kernel] = _neighbours(kernel, work.stream[device])
    lasts = 2 * np.log2(np.maximum(work.end - work.start, 1))[device]
    place = _places(trace, events.ts[all_rows], thread, len(host))
    in_loader = np.isin(phases(trace).names, LOADING)[phases(trace).main_phase_at(events.ts[all_rows])]
    is_other_loader = any(_LOADER.match(text) for _, text in lacked)
    chosen = np.flatnonzero((number >= 0) & ~(in_loader & is_other_loader))
    shape = np.r_[events.shapes[host], events.grid[all_rows[kernel]]][chosen]
    traits = (
        _numbers(events.strings, shape.astype(np.int64), texts),
        np.r_[num_calls, lasts.astype(np.int64)][chosen],
        ((_FEW_THREADS + 1) * depth + thread)[chosen],
        place[chosen],
        _functions(trace, all_rows[chosen], texts),
    )
    beside = np.column_stack([np.r_[groups.group_ids, -1][each[chosen]] for each in (around, before, after)])
    return _Uses(names, lacked, number[chosen], beside, np.column_stack(traits), max(len(steps(trace)), 1))


def _numbers(strings: Sequence[str], used: NDArray[np.int64], texts: dict[str, int]) -> NDArray[np.int64]:
    """Return the number in `texts`, to which new ones are added, of each string `used`; -1 without one."""
    distinct, index = np.unique(used, return_inverse=True)
    numbers = [texts.setdefault(strings[text], len(texts)) if text >= 0 else -1 for text in distinct.tolist()]
    return np.array(numbers, np.int64)[index]


def _functions(trace: Trace, rows: NDArray[np.int64], texts: dict[str, int]) -> NDArray[np.int64]:
    """Return the number of the function of the job that makes each call of the host, 0 where it is not known."""
    on_host = np.flatnonzero(trace.events.category[rows] != Category.KERNEL)
    time_ns = trace.events.ts[rows[on_host]]
    origin, numbers = origins(trace, tracks(trace)[rows[on_host]], time_ns, time_ns), np.zeros(len(rows), np.int64)
    functions = [line_function(text).rpartition(" ")[2] for text in origin.texts]
    numbers[on_host] = np.where(origin.line > 0, 1 + _numbers(functions, origin.line.astype(np.int64), texts), 0)
    return numbers


def _is_kernel(trace: Trace) -> NDArray[np.bool_]:
    return np.asarray(trace.events.category[device_work(trace).rows] == Category.KERNEL)


def _callers(trace: Trace, nests: ThreadNests, host: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (int64[rows of Events]: the use around each call that launches, int64[H] launches in each of the host)."""
    events, work, caller = trace.events, device_work(trace), np.full(len(trace.events), -1)
    calls = sorted_unique(work.call[work.linked])
    for ops, which in nests.on(tracks(trace)[calls]):
        innermost = ops.innermost_at(events.ts[calls[which]])
        use = np.searchsorted(host, ops.rows)
        caller[calls[which]] = np.r_[use, -1][innermost]
    return caller, np.bincount(1 + caller[calls], minlength=1 + len(host))[1:]


def _neighbours(use: NDArray[np.int64], among: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the uses before and after each one, `use` int64[K] in order, of equal `among`; -1 for none."""
    order = np.argsort(among, kind="stable")
    same = np.flatnonzero(np.diff(among[order]) == 0)
    before, after = np.full((2, len(use)), -1)
    before[order[same + 1]], after[order[same]] = use[order[same]], use[order[same + 1]]
    return before, after


def _places(trace: Trace, time_ns: NDArray[np.int64], thread: NDArray[np.int64], num_host: int) -> NDArray[np.int64]:
    """Return in which of the parts of its step each use is, by how many uses are before it; -1 outside of steps."""
    all_steps = steps(trace)
    is_host = np.arange(len(time_ns)) < num_host
    step = np.where(is_host, span_index(all_steps.host, time_ns), span_index(all_steps.window, time_ns))
    groups = group([step, is_host.astype(np.int64), thread])
    order = np.lexsort((time_ns, groups.group_ids))
    size = np.bincount(groups.group_ids)
    first = np.cumsum(size) - size
    nth = np.empty(len(order), np.int64)
    nth[order] = np.arange(len(order)) - first[groups.group_ids[order]]
    return np.where(step >= 0, nth * _PLACES // size[groups.group_ids], -1)


def _matched(
    a: _Uses, b: _Uses, common: Collection[Name], pairs: Mapping[Name, Name], least: float
) -> dict[Name, Name]:
    """Return the pairs of names whose uses agree most, given those that are known already."""
    numbers = {name: number for number, name in enumerate(sorted(common))}
    for number, (of_b, of_a) in enumerate(pairs.items(), len(numbers)):
        numbers[of_a] = numbers[of_b] = number
    sides = [_signatures(uses, numbers) for uses in (a, b)]
    likeness = _likeness(*sides, only_known=least == _SURELY_ALIKE)
    kind_a, kind_b = (np.array([kind for kind, _ in uses.lacked]) for uses in (a, b))
    likeness[kind_a[:, None] != kind_b[None, :]] = 0.0
    in_a, in_b = np.nonzero(likeness >= least)
    order = np.lexsort((in_b, in_a, -likeness[in_a, in_b]))
    taken_a, taken_b, pairs_of_names = set[int](), set[int](), dict[Name, Name]()
    for of_a, of_b in zip(in_a[order].tolist(), in_b[order].tolist(), strict=True):
        if of_a not in taken_a and of_b not in taken_b:
            taken_a.add(of_a)
            taken_b.add(of_b)
            pairs_of_names[b.lacked[of_b]] = a.lacked[of_a]
    return pairs_of_names


@frozen(eq=False)
class _Signatures:
    """How K names are used: `weight` float64[M] of each (name, what is compared, value), `keys` int64[M, 3]."""

    num_names: int
    is_kernel: NDArray[np.bool_]
    keys: NDArray[np.int64]
    weight: NDArray[np.float64]

    @property
    def times(self) -> NDArray[np.float64]:
        """float64[K]: how often each name is used."""
        is_times = self.keys[:, 1] == 0
        return np.asarray(np.bincount(self.keys[is_times, 0], self.weight[is_times], self.num_names))

    @property
    def is_known(self) -> NDArray[np.bool_]:
        """bool[M]: not a neighbour whose name is unmatched, nor shapes or a function that were not recorded."""
        _, kind, value = self.keys.T
        return np.asarray(np.where(kind == _FUNCTION, value > 0, (value != -1) | ~np.isin(kind, _MAY_LACK)))

    @property
    def decides(self) -> NDArray[np.bool_]:
        """bool[M]: a function of the job, or the grid of a kernel: what is known to be another is another."""
        _, kind, value = self.keys.T
        in_function = (kind == _FUNCTION) & (value > 0)
        return np.asarray(in_function | ((kind == _SHAPES) & (value >= 0) & self.is_kernel[self.keys[:, 0]]))


def _signatures(uses: _Uses, numbers: Mapping[Name, int]) -> _Signatures:
    """Return how the names that only this side has are used, per step, given the numbers of names that are known."""
    number = np.array([*(numbers.get(name, _UNMATCHED) for name in uses.names), _NO_USE], np.int64)
    columns = [np.zeros(len(uses.name), np.int64), *number[uses.beside].T, *uses.traits.T]
    kinds = np.repeat(np.arange(len(columns)), len(uses.name))
    groups = group([np.tile(uses.name, len(columns)), kinds, np.concatenate(columns)])
    times = np.bincount(groups.group_ids, minlength=len(groups.keys)) / uses.num_steps
    is_kernel = np.array([kind not in _ON_HOST for kind, _ in uses.lacked], np.bool_)
    return _Signatures(len(uses.lacked), is_kernel, groups.keys, times * _WEIGHTS[groups.keys[:, 1]])


def _likeness(a: _Signatures, b: _Signatures, *, only_known: bool) -> NDArray[np.float64]:
    """Return float64[names of A, of B]: the part of the uses of two names that agrees (weighted Jaccard).

    With `only_known` what neither side tells agrees in nothing: a neighbour without a name of the other side, shapes
    and functions that were not recorded. 0 of names of which one is used more than twice as often, or of which no
    function of the job, or grid, is the same.
    """
    features = group([np.r_[a.keys[:, 1], b.keys[:, 1]], np.r_[a.keys[:, 2], b.keys[:, 2]]]).group_ids
    of_a, of_b = features[: len(a.keys)], features[len(a.keys) :]
    row, other = equal_pairs(of_a, of_b)
    agrees, is_same = np.zeros((2, a.num_names, b.num_names))
    weight = np.minimum(a.weight[row], b.weight[other]) * (a.is_known[row] | (not only_known))
    np.add.at(agrees, (a.keys[row, 0], b.keys[other, 0]), weight)
    decides = a.decides[row]
    is_same[a.keys[row[decides], 0], b.keys[other[decides], 0]] = 1
    all_a, all_b = (np.bincount(each.keys[:, 0], each.weight, each.num_names) for each in (a, b))
    either = all_a[:, None] + all_b[None, :] - agrees
    is_other = np.outer(*(np.isin(np.arange(each.num_names), each.keys[each.decides, 0]) for each in (a, b)))
    is_other &= is_same == 0
    is_as_often = np.minimum.outer(a.times, b.times) >= _SURELY_ALIKE * np.maximum.outer(a.times, b.times)
    return np.divide(agrees, either, out=np.zeros_like(agrees), where=(either > 0) & is_as_often & ~is_other)
