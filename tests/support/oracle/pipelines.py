"""How the ranks of a pipeline spend their steps, by sweeping every boundary: plain loops over the events of all files.

For traces whose passes are named (`PP:1F0`, `Forward 0`), or are what one rank computes between two messages, on gloo
without a device, or on NCCL with the title of each message. Clocks are corrected by `offset` ns of each rank.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from .reader import Event, Trace, read
from .spans import Span, clip, inside, union

NAMED = re.compile(r"^(PP:(\d+[FBIW]\d+|\(.*OVERLAP_F_B)|(Forward|Backward) \d+)$")
BUBBLE = ("warmup", "steady", "cooldown")
MESSAGE = re.compile(r"^(?:nccl|gloo):(send|recv)\b(?: \d+(?:->|<-)(\d+))?")


@dataclass
class Pass:
    """A pass: its letter, the step it is in, and when it is computed."""

    letter: str
    step: str
    start: int
    end: int


@dataclass
class Message:
    """A message: when it is posted, and when it ends, or its kernel does."""

    way: str
    peer: int
    step: str
    start: int
    end: int
    partner: Message | None = None


@dataclass
class Rank:
    """All times of one rank by the common clock."""

    steps: list[tuple[str, int, int]]
    passes: list[Pass]
    messages: list[Message]
    computing: list[Span]


def spent(paths: list[Path], offset: list[int]) -> list[dict[str, float]]:
    """Mean ns of a step in passes, warmup, steady, cooldown, wait, transfer and other, for each rank."""
    ranks = [rank_of(path, shift) for path, shift in zip(paths, offset, strict=True)]
    match(ranks)
    active: dict[str, list[Span]] = defaultdict(list)
    for rank in ranks:
        for each in rank.passes:
            active[each.step].append((each.start, each.end))
    whole = union([(min(a for a, _ in s), max(b for _, b in s)) for step, s in active.items() if step])
    return [spent_by(rank, whole) for rank in ranks]


def bubble_ns(paths: list[Path]) -> float:
    """The bubble of a pipeline whose ranks share a clock: ns of a mean step, mean over ranks."""
    of_ranks = spent(paths, [0] * len(paths))
    return sum(ns for rank in of_ranks for part, ns in rank.items() if part in BUBBLE) / len(paths)


def match(ranks: list[Rank]) -> None:
    """Give each message its partner: the k-th of a sender and receiver in a step, if both have as many."""
    lanes: dict[tuple[int, int, str], dict[str, list[Message]]] = defaultdict(lambda: defaultdict(list))
    for number, rank in enumerate(ranks):
        for each in rank.messages:
            ends = (number, each.peer) if each.way == "send" else (each.peer, number)
            lanes[(*ends, each.step)][each.way].append(each)
    for lane in lanes.values():
        if len(lane["send"]) == len(lane["recv"]):
            for send, recv in zip(lane["send"], lane["recv"], strict=True):
                send.partner, recv.partner = recv, send


def rank_of(path: Path, offset: int) -> Rank:
    trace = read(path)
    info = trace.meta["distributedInfo"]
    shift = int(trace.meta.get("baseTimeNanoseconds", 0)) - offset
    items = computed(trace)
    messages = all_messages(trace, info["rank"], info["world_size"])
    passes = named(trace, items, messages) or between_messages(trace, items, messages)
    for each in (*passes, *messages):
        each.start, each.end = each.start + shift, each.end + shift
    steps = [(name, start + shift, end + shift) for name, start, end in windows(trace)]
    return Rank(steps, passes, messages, union([(start + shift, end + shift) for _, start, end, _ in items]))


def windows(trace: Trace) -> list[tuple[str, int, int]]:
    """The host's steps; on a device each ends with the last work launched in it."""
    result, begin = [], None
    for name, start, end in trace.host_steps:
        launched = [op.end for op in trace.device_ops if trace.launches[op.row].start < end]
        stop = max(launched, default=end)
        stop = max(stop, end) if len(trace.host_steps) == 1 else stop
        result.append((name, start if begin is None or not launched else begin, stop))
        begin = stop
    return result


Item = tuple[int, int, int, Event]
"""Issued, start, end, event."""


def computed(trace: Trace) -> list[Item]:
    """Kernels that are no communication; without a device the outermost ops."""
    kernels = [op for op in trace.device_ops if op.cat == "kernel" and "nccl" not in op.name]
    if trace.device_ops:
        return sorted(
            ((trace.launches[op.row].start, op.start, op.end, op) for op in kernels), key=lambda item: item[0]
        )
    ops = sorted((e for e in trace.events if e.cat == "cpu_op"), key=lambda e: (e.start, -e.end))
    outer: dict[Any, int] = {}
    result: list[Item] = []
    for each in ops:
        if each.end > outer.get(each.thread, -1):
            outer[each.thread] = each.end
            if not each.name.startswith(("c10d::", "aten::empty")):
                result.append((each.start, each.start, each.end, each))
    return result


def step_at(trace: Trace, instant: int) -> str:
    return next((name for name, start, end in trace.host_steps if start <= instant < end), "")


def all_messages(trace: Trace, rank: int, num_ranks: int) -> list[Message]:
    """The annotations of sends and receives; the peer by title, by the op around it, or as there is but one other."""
    marks = sorted((e for e in trace.events if MESSAGE.match(e.name)), key=lambda e: (e.start, e.row))
    kernels = sorted((trace.launches[op.row].start, op.start, op.end) for op in trace.device_ops if "nccl" in op.name)
    result = []
    for mark in marks:
        way, title = MESSAGE.match(mark.name).groups()  # type: ignore[union-attr]
        around = [e for e in trace.events if e.name.startswith(f"c10d::{way}") and e.start <= mark.start < e.end]
        peer = int(title) if title else 1 - rank if num_ranks == 2 else int(around[0].args["concrete inputs"][2])
        start, end = around[0].start if around else mark.start, mark.end
        if kernels:
            start, end = next((a, b) for launched, a, b in kernels if launched >= mark.start)
        result.append(Message(way, peer, step_at(trace, mark.start), start, end))
    return result


def named(trace: Trace, items: list[Item], messages: list[Message]) -> list[Pass]:
    """What is computed in each annotation of a pass."""
    result = []
    for mark in sorted((e for e in trace.events if NAMED.match(e.name)), key=lambda e: e.start):
        within = [(start, end) for issued, start, end, _ in items if mark.start <= issued < mark.end]
        letter = "O" if "OVERLAP" in mark.name else re.sub(r"^PP:\d+", "", mark.name)[0]
        start = min((a for a, _ in within), default=mark.end)
        end = max((b for _, b in within), default=mark.end)
        if within and not trace.device_ops:  # Python is part of it
            start = max(mark.start, *(m.end for m in messages if m.way == "recv" and m.end <= start), 0)
            end = min(mark.end, *(m.start for m in messages if m.start >= end), mark.end)
        result.append(Pass(letter, step_at(trace, mark.start), start, end))
    return result


def between_messages(trace: Trace, items: list[Item], messages: list[Message]) -> list[Pass]:
    """What is computed in one pass between two messages or barriers, without pieces below a quarter of the median."""
    posts = [e.start for e in trace.events if MESSAGE.match(e.name) or e.name in ("c10d::barrier", "gloo:barrier")]
    runs: list[tuple[tuple[str, int, str], list[Item]]] = []
    for item in items:
        key = (letter_of(trace, item), sum(post <= item[0] for post in posts), step_at(trace, item[0]))
        if not runs or runs[-1][0] != key:
            runs.append((key, []))
        runs[-1][1].append(item)
    kept: list[tuple[tuple[str, int, str], Pass]] = []
    for key, run in runs:
        if key[0] and lasts(run) >= 0.25 * usual([lasts(r) for k, r in runs if k[0] == key[0]]):
            piece = Pass(key[0], key[2], min(i[1] for i in run), max(i[2] for i in run))
            if kept and kept[-1][0] == key:
                piece.start, piece.end = min(piece.start, kept[-1][1].start), max(piece.end, kept[-1][1].end)
                kept.pop()
            kept.append((key, piece))
    return [piece for _, piece in kept]


def lasts(run: list[Item]) -> int:
    return sum(end - start for _, start, end, _ in run)


def usual(lengths: list[int]) -> int:
    """The length in which the middle of their sum is."""
    reached = 0
    for length in sorted(lengths):
        reached += length
        if 2 * reached >= sum(lengths):
            return length
    return 0


def letter_of(trace: Trace, item: Item) -> str:
    """B in the autograd engine, F elsewhere in a step, "" in the optimizer."""
    issued = item[0]
    around = [e for e in trace.events if e.start <= issued < e.end and e.cat in ("cpu_op", "annotation")]
    if any(e.name.startswith("Optimizer.") for e in around) or not step_at(trace, issued):
        return ""
    return "B" if any(e.name.startswith("autograd::engine") for e in around) else "F"


def spent_by(rank: Rank, active: list[Span]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    busy = union([span for each in rank.passes for span in busy_in(rank, each)])
    for step, start, end in rank.steps:
        for label, ns in sweep(rank, step, start, end, busy, active).items():
            sums[label] += ns / len(rank.steps)
    return sums


def busy_in(rank: Rank, each: Pass) -> list[Span]:
    """A pass; one of a forward and a backward without the gaps in which a message arrives."""
    if each.letter != "O":
        return [(each.start, each.end)]
    edges = sorted({each.start, each.end, *(t for s in clip(rank.computing, each.start, each.end) for t in s)})
    parts = list(pairwise(edges))
    arrivals = [message.end for message in rank.messages if message.way == "recv"]
    return [(a, b) for a, b in parts if inside(rank.computing, a) or not any(a < t <= b for t in arrivals)]


def sweep(rank: Rank, step: str, start: int, end: int, busy: list[Span], active: list[Span]) -> dict[str, int]:
    """Time of a step, ns, by what the rank does between each two neighbouring boundaries."""
    taken = union(busy + rank.computing)
    free = gaps(taken, start, end)
    waits, moves = blocking(rank, free)
    first = min((p.start for p in rank.passes if p.step == step and p.letter in "BIO"), default=end)
    last = max((p.end for p in rank.passes if p.step == step and p.letter in "FO"), default=start)
    edges = {start, end, first, max(first, last)}
    edges |= {t for spans in (busy, taken, active, waits, moves) for span in clip(spans, start, end) for t in span}
    result: dict[str, int] = defaultdict(int)
    ordered = sorted(t for t in edges if start <= t <= end)
    for a, b in pairwise(ordered):
        is_waiting = inside(waits, a)
        if inside(busy, a):
            result["passes"] += b - a
        elif inside(taken, a):
            result["other"] += b - a
        elif inside(moves, a) and not is_waiting:
            result["transfer"] += b - a
        elif is_waiting or inside(active, a):
            result["warmup" if a < first else "cooldown" if a >= max(first, last) else "steady"] += b - a
            result["wait"] += (b - a) * is_waiting
        else:
            result["other"] += b - a
    assert sum(result.values()) - result["wait"] == end - start
    return result


def gaps(taken: list[Span], start: int, end: int) -> list[Span]:
    edges = [start, *(t for span in clip(taken, start, end) for t in span), end]
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]


def blocking(rank: Rank, free: list[Span]) -> tuple[list[Span], list[Span]]:
    """(waits for the other side, transfers) of the messages that end while nothing is computed, since then."""
    waits, moves = [], []
    for message in rank.messages:
        for a, b in free:
            if message.partner is not None and a < message.end <= b:
                both = min(max(message.start, message.partner.start), message.end)
                done = max(min(message.end, message.partner.end), both)
                waits.append((max(message.start, a), both))
                moves.append((max(both, message.start, a), done))
    return union(waits), union(moves)
