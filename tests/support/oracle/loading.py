"""When a loop begins to iterate its data loader, ask by ask: what the main thread does before each first batch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .reader import Event, Trace
from .spans import Span, inside, union

__all__ = ["Iteration", "around_iterations", "iterations"]

ASK = "enumerate(DataLoader)"
CREATION = re.compile(r"(^|/)torch/utils/data/dataloader\.py\(\d+\): _get_iterator$")
END = re.compile(r"(^|/)torch/utils/data/dataloader\.py\(\d+\): _shutdown_workers$")
READS = ("aten::item", "aten::_local_scalar_dense")
DRAWS = {f"aten::{name}" for name in ("empty", "random_", "randperm", "scalar_tensor", "resize_")}
DRAWS |= {"aten::resolve_conj", "aten::resolve_neg"}
A_PROCESS_NS = 1_000_000


@dataclass(frozen=True)
class Iteration:
    """One begin: when the iterator is made; with the end of the one before and the first batch; what it does."""

    made: Span
    whole: Span
    is_again: bool
    starts_workers: bool


def iterations(trace: Trace) -> list[Iteration]:
    """Those of the main thread, in order."""
    main = sorted((e for e in trace.events if e.thread == trace.main), key=lambda e: e.start)
    asks = [e for e in main if e.cat in ("annotation", "cpu_op") and e.name.startswith(ASK)]
    fetching = union([(ask.start, ask.end) for ask in asks])
    ops = [e for e in main if e.cat == "cpu_op" and e.name not in READS and not inside(fetching, e.start)]
    has_frames = any(e.cat == "python_function" for e in trace.events)
    frames = [e for e in main if e.cat == "python_function" and CREATION.search(e.name)]
    begins = []
    for number, ask in enumerate(asks):
        last = asks[number - 1] if number else None
        since = last.end if last else -(2**62)
        between = [op for op in ops if since <= op.start < ask.start]
        made, starts = from_draws(between, ask)
        if has_frames:
            created = [frame for frame in frames if since <= frame.start < ask.start]
            starts = bool(created)
            made = (created[0].start, created[0].end) if created else made
        if made is None:
            continue
        follows = last and all(op.name in DRAWS for op in between if op.start < made[0])
        begin = last.start if last and follows else made[0]
        begins.append(Iteration(made, (begin, ask.end), bool(number), starts and "#_MultiProcess" in ask.name))
    return begins


def around_iterations(trace: Trace) -> list[Span]:
    """When iterators are made, and when the main thread waits for the end of workers."""
    frames = [e for e in trace.events if e.cat == "python_function" and e.thread == trace.main]
    ends = [(frame.start, frame.end) for frame in frames if END.search(frame.name)]
    return [*(iteration.made for iteration in iterations(trace)), *ends]


def from_draws(between: list[Event], ask: Event) -> tuple[Span | None, bool]:
    """The time from the draws before an ask on, if one is of a seed; whether a process could start after that one."""
    draws: list[Event] = []
    for op in between:
        draws = [*draws, op] if op.name in DRAWS else []
    seeds = [op for op in draws if op.name == "aten::random_"]
    if not seeds:
        return None, False
    following = [op.start for op in draws if op.start >= seeds[0].end]  # old ones have another one inside
    return (draws[0].start, ask.start), min([*following, ask.start]) - seeds[0].start >= A_PROCESS_NS
