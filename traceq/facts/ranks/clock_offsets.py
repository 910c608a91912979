"""How far the ranks' clocks are apart: a collective in which all wait for all ends everywhere at one moment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.collectives import COLLECTIVE_NAMES
from traceq.facts.ranks.collective_matching import Instances
from traceq.facts.ranks.job_collectives import Issued

__all__ = ["BARRIER_LIKE", "Clocks", "clocks"]

BARRIER_LIKE = tuple(
    COLLECTIVE_NAMES.index(name) for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
)
"""Collectives that no rank finishes before the last has arrived."""

_WELL_BELOW = 0.25
_LEAST_INSTANCES = 3
_Z95 = 1.96


@dataclass(frozen=True, slots=True, eq=False)
class Clocks:
    """By group and rank: `offset`, `uncertainty` float64[G, R] ns, NaN where there is none or it is refused."""

    offset: NDArray[np.float64]
    uncertainty: NDArray[np.float64]

    @property
    def known(self) -> NDArray[np.bool_]:
        """bool[G]: the group's clocks can be set against each other."""
        return np.asarray(np.isfinite(self.offset).any(axis=1))

    @property
    def ahead(self) -> NDArray[np.float64]:
        """float64[R] ns that each clock is ahead of the first, through groups that have ranks in common, the widest
        first; NaN where no group leads to.
        """
        ahead = np.full(self.offset.shape[1], np.nan)
        ahead[:1] = 0
        told = np.isfinite(self.offset)
        for _ in range(len(ahead)):
            joins = (told & np.isfinite(ahead)).any(axis=1) & (told & np.isnan(ahead)).any(axis=1)
            if not joins.any():
                break
            group = int(np.argmax(np.where(joins, told.sum(axis=1), -1)))
            by = int(np.flatnonzero(told[group] & np.isfinite(ahead))[0])
            new = told[group] & np.isnan(ahead)
            ahead[new] = ahead[by] + self.offset[group, new] - self.offset[group, by]
        return ahead


def clocks(issued: Issued, instances: Instances) -> Clocks:
    """Offsets of each group's clocks from their median, by the collectives of that group which all its ranks ran.

    The offset of a rank is the median of (its end - the median end over ranks). A second pass takes the median of ends
    that the first has set right, so that far clocks do not decide whose end is in the middle. Refused where the 95th
    percentile of what is left is more than a quarter of that of the skew of the starts: then ends do not fall together
    well enough to tell late from early.
    """
    shape = issued.member.shape
    offset, uncertainty = np.full(shape, np.nan), np.full(shape, np.nan)
    for group in range(shape[0]):
        ranks = np.flatnonzero(issued.active[group])
        calls = _barriers(issued, instances, group, ranks)
        if len(ranks) < 2 or len(calls) < _LEAST_INSTANCES:
            continue
        origin = issued.called.end[calls[0, 0]]
        ends, starts = (
            (issued.called.end[calls] - origin).astype(np.float64),
            (issued.called.start[calls] - origin).astype(np.float64),
        )
        found = _offsets(ends, np.zeros(len(ranks)))
        found = _offsets(ends, found)
        off = _from_middle(ends - found) + found
        skew = np.ptp(starts - found, axis=1)
        if np.percentile(np.abs(off - found), 95) <= _WELL_BELOW * np.percentile(skew, 95):
            offset[group, ranks], uncertainty[group, ranks] = found, _half_width(off)
    return Clocks(offset, uncertainty)


def _barriers(issued: Issued, instances: Instances, group: int, ranks: NDArray[np.intp]) -> NDArray[np.int64]:
    """int64[B, ranks]: calls of the group's collectives that wait for all and ran on all its ranks."""
    calls = instances.call[instances.group == group][:, ranks]
    calls = calls[(calls >= 0).all(axis=1)]
    ran = (issued.called.start[calls] >= 0).all(axis=1) & np.isin(issued.called.name[calls], BARRIER_LIKE).all(axis=1)
    chosen: NDArray[np.int64] = calls[ran]
    return chosen


def _from_middle(ends: NDArray[np.float64]) -> NDArray[np.float64]:
    """[B, R] ns: each end minus the median end over ranks."""
    middle: NDArray[np.float64] = ends - np.median(ends, axis=1, keepdims=True)
    return middle


def _offsets(ends: NDArray[np.float64], guess: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64[R] ns: median over collectives, the median end being that of ends set right by the guess."""
    found: NDArray[np.float64] = np.median(_from_middle(ends - guess) + guess, axis=0)
    return found - np.median(found)


def _half_width(off: NDArray[np.float64]) -> NDArray[np.float64]:
    """Half of the 95 % interval of a median by order statistics; of the range where so few values have none."""
    ordered, num = np.sort(off, axis=0), len(off)
    low = max(int(np.floor((num - _Z95 * np.sqrt(num)) / 2)), 0)
    width: NDArray[np.float64] = (ordered[num - 1 - low] - ordered[low]) / 2
    return width
