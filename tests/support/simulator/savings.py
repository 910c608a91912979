"""What the blocking calls of a simulated job cost: what the device then lacks, and what a run without one gains."""

from __future__ import annotations

from dataclasses import replace

from .instants import IDLE, idle
from .machine import simulate
from .program import Job
from .timeline import Block, Timeline


def wait(block: Block) -> int:
    """Ns until what the call waits for is over."""
    return max(0, block.awaited - block.start)


def starved(timeline: Timeline, block: Block) -> int:
    """Ns in which the device idles after that, to the first start of what was launched after the call, or to the
    thread's next blocking call; of an allocation, inside it.
    """
    return _idle_after(timeline, block, IDLE)


def cost(timeline: Timeline, block: Block) -> int:
    """The part of it that the host caused, at most what it was blocked."""
    return min(block.end - block.start, _idle_after(timeline, block, IDLE[:3]))


def saving(job: Job, rank: int, number: int) -> int:
    """How much earlier the job is through if a rank's n-th blocking call takes no time: the program is run again."""
    without = replace(job, at_once=job.at_once | {(rank, number)})
    return finish(simulate(job)) - finish(simulate(without))


def finish(timelines: list[Timeline]) -> int:
    """When the last host and the last device are through with their steps."""
    ends = [[end for _, end in timeline.steps] + [work.end for work in timeline.works] for timeline in timelines]
    return max(map(max, ends))


def _idle_after(timeline: Timeline, block: Block, categories: tuple[str, ...]) -> int:
    first = min((work.start for work in timeline.works if work.call.start >= block.end), default=timeline.end)
    after = [one.start for one in timeline.blocks if one.start > block.start and one.thread == block.thread]
    since = max(block.start, block.awaited)
    low, high = (block.start, block.end) if block.kind == "alloc" else (since, min([first, *after]))
    gaps = [gap for gap in idle(timeline) if gap.category in categories]
    return sum(max(0, min(gap.end, high) - max(gap.start, low)) for gap in gaps)
