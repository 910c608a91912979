"""Lines of the user's code, from the Python frames of one file and the forward ops of its backward ones."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from .reader import Event, Trace, integer

__all__ = ["forward_starts", "open_frames", "user_line"]

FRAME = re.compile(r"(.*\.py)\((\d+)\): (.*)")
PASSES_ON = {"torch", "torch_xla", "accelerate", "tqdm", "multiprocessing", "concurrent", "asyncio", "importlib"}
PASSES_ON |= {"numpy"}
GENERATED = re.compile(r"c[a-z2-7]{42,}\.py")
"""A file that Inductor wrote, in a folder of the two letters that follow the first."""
OF_PYTHON = {"threading", "contextlib", "functools", "runpy", "typing", "weakref", "warnings", "inspect", "abc", "enum"}
OF_PYTHON |= {"dataclasses", "copy"}
Line = tuple[str, int, str]


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
