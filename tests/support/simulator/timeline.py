"""What happened on one rank, by the true clock, ns: rows, calls, device work, and what kept the host."""

from __future__ import annotations

from dataclasses import dataclass, field

from .program import Collective


@dataclass
class Call:
    """A runtime call."""

    name: str
    start: int
    end: int
    thread: int
    correlation: int
    external_id: int
    phase: str
    waits_on: tuple[str, int, int] | None = None
    """What a synchronize waits for: (kind, stream, correlation of the event's record)."""


@dataclass(eq=False)
class Work:
    """What a stream runs: `category` kernel, memcpy or comm."""

    category: str
    name: str
    stream: int
    call: Call
    ready: int
    ns: int
    behind: tuple[Work, ...]
    step: int
    size: int = 0
    meeting: Meeting | None = None
    start: int = -1
    end: int = -1


@dataclass(eq=False)
class Meeting:
    """One collective among ranks: over when all who were to come have come."""

    expected: int
    works: dict[int, Work] = field(default_factory=dict)
    transfer: int = 0
    late: dict[int, int] = field(default_factory=dict)


@dataclass
class Block:
    """A call that keeps the host, [start, end): what it waits for is over at `awaited`, -1 if there is nothing."""

    kind: str
    call: Call
    start: int
    end: int
    thread: int
    awaited: int
    op: str
    line: str
    module: str
    phase: str
    size: int = 0


@dataclass
class Row:
    """A host row of any other kind."""

    category: str
    name: str
    start: int
    end: int
    thread: int
    external_id: int = 0


@dataclass
class Issue:
    """A collective as one rank issued it."""

    what: Collective
    start: int
    end: int
    thread: int
    external_id: int
    step: int
    place: int
    sequence: int
    phase: str
    work: Work


@dataclass
class Timeline:
    """What one rank did. `layers`: (priority, phase, start, end), the least priority decides what an instant is in."""

    rank: int
    steps: list[tuple[int, int]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    issues: list[Issue] = field(default_factory=list)
    memory: list[tuple[int, int, int]] = field(default_factory=list)
    layers: list[tuple[int, str, int, int]] = field(default_factory=list)

    @property
    def end(self) -> int:
        """When the last thing that host or device did is over."""
        return max([end for _, end in self.steps] + [work.end for work in self.works] + [one.end for one in self.calls])

    def phase_at(self, instant: int) -> str:
        """What the main thread is in."""
        open_now = [layer[:2] for layer in self.layers if layer[2] <= instant < layer[3]]
        return min(open_now, default=(0, "other"))[1]
