"""What is true of every instant of a simulated rank: found by looking at what runs, and why what comes next does not.

None of this reads the trace: it knows the causes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from .program import MAIN, RUNLOOP
from .timeline import Block, Timeline, Work

IDLE = ("sync_wait", "alloc_wait", "host_bound", "compiling", "launch_latency", "tail")
_RUNS = (("kernel", "compute"), ("comm", "exposed_comm"), ("memcpy", "exposed_memcpy"))


@dataclass(frozen=True)
class Piece:
    """A stretch between two neighbouring changes: `owner` runs, or comes next; the host waits in `block`."""

    start: int
    end: int
    phase: str
    category: str
    owner: Work | None = None
    block: Block | None = None

    @property
    def ns(self) -> int:
        return self.end - self.start


def windows(timeline: Timeline) -> list[tuple[int, int]]:
    """[E_k-1, E_k) of every step, of the only one up to the end of its host; the host's steps where one is empty."""
    works = [work for work in timeline.works if work.stream != RUNLOOP]
    if not works:
        return timeline.steps
    ends = [[work.end for work in works if work.call.start < end] for _, end in timeline.steps]
    if len(timeline.steps) == 1:
        ends[0].append(timeline.steps[0][1])
    edges = [timeline.steps[0][0], *(max(selected, default=timeline.steps[0][0]) for selected in ends)]
    result = list(pairwise(edges))
    return result if all(start < end for start, end in result) else timeline.steps


def pieces(timeline: Timeline) -> list[Piece]:
    """All of them, from the first change to the last."""
    edges = {edge for window in windows(timeline) for edge in window} | {timeline.end}
    edges |= {edge for work in timeline.works for edge in (work.start, work.end, work.call.end)}
    edges |= {edge for block in timeline.blocks for edge in (block.start, block.end)}
    edges |= {edge for _, _, *layer in timeline.layers for edge in layer}
    return [_category(timeline, start, end) for start, end in pairwise(sorted(edges))]


def _category(timeline: Timeline, start: int, end: int) -> Piece:
    running = [work for work in timeline.works if work.start <= start < work.end]
    for of, category in _RUNS:
        if selected := [work for work in running if work.category == of]:
            owner = min(selected, key=lambda work: work.start)
            return Piece(start, end, owner.call.phase, category, owner)
    here = timeline.phase_at(start)
    upcoming = min((work for work in timeline.works if work.start > start), key=lambda work: work.start, default=None)
    if upcoming is None:
        return Piece(start, end, here, "compiling" if here == "compiling" else "tail")
    if (block := _waits_in(timeline, start, upcoming)) is not None:
        return Piece(start, end, here, "alloc_wait" if block.kind == "alloc" else "sync_wait", upcoming, block)
    if start < upcoming.call.end:
        return Piece(start, end, here, "compiling" if here == "compiling" else "host_bound", upcoming)
    return Piece(start, end, upcoming.call.phase, "launch_latency", upcoming)


def _waits_in(timeline: Timeline, instant: int, upcoming: Work) -> Block | None:
    """The call that keeps the host from launching what comes next."""
    for block in timeline.blocks:
        is_open = block.start <= instant < block.end and block.thread in (MAIN, upcoming.call.thread)
        if is_open and block.start < upcoming.call.start and block.end <= upcoming.start:
            return block
    return None


def partition(timeline: Timeline) -> Counter[tuple[int, str, str]]:
    """(step, phase, category) -> ns of every window."""
    cells: Counter[tuple[int, str, str]] = Counter()
    for number, (low, high) in enumerate(windows(timeline)):
        for piece in pieces(timeline):
            if low <= piece.start < high:
                cells[number, piece.phase, piece.category] += piece.ns
    return cells


def idle(timeline: Timeline) -> list[Piece]:
    """The stretches in which nothing runs, each with its cause."""
    return [piece for piece in pieces(timeline) if piece.category in IDLE]
