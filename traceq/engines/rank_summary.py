"""One rank: read, and all that is kept of it as bytes. What a worker does, wherever it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, get_type_hints

from traceq.analysis.registry import analysis
from traceq.engines.codec import pack
from traceq.errors import UnreadableInput
from traceq.facts.comm.rank_collectives import own_calls
from traceq.facts.ranks.rank_outline import head, outline
from traceq.facts.timeline.single_step import cut_to_step
from traceq.facts.timeline.steps import steps
from traceq.locations import Place
from traceq.model import Trace
from traceq.runs.read import read_one
from traceq.runs.single_step import numbers_of

__all__ = ["RankSummary", "answers", "part_type", "summarize"]

A = TypeVar("A")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RankSummary:
    """What is left of one trace, each piece as bytes: `head` the trace without events; `outline`, `calls` what ranks
    are compared by; `parts` (name of the analysis, its summary).
    """

    head: bytes
    outline: bytes
    calls: bytes
    parts: tuple[tuple[str, bytes], ...]

    @property
    def names(self) -> frozenset[str]:
        """The analyses that it serves."""
        return frozenset(name for name, _ in self.parts)

    def part(self, name: str) -> bytes:
        """The summary of one of them."""
        return next(part for known, part in self.parts if known == name)


def summarize(path: Place, names: Sequence[str], strict: bool, step: int | None) -> RankSummary | UnreadableInput:
    """Read one trace, and let go of its events; a fault is what is known of it, too. Of a trace that lacks the step
    asked for, no more than its outline counts.
    """
    try:
        trace = _cut(read_one(path, strict=strict), step)
        return RankSummary(
            head=pack(head(trace)),
            outline=pack(outline(trace)),
            calls=pack(own_calls(trace)),
            parts=tuple((name, pack(analysis(name).summarize(trace))) for name in names),
        )
    except UnreadableInput as fault:
        return fault
    except MemoryError:
        return UnreadableInput(str(path), "too little memory to read it")


def answers(
    path: Place, strict: bool, step: int | None, question: Callable[[Trace, A], T], asked: Sequence[A]
) -> list[T]:
    """Read one trace again, and ask it something. Raises UnreadableInput."""
    trace = _cut(read_one(path, strict=strict), step)
    return [question(trace, what) for what in asked]


def _cut(trace: Trace, step: int | None) -> Trace:
    return trace if step is None or step not in numbers_of(steps(trace)) else cut_to_step(trace, step)


@cache
def part_type(name: str) -> Any:
    """The type of what an analysis keeps of a rank."""
    return get_type_hints(analysis(name).summarize)["return"]
