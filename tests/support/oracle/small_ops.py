"""Lines that run many small ops, from the Python frames and the ops of the main thread of one file."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from .nested import Nested
from .phases import Phases
from .reader import Event, Trace, integer, read
from .spans import Span, inside, union
from .steps import windows

__all__ = ["SmallOps", "small_ops"]

FRAME = re.compile(r"(.*\.py)\((\d+)\): (.*)")
PASSES_ON = {"torch", "torch_xla", "accelerate", "tqdm", "multiprocessing", "concurrent", "asyncio", "importlib"}
PASSES_ON |= {"numpy"}
GENERATED = re.compile(r"c[a-z2-7]{42,}\.py")
"""A file that Inductor wrote, in a folder of the two letters that follow the first."""
OF_PYTHON = {"threading", "contextlib", "functools", "runpy", "typing", "weakref", "warnings", "inspect", "abc", "enum"}
OF_PYTHON |= {"dataclasses", "copy"}
Line = tuple[str, int, str]


@dataclass(frozen=True)
class SmallOps:
    """Lines of one function, in a mean step: their ops and the ns of these, and all ns with backward."""

    file: str
    function: str
    lines: list[int]
    num: float
    forward_ns: float
    ns: float


def small_ops(path: Path, many: int = 200, longest_ns: int = 50_000) -> SmallOps | None:
    """The function whose lines with at least so many ops, of at most that mean time, take the most time."""
    trace = read(path)
    steps = [(row["start_ns"], row["end_ns"]) for row in windows(trace, Phases(trace), None) if not row["partial"]]
    num: Counter[Line] = Counter()
    forward, every = Counter[Line](), Counter[Line]()
    starts_backward = set()
    for piece in pieces(trace, steps):
        every[piece.line] += piece.ns
        if piece.is_backward:
            continue
        forward[piece.line] += piece.ns
        num[piece.line] += piece.begins
        if piece.op.startswith("autograd::engine"):
            starts_backward.add(piece.line)
    functions: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for line in num:
        is_many = num[line] >= many * len(steps) and forward[line] <= longest_ns * num[line]
        if is_many and line not in starts_backward:
            functions[line[0], line[2]].append(line)
    if not functions:
        return None
    lines = max(functions.values(), key=lambda lines: sum(every[line] for line in lines))
    total = {name: sum(of[line] for line in lines) / len(steps) for name, of in (("f", forward), ("e", every))}
    mean = sum(num[line] for line in lines) / len(steps)
    return SmallOps(lines[0][0], lines[0][2], sorted(line[1] for line in lines), mean, total["f"], total["e"])


@dataclass(frozen=True)
class Piece:
    """A time of the steps in one outermost op at one line; `begins`: the op does."""

    line: Line
    ns: int
    op: str
    begins: bool
    is_backward: bool


def pieces(trace: Trace, steps: list[Span]) -> list[Piece]:
    """All times of the steps that are in an op, at a known line and outside of optimizers."""
    main = [event for event in trace.events if event.thread == trace.main]
    ops = [event for event in main if event.cat == "cpu_op" and not event.name.startswith("ProfilerStep#")]
    frames = Nested([event for event in main if event.cat == "python_function" and user_line(event.name)])
    outermost, backward = Nested(tops(ops)), Nested([op for op in ops if is_backward(op)])
    forward, excluded = forward_starts(trace), updates(trace)
    rows = [*outermost.rows, *backward.rows, *frames.rows]
    edges = sorted({*(edge for e in rows for edge in (e.start, e.end)), *(edge for span in steps for edge in span)})
    parts, step_spans = [], union(steps)
    for start, end in pairwise(edges):
        op = outermost.innermost(start)
        if op is None or not inside(step_spans, start) or inside(excluded, start):
            continue
        differentiates = backward.innermost(start)
        origin = forward.get(differentiates.row) if differentiates else None
        line_of = frames.innermost(origin) if origin is not None else None
        frame = line_of or frames.innermost(start)
        if frame is not None and (line := user_line(frame.name)):
            parts.append(Piece(line, end - start, op.name, op.start == start, line_of is not None))
    return parts


def tops(ops: list[Event]) -> list[Event]:
    """The ops that are in no other."""
    kept: list[Event] = []
    for op in sorted(ops, key=lambda e: (e.start, -e.end, e.row)):
        if not kept or op.start >= kept[-1].end:
            kept.append(op)
    return kept


def user_line(name: str) -> Line | None:
    """File, line and function of a frame that is not of torch, of Python or of what only passes calls on."""
    match = FRAME.fullmatch(name)
    if not match:
        return None
    *folders, file = match[1].split("/")
    is_passing = bool(PASSES_ON & set(folders)) or "traceq/recorder" in match[1] or file[:-3] in OF_PYTHON
    is_of_python = bool(re.search(r"(^|/)lib/python3\.\d+/(?!site-packages|dist-packages)", match[1]))
    is_generated = bool(folders and GENERATED.fullmatch(file) and file[1:3] == folders[-1])
    return None if is_passing or is_of_python or is_generated else (file, int(match[2]), match[3])


def open_frames(trace: Trace) -> set[int]:
    """Rows of the frames in which the profiler was started, each inside the one before it."""
    rows: dict[Any, list[Event]] = defaultdict(list)
    for event in trace.events:
        if event.cat == "python_function":
            rows[event.thread].append(event)
    rows_of_them = set()
    for frames in rows.values():
        frames.sort(key=lambda e: (e.start, -e.end, e.row))
        outer: list[Event] = []
        for frame in frames:
            if outer and frame.end > outer[-1].end:
                break
            if re.match(r"(.*/)?torch/(profiler|autograd)/profiler\.py\(", frame.name):
                rows_of_them |= {event.row for event in outer}
                break
            outer.append(frame)
    return rows_of_them


def is_backward(op: Event) -> bool:
    return integer(op.args.get("fwd thread id"), 0) > 0 and integer(op.args.get("sequence number")) >= 0


def forward_starts(trace: Trace) -> dict[int, int]:
    """Row of a backward op -> when the op that it differentiates began: the last of its number on that thread."""
    ops = [e for e in trace.events if e.cat == "cpu_op" and integer(e.args.get("sequence number")) >= 0]
    threads: dict[Any, dict[int, int]] = defaultdict(dict)
    for op in sorted((op for op in ops if not is_backward(op)), key=lambda e: (e.start, e.row)):
        if integer(op.args.get("fwd thread id"), 0) <= 0:
            threads[op.thread][integer(op.args["sequence number"])] = op.start
    wanted = [(op.row, integer(op.args["sequence number"])) for op in ops if is_backward(op)]
    best = max(threads.values(), key=lambda of: sum(number in of for _, number in wanted), default={})
    return {row: best[number] for row, number in wanted if number in best}


def updates(trace: Trace) -> list[Span]:
    """What is left of each optimizer's step once a backward pass inside it is over."""
    rows = [e for e in trace.events if e.name.startswith("Optimizer.step#")]
    engine = [e for e in trace.events if e.name.startswith("autograd::engine") and e.cat in ("cpu_op", "annotation")]
    return union(
        [(max([row.start, *(e.end for e in engine if row.start <= e.start < row.end)]), row.end) for row in rows]
    )
