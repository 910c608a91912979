"""Desyncs: the first place in a group where its ranks do not issue the same collective.

Name, dtype, elements and the number per step are compared. A collective is missing on a rank only if the rank's window
covers its time entirely: a window cut short is no desync.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.collectives import COLLECTIVE_NAMES
from traceq.facts.ranks.collective_matching import Instances
from traceq.facts.ranks.job_collectives import JobCollectives
from traceq.frozen import frozen
from traceq.intervals import sorted_unique

_LOOK_AHEAD = 64


@frozen
class RankIssue:
    """Collective that one rank issued at a mismatch.

    `call` is -1 where it issued nothing; `how` it differs from the majority: missing, extra, swapped or different; ""
    for ranks of the majority, and where no more than half of the ranks agree.
    """

    rank: int
    call: int
    how: str
    name: str = ""
    dtype: str = ""
    elements: int = -1


@frozen
class Mismatch:
    """First place in a group where its ranks differ.

    `sequence` where the group has sequence numbers, else `place` in `step` (-1: without steps). `issued_ns` orders the
    mismatches of several groups. `rank_issues` has one entry per rank.
    """

    group: str
    sequence: int
    step: int
    place: int
    issued_ns: int
    rank_issues: tuple[RankIssue, ...]


def first_mismatches(issued: JobCollectives, instances: Instances) -> tuple[Mismatch, ...]:
    """Return the first mismatch of each group, the earliest first."""
    differs = _differs(issued, instances) | _is_missing(issued, instances).any(axis=1)
    mismatches = []
    for group in sorted_unique(instances.group[differs]).tolist():
        first = int(np.flatnonzero(differs & (instances.group == group))[0])
        if not _is_step_mark_jitter(issued, instances, group):
            mismatches.append(_mismatch(issued, instances, first))
    return tuple(sorted(mismatches, key=lambda mismatch: mismatch.issued_ns))


def _differs(issued: JobCollectives, instances: Instances) -> NDArray[np.bool_]:
    """Return bool[I]: two ranks that issued it differ in a column; absent values do not count."""
    columns = [issued.columns.name, issued.dtype, issued.columns.elements]
    differs = np.zeros(len(instances), np.bool_)
    most, least = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    for number, column in enumerate([*columns, issued.columns.step]):
        if len(column) == 0:
            continue
        values = np.where(instances.call >= 0, column[instances.call], -1)
        unequal = np.where(values >= 0, values, least).max(axis=1) > np.where(values >= 0, values, most).min(axis=1)
        differs |= unequal & (instances.numbered if number == len(columns) else True)
    return differs


def _is_missing(issued: JobCollectives, instances: Instances) -> NDArray[np.bool_]:
    """Return bool[I, R]: a member of the group did not issue it, though its window covers that time entirely."""
    absent = (instances.call < 0) & issued.member[instances.group]
    step, place = instances.step[:, None], instances.place[:, None]
    in_window = (step >= issued.whole[:, 0]) & (step < issued.whole[:, 1])
    low, high = _numbered_range(issued)
    in_range = (place >= low[instances.group]) & (place <= high[instances.group])
    return np.asarray(absent & np.where(instances.numbered[:, None], in_range, in_window))


def _numbered_range(issued: JobCollectives) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (first, last) sequence number int64[G, R] of each group on each rank; an empty range without one."""
    shape = issued.member.shape
    low, high = np.full(shape, np.iinfo(np.int64).max), np.full(shape, -1)
    np.minimum.at(low, (issued.group, issued.rank), issued.columns.sequence)
    np.maximum.at(high, (issued.group, issued.rank), issued.columns.sequence)
    return low, high


def _signature(issued: JobCollectives, call: int, *, step: bool) -> tuple[int, ...] | None:
    """Return the compared columns of one call; None without a call."""
    if call < 0:
        return None
    columns = (int(issued.columns.name[call]), int(issued.dtype[call]), int(issued.columns.elements[call]))
    return (*columns, int(issued.columns.step[call])) if step else columns


def _is_step_mark_jitter(issued: JobCollectives, instances: Instances, group: int) -> bool:
    """Return whether the group's calls are equal on all ranks over the steps that all windows cover entirely.

    Then there is no desync: a thread independent of the steps issued some calls shortly before or after a step mark.
    """
    members = np.flatnonzero(issued.member[group])
    if not issued.marked[members].all():
        return False
    low, high = issued.whole[members, 0].max(), issued.whole[members, 1].min()
    numbered = bool(instances.numbered[instances.group == group].all())
    sequences: set[tuple[object, ...]] = set()
    for rank in members.tolist():
        mask = (
            (issued.group == group)
            & (issued.rank == rank)
            & (issued.columns.step >= low)
            & (issued.columns.step < high)
        )
        calls = np.flatnonzero(mask)[np.argsort(issued.columns.issued_ns[mask], kind="stable")]
        numbers = issued.columns.sequence[calls].tolist() if numbered else []
        sequences.add((*numbers, *(_signature(issued, call, step=False) for call in calls.tolist())))
    rest = instances.select((instances.group == group) & ~_within_steps(issued, instances, int(low), int(high)))
    return len(sequences) == 1 and not (_differs(issued, rest) | _is_missing(issued, rest).any(axis=1)).any()


def _within_steps(issued: JobCollectives, instances: Instances, low: int, high: int) -> NDArray[np.bool_]:
    """Return bool[I]: all ranks that issued it did so in steps [low, high)."""
    step = issued.columns.step[instances.call]
    return np.asarray(((instances.call < 0) | ((step >= low) & (step < high))).all(axis=1))


def _mismatch(issued: JobCollectives, instances: Instances, first: int) -> Mismatch:
    """Return the mismatch at instance `first`, explained by up to _LOOK_AHEAD collectives of the same step."""
    group, numbered = int(instances.group[first]), bool(instances.numbered[first])
    same_step = (instances.group == group) & (instances.step == instances.step[first])
    onwards = np.flatnonzero(same_step & (np.arange(len(instances)) >= first))[:_LOOK_AHEAD]
    missing = _is_missing(issued, instances.select(onwards[:1]))[0]
    ranks = [r for r in range(len(issued.ranks)) if instances.call[first, r] >= 0 or missing[r]]
    signatures = {
        r: [_signature(issued, call, step=numbered) for call in instances.call[onwards, r].tolist()] for r in ranks
    }
    majority = _majority([tuple(signatures[r]) for r in ranks])
    calls = instances.call[first]
    rank_issues = tuple(_rank_issue(issued, r, int(calls[r]), _difference(signatures[r], majority)) for r in ranks)
    step = int(issued.columns.step[calls[calls >= 0]].min()) if issued.marked.any() else -1
    place = int(instances.place[first])
    return Mismatch(
        group=issued.groups[group],
        sequence=place if numbered else -1,
        step=step,
        place=-1 if numbered else place,
        issued_ns=int(issued.columns.issued_ns[calls[calls >= 0]].min()),
        rank_issues=rank_issues,
    )


_Signatures = Sequence[tuple[int, ...] | None]
"""Signatures of one rank's calls from the mismatch on, None where it issued nothing."""


def _majority(all_signatures: Sequence[tuple[tuple[int, ...] | None, ...]]) -> _Signatures | None:
    """Return what over half of the ranks issue first and, of those, most from there on; None without a majority."""
    first, count = Counter(signatures[0] for signatures in all_signatures).most_common(1)[0]
    if 2 * count <= len(all_signatures):
        return None
    return Counter(signatures for signatures in all_signatures if signatures[0] == first).most_common(1)[0][0]


def _difference(signatures: _Signatures, majority: _Signatures | None) -> str:
    """Return how a rank differs from the majority: the edit that explains its calls, preferably up to the end."""
    if majority is None or signatures[0] == majority[0]:
        return ""
    signatures, majority = _without_trailing_none(signatures), _without_trailing_none(majority)
    explained = {
        "swapped": [*majority[1:2], *majority[:1], *majority[2:]] if len(majority) > 1 else None,
        "different": [*signatures[:1], *majority[1:]] if signatures and majority else None,
        "missing": majority[1:],
        "extra": [*signatures[:1], *majority],
    }
    fits = [how for how, expected in explained.items() if expected is not None and _is_prefix(signatures, expected)]
    exact = [how for how in fits if len(explained[how] or ()) == len(signatures)]
    return (exact or [how for how in fits if how != "different"] or ["different"])[0]


def _without_trailing_none(signatures: _Signatures) -> list[tuple[int, ...] | None]:
    """Return the signatures up to the last call."""
    last = max((index for index, signature in enumerate(signatures) if signature is not None), default=-1)
    return list(signatures[: last + 1])


def _is_prefix(signatures: _Signatures, expected: _Signatures) -> bool:
    """Return whether one is a prefix of the other; an empty `expected` matches only empty `signatures`."""
    return all(x == y for x, y in zip(signatures, expected, strict=False)) and (bool(expected) or not signatures)


def _rank_issue(issued: JobCollectives, rank: int, call: int, how: str) -> RankIssue:
    """Return what one rank issued: `call`, or nothing if it is -1."""
    if call < 0:
        return RankIssue(issued.ranks[rank], call, how)
    dtype = int(issued.dtype[call])
    text = issued.dtypes[dtype] if dtype >= 0 else ""
    return RankIssue(
        issued.ranks[rank],
        call,
        how,
        COLLECTIVE_NAMES[int(issued.columns.name[call])],
        text,
        int(issued.columns.elements[call]),
    )
