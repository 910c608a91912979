"""Regions in which each side runs kernels that the other one does not: what replaced what, as one label.

Between two calls that both sides make, A may launch three kernels where B launches one of another name. Counted apart,
what one side alone has would be two large causes that cancel, though the region changed by their difference alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from traceq.causes.edges import IN_A, IN_B, IN_BOTH
from traceq.compare.labels import LabelNumbers
from traceq.grouping import group

__all__ = ["with_regions"]

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
    int8[C] as of edges; `ns` int64[C] that they take. A kernel that runs as often on both sides only moved.
    """
    is_kernel = np.array([each.kind == "kernel" for each in labels.labels])
    phases = {each.phase: number for number, each in enumerate(labels.labels)}
    phase = np.array([phases[each.phase] for each in labels.labels])
    names = {each.name: number for number, each in enumerate(labels.labels)}
    name = np.array([names[each.name] for each in labels.labels])
    alone = np.flatnonzero((sides != IN_BOTH) & (gap >= 0) & is_kernel[label])
    sign = np.where(sides == IN_B, 1, -1)
    more = np.bincount(name[label[alone]], sign[alone], len(name))
    alone = alone[more[name[label[alone]]] * sign[alone] > 0]
    if not len(alone):
        return label
    places = group([gap[alone], phase[label[alone]]])
    of_a, of_b = (np.bincount(places.group_ids, sides[alone] == side, len(places.keys)) > 0 for side in (IN_A, IN_B))
    chosen = (of_a & of_b)[places.group_ids]
    place_of, parts = places.group_ids[chosen], alone[chosen]
    regions = _regions(place_of, label[parts], sides[parts])
    numbers = _labels_of(regions, label[parts], place_of, ns[parts], labels)
    result = label.copy()
    result[parts] = np.array([numbers.get(place, -1) for place in range(len(places.keys))])[place_of]
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
