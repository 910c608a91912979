"""First level of a large job's replay: each rank makes the changes to itself, and leaves few edges of each case.

What is changed between ranks, as the bandwidth, follows once they are joined.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.causes.longest_path import longest_paths, topological_order
from traceq.errors import UsageFault
from traceq.whatif.intervention import RankIntervention, RankWeights
from traceq.whatif.job_replay import JobReplay
from traceq.whatif.rank_part import ContractedRank, RankPart

Ints = NDArray[np.int64]

Case = Sequence[RankIntervention]


def case_name(case: Case) -> str:
    """Return the options of a case, by which it is found again."""
    return " ".join(intervention.option for intervention in case)


def contracted_part(part: RankPart, cases: Sequence[Case]) -> ContractedRank:
    """Return the part of a rank with few edges, and their weights in some cases."""
    calls, kept = part.call[part.call >= 0], np.zeros(len(part.time), np.bool_)
    stays = np.union1d(calls, part.communication)
    of_steps = part.begins, part.ends, part.host_begins, part.host_ends
    for moments in (np.zeros(1, np.int64), part.source[stays], part.target[stays], *of_steps):
        kept[moments[moments >= 0]] = True
    weight = np.column_stack([part.observed, part.loosest, *_changed(part, cases)])
    between = np.ones(len(part.source), np.bool_)
    between[stays] = False
    source, target = (side[between].astype(np.int64) for side in (part.source, part.target))
    source, target, between_ns = contract(source, target, weight[between], kept)
    source, target = np.r_[part.source[stays], source], np.r_[part.target[stays], target]
    weight = np.concatenate([weight[stays], between_ns])
    kept[source] = kept[target] = True
    moment, edge = np.cumsum(kept) - 1, np.full(len(part.source) + 1, -1)
    begins, ends, host_begins, host_ends = (np.where(moments >= 0, moment[moments], -1) for moments in of_steps)
    edge[stays] = np.arange(len(stays))
    interventions = {each.option: each for case in cases for each in case}
    return ContractedRank(
        facts=part.facts,
        time=part.time[kept],
        source=moment[source],
        target=moment[target],
        observed=weight[:, 0].copy(),
        loosest=weight[:, 1].copy(),
        changed=weight[:, 2:].copy(),
        cases=tuple(map(case_name, cases)),
        call=edge[part.call],
        begins=begins,
        ends=ends,
        host_begins=host_begins,
        host_ends=host_ends,
        counted_steps=part.counted_steps,
        communication=edge[part.communication],
        lacking={option: each.nearest(part) for option, each in interventions.items() if not each.is_in(part)},
        allocating={option: dict(each.allocations(part)) for option, each in interventions.items()},
    )


def _changed(part: RankPart, cases: Sequence[Case]) -> list[Ints]:
    """Return the weights of a rank's edges in each case, at least and at most."""
    changed = []
    for case in cases:
        for before, most in ((part.observed, False), (part.loosest, True)):
            weights = RankWeights(part, before.copy())
            for intervention in case:
                if intervention.is_in(part):
                    intervention.change(part, weights, most=most)
            weights.settle()
            changed.append(weights.edges)
    return changed


def changed_on_ranks(replay: JobReplay, before: Ints, case: Case, *, most: bool) -> Ints:
    """Return int64[E] ns: the weights of a job after what its contracted ranks changed. Raises UsageFault.

    A transfer, which only a meeting tells from the wait for other ranks, takes the part of its time that the whole
    collective takes on its rank.
    """
    for intervention in case:
        lacking = [rank.lacking.get(intervention.option) for rank in replay.contracted]
        if None not in lacking:
            raise UsageFault(
                intervention.nothing(list(dict.fromkeys(name for names in lacking for name in names or ())))
            )
    weight, part = before.copy(), np.ones(len(before))
    for index, rank in enumerate(replay.contracted):
        changed = rank.changed[:, 2 * rank.cases.index(case_name(case)) + most]
        original = rank.loosest if most else rank.observed
        edges = replay.edges_of(index)
        weight[edges] += changed - original
        part[edges] = np.where(original > 0, changed / np.maximum(original, 1), 1.0)
    runs = replay.runs
    weight[runs] = np.where(before[runs] > 0, np.rint(before[runs] * part[runs]), before[runs])
    return weight


Mask = NDArray[np.bool_]

_LEAST_GAIN = 0.02
"""Part of the edges that a round has to remove, or it was the last one."""


def contract(source: Ints, target: Ints, weight: Ints, kept: Mask) -> tuple[Ints, Ints, Ints]:
    """Return (source, target, weight) of fewer edges: all longest paths between `kept` moments are as long as before.

    `source`, `target` int64[E], without circles; `weight` int64[E, P]: of P cases, each of which has its own longest
    paths; `kept` bool[N]. A moment with a single edge into it, or out of it, is replaced by its neighbour, and of edges
    between the same moments the longest stays, until that removes little more; nothing leads to a moment without an
    edge out of it that is not kept. Moments without an edge into them, which paths begin with, stay.
    """
    if not (source < target).all():  # edges run forwards by other numbers of the moments
        order = topological_order(source, target, len(kept)).astype(np.int64)
        number = np.empty_like(order)
        number[order] = np.arange(len(order))
        source, target, weight = contract(number[source], number[target], weight, kept[order])
        return order[source], order[target], weight
    kept, num = kept | (np.bincount(target, minlength=len(kept)) == 0), 2 * len(source)
    last = len(kept) - 1
    while len(source) < (1 - _LEAST_GAIN) * num:
        num = len(source)
        leads = kept | (np.bincount(source, minlength=len(kept)) > 0)  # to anything
        source, target, weight = (column.compress(leads[target], axis=0) for column in (source, target, weight))
        source, target, weight = _without_single(source, target, weight, kept)
        target, source, weight = _without_single(last - target, last - source, weight, kept[::-1])
        source, target = last - source, last - target
    return source, target, weight


def _without_single(source: Ints, target: Ints, weight: Ints, kept: Mask) -> tuple[Ints, Ints, Ints]:
    """Return the edges without the moments, not kept, that are the target of one edge: its source takes their place.

    Those edges alone are chains, along which what they add up to is the longest path: of the distances between the
    numbers of their moments, which tells where a chain begins, as of the weights.
    """
    is_single = (np.bincount(target, minlength=len(kept)) == 1) & ~kept
    replaced = is_single[target]
    into = np.empty(len(kept), np.int64)
    into[target[replaced]] = np.flatnonzero(replaced)
    into = into[is_single]
    before = source[into]
    first, source_number = np.r_[0, np.cumsum(is_single)].astype(np.int32), before.astype(np.int32)
    back, *passed = (
        longest_paths(first, source_number, column)[0]
        for column in (target[into] - before, *np.ascontiguousarray(weight[into].T))
    )
    left = np.flatnonzero(~replaced)
    source, target, weight = source[left], target[left], weight[left]
    for case, ns in enumerate(passed):
        weight[:, case] += ns[source]
    return _longest(source - back[source], target, weight, len(kept))


def _longest(source: Ints, target: Ints, weight: Ints, num: int) -> tuple[Ints, Ints, Ints]:
    """Return one edge between two moments, the longest of each case."""
    order = np.argsort(source * num + target, kind="stable")
    source, target, weight = source[order], target[order], weight[order]
    first = np.flatnonzero(np.r_[True, (source[1:] != source[:-1]) | (target[1:] != target[:-1])][: len(source)])
    return source[first], target[first], np.maximum.reduceat(weight, first) if len(first) else weight
