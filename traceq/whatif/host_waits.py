"""Interventions on what the host waits for: syncs, allocations and the data loader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.causes.removed_waits import LOADER, alike_syncs, is_for_pageable_copy, kinds_of_waits, sync_keys
from traceq.errors import UsageFault
from traceq.facts.stalls.host_waits import host_waits
from traceq.facts.stalls.syncs import SYNC_KINDS, syncs
from traceq.facts.timeline.blocking_copies_and_syncs import SyncKind
from traceq.facts.timeline.call_sites import is_at_line
from traceq.facts.timeline.data_loading import loader_waits
from traceq.frozen import frozen
from traceq.intervals import contains, span_index
from traceq.whatif.intervention import Intervention, RankIntervention
from traceq.whatif.job_replay import JobReplay
from traceq.whatif.rank_part import RankPart
from traceq.whatif.weights import RankWeights, Weights

__all__ = ["BalancedLoader", "ScaledLoader", "WithoutLoader", "WithoutSyncs", "loader_waits_by_step"]

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_MOST_LINES = 8


@frozen
class WithoutSyncs(RankIntervention):
    """No wait of the host for the device, or none at one line; a copy stays, and costs what a launch does.

    With `keys`, none of some rows of the table `syncs`; with `kind`, none of one of the SYNC_KINDS; with `is_pageable`,
    none for a copy from pageable memory to the device.
    """

    line: str = ""
    keys: tuple[str, ...] = ()
    kind: str = ""
    is_pageable: bool = False
    held = "a copy without its wait costs the host what a launch does, and nothing on the device waits instead"

    @property
    def option(self) -> str:
        return f"--without sync:{self.line}" if self.line else "--without syncs"

    @property
    def words(self) -> str:
        return f"without the sync at {self.line}" if self.line else "without its syncs"

    def is_in(self, part: RankPart) -> bool:
        return bool(self._removed(part).any())

    def nearest(self, part: RankPart) -> tuple[str, ...]:
        texts, line = _sync_lines(part)
        of_syncs = np.unique(line[(kinds_of_waits(part.trace) >= 0) & (line >= 0)])
        return tuple(dict.fromkeys(texts[number].partition(" ")[0] for number in of_syncs.tolist() if texts[number]))

    def nothing(self, nearest: Sequence[str]) -> str:
        if not self.line:
            return "--without syncs: the host waits for the device nowhere in these steps"
        there = ", ".join(nearest[:_MOST_LINES]) or "none with a line (with_stack=True records them)"
        return f"--without sync:{self.line}: no sync of a step is there; the syncs: {there}"

    def change(self, part: RankPart, weights: RankWeights, *, most: bool) -> None:
        _remove_waits(part, weights, self._removed(part))

    def _removed(self, part: RankPart) -> Mask:
        """Return bool[H]: the waits of a rank that are removed."""
        if self.is_pageable:
            return is_for_pageable_copy(part.trace)
        kinds = kinds_of_waits(part.trace)
        is_sync = kinds >= 0 if not self.kind else kinds == SYNC_KINDS.index(self.kind)
        if self.keys:
            call = host_waits(part.trace).call
            is_row = np.array([key in self.keys for key in sync_keys(part.trace)], np.bool_)
            selected: Mask = is_sync & np.r_[is_row[alike_syncs(part.trace).group_ids], False][call]
            return selected
        if not self.line:
            return is_sync
        texts, line = _sync_lines(part)
        is_there = np.array([*(is_at_line(text, self.line) for text in texts), False], np.bool_)
        return is_sync & is_there[line]

    def allocations(self, part: RankPart) -> Counter[str]:
        events, waits = part.trace.events, syncs(part.trace)
        removed = np.flatnonzero(self._removed(part) & _in_counted_step(part))
        rows = waits.rows[host_waits(part.trace).call[removed]]
        names = events.name[rows[np.isin(rows, waits.rows[waits.kind == SyncKind.ALLOC])]]
        return Counter(events.strings[name] for name in names.tolist())

    def held_with(self, allocations: Mapping[str, int]) -> str:
        """Return what is held fixed, and which of the waits are calls of the allocator."""
        num = sum(allocations.values())
        if not num:
            return self.held
        are = "is an allocation" if num == 1 else "are allocations"
        return f"{self.held}. {num:,} of these waits {are} ({', '.join(sorted(allocations))}), not made at all"


@frozen
class WithoutLoader(RankIntervention):
    """No wait for the data loader."""

    held = "the workers of the data loader keep up"

    @property
    def option(self) -> str:
        return "--without loader"

    @property
    def words(self) -> str:
        return "without its waits for the data loader"

    def is_in(self, part: RankPart) -> bool:
        return len(loader_waits(part.trace)) > 0

    def nothing(self, nearest: Sequence[str]) -> str:
        return f"{self.option}: no wait for a data loader is recorded"

    def change(self, part: RankPart, weights: RankWeights, *, most: bool) -> None:
        _remove_waits(part, weights, kinds_of_waits(part.trace) == LOADER)
        if not len(part.held):
            weights.scale_host([loader_waits(part.trace)], 0)


@frozen
class BalancedLoader(Intervention):
    """Each rank's wait for the data loader takes as long as the mean of all ranks' in that step."""

    held = "the data loaders of all ranks together do as much work"

    @property
    def option(self) -> str:
        return "--balance-loader"

    @property
    def words(self) -> str:
        return "with its data loaders balanced"

    def apply(self, replay: JobReplay, weights: Weights, *, most: bool) -> None:
        scaled = self.of_ranks(replay.ranks, [loader_waits_by_step(part) for part in replay.parts])
        for part, of_rank, change in zip(replay.parts, weights.ranks, scaled, strict=True):
            change.change(part, of_rank, most=most)

    def of_ranks(self, ranks: Sequence[int], waits: Sequence[Mapping[int, tuple[int, int]]]) -> list[ScaledLoader]:
        """Return the change of each rank, by the waits for its data loader. Raises UsageFault."""
        if len(ranks) == 1:
            raise UsageFault(f"{self.option}: there is one rank, {ranks[0]}; give all ranks")
        common = sorted(set.intersection(*(set(of_rank) for of_rank in waits)))
        if not common:
            raise UsageFault(f"{self.option}: no step in which every rank waits for its data loader once is recorded")
        wait = np.array([[of_rank[number] for number in common] for of_rank in waits])
        duration = wait[:, :, 1] - wait[:, :, 0]
        factors = duration.mean(axis=0) / duration
        return [
            ScaledLoader(tuple(map(tuple, spans.tolist())), tuple(factor.tolist()))
            for spans, factor in zip(wait, factors, strict=True)
        ]


@frozen
class ScaledLoader(RankIntervention):
    """Some waits of one rank for its data loader, (start, end) ns each, take `factors` of their time."""

    waits: tuple[tuple[int, ...], ...]
    factors: tuple[float, ...]
    held = BalancedLoader.held

    @property
    def option(self) -> str:
        return BalancedLoader().option

    @property
    def words(self) -> str:
        return BalancedLoader().words

    def is_in(self, part: RankPart) -> bool:
        return len(self.waits) > 0

    def nothing(self, nearest: Sequence[str]) -> str:
        return f"{self.option}: no wait for a data loader is recorded"

    def change(self, part: RankPart, weights: RankWeights, *, most: bool) -> None:
        waits, factors = np.array(self.waits), np.array(self.factors)
        if len(part.held):
            _scale_waits(part, weights.edges, waits[:, 0], factors)
        else:
            weights.scale_host([waits], factors)


def _sync_lines(part: RankPart) -> tuple[tuple[str, ...], Ints]:
    """Return (lines; int64[H] that of each wait of the host, -1 for the data loader's)."""
    call, origin = host_waits(part.trace).call, syncs(part.trace).origin
    return origin.texts, np.where(call >= 0, np.r_[origin.line, -1][call], -1)


def _remove_waits(part: RankPart, weights: RankWeights, removed: Mask) -> None:
    """Take time from the waits that begin in a counted step."""
    chosen = removed & _in_counted_step(part)
    is_removed = chosen[part.hold]
    edges = part.held[is_removed]
    weights.edges[edges] = np.minimum(weights.edges[edges], part.without[is_removed])


def _in_counted_step(part: RankPart) -> Mask:
    """Return bool[H]: the waits of the host that begin in a counted step."""
    return contains(part.counted_on_host, host_waits(part.trace).start)


def _scale_waits(part: RankPart, view: Ints, start: Ints, factor: NDArray[np.float64]) -> None:
    """Multiply the waits of a rank that begin at some times."""
    wait = np.searchsorted(start, host_waits(part.trace).start)
    is_one = np.r_[start, -1][wait] == host_waits(part.trace).start
    of_wait = np.where(is_one & (host_waits(part.trace).call < 0), np.r_[factor, 1.0][wait], 1.0)
    edges = part.held
    view[edges] = np.rint(np.maximum(view[edges], 0) * of_wait[part.hold]) + np.minimum(view[edges], 0)


def loader_waits_by_step(part: RankPart) -> dict[int, tuple[int, int]]:
    """Return (start, end) of the wait for the data loader of each counted step that has one, and not several."""
    waits = loader_waits(part.trace)
    numbers, first, num = np.unique(
        span_index(part.counted_on_host, waits[:, 0]), return_index=True, return_counts=True
    )
    alone = (numbers >= 0) & (num == 1)
    rows = zip(numbers[alone].tolist(), first[alone].tolist(), strict=True)
    return {number: (int(waits[row, 0]), int(waits[row, 1])) for number, row in rows}
