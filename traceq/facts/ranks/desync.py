"""Where ranks of a group first do not issue the same collective.

Compared are name, dtype, elements and how many a step holds. Only what a rank's window surely holds can be missing
from it: a window cut short is no desync.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.collectives import COLLECTIVE_NAMES
from traceq.facts.ranks.collective_matching import Instances
from traceq.facts.ranks.job_collectives import Issued

__all__ = ["Mismatch", "RankIssue", "first_mismatches"]

_LOOK_AHEAD = 64


@dataclass(frozen=True, slots=True)
class RankIssue:
    """What one rank did at a mismatch. `call` is -1 where it issued nothing; `how` it differs from the ranks that
    agree: missing, extra, swapped or different; "" for those that agree, and where no more than half do.
    """

    rank: int
    call: int
    how: str
    name: str = ""
    dtype: str = ""
    elements: int = -1


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first place in a group where its ranks differ: `sequence` where the group has numbers, else `place` in
    `step` (-1: without steps). `at` ns orders mismatches of several groups. `did` by rank.
    """

    group: str
    sequence: int
    step: int
    place: int
    at: int
    did: tuple[RankIssue, ...]


def first_mismatches(issued: Issued, instances: Instances) -> tuple[Mismatch, ...]:
    """The first of each group, the earliest first."""
    differs = _differs(issued, instances) | _is_missing(issued, instances).any(axis=1)
    found = []
    for group in np.unique(instances.group[differs]).tolist():
        first = int(np.flatnonzero(differs & (instances.group == group))[0])
        if not _only_straddles(issued, instances, group):
            found.append(_mismatch(issued, instances, first))
    return tuple(sorted(found, key=lambda mismatch: mismatch.at))


def _differs(issued: Issued, instances: Instances) -> NDArray[np.bool_]:
    """bool[I]: two ranks that issued it say different things; what one does not say differs from nothing."""
    columns = [issued.called.name, issued.dtype, issued.called.elements]
    differs = np.zeros(len(instances), np.bool_)
    most, least = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    for number, column in enumerate([*columns, issued.called.step]):
        if len(column) == 0:
            continue
        said = np.where(instances.call >= 0, column[instances.call], -1)
        apart = np.where(said >= 0, said, least).max(axis=1) > np.where(said >= 0, said, most).min(axis=1)
        differs |= apart & (instances.numbered if number == len(columns) else True)
    return differs


def _is_missing(issued: Issued, instances: Instances) -> NDArray[np.bool_]:
    """bool[I, R]: a member of the group did not issue it, though its window holds that time entirely."""
    absent = (instances.call < 0) & issued.member[instances.group]
    step, place = instances.step[:, None], instances.place[:, None]
    in_window = (step >= issued.whole[:, 0]) & (step < issued.whole[:, 1])
    low, high = _numbered_range(issued)
    in_range = (place >= low[instances.group]) & (place <= high[instances.group])
    return np.asarray(absent & np.where(instances.numbered[:, None], in_range, in_window))


def _numbered_range(issued: Issued) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(first, last) sequence number of each group on each rank, int64[G, R]; an empty range where it has none."""
    shape = issued.member.shape
    low, high = np.full(shape, np.iinfo(np.int64).max), np.full(shape, -1)
    np.minimum.at(low, (issued.group, issued.rank), issued.called.sequence)
    np.maximum.at(high, (issued.group, issued.rank), issued.called.sequence)
    return low, high


def _signature(issued: Issued, call: int, *, step: bool) -> tuple[int, ...] | None:
    """What is compared of one call; None without one."""
    if call < 0:
        return None
    own = (int(issued.called.name[call]), int(issued.dtype[call]), int(issued.called.elements[call]))
    return (*own, int(issued.called.step[call])) if step else own


def _only_straddles(issued: Issued, instances: Instances, group: int) -> bool:
    """Over the steps that all ranks hold entirely the group's calls are the same, one after the other: a thread beside
    the steps issued some of them a little before or after a step mark.
    """
    members = np.flatnonzero(issued.member[group])
    if not issued.marked[members].all():
        return False
    low, high = issued.whole[members, 0].max(), issued.whole[members, 1].min()
    numbered = bool(instances.numbered[instances.group == group].all())
    told: set[tuple[object, ...]] = set()
    for rank in members.tolist():
        mine = (
            (issued.group == group) & (issued.rank == rank) & (issued.called.step >= low) & (issued.called.step < high)
        )
        calls = np.flatnonzero(mine)[np.argsort(issued.called.at[mine], kind="stable")]
        numbers = issued.called.sequence[calls].tolist() if numbered else []
        told.add((*numbers, *(_signature(issued, call, step=False) for call in calls.tolist())))
    rest = instances.some((instances.group == group) & ~_within(issued, instances, int(low), int(high)))
    return len(told) == 1 and not (_differs(issued, rest) | _is_missing(issued, rest).any(axis=1)).any()


def _within(issued: Issued, instances: Instances, low: int, high: int) -> NDArray[np.bool_]:
    """bool[I]: all that is there of it was issued in steps [low, high)."""
    step = issued.called.step[instances.call]
    return np.asarray(((instances.call < 0) | ((step >= low) & (step < high))).all(axis=1))


def _mismatch(issued: Issued, instances: Instances, first: int) -> Mismatch:
    group, numbered = int(instances.group[first]), bool(instances.numbered[first])
    alike = (instances.group == group) & (instances.step == instances.step[first])
    onwards = np.flatnonzero(alike & (np.arange(len(instances)) >= first))[:_LOOK_AHEAD]
    missing = _is_missing(issued, instances.some(onwards[:1]))[0]
    ranks = [r for r in range(len(issued.ranks)) if instances.call[first, r] >= 0 or missing[r]]
    story = {
        r: [_signature(issued, call, step=numbered) for call in instances.call[onwards, r].tolist()] for r in ranks
    }
    usual = _usual([tuple(story[r]) for r in ranks])
    did = tuple(_did(issued, r, int(instances.call[first, r]), _how(story[r], usual)) for r in ranks)
    calls = instances.call[first]
    step = int(issued.called.step[calls[calls >= 0]].min()) if issued.marked.any() else -1
    place = int(instances.place[first])
    return Mismatch(
        group=issued.groups[group],
        sequence=place if numbered else -1,
        step=step,
        place=-1 if numbered else place,
        at=int(issued.called.at[calls[calls >= 0]].min()),
        did=did,
    )


_Story = Sequence[tuple[int, ...] | None]


def _usual(stories: Sequence[tuple[tuple[int, ...] | None, ...]]) -> _Story | None:
    """What more than half of the ranks do at the first place and, of those, most from there on; None if none do."""
    first, count = Counter(story[0] for story in stories).most_common(1)[0]
    if 2 * count <= len(stories):
        return None
    return Counter(story for story in stories if story[0] == first).most_common(1)[0][0]


def _how(mine: _Story, usual: _Story | None) -> str:
    """How a rank differs from what is usual: what explains all that it does from there on, best to the same end."""
    if usual is None or mine[0] == usual[0]:
        return ""
    mine, usual = _upto_end(mine), _upto_end(usual)
    explained = {
        "swapped": [*usual[1:2], *usual[:1], *usual[2:]] if len(usual) > 1 else None,
        "different": [*mine[:1], *usual[1:]] if mine and usual else None,
        "missing": usual[1:],
        "extra": [*mine[:1], *usual],
    }
    fits = [how for how, story in explained.items() if story is not None and _agree(mine, story)]
    exact = [how for how in fits if len(explained[how] or ()) == len(mine)]
    return (exact or [how for how in fits if how != "different"] or ["different"])[0]


def _upto_end(story: _Story) -> list[tuple[int, ...] | None]:
    """Without the nothing at its end."""
    last = max((at for at, one in enumerate(story) if one is not None), default=-1)
    return list(story[: last + 1])


def _agree(mine: _Story, told: _Story) -> bool:
    """All that both hold agrees, and that is something unless there is nothing in one of them."""
    return all(x == y for x, y in zip(mine, told, strict=False)) and (bool(told) or not mine)


def _did(issued: Issued, rank: int, call: int, how: str) -> RankIssue:
    if call < 0:
        return RankIssue(issued.ranks[rank], call, how)
    dtype = int(issued.dtype[call])
    text = issued.dtypes[dtype] if dtype >= 0 else ""
    return RankIssue(
        issued.ranks[rank],
        call,
        how,
        COLLECTIVE_NAMES[int(issued.called.name[call])],
        text,
        int(issued.called.elements[call]),
    )
