"""Interventions on what the host waits for: syncs, allocations and the data loader."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.causes.removed_waits import LOADER, alike_syncs, kinds_of_waits, sync_keys
from traceq.errors import UsageFault
from traceq.facts.stalls.host_waits import host_waits
from traceq.facts.stalls.syncs import syncs
from traceq.facts.timeline.blocking_copies_and_syncs import SyncKind
from traceq.facts.timeline.call_sites import is_at_line
from traceq.facts.timeline.data_loading import loader_waits
from traceq.frozen import frozen
from traceq.intervals import contains, span_index
from traceq.whatif.intervention import Intervention
from traceq.whatif.job_replay import JobReplay
from traceq.whatif.rank_part import RankPart
from traceq.whatif.weights import Weights

__all__ = ["BalancedLoader", "WithoutLoader", "WithoutSyncs"]

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_MOST_LINES = 8


@frozen
class WithoutSyncs(Intervention):
    """No wait of the host for the device, or none at one line; a copy stays, and costs what a launch does.

    With `key`, none of one row of the table `syncs`.
    """

    line: str = ""
    key: str = ""
    held = "a copy without its wait costs the host what a launch does, and nothing on the device waits instead"

    @property
    def option(self) -> str:
        return f"--without sync:{self.line}" if self.line else "--without syncs"

    @property
    def words(self) -> str:
        return f"without the sync at {self.line}" if self.line else "without its syncs"

    def apply(self, replay: JobReplay, weights: Weights, *, most: bool) -> None:
        removed = [self._removed(part) for part in replay.parts]
        if not any(of_rank.any() for of_rank in removed):
            raise UsageFault(self._nothing(replay))
        _remove_waits(replay, weights, removed)

    def _removed(self, part: RankPart) -> Mask:
        """Return bool[H]: the waits of a rank that are removed."""
        is_sync = kinds_of_waits(part.trace) >= 0
        if self.key:
            keys, call = sync_keys(part.trace), host_waits(part.trace).call
            is_of_row = np.array([key == self.key for key in keys], np.bool_)[alike_syncs(part.trace).group_ids]
            selected: Mask = is_sync & np.r_[is_of_row, False][call]
            return selected
        if not self.line:
            return is_sync
        texts, line = _sync_lines(part)
        is_there = np.array([*(is_at_line(text, self.line) for text in texts), False], np.bool_)
        return is_sync & is_there[line]

    def held_in(self, replay: JobReplay) -> str:
        """Return what is held fixed, and which of the waits are calls of the allocator."""
        calls, num = dict[str, None](), 0
        for part in replay.parts:
            events, waits = part.trace.events, syncs(part.trace)
            removed = np.flatnonzero(self._removed(part) & _in_counted_step(part))
            rows = waits.rows[host_waits(part.trace).call[removed]]
            allocates = np.isin(rows, waits.rows[waits.kind == SyncKind.ALLOC])
            calls |= dict.fromkeys(events.strings[name] for name in np.unique(events.name[rows[allocates]]).tolist())
            num += int(np.count_nonzero(allocates))
        if not num:
            return self.held
        are = "is an allocation" if num == 1 else "are allocations"
        return f"{self.held}. {num:,} of these waits {are} ({', '.join(sorted(calls))}), not made at all"

    def _nothing(self, replay: JobReplay) -> str:
        if not self.line:
            return "--without syncs: the host waits for the device nowhere in these steps"
        lines: dict[str, None] = {}
        for part in replay.parts:
            texts, line = _sync_lines(part)
            of_syncs = np.unique(line[(kinds_of_waits(part.trace) >= 0) & (line >= 0)])
            lines |= {texts[number].partition(" ")[0]: None for number in of_syncs.tolist() if texts[number]}
        there = ", ".join(list(lines)[:_MOST_LINES]) or "none with a line (with_stack=True records them)"
        return f"--without sync:{self.line}: no sync of a step is there; the syncs: {there}"


@frozen
class WithoutLoader(Intervention):
    """No wait for the data loader."""

    held = "the workers of the data loader keep up"

    @property
    def option(self) -> str:
        return "--without loader"

    @property
    def words(self) -> str:
        return "without its waits for the data loader"

    def apply(self, replay: JobReplay, weights: Weights, *, most: bool) -> None:
        if not any(len(loader_waits(part.trace)) for part in replay.parts):
            raise UsageFault("--without loader: no wait for a data loader is recorded")
        _remove_waits(replay, weights, [kinds_of_waits(part.trace) == LOADER for part in replay.parts])
        for index, part in enumerate(replay.parts):
            if not (part.hold >= 0).any():
                weights.scale_host(index, [loader_waits(part.trace)], 0)


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
        if len(replay.parts) == 1:
            raise UsageFault(f"{self.option}: there is one rank, {replay.ranks[0]}; give all ranks")
        waits = [_loader_waits_by_step(part) for part in replay.parts]
        common = sorted(set.intersection(*(set(of_rank) for of_rank in waits)))
        if not common:
            raise UsageFault(f"{self.option}: no step in which every rank waits for its data loader once is recorded")
        wait = np.array([[of_rank[number] for number in common] for of_rank in waits])
        duration = wait[:, :, 1] - wait[:, :, 0]
        for index, factor in enumerate(duration.mean(axis=0) / duration):
            if (replay.parts[index].hold >= 0).any():
                _scale_waits(replay, weights, index, wait[index, :, 0], factor)
            else:
                weights.scale_host(index, [wait[index]], factor)


def _sync_lines(part: RankPart) -> tuple[tuple[str, ...], Ints]:
    """Return (lines; int64[H] that of each wait of the host, -1 for the data loader's)."""
    call, origin = host_waits(part.trace).call, syncs(part.trace).origin
    return origin.texts, np.where(call >= 0, np.r_[origin.line, -1][call], -1)


def _remove_waits(replay: JobReplay, weights: Weights, removed: list[Mask]) -> None:
    """Take time from the waits that begin in a counted step."""
    for index, (part, of_rank) in enumerate(zip(replay.parts, removed, strict=True)):
        chosen = of_rank & _in_counted_step(part)
        edges = np.flatnonzero((part.hold >= 0) & np.r_[chosen, False][part.hold])
        view = weights.of_rank(index)
        view[edges] = np.minimum(view[edges], part.without[edges])


def _in_counted_step(part: RankPart) -> Mask:
    """Return bool[H]: the waits of the host that begin in a counted step."""
    return contains(part.counted_on_host, host_waits(part.trace).start)


def _scale_waits(replay: JobReplay, weights: Weights, index: int, start: Ints, factor: NDArray[np.float64]) -> None:
    """Multiply the waits of a rank that begin at some times."""
    part = replay.parts[index]
    of_wait = np.ones(len(host_waits(part.trace)) + 1)
    wait = np.searchsorted(start, host_waits(part.trace).start)
    is_one = np.r_[start, -1][wait] == host_waits(part.trace).start
    of_wait[:-1] = np.where(is_one & (host_waits(part.trace).call < 0), np.r_[factor, 1.0][wait], 1.0)
    edges = np.flatnonzero(part.hold >= 0)
    view = weights.of_rank(index)
    view[edges] = np.rint(np.maximum(view[edges], 0) * of_wait[part.hold[edges]]) + np.minimum(view[edges], 0)


def _loader_waits_by_step(part: RankPart) -> dict[int, tuple[int, int]]:
    """Return (start, end) of the wait for the data loader of each counted step that has one, and not several."""
    waits = loader_waits(part.trace)
    numbers, first, num = np.unique(
        span_index(part.counted_on_host, waits[:, 0]), return_index=True, return_counts=True
    )
    alone = (numbers >= 0) & (num == 1)
    rows = zip(numbers[alone].tolist(), first[alone].tolist(), strict=True)
    return {number: (int(waits[row, 0]), int(waits[row, 1])) for number, row in rows}
