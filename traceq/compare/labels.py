"""Labels of what contributes to a delta: device work, holds of the host and host ops, by name and place.

The common graph pairs what the host calls by its place, also where that is something else: one kind of work replaced
another only if there is less of the one and more of the other. Between two calls of both sides A may launch three
kernels where B launches one of another name: counted apart they would be large causes that cancel, so they share a
label.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.causes.edges import IN_A, IN_B, IN_BOTH
from traceq.causes.holds import HoldKind
from traceq.causes.host_line import ONCE, HostLine
from traceq.compare.cost_centers import CAUSE_KINDS, FOR, LAUNCHES, Actors, actors
from traceq.compare.result import AND, REPLACED_BY
from traceq.facts.events.name_patterns import VENDOR
from traceq.facts.events.nesting import tracks
from traceq.facts.stalls.syncs import SYNC_KINDS
from traceq.facts.timeline.call_sites import line_function, origins
from traceq.facts.timeline.data_loading import LOADING, have_unlike_loaders
from traceq.facts.timeline.phases import phases
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.intervals import span_index
from traceq.model import Trace

AND_MORE = re.compile(r" \(and (\d+) more\)$")
_INSTANCE = re.compile(r"_\d+$")


@frozen
class Label:
    """What a contribution is counted under: name and, of host ops, the `inner`most op; `line` without its number.

    `rank` is the index of the rank, -1 where only one is compared.
    """

    kind: str
    name: str
    inner: str = ""
    phase: str = ""
    line: str = ""
    module: str = ""
    rank: int = -1

    @property
    def work(self) -> str:
        """What the host does, wherever it does it."""
        return self.inner or self.name

    @property
    def place(self) -> tuple[int, str, str, str]:
        """Where it is done: rank, phase, line, module."""
        return self.rank, self.phase, self.line, self.module


WAITS = Label("residual", "waits of the device whose cause is not recorded")
START = Label("residual", "state at the start of the trace")
QUEUE = Label("host", "full launch queue")
LOADER = Label("host", "data loader")
THREAD = Label("host", "wait for another thread")

_WITHOUT_OP = {HoldKind.QUEUE: QUEUE, HoldKind.LOADER: LOADER, HoldKind.THREAD: THREAD}

Labelled = tuple[list[Label], NDArray[np.int64]]
"""(distinct labels, the index of the label of each thing)."""


class LabelNumbers:
    """Numbers of labels, in order of first use; lines and modules tell apart only where both sides have them.

    What the host does to load is told apart only where both sides make their batches in the same way: workers take over
    all of it together.
    """

    def __init__(self, sides: Sequence[Sequence[Label]], traces: tuple[Trace, Trace], *, is_swapped: bool) -> None:
        self._is_swapped = is_swapped
        self._is_loading_one = have_unlike_loaders(*traces)
        self._numbers: dict[Label, int] = {}
        self._lines: list[str] = []
        self._with_line = all(any(label.line for label in side) for side in sides)
        self._with_module = all(any(label.module for label in side) for side in sides)

    @property
    def labels(self) -> tuple[Label, ...]:
        """All labels so far."""
        return tuple(self._numbers)

    @property
    def lines(self) -> tuple[str, ...]:
        """Line of each label with its number, as first seen."""
        return tuple(self._lines)

    def number(self, label: Label, rank: int = -1) -> int:
        """Return the number of a label on a rank, a new one if needed."""
        if self._is_loading_one and label.kind == "host" and label.phase in LOADING:
            label = replace(LOADER, phase=label.phase)
        key = replace(
            label,
            inner=label.inner if label.inner != label.name else "",
            line=line_function(label.line) if self._with_line else "",
            module=_INSTANCE.sub("", label.module) if self._with_module else "",
            rank=rank,
        )
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers)
            self._lines.append(label.line if self._with_line else "")
        return self._numbers[key]

    def numbers(self, labels: Iterable[Label], rank: int = -1) -> NDArray[np.int64]:
        """Return the numbers of some labels on a rank."""
        return np.array([self.number(label, rank) for label in labels], np.int64)

    def replaced(self, a: Sequence[int], b: Sequence[int]) -> int:
        """Return the number of the label under which some of B replaced some of A, the largest of each first.

        It has the line and module that all have.
        """
        labels, first = [self.labels[number] for number in (*a, *b)], self.labels[a[0]]
        names = [[self.labels[number].work for number in side] for side in (a, b)]
        old, new = (and_more(side) for side in (names[::-1] if self._is_swapped else names))
        lines, modules = ({label.line for label in labels}, {label.module for label in labels})
        line, module = (first.line if len(lines) == 1 else ""), (first.module if len(modules) == 1 else "")
        label = replace(first, name=replacement_name(old, new), inner="", line=line, module=module)
        number = self.number(label, first.rank)
        self._lines[number] = self._lines[a[0]] if line else ""
        return number

    def joined(self, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the label of edges with the labels `a` and `b` of either side, -1 where absent.

        Where both differ in name, one replaced the other.
        """
        groups = group([a, b])
        labels, numbers = self.labels, []
        for of_a, of_b in groups.keys.tolist():
            kinds = [labels[number].kind for number in (of_a, of_b) if number >= 0]
            if len(kinds) < 2:
                numbers.append(of_a if of_a >= 0 else of_b)
            elif is_same_work(labels[of_a], labels[of_b]):  # the name of a collective with its role, if one side knows
                numbers.append(of_b if labels[of_b].name.startswith(labels[of_a].name + FOR) else of_a)
            elif set(kinds) == {"sync", "host"}:  # a copy that blocks on one side only
                numbers.append(of_a if kinds[0] == "sync" else of_b)
            else:
                old, new = (labels[number].name for number in ((of_b, of_a) if self._is_swapped else (of_a, of_b)))
                kind = min(labels[of_a].kind, labels[of_b].kind, key=CAUSE_KINDS.index)
                place = _common_place(labels[of_a], labels[of_b])
                number = self.number(replace(place, kind=kind, name=replacement_name(old, new)), place.rank)
                self._lines[number] = self._lines[of_a] if place.line else ""
                numbers.append(number)
        return np.array(numbers, np.int64)[groups.group_ids] if len(a) else a


def and_more(names: Sequence[str]) -> str:
    """Return `aten::mm (and 2 more)` of several names, the first of which is told."""
    distinct = list(dict.fromkeys(names))
    return distinct[0] + (f" (and {len(distinct) - 1} more)" if len(distinct) > 1 else "")


def without_more(name: str) -> tuple[str, int]:
    """Return (`aten::mm`, 2) of `aten::mm (and 2 more)`."""
    more = AND_MORE.search(name)
    return (name[: more.start()], int(more[1])) if more else (name, 0)


def is_same_work(a: Label, b: Label) -> bool:
    """Return whether two labels name the same work: also by another op, or of a role that one side lacks."""
    if a.kind == b.kind == "collective":
        (name_a, _, role_a), (name_b, _, role_b) = (label.name.partition(FOR) for label in (a, b))
        return name_a == name_b and (role_a == role_b or not role_a or not role_b)
    return a.name.rpartition(LAUNCHES)[2] == b.name.rpartition(LAUNCHES)[2]


def _common_place(a: Label, b: Label) -> Label:
    """Return the label of A with the line and module that both have, and the phases of both."""
    return replace(
        a,
        phase=AND.join(sorted({a.phase, b.phase})),
        line=a.line if a.line == b.line else "",
        module=a.module if a.module == b.module else "",
    )


def replacement_name(old: str, new: str) -> str:
    """Return `aten::mm > old replaced by new`, with the op only once where it launched both."""
    op = old.rpartition(LAUNCHES)[0]
    new_op, _, new_kernel = new.rpartition(LAUNCHES)
    return f"{old}{REPLACED_BY}{new_kernel if op == new_op else new}"


def device_labels(line: HostLine) -> Labelled:
    """Return (labels, int64[D] index of the label of each piece of device work)."""
    all_actors, names = actors(line.trace), phases(line.trace).names
    work = slice(0, all_actors.first_sync)
    groups = group([column[work] for column in _columns(all_actors)])
    return [label_of(all_actors, names, *key) for key in groups.keys.tolist()], groups.group_ids


def _columns(all_actors: Actors) -> tuple[NDArray[np.int8] | NDArray[np.int32], ...]:
    return all_actors.kind, all_actors.name, all_actors.phase, all_actors.line, all_actors.module


def label_of(
    all_actors: Actors, phase_names: Sequence[str], kind: int, name: int, phase: int, line: int, module: int
) -> Label:
    texts = all_actors.texts
    return Label(CAUSE_KINDS[kind], texts[name], "", phase_names[phase], texts[line], texts[module])


def hold_labels(line: HostLine) -> Labelled:
    """Return (labels, int64[H] index of the label of each hold); those of blocking calls are their syncs'."""
    all_actors, names, holds, events = actors(line.trace), phases(line.trace).names, line.holds, line.trace.events
    actor = all_actors.first_sync + holds.call
    row_track = np.where(holds.row >= 0, tracks(line.trace)[holds.row], 0)
    origin = origins(line.trace, row_track, holds.start, holds.end, holds.row, holds.kind < HoldKind.STREAM)
    phase = np.where(holds.call >= 0, all_actors.phase[actor], phases(line.trace).main_phase_at(holds.start))
    name = np.where(holds.row >= 0, events.name[holds.row], 0)
    columns = (np.where(holds.call >= 0, actor, -1), holds.kind, phase, origin.op, name, origin.line, origin.module)
    is_call = holds.call >= 0
    keys = [np.where(is_call, -1, column) for column in columns[1:]]
    of_call = [np.where(is_call, column[actor], -1) for column in _columns(all_actors)]
    groups = group([*of_call, *keys])
    labels = []
    for key in groups.keys.tolist():
        kind, phase_number, op, name_number, line_number, module = key[5:]
        if kind < 0:
            labels.append(label_of(all_actors, names, *key[:5]))
        elif kind == HoldKind.LOAD:  # as all of the host that is once, wherever it is
            labels.append(Label("host", ONCE))
        elif kind in _WITHOUT_OP:
            labels.append(replace(_WITHOUT_OP[kind], phase=names[phase_number]))
        else:
            what = origin.texts[op] or events.strings[name_number]
            is_copy = kind in (HoldKind.DTOH, HoldKind.HTOD, HoldKind.COPY)  # one that does not block
            name_text = what if is_copy else f"{SYNC_KINDS[kind]} {VENDOR.sub('', what)}"
            where = names[phase_number], origin.texts[line_number], origin.texts[module]
            labels.append(Label("host" if is_copy else "sync", name_text, "", *where))
    return labels, groups.group_ids


def sync_calls(line: HostLine, windows: NDArray[np.int64]) -> dict[Label, float]:
    """Return the syncs per step, on whatever thread, of host windows int64[K, 2] ns."""
    all_actors, names = actors(line.trace), phases(line.trace).names
    sync = slice(all_actors.first_sync, all_actors.first_op)
    inside = span_index(windows, all_actors.start[sync]) >= 0
    groups = group([column[sync][inside] for column in _columns(all_actors)])
    labels = (label_of(all_actors, names, *key) for key in groups.keys.tolist())
    return {label: num / len(windows) for label, num in zip(labels, groups.count(), strict=True)}


def unlike_pairs(
    labels: Sequence[Label], a: NDArray[np.int64], b: NDArray[np.int64], counts: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return which pairs are of work that did not replace each other: bool[E].

    `a`, `b` int64[E] into `labels`, -1 where absent; `counts` bool[E]: parts that count as an event each.
    """
    more = _more(labels, a, b, ~counts) | _more(labels, a, b, counts)  # what no step has is known from elsewhere
    both = np.flatnonzero((a >= 0) & (b >= 0) & (a != b))
    pairs = group([a[both], b[both]])
    unlike = [_is_unlike(labels[x], labels[y], more) for x, y in pairs.keys.tolist()]
    result = np.zeros(len(a), np.bool_)
    result[both] = np.array(unlike, np.bool_)[pairs.group_ids] if len(both) else False
    return result


def _more(
    labels: Sequence[Label], a: NDArray[np.int64], b: NDArray[np.int64], counts: NDArray[np.bool_]
) -> dict[str, int]:
    """Return how much more of each kind of work B has than A among the parts that count."""
    more: dict[str, int] = {}
    for side, sign in ((a, -1), (b, 1)):
        numbers, nums = np.unique(side[counts & (side >= 0)], return_counts=True)
        for number, num in zip(numbers.tolist(), nums.tolist(), strict=True):
            work = _kind_of_work(labels[number])
            more[work] = more.get(work, 0) + sign * num
    return more


def _is_unlike(a: Label, b: Label, more: Mapping[str, int]) -> bool:
    if is_same_work(a, b):
        return a.kind == "collective" and a.phase != b.phase
    if {a.kind, b.kind} == {"sync", "host"}:  # a copy that blocks on one side only
        return False
    return more[_kind_of_work(a)] >= 0 or more[_kind_of_work(b)] <= 0


def _kind_of_work(label: Label) -> str:
    return label.name.partition(FOR)[0] if label.kind == "collective" else label.name


_Sides = tuple[frozenset[int], frozenset[int]]
"""Labels that A has in a region, and B."""


def with_regions(
    label: NDArray[np.int32],
    gap: NDArray[np.int32],
    sides: NDArray[np.int8],
    ns: NDArray[np.int64],
    labels: LabelNumbers,
) -> NDArray[np.int32]:
    """Return int32[C] labels, those of kernels that one side has in a region where the other has others replaced.

    `label` int32[C] into `labels`; `gap` int32[C]: parts between the same two calls share a number, -1 outside; `sides`
    int8[C] as of edges; `ns` int64[C] that they take. A kernel that runs as often on both sides only moved. Of
    a phase most of whose kernels are replaced, all that one side alone has is one region.
    """
    is_kernel = np.array([each.kind == "kernel" for each in labels.labels])
    phases = {each.phase: number for number, each in enumerate(labels.labels)}
    phase = np.array([phases[each.phase] for each in labels.labels])
    names = {each.name: number for number, each in enumerate(labels.labels)}
    name = np.array([names[each.name] for each in labels.labels])
    alone = np.flatnonzero((sides != IN_BOTH) & is_kernel[label])
    sign = np.where(sides == IN_B, 1, -1)
    more = np.bincount(name[label[alone]], sign[alone], len(name))
    is_more, of_phase = more[name[label[alone]]] * sign[alone] > 0, phase[label[alone]]
    if not is_more.any():
        return label
    places = group([gap[alone], of_phase])
    of_a, of_b = (
        np.bincount(places.group_ids, is_more & (sides[alone] == side), len(places.keys)) > 0 for side in (IN_A, IN_B)
    )
    chosen = (of_a & of_b)[places.group_ids] & is_more & (gap[alone] >= 0)
    replaced_ns = np.bincount(of_phase[chosen], ns[alone[chosen]], len(phase))
    is_rewritten = 2 * replaced_ns >= np.bincount(phase[label], ns * is_kernel[label], len(phase))
    place, in_place_ns = places.group_ids, np.bincount(places.group_ids[chosen], ns[alone[chosen]], len(places.keys))
    for number in np.flatnonzero(is_rewritten & (replaced_ns > 0)).tolist():
        in_phase = of_phase == number
        largest = place[in_phase & chosen][np.argmax(in_place_ns[place[in_phase & chosen]])]
        place = np.where(in_phase, largest, place)
        chosen |= in_phase
    place_of, parts = place[chosen], alone[chosen]
    regions = _regions(place_of, label[parts], sides[parts])
    numbers = _labels_of(regions, label[parts], place_of, ns[parts], labels)
    result = label.copy()
    result[parts] = np.array([numbers.get(each, -1) for each in range(len(places.keys))])[place_of]
    return result


def _regions(place: NDArray[np.int64], label: NDArray[np.int32], sides: NDArray[np.int8]) -> dict[int, _Sides]:
    """Return the labels of both sides in each place; of places that have those of one side in common, of all."""
    members: defaultdict[int, tuple[set[int], set[int]]] = defaultdict(lambda: (set(), set()))
    for number, each, side in group([place, label, sides]).keys.tolist():
        members[number][0 if side == IN_A else 1].add(each)
    frozen = {number: (frozenset(of_a), frozenset(of_b)) for number, (of_a, of_b) in members.items()}
    for side in (0, 1):
        joined: dict[frozenset[int], _Sides] = {}
        for both in dict.fromkeys(frozen.values()):
            a, b = joined.get(both[side], both)
            joined[both[side]] = a | both[0], b | both[1]
        frozen = {number: joined[both[side]] for number, both in frozen.items()}
    return frozen


def _labels_of(
    regions: Mapping[int, _Sides],
    label: NDArray[np.int32],
    place: NDArray[np.int64],
    ns: NDArray[np.int64],
    labels: LabelNumbers,
) -> dict[int, int]:
    """Return the number of the label of each place, named by what takes most time there on either side."""
    time: defaultdict[_Sides, Counter[int]] = defaultdict(Counter)
    sums = group([place, label])
    for (number, each), total in zip(sums.keys.tolist(), sums.sum(ns), strict=True):
        time[regions[number]][each] += total
    numbers = {
        both: labels.replaced(*([*sorted(side, key=lambda n: (-of[n], n))] for side in both))
        for both, of in time.items()
    }
    return {number: numbers[both] for number, both in regions.items()}
